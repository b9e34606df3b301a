"""Who wins: contenders of the finals, and the choice among those that held.

Covered: pure functions over runs and their repeats; everybody who needs the winner asks `winner_of`. Not
covered: what rounds in turn say (`rounds.py`), running them (`finals.py`), keeping them (`store_repeats.py`).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from statistics import median

from offtune.convergence import LEAST_GAIN_SHARE
from offtune.intervals import Interval
from offtune.knob_workload import CHECKPOINTING
from offtune.records import Limits, Run, best_run, is_baseline
from offtune.repeats import Outcome, Plan, Ratio, Rejected, Repeat
from offtune.rounds import TIE_SHARE, Rounds, leading, ratio_interval, together
from offtune.trial import Point, Status

# A single trial is up to 8 % off its repeat on a shared machine, and half of that on a calm one: what was
# measured within it of the best may well be the best.
NEAR_SHARE = 0.05
_MOST_CONTENDERS = 3
# Nine of ten longer runs used at most so much more memory than their trial (twelve; CPU accelerator).
_ROOM_SHARE = 0.02
_LEAST_FOR_EFFECT = 2  # trials with and without a value
# Where things are and how many samples are in flight is what a configuration is about; it is never reset.
_KEPT = frozenset({"placement", "micro_batch", "sub_groups", "resident_sixteenths"})
# What a micro-batch may have fitted by is given up only where one as large fitted without it.
_MAKES_ROOM = frozenset({CHECKPOINTING})


def contenders(ranking: Sequence[Run], own_label: str, defaults: Point, limits: Limits) -> tuple[Run, ...]:
    """Who is trained again, three at most: the fastest, its simplest rival, the best baseline.

    `ranking` is as `records.rank` has it. Runs that drift take part only where nothing steady fits. Where the
    fastest is the baseline, the best of what the search found meets it.
    """
    steady = [run for run in ranking if not (run.result and run.result.unsafe)] or list(ranking[:1])
    found = [run for run in steady if not is_baseline(run)]
    baseline = best_baseline(ranking, own_label)
    rivals = [run for run in steady if run is not baseline or run is steady[0]]
    simplest = _simplest_rival(rivals, defaults, limits)
    picked: list[Run] = []
    for run in (*steady[:1], *simplest, *found[:1], *([baseline] if baseline else [])):
        if run not in picked:
            picked.append(run)
    if len(picked) <= _MOST_CONTENDERS:
        return tuple(picked)
    # A baseline leads, another one is near: what was found and the baseline to be told are more to the point.
    return tuple(run for run in picked if run not in simplest)


def _simplest_rival(steady: Sequence[Run], defaults: Point, limits: Limits) -> list[Run]:
    """Of those within noise of the fastest the one with the fewest strange knobs, the faster of two.

    Those that leave little room come last: they may not hold in a longer run. One that is not simpler than
    the fastest has to have been as fast: one 2 % behind would gain 0.4 % on average (a trial's noise is 2 %).
    """
    if not steady:
        return []
    fastest, strange = _speed(steady[0]), complexity(steady[0], defaults)[0]
    shares = {True: NEAR_SHARE, False: LEAST_GAIN_SHARE}
    near = [
        run
        for run in steady[1:]
        if _speed(run) >= (1 - shares[complexity(run, defaults)[0] < strange]) * fastest
    ]
    return sorted(near, key=lambda run: (is_tight(run, limits), complexity(run, defaults)[0]))[:1]


def is_tight(run: Run, limits: Limits) -> bool:
    """Whether a longer run may well use more device memory than it may."""
    return _used_bytes(run) > (1 - _ROOM_SHARE) * limits.device_bytes


def best_baseline(ranking: Sequence[Run], own_label: str) -> Run | None:
    """The person's own file where it fits, else the fastest baseline that does."""
    fitting = [run for run in ranking if is_baseline(run)]
    own = [run for run in fitting if run.label == own_label]
    return next(iter((*own, *fitting)), None)


def simpler_point(run: Run, ranking: Sequence[Run], defaults: Point) -> Point | None:
    """The point of `run` with every knob at its default that the study has not shown to matter.

    A knob matters where, among trials of the same placement and micro-batch, those with the value of `run`
    are faster than those with the default by more than noise. None where nothing would change.
    """
    strange = [name for name, value in run.point.items() if name in defaults and value != defaults[name]]
    alike = [other for other in ranking if all(other.point.get(k) == run.point.get(k) for k in _KEPT)]
    reset = [
        name
        for name in strange
        if name not in _KEPT and not _matters(name, run.point[name], defaults[name], alike)
    ]
    if not reset:
        return None
    return {name: defaults[name] if name in reset else value for name, value in run.point.items()}


def _matters(name: str, value: object, default: object, runs: Iterable[Run]) -> bool:
    known = [run for run in runs if name in run.point]
    with_it = [_speed(run) for run in known if run.point[name] == value]
    without = [_speed(run) for run in known if run.point[name] == default]
    if name in _MAKES_ROOM and not without:
        return True
    if min(len(with_it), len(without)) < _LEAST_FOR_EFFECT:
        return False
    return median(with_it) > (1 + NEAR_SHARE) * median(without)


def rotated(names: Sequence[int], number: int) -> tuple[int, ...]:
    """The names from another one on in every round, so that none always comes after the same."""
    start = (number - 1) % len(names)
    return (*names[start:], *names[:start])


def rounds_of(repeats: Iterable[Repeat], plan: Plan) -> list[dict[int, float]]:
    """Samples per second by run, for each round of these finals."""
    rounds: dict[int, dict[int, float]] = {}
    for repeat in repeats:
        speed = repeat.result.samples_per_s if repeat.result else None
        if repeat.finals == plan.finals and repeat.kind == "repeat" and repeat.status is Status.OK and speed:
            rounds.setdefault(repeat.round, {})[repeat.run] = speed
    return [rounds[number] for number in sorted(rounds)]


def rejected_of(repeats: Iterable[Repeat], plan: Plan) -> tuple[Rejected, ...]:
    """The runs that failed when they were trained again, in these finals or earlier ones."""
    found: dict[int, Rejected] = {}
    for repeat in repeats:
        if repeat.finals <= plan.finals and repeat.fault:
            found.setdefault(repeat.run, Rejected(run=repeat.run, reason=repeat.fault))
    return tuple(found.values())


def stand_in(ranking: Sequence[Run], plan: Plan, repeats: Iterable[Repeat]) -> Run | None:
    """Who takes the place of contenders that did not hold: the fastest of the other runs, if there is one.

    Where contenders went over the budget in their longer runs, what used as much in its trial would, too:
    runs that used less come first.
    """
    known = list(repeats)
    over = {each.run for each in known if each.status is Status.OVER_BUDGET}
    least = min((_used_bytes(run) for run in ranking if run.number in over), default=math.inf)
    gone = {*plan.contenders, *(each.run for each in rejected_of(known, plan))}
    new = [run for run in ranking if run.number not in gone]
    return min(new, key=lambda run: _used_bytes(run) >= least, default=None)


def choose(
    rounds: Rounds, names: Sequence[int], runs: Mapping[int, Run], defaults: Point
) -> tuple[int | None, tuple[int, ...]]:
    """The winner among names that held, and those as fast that it was preferred to.

    Of those as fast as the fastest the simplest wins: fewest knobs away from their defaults, then the least
    memory. Without a round in which all took part it is the first name, as the search had it.
    """
    lead = leading(rounds, names)
    if lead is None:
        return next(iter(names), None), ()
    near = [name for name in names if name == lead or _is_tie(ratio_interval(rounds, lead, name))]
    winner = min(near, key=lambda name: (*complexity(runs[name], defaults), name))
    return winner, tuple(name for name in near if name != winner)


def ratios_over(rounds: Rounds, winner: int, names: Iterable[int]) -> tuple[Ratio, ...]:
    """The winner's speed over that of each of the names, where two rounds or more had both."""
    found = {name: ratio_interval(rounds, winner, name) for name in names}
    return tuple(
        Ratio(
            against=name,
            value=ratio.centre,
            low=ratio.low,
            high=ratio.high,
            rounds=together(rounds, winner, name),
        )
        for name, ratio in found.items()
        if ratio is not None
    )


def complexity(run: Run, defaults: Point) -> tuple[int, int]:
    """How many knobs are away from their defaults (none in a file taken as it is), and bytes used."""
    strange = sum(name in defaults and value != defaults[name] for name, value in run.point.items())
    return strange, _used_bytes(run)


def winner_of(runs: Iterable[Run], limits: Limits, outcome: Outcome | None) -> Run | None:
    """The winner within `limits`: that of the finals where they are about the fastest run, else the fastest.

    Under another budget, or after a resume that found something faster, the fastest run may be one that the
    finals know nothing of. One that they rejected is passed over.
    """
    known = list(runs)
    fastest = best_run(known, limits)
    if outcome is None or fastest is None:
        return fastest
    rejected = {each.run for each in outcome.rejected}
    if fastest.number in rejected.union(outcome.plan.contenders):
        chosen = best_run((run for run in known if run.number == outcome.winner), limits)
        if chosen is not None:
            return chosen
    return best_run((run for run in known if run.number not in rejected), limits)


def _is_tie(ratio: Interval | None) -> bool:
    return ratio is not None and ratio.low <= 1 and ratio.centre <= 1 + TIE_SHARE


def _used_bytes(run: Run) -> int:
    return (run.result.memory.used_device_bytes if run.result else None) or 0


def _speed(run: Run) -> float:
    return (run.result.samples_per_s if run.result else None) or 0.0
