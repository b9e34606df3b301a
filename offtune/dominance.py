"""What cannot fit by what was measured and by order alone, whatever a prediction says.

Covered: points that hold at least as much as one that did not fit, all else being equal, and points of a line
in residency whose measurements put them over the budget. Not covered: how much memory a point takes
(`beliefs`), where the line meets the budget (`boundary`).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from offtune.trial import Point

RESIDENT = "resident_sixteenths"
# The limit that grows with it, as `score` names it.
DEVICE_MEMORY = "device_memory"
# In these used device memory only grows: activations with the micro-batch, states with what is resident.
_GROWING = ("micro_batch", RESIDENT)
# The cut into sub-groups comes with residency, and moves a line by less than the noise of a repeat.
ON_A_LINE = (RESIDENT, "sub_groups")

_Rest = tuple[tuple[str, Any], ...]


def beyond(points: Sequence[Point], measured: Iterable[tuple[Point, float | None]]) -> list[bool]:
    """Whether each of `points` cannot fit, from used over allowed device memory; None: more than allowed."""
    over: dict[_Rest, list[tuple[int, ...]]] = {}
    lines: dict[_Rest, dict[int, float]] = {}
    for point, share in measured:
        if share is None or share > 1.0:
            over.setdefault(_rest(point, _GROWING), []).append(_amounts(point))
        if share is not None:
            lines.setdefault(_rest(point, ON_A_LINE), {})[point.get(RESIDENT, 0)] = share
    return [
        any(_covers(_amounts(point), less) for less in over.get(_rest(point, _GROWING), ()))
        or _over_by_line(point.get(RESIDENT, 0), lines.get(_rest(point, ON_A_LINE), {}))
        for point in points
    ]


def _over_by_line(resident: int, marks: dict[int, float]) -> bool:
    """Whether the straight line through the nearest two measurements is over the budget there."""
    if len(marks) < 2 or resident in marks:
        return False
    nearest = sorted(sorted(marks, key=lambda at: abs(at - resident))[:2])
    (first, last), (start, end) = nearest, (marks[at] for at in nearest)
    return start + (end - start) / (last - first) * (resident - first) > 1.0


def _covers(more: tuple[int, ...], less: tuple[int, ...]) -> bool:
    return all(one >= other for one, other in zip(more, less, strict=True))


def _amounts(point: Point) -> tuple[int, ...]:
    return tuple(point.get(name, 0) for name in _GROWING)


def _rest(point: Point, but: tuple[str, ...]) -> _Rest:
    return tuple(item for item in point.items() if item[0] not in but)
