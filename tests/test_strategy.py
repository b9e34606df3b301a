"""The strategy on made-up machines: what it finds, in how many trials, and what it never proposes."""

import math
from random import Random

import pytest
from study_samples import LIMITS, measure, small_space

from offtune.beliefs import Beliefs, Guess, Seen, by_itself
from offtune.pool import around, every_point, unique
from offtune.score import score
from offtune.strategy import Strategy
from offtune.trial import Point, TrialResult

SPACE = small_space()
POINTS = list(every_point(SPACE))


def seen(point: Point, result: TrialResult | None = None) -> Seen:
    result = result or measure(point)
    used = result.memory.used_device_bytes
    assert used is not None
    return Seen(
        point=point, samples_per_s=result.samples_per_s, shares={"device_memory": used / LIMITS.device_bytes}
    )


def best_speed() -> float:
    return max(result.samples_per_s for point in POINTS if score(result := measure(point), LIMITS).feasible)


def play(strategy: Strategy, trials: int, seed: int) -> list[Seen]:
    found = [seen(point) for _, point in SPACE.baselines()]
    while len(found) < trials:
        proposal = strategy.propose(found, [], seed + len(found))
        assert proposal is not None
        found.append(seen(proposal.point))
    return found


def mistaken(point: Point) -> Guess:
    """Predictions off by a factor and blind to one knob."""
    result = measure({**point, "overlap_comm": True})
    assert result.samples_per_s is not None and result.memory.used_device_bytes is not None
    share = 1.3 * result.memory.used_device_bytes / LIMITS.device_bytes
    return Guess(key=repr(point), samples_per_s=2 * result.samples_per_s, shares={"device_memory": share})


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("guess", [by_itself, mistaken])
def test_the_best_of_a_space_is_found_in_few_trials_and_few_are_wasted(guess, seed):
    found = play(Strategy(space=SPACE, guess=guess), 20, seed)
    assert max(one.samples_per_s for one in found if one.feasible) > 0.95 * best_speed()
    assert sum(not one.feasible for one in found) <= 3


def test_a_decision_follows_from_what_was_seen_and_the_seed_alone():
    told = [seen(point) for point in POINTS[:40:5]]
    first = Strategy(space=SPACE, guess=mistaken).propose(told, [], 3)
    second = Strategy(space=SPACE, guess=mistaken).propose(told, [], 3)
    assert first == second


def test_what_is_being_measured_is_not_proposed_again_nor_anything_that_is_the_same():
    def alike(point: Point) -> Guess:
        return Guess(key=f"{point['placement']} {point['micro_batch']}")

    strategy = Strategy(space=SPACE, guess=alike)
    told = [seen(SPACE.complete({"placement": "zero2"}))]
    pending: list[Point] = []
    for number in range(12):
        proposal = strategy.propose(told, pending, number)
        assert proposal is not None
        pending.append(proposal.point)
    keys = [alike(point).key for point in (told[0].point, *pending)]
    assert len(set(keys)) == len(keys)


def test_what_deepspeed_would_refuse_is_never_proposed_and_an_exhausted_space_has_nothing():
    def only_stage_1(point: Point) -> Guess | None:
        return Guess(key=repr(point)) if point["placement"] == "zero1" else None

    strategy = Strategy(space=SPACE, guess=only_stage_1)
    told: list[Seen] = []
    while (proposal := strategy.propose(told, [], len(told))) is not None:
        assert proposal.point["placement"] == "zero1"
        told.append(seen(proposal.point))
    assert len(told) == sum(point["placement"] == "zero1" for point in POINTS)


def test_failures_nearby_turn_it_away():
    told = [seen(point) for _, point in SPACE.baselines()]
    broken = [point for point in POINTS if point["placement"] == "zero1"][:4]
    failed = [Seen(point=point, samples_per_s=None, shares={}, failed=True) for point in broken]
    strategy = Strategy(space=SPACE, guess=by_itself)
    chance = [
        Beliefs(features=strategy.features, guess=by_itself, seen=known).chance_of_fitting(broken[:1])[0]
        for known in (told, [*told, *failed])
    ]
    assert chance[1] < 0.6 * chance[0]


def test_an_out_of_memory_trial_counts_as_over_the_budget_by_an_unknown_amount():
    point = SPACE.complete({"placement": "zero1", "micro_batch": 16})
    told = [seen(SPACE.complete({"placement": "zero1", "micro_batch": micro})) for micro in (1, 2)]
    out = Seen(point=point, samples_per_s=None, shares={"device_memory": None})
    assert not out.feasible
    strategy = Strategy(space=SPACE, guess=by_itself)
    beliefs = Beliefs(features=strategy.features, guess=by_itself, seen=[*told, out])
    assert beliefs.chance_of_fitting([point])[0] < 0.2


def test_nothing_fits_yet_so_the_likeliest_to_fit_is_tried_and_no_gain_is_named():
    told = [
        Seen(point=point, samples_per_s=20.0, shares={"device_memory": 1.5})
        for point in POINTS
        if point["micro_batch"] == 16 and point["overlap_comm"]
    ]
    proposal = Strategy(space=SPACE, guess=by_itself).propose(told, [], 0)
    assert proposal is not None
    assert proposal.expected_gain is None
    assert proposal.point["micro_batch"] <= 4


def test_the_expected_gain_falls_as_the_space_is_known():
    strategy = Strategy(space=SPACE, guess=mistaken)
    found = play(strategy, 40, 1)
    gains = [strategy.propose(found[:count], [], 0).expected_gain for count in (6, 40)]
    assert gains[1] < 0.01 < gains[0]


def test_neighbours_differ_and_are_points_of_the_space():
    point = SPACE.complete({"placement": "zero3 opt=cpu", "micro_batch": 4})
    near = unique(around(SPACE, point, Random(0)))
    assert len(near) > 10
    assert all(SPACE.complete(other) == other for other in near)


def test_every_point_of_a_space_is_enumerated_once():
    assert len(POINTS) == SPACE.size() == len(unique(POINTS))


def test_a_lucky_measurement_is_not_taken_as_it_stands():
    """The same configuration in five shades that make no difference, one of them 30 % up by noise."""
    shades = [point for point in POINTS if point["placement"] == "zero3 opt=cpu"][:6]
    told = [Seen(point=point, samples_per_s=10.0, shares={}, noise_share=0.2) for point in shades[:5]]
    lucky = Seen(point=shades[5], samples_per_s=13.0, shares={}, noise_share=0.2)
    features = Strategy(space=SPACE, guess=by_itself).features
    beliefs = Beliefs(features=features, guess=by_itself, seen=[*told, lucky])
    believed = beliefs.believed_speed(shades[5:])[0]
    assert math.log(10.0) < believed < math.log(12.0)


def test_of_two_points_alike_in_gain_the_one_that_surely_fits_is_worth_more():
    told = [
        Seen(point=SPACE.complete({"micro_batch": micro}), samples_per_s=5.0, shares={"device_memory": share})
        for micro, share in ((1, 0.5), (4, 0.9), (16, 1.5))
    ]
    features = Strategy(space=SPACE, guess=by_itself).features
    chances = Beliefs(features=features, guess=by_itself, seen=told).chance_of_fitting(POINTS)
    cheap, dear = (
        Beliefs(features=features, guess=by_itself, seen=told, price=price).worth(POINTS)[0]
        for price in (0.0, 0.5)
    )
    risky = (chances > 0.2) & (chances < 0.9)
    assert risky.any()
    assert (dear[risky] < cheap[risky]).all()
    assert (dear[chances > 0.95] == cheap[chances > 0.95]).all()


def test_without_predictions_what_a_micro_batch_does_is_learned_for_every_placement():
    """Memory grows with the micro-batch under one placement: so it will under another one."""
    told = [
        Seen(point=SPACE.complete({"placement": placement, "micro_batch": micro}), samples_per_s=float(micro),
             shares={"device_memory": 0.1 * micro})
        for placement, micros in (("zero2", (1, 4, 8, 16)), ("zero3 opt=cpu", (1,)))
        for micro in micros
    ]  # fmt: skip
    beliefs = Beliefs(features=Strategy(space=SPACE, guess=by_itself).features, guess=by_itself, seen=told)
    asked = [SPACE.complete({"placement": "zero3 opt=cpu", "micro_batch": micro}) for micro in (2, 16)]
    small, large = beliefs.chance_of_fitting(asked)
    assert small > 0.9
    assert large < 0.5
