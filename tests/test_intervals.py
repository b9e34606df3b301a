"""Intervals hold what they promise: coverage by simulation with fixed seeds, and the forms they refuse."""

from __future__ import annotations

import math
import random

import pytest

from offtune.intervals import interval, step_interval, t95, usual_scatter, without_spikes

_TRIES = 400


def coverage(samples_of, truth=1.0):
    """The share of tries whose interval holds the truth."""
    found = [interval(samples_of()) for _ in range(_TRIES)]
    return sum(known.low <= truth <= known.high for known in found) / _TRIES


@pytest.mark.parametrize("count", [2, 3, 5, 8, 20])
def test_nineteen_of_twenty_intervals_hold_the_truth(count: int) -> None:
    draw = random.Random(count)
    assert coverage(lambda: [draw.gauss(1, 0.03) for _ in range(count)]) > 0.90


@pytest.mark.parametrize("count", [6, 20])
def test_spikes_of_a_shared_machine_hardly_widen_or_move_it(count: int) -> None:
    draw = random.Random(count)

    def disturbed() -> list[float]:
        return [draw.gauss(1, 0.03) + (draw.random() < 0.1) * draw.uniform(0.3, 2) for _ in range(count)]

    assert coverage(disturbed) > 0.88
    calm = interval([1.0, 1.01, 0.99, 1.02, 0.98, 1.0])
    spiked = interval([1.0, 1.01, 0.99, 1.02, 0.98, 1.0, 3.0])
    assert calm and spiked and spiked.half_share < 1.5 * calm.half_share


def test_neighbours_that_are_alike_count_for_less() -> None:
    draw = random.Random(4)

    def slow_waves() -> list[float]:
        level, found = draw.gauss(0, 0.03), []
        for _ in range(24):
            found.append(1 + level)
            level = 0.5 * level + draw.gauss(0, 0.03 * math.sqrt(0.75))
        return found

    assert coverage(slow_waves) > 0.85


def test_one_sample_has_no_interval() -> None:
    assert interval([1.0]) is None
    assert interval([]) is None
    assert step_interval([1.0], [(0.5,)]) is None


def test_equal_samples_are_known_exactly() -> None:
    known = interval([0.5] * 6)
    assert known is not None
    assert (known.low, known.high, known.half_share) == (0.5, 0.5, 0.0)


def test_one_step_of_many_micro_steps_says_what_one_step_of_one_cannot() -> None:
    draw = random.Random(7)
    micros = tuple(draw.gauss(0.1, 0.001) for _ in range(16))
    known = step_interval([sum(micros) + 0.05], [micros])
    assert known is not None
    assert known.centre == pytest.approx(1.65, rel=0.01)
    assert known.half_share < 0.02


def test_intervals_from_micro_steps_hold_the_truth() -> None:
    draw = random.Random(8)
    held = 0
    for _ in range(_TRIES):
        micros = [tuple(draw.gauss(0.1, 0.004) for _ in range(4)) for _ in range(3)]
        steps = [sum(each) + draw.gauss(0.2, 0.01) for each in micros]
        known = step_interval(steps, micros)
        assert known is not None
        held += known.low <= 0.6 <= known.high
    assert held / _TRIES > 0.92


def test_loops_that_show_no_micro_steps_are_judged_by_whole_steps() -> None:
    steps = [1.0, 1.1, 0.9]
    assert step_interval(steps) == interval(steps)
    assert step_interval(steps, [(), (), ()]) == interval(steps)
    assert step_interval(steps, [(0.2, 0.2), (0.2,), (0.2, 0.2)]) == interval(steps)


def test_few_samples_lose_none_and_quantiles_fall_towards_the_normal_one() -> None:
    assert without_spikes([1.0, 1.0, 9.0]) == [1.0, 1.0, 9.0]
    assert math.isinf(t95(0))
    values = [t95(degrees) for degrees in range(1, 200)]
    assert values == sorted(values, reverse=True)
    assert values[-1] == pytest.approx(1.972, abs=0.005)


def test_what_other_trials_scatter_by_is_told_without_bias_and_without_their_spikes() -> None:
    draw = random.Random(9)
    for count in (2, 3, 8):
        many = [[draw.gauss(5, 0.1) for _ in range(count)] for _ in range(2000)]
        assert usual_scatter(many) == pytest.approx(0.02, rel=0.07)
    calm = [[1.0, 1.01, 0.99], [2.0, 2.02, 1.98], [1.0, 1.01, 0.99], [1.0, 1.01, 3.0]]
    assert usual_scatter(calm) == usual_scatter(calm[:3]) == pytest.approx(0.0119, rel=0.01)
    assert usual_scatter([*calm[:2], [1.0], []]) is None


def test_lent_scatter_lets_two_samples_do_and_keeps_its_promise() -> None:
    draw, held = random.Random(10), 0
    for _ in range(_TRIES):
        known = interval([draw.gauss(1, 0.008) for _ in range(2)], 0.008)
        held += known.low <= 1 <= known.high
    assert held / _TRIES > 0.94
    alike, apart = [1.0, 1.001], [1.0, 1.03]
    assert interval(alike, 0.008).half_share > interval(alike).half_share, "alike by chance"
    assert interval(apart, 0.008).half_share < interval(apart).half_share
    assert 0.01 < interval(alike, 0.008).half_share < 0.02


def test_a_trial_that_scatters_otherwise_is_believed() -> None:
    wild = [1.0, 1.2, 0.8, 1.1, 0.9, 1.0]
    assert interval(wild, 0.005).half_share > 0.5 * interval(wild).half_share


def test_micro_steps_and_lent_scatter_whichever_says_more() -> None:
    steps, micros = [1.0, 1.03], [(0.4, 0.45), (0.45, 0.41)]
    lent = step_interval(steps, micros, 0.004)
    assert lent == interval(steps, 0.004)
    assert lent.half_share < step_interval(steps, micros).half_share
    assert step_interval(steps, micros, 0.5) == step_interval(steps, micros)
