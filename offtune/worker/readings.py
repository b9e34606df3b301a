"""Readings of one rank while it trains, turned into series at the end.

Covered: collecting from several threads without a lock, levels and rates as they are, counters as rates.
Not covered: what is read, and when (`recorder.py`).
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from itertools import accumulate

from offtune.timeline import Series, rates_of_counter

# Three minutes at the sampler's pace; beyond that two neighbours become one.
_MOST_READINGS = 20_000


class Readings:
    """Appending to a list is atomic, so threads need no lock; order is made at the end."""

    def __init__(self) -> None:
        self._values: dict[str, list[tuple[float, float]]] = defaultdict(list)
        self._counters: dict[str, list[tuple[float, float]]] = defaultdict(list)
        self._scale: dict[str, float] = {}

    def value(self, key: str, at_s: float, value: float) -> None:
        """A level, a rate or a share."""
        self._values[key].append((at_s, value))

    def counter(self, key: str, at_s: float, count: float, per: float = 1.0) -> None:
        """A counter that only grows; its rate over `per` becomes the series."""
        self._counters[key].append((at_s, count))
        self._scale[key] = per

    def bound(self) -> None:
        """Make one of each two readings where there are too many: the larger value, the later count."""
        for key, points in list(self._values.items()):
            if len(points) > _MOST_READINGS:
                pairs = zip(points[::2], points[1::2], strict=False)
                self._values[key] = [(later[0], max(early[1], later[1])) for early, later in pairs]
        for key, points in list(self._counters.items()):
            if len(points) > _MOST_READINGS:
                self._counters[key] = points[1::2]

    def series(self, zero_s: float) -> tuple[Series, ...]:
        """All of them by key, with `zero_s` as time zero."""
        found = [_levels(key, points, zero_s) for key, points in self._values.items()]
        found += [_rate(key, points, zero_s, self._scale[key]) for key, points in self._counters.items()]
        return tuple(sorted(found, key=lambda one: one.key))


def rounded(at_s: float) -> float:
    """A time to the microsecond: clocks and marks tell no more, and files of thousands get half as long."""
    return round(at_s, 6)


def _levels(key: str, points: list[tuple[float, float]], zero_s: float) -> Series:
    points = sorted(points)
    times = tuple(rounded(at_s - zero_s) for at_s, _ in points)
    return Series(key=key, times_s=times, values=tuple(value for _, value in points))


def _rate(key: str, points: list[tuple[float, float]], zero_s: float, per: float) -> Series:
    points = sorted(points)
    # Two threads may read the clock in one order and the counter in the other.
    counts = list(accumulate((count / per for _, count in points), max))
    exact = rates_of_counter(key, [at_s - zero_s for at_s, _ in points], counts)
    times = tuple(map(rounded, exact.times_s))
    return replace(exact, times_s=times, values=tuple(float(f"{value:.6g}") for value in exact.values))
