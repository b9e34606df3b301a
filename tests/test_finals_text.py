"""What is said of the finals: the ratio, a tie, what did not hold, and where it is said."""

from __future__ import annotations

import json
from dataclasses import replace

from report_fakes import POINT, make_run, make_study

from offtune.export_note import note_text
from offtune.repeats import Outcome, Plan, Ratio, Rejected, Repeat
from offtune.report.document import document, trial_document
from offtune.report.finals_text import finals_lines, finals_note, finals_verdict, ratio_text
from offtune.report.page import Heading, Table
from offtune.report.result_page import result_page, verdict_text
from offtune.report.study_page import study_page
from offtune.report.study_report import study_report
from offtune.report.study_sections import study_web_report
from offtune.report.summary import Summary, summarise
from offtune.report.trial_page import trial_page
from offtune.trial import Status

PLAN = Plan(finals=1, measured=4, contenders=(1, 2, 3), baseline=0, simplified=2, simple_of=1)
RUNS = (
    make_run(0, samples_per_s=8.0, used_gb=30, origin="baseline", label="your file"),
    make_run(1, samples_per_s=11.0, used_gb=31, point={**POINT, "pin_memory": False}),
    make_run(2, samples_per_s=10.8, used_gb=31),
    make_run(3, samples_per_s=10.9, used_gb=31, point={**POINT, "reduce_bucket_size": 2**24}),
)


def ratio(against: int, value: float, half: float) -> Ratio:
    return Ratio(against=against, value=value, low=value - half, high=value + half)


def seen(**changes) -> Summary:
    fields = {"winner": 2, "rounds": 3, "ratios": (ratio(0, 1.34, 0.03),), "confirmed_steps": 20}
    plan = changes.pop("plan", PLAN)
    outcome = Outcome(plan=replace(plan, contenders=(0, 1, 2, 3)), **{**fields, **changes})
    return summarise(make_study(), RUNS, outcome=outcome)


def lines(summary: Summary) -> str:
    return "\n".join(line.text for line in finals_lines(summary))  # type: ignore[union-attr]


def test_a_ratio_has_the_decimals_its_interval_deserves() -> None:
    assert ratio_text(1.337, 1.307, 1.367) == "1.34 ± 0.03"
    assert ratio_text(1.3371, 1.3351, 1.3391) == "1.337 ± 0.002"


def test_a_clear_gain_is_a_ratio_over_the_own_file() -> None:
    assert finals_verdict(seen()) == "1.34 ± 0.03 times as fast as 'your file' (95 %, 3 rounds in turn)."


def test_what_is_not_clear_is_not_claimed() -> None:
    text = finals_verdict(seen(ratios=(ratio(0, 1.02, 0.04),), rounds=5))
    assert text == "No clear winner: 1.02 ± 0.04 times as fast as 'your file' after 5 rounds in turn."


def test_a_tie_with_the_baseline_is_no_measurable_difference() -> None:
    tie = seen(winner=0, ratios=(ratio(1, 0.99, 0.02), ratio(2, 1.1, 0.02)), tied=(1,))
    assert finals_verdict(tie) == (
        "No measurable difference to 'your file': the fastest other, trial 1, is 1.01 ± 0.02 times as fast "
        "(3 rounds in turn)."
    )
    unclear = seen(winner=0, ratios=(ratio(1, 1.1, 0.2),))
    assert finals_verdict(unclear) == (
        "No clear winner, 'your file' is kept: the fastest other, trial 1, is 0.91 ± 0.17 times as fast "
        "(3 rounds in turn)."
    )
    noisy = seen(winner=0, ratios=(ratio(1, 1.0, 0.3),), tied=(1,))
    assert "No clear winner, 'your file' is kept" in str(finals_verdict(noisy))
    worse = seen(winner=0, ratios=(ratio(1, 1.1, 0.02),))
    assert "Nothing found is faster than 'your file'" in str(finals_verdict(worse))


def test_confirmation_simplification_ties_and_failures_are_told() -> None:
    told = lines(seen(tied=(1, 3), rejected=(Rejected(run=3, reason="crashed when it was repeated. Why"),),
                      confirmed_samples_per_s=10.7))  # fmt: skip
    assert "Confirmed over 20 steps: 10.7 samples/s." in told
    assert "It is trial 1 (zero3 opt=cpu param=cpu, micro 4, pinned off) with what makes no" in told
    assert "further from the defaults: trial 1, 3." in told
    assert "Trial 3 did not hold: crashed when it was repeated. Why" in told
    assert "Not confirmed by a longer run" in lines(seen(confirmed_steps=None))
    slower = lines(seen(confirmed_samples_per_s=6.0))
    assert "6.00 samples/s, not the 10.8 samples/s of its trial: the machine has changed" in slower


def test_memory_of_all_runs_is_told_and_that_another_one_may_go_over() -> None:
    """Trial 2 used 31 GB of 38, which are 40 GB less a headroom of 5 %."""
    assert "used" not in lines(seen())
    assert "Its 3 runs used 30.5 GB to 31.2 GB." in lines(seen(used_bytes=(30_500_000_000, 31_200_000_000)))
    assert "Its 2 runs used 31.0 GB." in lines(seen(used_bytes=(31_000_000_000,)))
    tight = seen(used_bytes=(37_000_000_000,))
    assert (
        "Its 2 runs used 31.0 GB to 37.0 GB of 38.0 GB: another one may go over. "
        "`offtune search --headroom 20%` stays clear of the edge."
    ) in lines(tight)
    assert "another one may go over" in finals_note(tight, RUNS[2])
    assert "used" not in finals_note(tight, RUNS[0])


def test_the_winner_of_the_finals_is_the_winner_everywhere() -> None:
    summary = seen()
    assert summary.best is RUNS[2]
    assert verdict_text(summary) in [getattr(block, "text", "") for block in result_page(summary)]
    shown = document(summary)
    assert shown["best"]["trial"] == shown["finals"]["winner"] == 2
    assert shown["finals"]["ratios"] == [
        {"against": 0, "value": 1.34, "low": 1.31, "high": 1.37, "rounds": None}
    ]
    page = study_web_report(study_report(summary, ()))
    assert any(tile.value == "1.34 ± 0.03" and "your file" in tile.label for tile in page.tiles)


def test_single_trials_speak_where_the_finals_cannot() -> None:
    alone = summarise(make_study(), RUNS)
    assert finals_verdict(alone) is None and finals_lines(alone) == []
    assert "faster than the best baseline that fits" in verdict_text(alone)
    assert document(alone)["finals"] is None
    early = seen(ratios=(), rounds=0, confirmed_steps=None)
    assert "faster than the best baseline that fits" in verdict_text(early)


def test_the_table_of_baselines_has_the_ratio_of_the_finals() -> None:
    table = next(
        block for block in result_page(seen()) if hasattr(block, "rows") and hasattr(block, "columns")
    )
    assert [row[-1] for row in table.rows] == ["1.34 ± 0.03 times"]
    assert "by repeats in turn" in " ".join(getattr(each, "text", "") for each in study_page(seen()))
    alone = summarise(make_study(), RUNS)
    table = next(block for block in result_page(alone) if hasattr(block, "columns"))
    assert "%" in table.rows[0][-1]


def test_a_note_tells_the_ratio_with_its_interval_also_of_a_tie() -> None:
    told = finals_note(seen(), RUNS[2])
    assert "1.34 ± 0.03 times as fast as 'your file'" in told and "Confirmed over 20 steps" in told
    assert "1.01 ± 0.05" in finals_note(seen(ratios=(ratio(0, 1.01, 0.05),)), RUNS[2])
    assert finals_note(seen(), RUNS[0]) == (
        "the winner, trial 2, is 1.34 ± 0.03 times as fast (95 %, 3 rounds in turn)."
    )
    assert finals_note(seen(), RUNS[3]) == ""
    assert finals_note(summarise(make_study(), RUNS), RUNS[2]) == ""
    text = note_text(make_study(), RUNS[2], ["a.json"], [], told)
    assert f"- in the finals: {told}" in text
    assert "in turn" not in note_text(make_study(), RUNS[2], ["a.json"], [])


def repeated(number: int, **changes) -> Repeat:
    fields = {"round": 1, "status": Status.OK, "result": RUNS[1].result, **changes}
    return Repeat(study="s", number=number, finals=1, run=1, **fields)


def test_a_trial_shows_its_repeats_on_its_page_and_in_json() -> None:
    repeats = [
        repeated(0),
        repeated(1, round=0, kind="confirmation", status=Status.CRASHED, result=None),
        repeated(2, round=2, status=None, result=None),
    ]
    page = trial_page(make_study(), RUNS[1], repeats)
    tables = [block.rows for block in page if isinstance(block, Table)]
    assert (
        ("1", "ok", "11.0", "5"),
        ("confirmation", "crashed", "-", "-"),
        ("2", "running", "-", "-"),
    ) in tables
    assert Heading(text="Trained again in the finals") not in trial_page(make_study(), RUNS[1])
    entries = json.loads(json.dumps(trial_document(RUNS[1], repeats), allow_nan=False))["repeats"]
    assert [(each["round"], each["samples_per_s"], each["steps"]) for each in entries] == [
        (1, 11.0, 5), (0, None, None), (2, None, None),
    ]  # fmt: skip
    assert trial_document(RUNS[1])["repeats"] == []
