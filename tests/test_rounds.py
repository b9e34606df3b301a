"""What rounds in turn say: ratios that hold the truth, who leaves, who goes on, when they are over."""

from __future__ import annotations

import random

import pytest
from round_samples import simulated

from offtune.rounds import leading, next_round, ratio_interval, still_in


def is_over(rounds, names) -> bool:
    return next_round(rounds, names) == []


def test_rounds_take_out_what_the_state_of_the_machine_does() -> None:
    held = 0
    for seed in range(300):
        ratio = ratio_interval(simulated({1: 13.4, 2: 10.0, 3: 12.0}, 0.02, seed, count=3), 1, 2)
        assert ratio is not None
        held += ratio.low <= 1.34 <= ratio.high
    assert held / 300 > 0.92
    assert ratio_interval([{1: 2.0, 2: 1.0}], 1, 2) is None
    assert ratio_interval(simulated({1: 1.0}, 0.1, 0), 1, 1) is None


def test_a_clear_difference_is_decided_early_and_noise_is_not() -> None:
    assert is_over(simulated({1: 13, 2: 10, 3: 10.5}, 0.005, 1, count=2), [1, 2, 3])
    assert not is_over(simulated({1: 10.5, 2: 10, 3: 10.2}, 0.05, 1, count=2), [1, 2, 3])
    assert not is_over(simulated({1: 13, 2: 10}, 0.001, 1, count=1), [1, 2])


def scattered(ratio: float, half: float) -> list[dict[int, float]]:
    """Three rounds of two whose ratio scatters by `half` to both sides."""
    return [{1: ratio * scatter, 2: 1.0} for scatter in (1 - half, 1.0, 1 + half)]


def test_a_tie_is_seen_within_a_margin() -> None:
    assert is_over(scattered(1.005, 0.008), [1, 2])
    assert not is_over(scattered(1.02, 0.011), [1, 2])


def test_rounds_that_would_tell_nothing_are_not_made() -> None:
    assert is_over(scattered(1.03, 0.05), [1, 2])
    assert not is_over(scattered(1.03, 0.05)[:2], [1, 2])
    assert not is_over(scattered(1.10, 0.05), [1, 2])


def test_who_is_beaten_leaves_but_for_the_baseline() -> None:
    rounds = simulated({1: 13, 2: 10, 3: 10.5}, 0.005, 1, count=3)
    assert still_in(rounds, [1, 2, 3], baseline=2) == [1, 2]
    assert still_in(rounds[:1], [1, 2, 3], baseline=2) == [1, 2, 3]


def test_later_rounds_without_the_beaten_do_not_bring_them_back() -> None:
    rounds = simulated({1: 13, 2: 10, 3: 10.5}, 0.005, 1, count=4)
    later = [*rounds[:2], *({name: each[name] for name in (1, 2)} for each in rounds[2:])]
    assert still_in(later, [1, 2, 3], baseline=2) == [1, 2]


def test_who_is_told_from_the_fastest_is_not_trained_further_and_keeps_its_ratio() -> None:
    clear = simulated({1: 13, 2: 10, 3: 12.9}, 0.004, 5, count=2)
    assert next_round(clear, [1, 2, 3]) == [1, 3]
    later = [*clear, *({1: each[1], 3: each[3]} for each in simulated({1: 13, 3: 12.9}, 0.01, 6, count=2))]
    assert ratio_interval(later, 1, 2).centre == pytest.approx(1.3, rel=0.04)
    assert leading(later, [1, 2, 3]) in (1, 3)
    assert 2 not in next_round(later, [1, 2, 3])


def test_what_a_third_one_shows_of_the_noise_narrows_the_ratio_of_two() -> None:
    """Also of one that was not in every round."""
    truth, widths, held = 1.1, {2: 0.0, 3: 0.0}, 0
    for seed in range(200):
        rounds = simulated({1: 11.0, 2: 10.0, 3: 9.0}, 0.02, seed, count=4)
        left = [*rounds[:3], {name: rounds[3][name] for name in (1, 2)}]
        pair = [{name: each[name] for name in (1, 2)} for each in rounds]
        for count, seen in ((2, pair), (3, left)):
            ratio = ratio_interval(seen, 1, 2)
            widths[count] += ratio.high - ratio.low
        held += ratio.low <= truth <= ratio.high
    assert widths[3] < 0.9 * widths[2]
    assert held / 200 > 0.92


def test_a_rotation_of_absences_leaves_ratios_unbiased() -> None:
    draw, found = random.Random(1), []
    for seed in range(200):
        rounds = simulated({1: 13.4, 2: 10.0, 3: 12.0}, 0.01, seed, count=5)
        for each in rounds[2:]:
            each.pop(draw.choice((1, 2, 3)))
        ratio = ratio_interval(rounds, 1, 2)
        found += [ratio.centre] if ratio else []
    assert sum(found) / len(found) == pytest.approx(1.34, rel=0.002)


def test_no_more_than_five_rounds_are_made_of_two() -> None:
    rounds = simulated({1: 10.6, 2: 10}, 0.06, 2, count=5)
    assert is_over(rounds, [1, 2])
    assert not is_over(rounds, [1, 2, 3]), "a newcomer has not met them"
