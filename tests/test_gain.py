"""The winner against a baseline, and what counts as noise."""

from __future__ import annotations

from dataclasses import replace

import pytest
from report_fakes import make_run

from offtune.report.gain import gain, noise_percent, relative_spread
from offtune.trial import Status, TrialResult


def of(*step_s: float) -> TrialResult:
    return TrialResult(status=Status.OK, step_s=step_s)


def test_the_spread_is_half_the_middle_range_over_the_median() -> None:
    assert relative_spread((0.8, 0.9, 1.0, 1.1, 1.2)) == pytest.approx(0.1)


def test_one_slow_step_in_ten_hardly_moves_the_spread() -> None:
    calm = (1.0, 1.01) * 5
    assert relative_spread((*calm[:-1], 30.0)) == pytest.approx(relative_spread(calm), abs=0.005)


def test_two_steps_have_no_spread() -> None:
    assert relative_spread((1.0, 1.1)) is None
    assert noise_percent(of(1.0, 1.1), of(1.0, 1.0, 1.0)) is None
    assert noise_percent(of(1.0, 1.1), None) is None


def test_of_two_steps_the_noise_is_how_well_their_time_is_known() -> None:
    known = replace(of(1.0, 1.02), step_interval_s=(0.98, 1.02))
    assert noise_percent(known, of(1.0, 1.0, 1.0)) == pytest.approx(2.0)


def test_noise_of_a_quotient_adds_in_squares() -> None:
    first, second = of(0.94, 0.97, 1.0, 1.03, 1.06), of(0.92, 0.96, 1.0, 1.04, 1.08)
    assert noise_percent(first, second) == pytest.approx(5.0)


def test_a_gain_beyond_the_noise_is_clear_and_one_within_is_not() -> None:
    baseline = make_run(0, samples_per_s=10.0, used_gb=1)
    clear = gain(make_run(1, samples_per_s=12.0, used_gb=1), baseline, fits=True)
    assert clear.percent == pytest.approx(20.0)
    assert clear.clear is True
    assert gain(make_run(1, samples_per_s=10.1, used_gb=1), baseline, fits=True).clear is False


def test_nothing_is_claimed_over_a_baseline_that_does_not_fit_or_has_no_rate() -> None:
    winner = make_run(1, samples_per_s=12.0, used_gb=1)
    assert gain(winner, make_run(0, samples_per_s=10.0, used_gb=99), fits=False).percent is None
    assert gain(winner, make_run(0, Status.OOM_GPU), fits=False).percent is None
    assert gain(None, make_run(0, samples_per_s=10.0), fits=True).percent is None


def test_a_baseline_that_reused_the_winner_is_the_winner() -> None:
    winner = make_run(1, samples_per_s=12.0, used_gb=1)
    assert gain(winner, make_run(4, samples_per_s=12.0, used_gb=1, reuse_of=1), fits=True).same
