"""Which knobs matter: on a made-up study where one does and one does not."""

from __future__ import annotations

import random

import pytest
from report_fakes import make_run

from offtune.effects import MIN_TRIALS, MOST_TRIALS, considered, knob_effects, rank_correlation
from offtune.records import Run


def made_up(count: int) -> list[Run]:
    """Faster with a larger micro-batch, and with stage 2; the bucket does nothing; pinned exists at times."""
    chance = random.Random(1)
    runs = []
    for number in range(count):
        micro, bucket = chance.choice([1, 2, 4, 8]), 2 ** chance.randint(16, 24)
        placement = chance.choice(["zero2 opt=cpu", "zero3"])
        speed = micro + (1.0 if placement.startswith("zero2") else 0.0) + 0.01 * chance.random()
        point = {
            "placement": placement,
            "micro_batch": micro,
            "reduce_bucket_size": bucket,
            "overlap_comm": True,
        }
        if placement == "zero2 opt=cpu":
            point["pin_memory"] = chance.choice([True, False])
        runs.append(make_run(number, samples_per_s=speed, used_gb=10, point=point))
    return runs


def test_the_knob_that_matters_comes_first_with_its_direction() -> None:
    effects = knob_effects(made_up(60))
    assert (effects[0].name, effects[0].direction) == ("micro_batch", "faster when larger")
    assert sum(effect.importance for effect in effects) == pytest.approx(1.0)
    by_name = {effect.name: effect for effect in effects}
    assert by_name["placement"].direction == "fastest with zero2 opt=cpu, slowest with zero3"
    assert by_name["reduce_bucket_size"].direction == "no clear direction"
    assert by_name["pin_memory"].trials < 60


def test_a_number_that_matters_and_is_best_in_the_middle_says_where() -> None:
    speeds = {1: 5.0, 2: 9.0, 4: 6.0, 8: 4.0}
    effects = knob_effects(
        make_run(k, samples_per_s=speeds[micro] + 0.01 * k, used_gb=1, point={"micro_batch": micro})
        for k, micro in enumerate([1, 2, 4, 8] * 5)
    )
    assert effects[0].direction == "fastest with 2, slowest with 8"


def test_a_knob_with_one_value_is_left_out() -> None:
    assert "overlap_comm" not in {effect.name for effect in knob_effects(made_up(40))}


def test_of_very_many_trials_a_part_is_looked_at_and_it_is_said_which() -> None:
    found = {effect.name: effect for effect in knob_effects(made_up(MOST_TRIALS + 40))}
    assert found["micro_batch"].trials == MOST_TRIALS
    assert found["micro_batch"].direction == "faster when larger"
    assert considered(MOST_TRIALS) == f"the {MOST_TRIALS} trials that ran and fit"
    assert considered(10_000).startswith(f"{MOST_TRIALS} of the 10000 trials")


def test_too_few_trials_say_nothing() -> None:
    assert knob_effects(made_up(MIN_TRIALS - 1)) == ()
    assert knob_effects(made_up(MIN_TRIALS)) != ()
    assert knob_effects([make_run(k, samples_per_s=1.0, used_gb=1) for k in range(20)]) == ()


def test_the_rank_correlation_is_spearmans() -> None:
    assert rank_correlation([1, 2, 3, 4], [10, 20, 30, 40]) == pytest.approx(1.0)
    assert rank_correlation([1, 2, 3, 4], [4, 3, 2, 1]) == pytest.approx(-1.0)
    assert rank_correlation([1, 1, 2, 2], [1, 2, 3, 4]) == pytest.approx(0.8944, abs=1e-4)
    assert rank_correlation([1, 1, 1], [1, 2, 3]) is None
