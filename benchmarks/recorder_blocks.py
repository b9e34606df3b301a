"""Blocks of steps with the recorder on and off, in turns within one training: what they say it costs.

Covered: the records, the estimate, when enough is known. Not covered: the training (`recorder_rank.py`) and
what is shown (`recorder_overhead.py`). Four blocks, on-off-off-on, are one comparison: a steady drift of the
machine cancels within it. The estimate is Student's over the comparisons, spikes taken out
(`offtune.intervals`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Literal

from offtune.intervals import Interval, interval

ORDER = (True, False, False, True)  # whether each block of a comparison records
GOAL = 1.01  # time with recording over that without
LEAST_COMPARISONS = 12
LOOK_EVERY = 8
# Of many looks one would find the interval on either side by chance: before the time is up it must be there
# with half as much again, which is some 99.7 %.
_EARLY_WIDTH = 1.5

# What is compared: the whole turn of the loop, what a trial reports as its step, processor time of the rank.
Figure = Literal["turn_s", "step_s", "cpu_s"]
DECIDING: tuple[Figure, ...] = ("turn_s", "step_s")


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """Means over the steps of one block, in seconds; `own_s` was spent in the recorder's own code."""

    on: bool
    turn_s: float
    step_s: float
    cpu_s: float
    own_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Blocks:
    """All blocks of one training in order, `steps` each; the last comparison may not be whole."""

    steps: int
    blocks: tuple[Block, ...]

    def comparisons(self) -> list[tuple[Block, ...]]:
        """The whole comparisons."""
        width = len(ORDER)
        whole = len(self.blocks) // width
        return [self.blocks[width * index : width * (index + 1)] for index in range(whole)]

    def ratio(self, figure: Figure) -> Interval:
        """Time with recording over that without. Raises ValueError for fewer than two comparisons."""
        found = interval([_ratio(one, figure) for one in self.comparisons()])
        if found is None:
            raise ValueError("Blocks.ratio: fewer than two comparisons")
        return found

    def without(self, figure: Figure) -> float:
        """The median of the blocks that do not record, in seconds a step."""
        return median(getattr(block, figure) for block in self.blocks if not block.on)

    def own_share(self) -> float:
        """Time in the recorder's own code over that of a turn without it, a median over blocks."""
        return median(block.own_s for block in self.blocks if block.on) / self.without("turn_s")


def _ratio(comparison: Sequence[Block], figure: Figure) -> float:
    on, off = (sum(getattr(b, figure) for b in comparison if b.on is state) for state in (True, False))
    return on / off


def side(found: Interval, goal: float = GOAL) -> Literal["below", "above", "open"]:
    """On which side of the goal the whole interval lies."""
    return "below" if found.high < goal else "above" if found.low > goal else "open"


def enough(found: Blocks) -> bool:
    """Whether to stop before the time is up; asked after each comparison."""
    count = len(found.comparisons())
    if count < LEAST_COMPARISONS or (count - LEAST_COMPARISONS) % LOOK_EVERY:
        return False
    return all(side(_widened(found.ratio(figure))) != "open" for figure in DECIDING)


def _widened(one: Interval) -> Interval:
    half = _EARLY_WIDTH * (one.high - one.centre)
    return Interval(centre=one.centre, low=one.centre - half, high=one.centre + half)
