"""Who wins: contenders, rounds, ties, the simplest of equals; by simulation where noise is concerned."""

from __future__ import annotations

import pytest
from round_samples import simulated
from study_samples import LIMITS, result, run

from offtune.records import Limits, Run
from offtune.repeats import Outcome, Plan, Rejected, Repeat
from offtune.trial import Status
from offtune.winner import (
    best_baseline,
    choose,
    contenders,
    rejected_of,
    rounds_of,
    simpler_point,
    stand_in,
    winner_of,
)

DEFAULTS = {"placement": "zero2", "micro_batch": 4, "bucket": 500, "overlap": True}


def ended(number: int, speed: float, used: int = 500, **more) -> Run:
    unsafe = more.pop("unsafe", "")
    came = result(speed=speed, used=used, unsafe=unsafe)
    return run(number, status=Status.OK, result=came, **more)


def names_of(ranking: list[Run]) -> list[int]:
    return [each.number for each in contenders(ranking, "your file", DEFAULTS, Limits(device_bytes=1000))]


def test_the_fastest_meets_the_simplest_that_is_near_and_steady() -> None:
    strange, plain = {**DEFAULTS, "bucket": 7, "overlap": False}, {**DEFAULTS, "bucket": 7}
    fastest, near = ended(1, 10, point=strange), ended(2, 9.9, point=strange)
    drifting, simple = ended(3, 9.8, point=DEFAULTS, unsafe="grows"), ended(4, 9.6, point=plain)
    slow, baseline = ended(5, 9.0, point=DEFAULTS), ended(0, 9.7, origin="baseline", label="x")
    assert names_of([fastest, near, drifting, simple, slow]) == [1, 4]
    assert names_of([fastest, near, baseline, simple]) == [1, 4, 0]
    assert names_of([fastest, near, slow]) == [1, 2]
    assert names_of([drifting]) == [3]
    behind = ended(7, 9.8, point={**strange, "micro_batch": 8})
    assert names_of([fastest, behind, slow]) == [1], "neither simpler nor as fast"
    tight = ended(6, 9.8, used=985, point=DEFAULTS)
    assert names_of([fastest, tight, simple]) == [1, 4]
    assert names_of([fastest, tight, slow]) == [1, 6]


def test_no_more_than_three_meet_whatever_leads() -> None:
    ladder, own = (
        ended(0, 10, origin="baseline", label="x"),
        ended(1, 5, origin="baseline", label="your file"),
    )
    also, found = ended(2, 9.9, origin="baseline", label="y"), ended(3, 9.8, point={"bucket": 7})
    assert names_of([ladder, also, found, own]) == [0, 3, 1]
    assert names_of([ladder, found, own]) == [0, 3, 1]


def test_the_own_file_is_the_baseline_where_it_fits_else_the_fastest() -> None:
    own, ladder = ended(0, 7, origin="baseline", label="your file"), ended(1, 9, origin="baseline", label="x")
    again = ended(2, 9.5, origin="retry", label="stage 3")
    queued = ended(3, 12, origin="retry", label="predicted")
    assert best_baseline([queued, again, ladder, own], "your file") is own
    assert best_baseline([queued, again, ladder], "your file") is again
    assert best_baseline([queued], "your file") is None


def test_a_baseline_that_leads_meets_the_best_that_was_found() -> None:
    baseline = ended(0, 12, origin="baseline", label="x")
    ranking = [baseline, ended(3, 8, unsafe="grows"), ended(1, 7), ended(2, 6)]
    assert names_of(ranking) == [0, 1]
    assert names_of([ranking[2]]) == [1]
    assert names_of([]) == []


def test_the_simplest_of_equals_wins_then_the_smallest() -> None:
    strange = ended(1, 10, point={**DEFAULTS, "bucket": 7, "overlap": False})
    simple = ended(2, 10, point={**DEFAULTS, "bucket": 7})
    small = ended(3, 10, used=300, point={**DEFAULTS, "bucket": 8})
    runs = {each.number: each for each in (strange, simple, small)}
    equal = simulated({1: 10, 2: 9.99, 3: 10}, 0.004, 2)
    assert choose(equal, [1, 2, 3], runs, DEFAULTS) == (3, (1, 2))
    assert choose(equal, [1, 2], runs, DEFAULTS) == (2, (1,))
    apart = simulated({1: 10.6, 2: 10, 3: 10}, 0.004, 2)
    assert choose(apart, [1, 2, 3], runs, DEFAULTS) == (1, ())
    assert choose([], [2, 1], runs, DEFAULTS) == (2, ())
    assert choose([], [], runs, DEFAULTS) == (None, ())


def test_a_file_taken_as_it_is_is_the_simplest() -> None:
    runs = {1: ended(1, 10, point={}), 2: ended(2, 10, point=DEFAULTS | {"bucket": 7})}
    assert choose(simulated({1: 10, 2: 10.02}, 0.004, 3), [2, 1], runs, DEFAULTS) == (1, (2,))


def test_the_choice_costs_at_most_what_counts_as_a_tie() -> None:
    speeds = {1: 10.0, 2: 9.9, 3: 9.5, 4: 8.0}
    points = {number: {**DEFAULTS, "bucket": number} for number in speeds}
    runs = {number: ended(number, speed, point=points[number]) for number, speed in speeds.items()}
    chosen = [choose(simulated(speeds, 0.02, seed), list(speeds), runs, DEFAULTS)[0] for seed in range(200)]
    assert sum(name in (1, 2) for name in chosen) / 200 > 0.95
    assert 4 not in chosen


def test_knobs_go_back_to_their_defaults_unless_the_study_shows_that_they_matter() -> None:
    best = ended(1, 10, point={**DEFAULTS, "bucket": 7, "overlap": False})
    slow = [ended(2 + i, 8, point={**DEFAULTS, "bucket": 7}) for i in range(3)]
    fast = [ended(5 + i, 10, point={**DEFAULTS, "overlap": False}) for i in range(3)]
    assert simpler_point(best, [best, *slow, *fast], DEFAULTS) == {**DEFAULTS, "overlap": False}
    assert simpler_point(best, [best], DEFAULTS) == DEFAULTS
    elsewhere = ended(9, 10, point={**DEFAULTS, "placement": "zero3", "micro_batch": 8})
    assert simpler_point(elsewhere, [elsewhere], DEFAULTS) is None


def test_recomputing_is_given_up_only_where_the_micro_batch_fitted_without_it() -> None:
    defaults = {**DEFAULTS, "activation_checkpointing": False}
    best = ended(1, 10, point={**defaults, "activation_checkpointing": True, "bucket": 7})
    smaller = ended(2, 9, point={**defaults, "micro_batch": 2})
    kept = {**defaults, "activation_checkpointing": True}
    assert simpler_point(best, [best, smaller], defaults) == kept
    assert simpler_point(best, [best, smaller, ended(3, 9, point=defaults)], defaults) == defaults


def repeat(number: int, of: int, speed: float | None, status: Status = Status.OK, **more) -> Repeat:
    unsafe = more.pop("unsafe", "")
    came = result(speed=speed, status=status, reason="why", unsafe=unsafe)
    fields = {"finals": 1, "round": 1, **more}
    return Repeat(study="s", number=number, run=of, status=status, result=came, **fields)


PLAN = Plan(finals=1, measured=9, contenders=(1, 2, 3), baseline=3)


def test_only_repeats_of_these_finals_that_trained_are_rounds() -> None:
    repeats = [
        repeat(0, 1, 10.0),
        repeat(1, 2, 9.0),
        repeat(2, 1, 11.0, round=2),
        repeat(3, 2, None, Status.INTERRUPTED, round=2),
        repeat(4, 1, 10.5, kind="confirmation", round=0),
        repeat(5, 1, 99.0, finals=2),
    ]
    assert rounds_of(repeats, PLAN) == [{1: 10.0, 2: 9.0}, {1: 11.0}]


def test_what_fails_again_or_drifts_in_the_longer_run_is_rejected() -> None:
    repeats = [
        repeat(0, 1, None, Status.CRASHED),
        repeat(1, 2, 9.0, Status.OVER_BUDGET, kind="confirmation", round=0),
        repeat(2, 3, 9.0, kind="confirmation", round=0, unsafe="Memory grew."),
        repeat(3, 4, None, Status.INTERRUPTED),
        repeat(4, 5, 9.0, unsafe="a few steps do not tell"),
    ]
    assert rejected_of(repeats, PLAN) == (
        Rejected(run=1, reason="crashed when it was repeated. why"),
        Rejected(run=2, reason="over budget in a longer run. why"),
        Rejected(run=3, reason="Memory grew."),
    )


def test_who_stands_in_used_less_than_what_went_over_the_budget() -> None:
    ranking = [ended(1, 30, used=960), ended(2, 29, used=980), ended(3, 28, used=970), ended(4, 27, used=900)]
    plan = Plan(finals=1, measured=4, contenders=(1,))
    over, crashed = (repeat(0, 1, None, status) for status in (Status.OVER_BUDGET, Status.CRASHED))
    assert stand_in(ranking, plan, [over]) is ranking[3]
    assert stand_in(ranking, plan, [crashed]) is ranking[1]
    assert stand_in(ranking[:3], plan, [over]) is ranking[1]  # all used as much: the fastest of them
    assert stand_in(ranking[:1], plan, [over]) is None


@pytest.mark.parametrize(
    ("limits", "winner"), [(LIMITS, 2), (Limits(device_bytes=2000), 4), (Limits(device_bytes=450), 3)]
)
def test_the_finals_decide_only_where_they_are_about_the_fastest(limits: Limits, winner: int) -> None:
    runs = [ended(1, 10), ended(2, 9.9), ended(3, 5, used=400), ended(4, 20, used=1500)]
    found = winner_of(runs, limits, Outcome(plan=PLAN, winner=2, rounds=3))
    assert found is not None and found.number == winner


def test_the_finals_winner_stands_where_the_fastest_did_not_hold() -> None:
    runs = [ended(1, 10), ended(7, 9.95), ended(2, 9.9)]
    outcome = Outcome(plan=PLAN, winner=2, rounds=3, rejected=(Rejected(run=1, reason="x"),))
    assert winner_of(runs, LIMITS, outcome) is runs[2]


def test_without_finals_the_fastest_wins_and_the_rejected_never() -> None:
    runs = [ended(1, 10), ended(2, 9.9), ended(7, 9.8)]
    assert winner_of(runs, LIMITS, None) is runs[0]
    none_held = Outcome(
        plan=PLAN, winner=None, rounds=2, rejected=tuple(Rejected(run=n, reason="x") for n in (1, 2, 3))
    )
    assert winner_of(runs, LIMITS, none_held) is runs[2]
