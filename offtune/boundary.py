"""The edge of the budget along partial offload: how many sub-groups may stay on the device.

Covered: the next point on a line of points that differ in residency only. Used memory is a straight line in
it and step time falls with it, so two measurements tell where the line meets the budget, and bisection
settles what noise leaves open. Not covered: every other knob (`strategy`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from offtune.beliefs import Guesser, Seen
from offtune.dominance import DEVICE_MEMORY, ON_A_LINE, RESIDENT
from offtune.knobs import Knob
from offtune.space import Space
from offtune.trial import Point

# Repeats of one configuration differ by some per cent in driver-reported memory; the line keeps off by this.
_MARGIN_SHARE = 0.02
# Two points give the line, a third settles it; more would be spent on a step of a few per cent.
_MOST_STEPS = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Mark:
    """Used over allowed device memory at so many resident sixteenths; None: too much, unknown how much."""

    resident: int
    share: float | None


def column_of(space: Space, point: Point) -> dict[int, Point] | None:
    """The points that differ from `point` in residency only, by it; None where it cannot vary."""
    axis = next((knob for knob in space.knobs if knob.name == RESIDENT), None)
    if axis is None or not _allows(axis, point):
        return None
    cut = {name: values[0] for name, values in axis.when.items() if point.get(name) not in values}
    return {value: space.complete({**point, **cut, RESIDENT: value}) for value in axis.values}


def _allows(axis: Knob, point: Point) -> bool:
    """Whether the placement takes partial offload; the cut into sub-groups follows by itself."""
    return point.get("placement") in axis.when.get("placement", (point.get("placement"),))


def next_resident(
    values: Sequence[int], marks: Sequence[Mark], slope: Callable[[], float | None]
) -> int | None:
    """The residency to measure next, None when the edge is found. `slope`: predicted share per sixteenth."""
    known = {mark.resident: mark for mark in marks}
    fitting = [mark for mark in marks if mark.share is not None and mark.share <= 1.0]
    if not fitting or len(marks) > _MOST_STEPS:
        return None
    low = max(fitting, key=lambda mark: mark.resident)
    above = [mark.resident for mark in marks if mark.share is None or mark.share > 1.0]
    high = min((value for value in above if value > low.resident), default=max(values) + 1)
    wanted = _by_line(marks, low, slope)
    if wanted is None or wanted >= high:
        wanted = (low.resident + high) // 2
    between = [value for value in values if low.resident < value <= wanted and value not in known]
    return max(between, default=None)


def _by_line(marks: Sequence[Mark], low: Mark, slope: Callable[[], float | None]) -> int | None:
    """Where the line through the measurements, or through one with the predicted slope, meets the budget."""
    # Nothing resident can have been measured under several cuts.
    measured = sorted({mark.resident: mark.share for mark in marks if mark.share is not None}.items())
    assert low.share is not None
    rise: float | None
    if len(measured) >= 2:
        (first, start), (last, end) = measured[-2:]
        rise = (end - start) / (last - first)
    else:
        rise = slope()
    if rise is None or rise <= 0:
        return None
    return low.resident + int((1.0 - _MARGIN_SHARE - low.share) / rise)


def edge(space: Space, seen: Sequence[Seen], guess: Guesser) -> Point | None:
    """The next step towards the edge of the budget, on the line of the fastest point that has one."""
    fitting = sorted((one for one in seen if one.feasible), key=lambda one: -(one.samples_per_s or 0.0))
    lines = ((one, column) for one in fitting if (column := column_of(space, one.point)) is not None)
    best, column = next(lines, (None, {}))
    if best is None:
        return None
    line = _rest(best.point)
    marks = [_mark(one) for one in seen if _is_on(line, one.point)]
    found = next_resident(tuple(column), marks, lambda: _predicted_rise(column, guess))
    return None if found is None else column[found]


def _mark(one: Seen) -> Mark:
    return Mark(resident=one.point.get(RESIDENT, 0), share=one.shares.get(DEVICE_MEMORY))


def _rest(point: Point) -> Point:
    """What tells the line of a point from others: everything but residency and the cut it brings."""
    return {name: value for name, value in point.items() if name not in ON_A_LINE}


def _is_on(line: Point, point: Point) -> bool:
    """Whether the rest of `point` is that line; most points of a long study differ at the first look."""
    return all(point.get(name) == value for name, value in line.items()) and _rest(point) == line


def _predicted_rise(column: dict[int, Point], guess: Guesser) -> float | None:
    """Predicted used over allowed memory per sixteenth, between the ends of a line."""
    first, last = min(column), max(column)
    ends = (guess(column[at]) for at in (first, last))
    shares = [found.shares.get(DEVICE_MEMORY) if found else None for found in ends]
    if shares[0] is None or shares[1] is None or first == last:
        return None
    return (shares[1] - shares[0]) / (last - first)
