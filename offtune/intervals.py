"""How well a repeated time is known: its centre and an interval, from few and disturbed samples.

Covered: the interval of one time, of an optimizer step from its micro-steps, of the ratio of two speeds from
paired rounds. One file for both sides: the child stops by it, the parent judges by it. Not covered: shifts
from one process to the next, which no samples of one process can show (`finals` repeats whole trials for
that).

Student's t about the mean of what is left once spikes are taken out: a shared machine gives single samples
several times the usual time, which say nothing about the configuration, while a bootstrap or the quartiles of
three to eight samples promise too much (tests/test_intervals.py holds the coverage).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import fmean, median, stdev

# Two-sided 95 % quantiles of Student's t by degrees of freedom, from 1 on (any table of the distribution).
_T95 = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145,
        2.131, 2.120, 2.110, 2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048,
        2.045, 2.042)  # fmt: skip
# Beyond the table: the normal quantile and its first correction, within 0.2 % from 30 degrees on.
_Z95, _T95_SLOPE = 1.960, 2.37
_NORMAL_MAD = 1.4826  # standard deviations in a median absolute deviation of normal noise
# Spikes: so many robust standard deviations from the median, where six samples or more tell what is usual.
_SPIKE = 5.0
_LEAST_FOR_SPIKES = 6
# Neighbours in time are alike; with fewer samples their correlation cannot be told from chance.
_LEAST_FOR_CORRELATION = 8
_MOST_CORRELATION = 0.8


@dataclass(frozen=True, slots=True, kw_only=True)
class Interval:
    """A value with its 95 % interval; the unit is that of the samples."""

    centre: float
    low: float
    high: float

    @property
    def half_share(self) -> float:
        """From the centre to the upper end, as a share of the centre."""
        return (self.high - self.centre) / self.centre if self.centre > 0 else math.inf


def interval(samples: Sequence[float]) -> Interval | None:
    """The interval of the usual value; None for fewer than two samples."""
    if len(samples) < 2:
        return None
    kept = without_spikes(samples)
    count = _effective_count(kept)
    return _around(fmean(kept), t95(math.floor(count) - 1) * stdev(kept) / math.sqrt(count))


def step_interval(step_s: Sequence[float], micro_s: Sequence[Sequence[float]] = ()) -> Interval | None:
    """The interval of an optimizer step, in seconds; None where it cannot be said.

    `micro_s` are, for each step, the times of its micro-steps (forward and backward). A step of g of them is
    g times the usual micro-step and one rest (the update), so that one step of many micro-steps says a lot.
    """
    counts = {len(micros) for micros in micro_s}
    if len(micro_s) != len(step_s) or len(counts) != 1 or counts <= {0, 1}:
        return interval(step_s)
    count = counts.pop()
    micro = interval([each for micros in micro_s for each in micros])
    rests = [whole - sum(micros) for whole, micros in zip(step_s, micro_s, strict=True)]
    assert micro is not None
    rest = interval(rests)
    centre = fmean(rests) if rest is None else rest.centre
    # One update alone shows no scatter of its own: that of a single micro-step is lent to it.
    lent = abs(centre) * micro.half_share * math.sqrt(count)
    half = math.hypot(count * (micro.high - micro.centre), lent if rest is None else rest.high - rest.centre)
    return _around(count * micro.centre + centre, half)


def without_spikes(samples: Sequence[float]) -> list[float]:
    """The samples less those far outside of what is usual; all of them where that cannot be told."""
    middle = median(samples)
    spread = _NORMAL_MAD * median(abs(each - middle) for each in samples)
    if len(samples) < _LEAST_FOR_SPIKES or spread == 0:
        return list(samples)
    return [each for each in samples if abs(each - middle) <= _SPIKE * spread]


def t95(degrees: int) -> float:
    """The two-sided 95 % quantile of Student's t; infinite without a degree of freedom."""
    if degrees < 1:
        return math.inf
    return _T95[degrees - 1] if degrees <= len(_T95) else _Z95 + _T95_SLOPE / degrees


def _effective_count(samples: Sequence[float]) -> float:
    """How many independent samples these are worth: neighbours that are alike count for less.

    n (1 - r) / (1 + r) with the correlation r of neighbours (first-order autoregression), at least two.
    """
    count, middle = len(samples), fmean(samples)
    around = [each - middle for each in samples]
    whole = sum(each * each for each in around)
    if count < _LEAST_FOR_CORRELATION or whole == 0:
        return float(count)
    correlation = sum(a * b for a, b in pairwise(around)) / whole
    held = min(_MOST_CORRELATION, max(0.0, correlation))
    return max(2.0, count * (1 - held) / (1 + held))


def _around(centre: float, half: float) -> Interval:
    # Few scattered samples reach below zero, where no time can be.
    return Interval(centre=centre, low=max(0.0, centre - half), high=centre + half)


def ratio_interval(rounds: Sequence[Mapping[int, float]], one: int, other: int) -> Interval | None:
    """How many times as large `one` is as `other`, from rounds in which both were measured once.

    Within a round both met the same state of the machine, so that only what differs from round to round
    counts as noise; how much that is, all those measured in every round tell together (two-way layout of
    the logarithms). None for fewer than two rounds.
    """
    both = [each for each in rounds if one in each and other in each]
    if len(both) < 2 or one == other:
        return None
    names = sorted(set.intersection(*(set(each) for each in both)))
    table = [[math.log(each[name]) for name in names] for each in both]
    error = t95((len(both) - 1) * (len(names) - 1)) * math.sqrt(2 * _noise_variance(table) / len(both))
    middle = fmean(math.log(each[one] / each[other]) for each in both)
    return Interval(centre=math.exp(middle), low=math.exp(middle - error), high=math.exp(middle + error))


def _noise_variance(table: Sequence[Sequence[float]]) -> float:
    """The variance of a single entry once the means of its row and of its column are taken out."""
    rows = [fmean(row) for row in table]
    columns = [fmean(column) for column in zip(*table, strict=True)]
    whole = fmean(rows)
    squares = sum(
        (value - rows[i] - columns[j] + whole) ** 2
        for i, row in enumerate(table)
        for j, value in enumerate(row)
    )
    return squares / ((len(rows) - 1) * (len(columns) - 1))
