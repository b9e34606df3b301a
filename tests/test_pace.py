"""When a rank has measured enough: known, certainly slower, drifting, or at its most."""

from __future__ import annotations

import pytest

from offtune.trial import StopRule
from offtune.worker.pace import Pace, memory_drift, time_drift

MB = 10**6


def steps_until_over(pace: Pace, step_s, micros=(), level_bytes=lambda step: 0, used_bytes=None) -> int:
    """How many of the steps a rank makes."""
    for count, each in enumerate(step_s, 1):
        pace.book(each, tuple(micros), level_bytes(count), used_bytes)
        if pace.is_over():
            return count
    raise AssertionError("it goes on")


@pytest.fixture
def make_pace(make_spec):
    def make(most: int = 8, **rule) -> Pace:
        asked = rule.get("accuracy_share", 1) is None
        stop = None if asked else StopRule(**{"accuracy_share": 0.02, **rule})
        return Pace(make_spec({}, steps=most, stop=stop))

    return make


def test_a_number_of_steps_asked_for_is_made_exactly(make_pace) -> None:
    pace = make_pace(5, accuracy_share=None)
    assert steps_until_over(pace, [0.5] * 9) == 5
    assert pace.stopped == ""


def test_calm_steps_are_few_and_scattered_ones_go_to_the_most(make_pace) -> None:
    calm, noisy = make_pace(), make_pace()
    assert steps_until_over(calm, [0.500, 0.501, 0.499, 0.5]) == 2
    assert calm.stopped == "tight"
    assert steps_until_over(noisy, [0.5, 0.6, 0.4] * 3) == 8
    assert noisy.stopped == "most"


def test_what_other_trials_scatter_by_spares_a_step_and_lets_the_slower_go(make_pace) -> None:
    steps = [0.500, 0.504, 0.5, 0.5]
    assert steps_until_over(make_pace(), steps) == 3
    assert steps_until_over(make_pace(scatter_share=0.006), steps) == 2
    scattered = [1.00, 1.10, 1.05, 0.98]
    assert steps_until_over(make_pace(best_step_s=0.5, scatter_share=0.05), scattered) == 2


def test_a_longer_run_goes_on_while_its_memory_rises(make_pace) -> None:
    level = make_pace(20, accuracy_share=0.0, level_steps=8, level_after=12)

    def until_over(pace: Pace, used_bytes) -> int:
        return next(
            count
            for count in range(1, 99)
            if not pace.book(0.5 + count % 3 / 100, (), 0, used_bytes(count)) and pace.is_over()
        )

    assert until_over(level, lambda count: 100 * MB) == 12 and level.stopped == "level"
    rising = make_pace(20, accuracy_share=0.0, level_steps=8, level_after=12)
    assert until_over(rising, lambda count: (100 + 5 * (count // 5)) * MB) == 20 and rising.stopped == "most"
    late = make_pace(20, accuracy_share=0.0, level_steps=8, level_after=12)
    assert until_over(late, lambda count: (100 + 5 * (count >= 6)) * MB) == 14
    unknown = make_pace(20, accuracy_share=0.0, level_steps=8, level_after=12)
    assert until_over(unknown, lambda count: None) == 20


def test_what_others_are_compared_with_is_measured_longer(make_pace) -> None:
    assert steps_until_over(make_pace(least_steps=5), [0.5] * 8) == 5


def test_one_step_of_many_steady_micro_steps_is_enough(make_pace) -> None:
    micros = [0.0500, 0.0501, 0.0499, 0.0500] * 2
    assert steps_until_over(make_pace(), [0.45] * 8, micros) == 1
    assert steps_until_over(make_pace(), [0.45] * 8, micros[:4]) == 2


def test_a_trial_that_is_certainly_slower_than_the_best_ends(make_pace) -> None:
    scattered = [1.00, 1.10, 1.05, 0.98, 1.02]
    slower = make_pace(best_step_s=0.5)
    assert steps_until_over(slower, scattered) == 3
    assert slower.stopped == "worse"
    assert steps_until_over(make_pace(best_step_s=0.97), scattered * 2) == 8


def test_a_trial_over_its_limit_ends_however_little_its_speed_is_known(make_pace) -> None:
    scattered, limit_bytes = [0.5, 0.6, 0.4] * 3, make_pace()._limit_bytes
    over = make_pace(over_steps=3)
    assert steps_until_over(over, scattered, used_bytes=limit_bytes + 1) == 3
    assert over.stopped == "over"
    assert steps_until_over(make_pace(over_steps=1), scattered, used_bytes=limit_bytes) == 8
    assert steps_until_over(make_pace(5, accuracy_share=None), scattered, used_bytes=limit_bytes + 1) == 5


def test_memory_that_grows_with_every_step_is_a_drift(make_pace) -> None:
    pace = make_pace(20)
    scattered = [0.5, 0.6, 0.4] * 6
    assert steps_until_over(pace, scattered, level_bytes=lambda step: 100 * MB + 5 * MB * step) == 6
    assert pace.stopped == "drift"
    assert "5.00 MB" in pace.unsafe()


def test_a_cache_that_fills_and_noise_are_no_drift() -> None:
    assert memory_drift([100 * MB, 140 * MB, 160 * MB, 166 * MB, 169 * MB, 172 * MB]) == ""
    assert memory_drift([100 * MB, 103 * MB, 101 * MB, 106 * MB, 112 * MB, 118 * MB]) == ""
    assert memory_drift([100 * MB, 103 * MB, 124 * MB, 128 * MB, 131 * MB, 134 * MB]) == ""
    assert memory_drift([100 * MB, 110 * MB, 120 * MB]) == ""


def test_steps_that_take_ever_longer_are_a_drift() -> None:
    rising = [0.50, 0.52, 0.54, 0.57, 0.59, 0.61, 0.63, 0.66]
    assert "Each of its last 8 steps" in time_drift([0.5, *rising])
    assert time_drift(rising[1:]) == ""
    assert time_drift([0.5 + 0.001 * step for step in range(8)]) == ""
    assert time_drift([*rising[:4], 0.50, *rising[5:]]) == ""
