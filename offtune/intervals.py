"""How well a repeated time is known: its centre and an interval, from few and disturbed samples.

Covered: the interval of one time, of an optimizer step from its micro-steps, what other trials lend to it.
One file for both sides: the child stops by it, the parent judges by it. Not covered: shifts from one process
to the next, which no samples of one process can show (`finals` repeats whole trials for that, `rounds`).

Student's t about the mean of what is left once spikes are taken out: a shared machine gives single samples
several times the usual time, which say nothing about the configuration, while a bootstrap or the quartiles of
three to eight samples promise too much (tests/test_intervals.py holds the coverage).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
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
# What other trials say of the scatter weighs as much as so many more samples of this one. Where all scatter
# alike two would do nearly as well, and more would hide one that does not (docs/winner.md).
_LENT_DEGREES = 3
# Trials that tell the usual scatter together; one may have met a bad moment.
_LEAST_FOR_USUAL = 3


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


def interval(samples: Sequence[float], usual_share: float | None = None) -> Interval | None:
    """The interval of the usual value; None for fewer than two samples.

    `usual_share` is how much such samples scatter elsewhere (`usual_scatter`). Few samples may look alike or
    apart by chance: theirs and the usual variance are joined, each with its degrees of freedom.
    """
    if len(samples) < 2:
        return None
    kept = without_spikes(samples)
    count, centre = _effective_count(kept), fmean(kept)
    degrees, variance = math.floor(count) - 1, stdev(kept) ** 2
    if usual_share is not None:
        lent = _LENT_DEGREES * (usual_share * centre) ** 2
        variance = (degrees * variance + lent) / (degrees + _LENT_DEGREES)
        degrees += _LENT_DEGREES
    return _around(centre, t95(degrees) * math.sqrt(variance / count))


def usual_scatter(trials: Iterable[Sequence[float]]) -> float | None:
    """How much samples of a trial scatter, a standard deviation as a share of their mean: a median of trials.

    The median variance of few samples is less than the true one: each is raised by what the median of a
    chi-squared variable falls short of its mean (Wilson and Hilferty, 1931). None for fewer than three trials
    of two samples or more.
    """
    shares = [
        (stdev(samples) / fmean(samples)) ** 2 / (1 - 2 / (9 * (len(samples) - 1))) ** 3
        for samples in trials
        if len(samples) > 1
    ]
    return math.sqrt(median(shares)) if len(shares) >= _LEAST_FOR_USUAL else None


def step_interval(
    step_s: Sequence[float], micro_s: Sequence[Sequence[float]] = (), usual_share: float | None = None
) -> Interval | None:
    """The interval of an optimizer step, in seconds; None where it cannot be said.

    `micro_s` are, for each step, the times of its micro-steps (forward and backward), `usual_share` how much
    whole steps scatter in other trials. What says more is taken: whole steps with that, or micro-steps.
    """
    by_steps, by_micros = interval(step_s, usual_share), _by_micro_steps(step_s, micro_s)
    if by_steps is None or by_micros is None or usual_share is None:
        return by_micros or by_steps
    return min(by_steps, by_micros, key=lambda known: known.half_share)


def _by_micro_steps(step_s: Sequence[float], micro_s: Sequence[Sequence[float]]) -> Interval | None:
    """A step of g micro-steps is g times the usual one and a rest (the update): one of many says a lot."""
    counts = {len(micros) for micros in micro_s}
    if len(micro_s) != len(step_s) or len(counts) != 1 or counts <= {0, 1}:
        return None
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
