"""What goes with an export in figures: the finals' ratio and interval, against what, and a tie as a tie."""

import json
from pathlib import Path

import pytest
from test_finals_text import RUNS, ratio, seen
from typer.testing import CliRunner

from offtune.cli import app
from offtune.report.claim import claim_of
from offtune.report.summary import summarise

RECORDED = Path(__file__).parent.parent / "studies.db"


def test_a_clear_winner_is_faster_than_the_baseline():
    claim = claim_of(seen(confirmed_samples_per_s=10.7), RUNS[2])
    assert claim is not None
    assert (claim.against, claim.against_label, claim.verdict) == (0, "your file", "faster")
    assert (claim.times_as_fast, claim.low, claim.high) == pytest.approx((1.34, 1.31, 1.37))
    assert (claim.rounds, claim.is_tie, claim.confirmed_steps) == (3, False, 20)
    assert "1.34 ± 0.03" in claim.text and claim.confirmed_samples_per_s == 10.7


def test_any_other_run_is_held_against_the_winner():
    claim = claim_of(seen(), RUNS[0])
    assert claim is not None
    assert (claim.against, claim.verdict, claim.confirmed_steps) == (2, "slower", None)
    assert (claim.times_as_fast, claim.low, claim.high) == pytest.approx((1 / 1.34, 1 / 1.37, 1 / 1.31))


def test_a_baseline_that_wins_is_held_against_the_next_best():
    claim = claim_of(seen(winner=0, ratios=(ratio(1, 0.99, 0.02), ratio(2, 1.1, 0.02)), tied=(1,)), RUNS[0])
    assert claim is not None
    assert (claim.against, claim.verdict, claim.is_tie) == (1, "unclear", True)


def test_without_finals_nothing_is_claimed():
    assert claim_of(summarise(seen().study, RUNS), RUNS[2]) is None
    assert claim_of(seen(), RUNS[3]) is None
    assert claim_of(seen(ratios=()), RUNS[2]) is None


@pytest.mark.parametrize("study", ["default-search", "landscape"])
def test_the_export_of_a_recorded_study_carries_it_or_null(study):
    done = CliRunner().invoke(app, ["export", study, "--storage", str(RECORDED), "--json"])
    assert done.exit_code == 0, done.output
    claim = json.loads(done.stdout)["claim"]
    if study == "landscape":
        assert claim is None
    else:
        assert claim["low"] < claim["times_as_fast"] < claim["high"] and claim["against_label"] == "stage 2"
