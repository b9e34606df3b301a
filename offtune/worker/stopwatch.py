"""Repeats a short action and says how long it took: median and spread.

Covered: warm-up, a budget of seconds, quartiles. Not covered: what is measured.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

from offtune.calibration import Figure

_LEAST = 5  # repeats; with fewer a quartile means nothing
_MOST = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """Seconds of one action: the median of `count` repeats, `spread` the interquartile range over it."""

    median_s: float
    spread: float
    count: int

    def rate(self, key: str, amount: float, unit: str, detail: str) -> Figure:
        """`amount` per second as a figure."""
        return Figure(
            key=key,
            value=amount / self.median_s,
            unit=unit,
            spread=self.spread,
            count=self.count,
            detail=detail,
        )


def timed(action: Callable[[], object], budget_s: float) -> Timing:
    """Do `action` once to warm up, then again and again for `budget_s`, at least five times."""
    action()
    seconds: list[float] = []
    give_up = time.perf_counter() + budget_s
    while len(seconds) < _LEAST or (time.perf_counter() < give_up and len(seconds) < _MOST):
        start = time.perf_counter()
        action()
        seconds.append(time.perf_counter() - start)
    return timing(seconds)


def timing(seconds: list[float]) -> Timing:
    """Median and spread of at least two repeats."""
    low, median, high = statistics.quantiles(seconds, n=4, method="inclusive")
    return Timing(median_s=median, spread=(high - low) / median, count=len(seconds))


def absent(key: str, unit: str, reason: str) -> Figure:
    """A figure that this machine does not have, and why."""
    return Figure(key=key, value=None, unit=unit, detail=reason)
