"""How much each knob matters in a study, and which way it pushes: Optuna's PED-ANOVA on what was measured.

Covered: trials that really ran and fit; every knob that took more than one value in them. Not covered:
interactions between knobs, and trials that broke a limit (their throughput answers another question). The
search looks where it is fast, so these are statements about the trials seen, not about the whole space.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from offtune.knobs import format_value
from offtune.records import Run

# With fewer, PED-ANOVA compares the best handful of trials with itself; its default quantile is 10 %.
MIN_TRIALS = 10
# Rank correlation from which a number is said to push one way.
CLEAR_CORRELATION = 0.4
# PED-ANOVA of a thousand takes a third of a second, of ten thousand ten; both rank the knobs the same.
MOST_TRIALS = 500
# Share of the importance of all from which a number without a direction is given its best value.
MATTERS = 0.2
_MIN_FOR_DIRECTION = 5  # trials that have the knob


@dataclass(frozen=True, slots=True, kw_only=True)
class KnobEffect:
    """One knob: its share of the importance of all (0 to 1), and in words what faster trials had."""

    name: str
    importance: float
    direction: str
    trials: int


def knob_effects(runs: Iterable[Run]) -> tuple[KnobEffect, ...]:
    """The knobs by importance, the first matters most; empty with fewer than `MIN_TRIALS` such runs.

    `runs` are measured runs within the limits (`Summary.ranking`).
    """
    usable = _thinned([run for run in runs if run.result and run.result.samples_per_s])
    values = {name: _values(name, usable) for name in sorted({name for run in usable for name in run.point})}
    varied = {name: known for name, known in values.items() if len(known) > 1}
    if len(usable) < MIN_TRIALS or not varied:
        return ()
    from offtune.importance import importances_of  # Optuna takes half a second to load

    importances = importances_of(usable, varied)
    effects = [
        KnobEffect(name=name, importance=share, direction=text, trials=count)
        for name in varied
        for share in [importances.get(name, 0.0)]
        for text, count in [_direction(name, usable, varied[name], share)]
    ]
    return tuple(sorted(effects, key=lambda effect: (-effect.importance, effect.name)))


def considered(count: int) -> str:
    """Which of `count` such trials the importance is about, in words."""
    if count <= MOST_TRIALS:
        return f"the {count} trials that ran and fit"
    return f"{MOST_TRIALS} of the {count} trials that ran and fit, evenly from fastest to slowest"


def _thinned(runs: list[Run]) -> list[Run]:
    """At most `MOST_TRIALS` of them, as fast on the whole: every n-th by throughput."""
    if len(runs) <= MOST_TRIALS:
        return runs
    ranked = sorted(runs, key=lambda run: (run.result and run.result.samples_per_s) or 0.0, reverse=True)
    return [ranked[index * len(ranked) // MOST_TRIALS] for index in range(MOST_TRIALS)]


def _values(name: str, runs: Sequence[Run]) -> list[Any]:
    """The values a knob took, in order; True is not 1."""
    found = {(type(run.point[name]), run.point[name]) for run in runs if name in run.point}
    return [value for _, value in sorted(found, key=lambda pair: (str(pair[0]), pair[1]))]


def is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _direction(name: str, runs: Sequence[Run], known: Sequence[Any], importance: float) -> tuple[str, int]:
    """What faster trials had, and how many trials say so. A number's best may lie between its ends."""
    pairs = [
        (run.point[name], run.result.samples_per_s or 0.0) for run in runs if run.result and name in run.point
    ]
    if len(pairs) < _MIN_FOR_DIRECTION:
        return "too few trials to say", len(pairs)
    if all(is_number(value) for value in known):
        direction = _number_direction([value for value, _ in pairs], [speed for _, speed in pairs])
        if direction is not None:
            return direction, len(pairs)
        if importance < MATTERS:
            return "no clear direction", len(pairs)
    by_value = {value: [speed for other, speed in pairs if other == value] for value in known}
    middle = {value: median(speeds) for value, speeds in by_value.items() if speeds}
    best, worst = max(middle, key=lambda one: middle[one]), min(middle, key=lambda one: middle[one])
    return f"fastest with {format_value(best)}, slowest with {format_value(worst)}", len(pairs)


def _number_direction(values: Sequence[float], speeds: Sequence[float]) -> str | None:
    """Which way a number pushes; None where the fastest may lie in the middle."""
    correlation = rank_correlation(values, speeds)
    if correlation is None or abs(correlation) < CLEAR_CORRELATION:
        return None
    return "faster when larger" if correlation > 0 else "faster when smaller"


def rank_correlation(first: Sequence[float], second: Sequence[float]) -> float | None:
    """Spearman's correlation, ties sharing their rank; None where one side is constant."""
    a, b = _ranks(first), _ranks(second)
    middle = (len(a) + 1) / 2
    top = sum((x - middle) * (y - middle) for x, y in zip(a, b, strict=True))
    bottom = sum((x - middle) ** 2 for x in a) * sum((y - middle) ** 2 for y in b)
    return top / bottom**0.5 if bottom > 0 else None


def _ranks(values: Sequence[float]) -> list[float]:
    ordered = sorted(values)
    middle = {v: (bisect_left(ordered, v) + bisect_right(ordered, v) + 1) / 2 for v in set(ordered)}
    return [middle[value] for value in values]
