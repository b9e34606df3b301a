"""Pairs of steps of one training, one with the recorder on and one with it off: what they say it costs.

Covered: the records, the estimate and its interval, when enough is known. Not covered: the training
(`recorder_rank.py`) and what is shown (`recorder_overhead.py`).

Which step of a pair records is drawn by lot. So within a pair the difference of logarithms, less the cost, is
as likely positive as negative, whatever the machine's noise is like: drift, waves, spikes, heavy tails. This
is all that Wilcoxon's signed-rank test asks for. The interval holds the costs it does not reject, and the
estimate is in its middle (Hodges and Lehmann, Annals of Mathematical Statistics 34, 1963): the median of the
means of any two differences. Nothing is taken out, and a spike weighs no more than a large difference does.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations_with_replacement
from statistics import median
from typing import Literal

from offtune.intervals import Interval

GOAL = 1.01  # time with recording over that without
LEAST_PAIRS = 96
LOOK_EVERY = 64
# Of many looks one would find the interval on either side by chance: before the time is up it must be there
# with half as much again, which is some 99.7 %.
_EARLY_WIDTH = 1.5
_Z95 = 1.960
_SLOW = 1.5  # times the usual step

# What is compared: the whole turn of the loop, what a trial reports as its step, processor time of the rank.
Figure = Literal["turn_s", "step_s", "cpu_s"]
DECIDING: tuple[Figure, ...] = ("turn_s", "step_s")


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """One turn of the training loop, in seconds; `own_s` was spent in the recorder's own code."""

    turn_s: float
    step_s: float
    cpu_s: float
    own_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """Two steps in a row; `closely` says whether the one that records had its parts timed."""

    on: Turn
    off: Turn
    closely: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Pairs:
    """All pairs of one training in order; in a trial one of `close_every` steps has its parts timed."""

    close_every: int
    pairs: tuple[Pair, ...]

    def ratio(self, figure: Figure) -> Interval:
        """Time with recording over that without; the interval is infinite where the pairs are too few.

        Steps whose parts are timed cost more: they are told apart, and count with their share in a trial. An
        interval from both together, each less its middle, is narrower, but with spikes it promises too much.
        """
        kinds = [(share, middle_of(self._differences(figure, pairs))) for share, pairs in self._kinds()]
        centre = sum(share * math.exp(found.centre) for share, found in kinds)
        edges = [
            [share * (math.exp(edge) - math.exp(found.centre)) for edge in (found.low, found.high)]
            for share, found in kinds
        ]
        down, up = (math.hypot(*distances) for distances in zip(*edges, strict=True))
        return Interval(centre=centre, low=max(0.0, centre - down), high=centre + up)

    def without(self, figure: Figure) -> float:
        """The median of the steps that do not record, in seconds."""
        return median(getattr(pair.off, figure) for pair in self.pairs)

    def own_s(self) -> float:
        """Seconds of a step in the recorder's own code: medians, each kind of step with its share."""
        return sum(share * median(pair.on.own_s for pair in pairs) for share, pairs in self._kinds())

    def own_share(self) -> float:
        """The same over a turn of the loop without recording."""
        return self.own_s() / self.without("turn_s")

    def slow(self, on: bool) -> int:
        """How many steps took half as long again as usual: they count little in the estimate."""
        limit_s = _SLOW * self.without("turn_s")
        return sum((pair.on if on else pair.off).turn_s > limit_s for pair in self.pairs)

    def _kinds(self) -> list[tuple[float, list[Pair]]]:
        """(share of such steps in a trial, pairs) without and with the parts timed."""
        close = 1 / self.close_every
        return [
            (share, [pair for pair in self.pairs if pair.closely is closely])
            for share, closely in ((1 - close, False), (close, True))
        ]

    @staticmethod
    def _differences(figure: Figure, pairs: Sequence[Pair]) -> list[float]:
        return [math.log(getattr(pair.on, figure) / getattr(pair.off, figure)) for pair in pairs]


def middle_of(differences: Sequence[float]) -> Interval:
    """Where differences lie that scatter evenly to both sides: Hodges and Lehmann's, with its 95 % interval.

    With fewer than six no test rejects anything: the interval is infinite. Raises ValueError for none.
    """
    count = len(differences)
    if not count:
        raise ValueError("middle_of: no differences")
    means = sorted((a + b) / 2 for a, b in combinations_with_replacement(differences, 2))
    # The signed-rank statistic is nearly normal, with this mean and variance.
    centre, scatter = count * (count + 1) / 4, math.sqrt(count * (count + 1) * (2 * count + 1) / 24)
    cut = math.floor(centre - _Z95 * scatter)
    if cut < 1:
        return Interval(centre=median(means), low=-math.inf, high=math.inf)
    return Interval(centre=median(means), low=means[cut - 1], high=means[-cut])


def side(found: Interval, goal: float = GOAL) -> Literal["below", "above", "open"]:
    """On which side of the goal the whole interval lies."""
    return "below" if found.high < goal else "above" if found.low > goal else "open"


def enough(found: Pairs) -> bool:
    """Whether to stop before the time is up; asked now and then."""
    count = len(found.pairs)
    if count < LEAST_PAIRS or (count - LEAST_PAIRS) % LOOK_EVERY:
        return False
    return all(side(_widened(found.ratio(figure))) != "open" for figure in DECIDING)


def _widened(one: Interval) -> Interval:
    low, high = (one.centre + _EARLY_WIDTH * (edge - one.centre) for edge in (one.low, one.high))
    return Interval(centre=one.centre, low=low, high=high)
