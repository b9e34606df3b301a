"""How long a rank goes on measuring: until its step time is known, it is certainly slower or over, or drifts.

Covered: the decision and what it is made of. All ranks follow rank 0, so that none waits for another in a
collective. Not covered: timing the steps (`record.py`, `phases.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import torch
import torch.distributed as dist

from offtune.intervals import Interval, step_interval
from offtune.trial import Stopped, StopRule, TrialSpec
from offtune.units import format_bytes, format_seconds

# One optimizer step of so many micro-steps has as many samples as a trial of one micro-step could hope for.
_MICRO_STEPS_FOR_ONE = 8
# The same configuration in another process is up to 8 % slower or faster (docs/trials.md): a trial is given
# up as slower only beyond that.
_WORSE_SHARE = 0.08
# Steps in a row of which each takes longer than the one before: eight do so by chance once in 40,320 times.
_STEPS_TO_DRIFT = 8
_LEAST_GROWTH_SHARE = 0.10
# A healthy training holds the same after every step: 0.2 MiB more at most, and now and then a jump, up or
# down, of tens of MiB (llama-5m, 20 steps, four placements, CPU accelerator).
_STEPS_TO_GROW = 5
_LEAST_GROWTH_BYTES = 2 * 2**20
# Caches fill ever more slowly, and heaps go up and down; a leak keeps its pace.
_STEADY_SHARE = 0.5
_CODES: tuple[Stopped, ...] = ("", "tight", "worse", "over", "drift", "most", "level")


class Pace:
    """The measured steps of one rank, and whether they are enough."""

    def __init__(self, spec: TrialSpec) -> None:
        self._rule, self._most, self._limit_bytes = spec.stop, spec.steps, spec.limit_bytes
        self._device = spec.device  # "cuda" is the rank's current card
        self._alone = spec.workload.world_size == 1
        self._step_s: list[float] = []
        self._micro_s: list[tuple[float, ...]] = []
        self._levels: list[int] = []
        self._used_bytes: list[int | None] = []
        self.stopped: Stopped = ""

    def book(
        self, step_s: float, micro_s: tuple[float, ...], level_bytes: int, used_bytes: int | None
    ) -> None:
        """A measured step: its time, those of its micro-steps where known, the memory held after it.

        `used_bytes`: the most device memory that was used so far, as it is held against the budget.
        """
        self._step_s.append(step_s)
        self._micro_s.append(micro_s)
        self._levels.append(level_bytes)
        self._used_bytes.append(used_bytes)

    def interval(self) -> Interval | None:
        """What is known of the step time, in seconds."""
        usual_share = self._rule.scatter_share if self._rule is not None else None
        return step_interval(self._step_s, self._micro_s, usual_share)

    def unsafe(self) -> str:
        """What grew with every step, in a sentence; "" where nothing did."""
        return memory_drift(self._levels) or time_drift(self._step_s)

    def is_over(self) -> bool:
        """Whether the trial ends here; a collective of all ranks, outside of the timed window."""
        if self._rule is None:
            return len(self._step_s) >= self._most
        self.stopped = self._decision(self._rule)
        if not self._alone:
            code = torch.tensor([_CODES.index(self.stopped)], device=self._device)
            dist.broadcast(code, src=0)
            self.stopped = _CODES[int(code)]
        return self.stopped != ""

    def _decision(self, rule: StopRule) -> Stopped:
        known = self.interval()
        if self.unsafe():
            return "drift"
        if self._is_over_limit() and len(self._step_s) >= rule.over_steps:
            return "over"
        if known is not None and len(self._step_s) >= self._least(rule):
            if known.half_share <= rule.accuracy_share:
                return "tight"
            if rule.best_step_s is not None and known.low > rule.best_step_s * (1 + _WORSE_SHARE):
                return "worse"
        if rule.level_steps and len(self._step_s) >= rule.level_after and self._is_level(rule.level_steps):
            return "level"
        return "most" if len(self._step_s) >= self._most else ""

    def _is_over_limit(self) -> bool:
        used = self._used_bytes[-1] if self._used_bytes else None
        return used is not None and used > self._limit_bytes

    def _is_level(self, steps: int) -> bool:
        """Whether the most memory used has not risen over the last so many steps."""
        if len(self._used_bytes) <= steps:
            return False
        before, now = self._used_bytes[-1 - steps], self._used_bytes[-1]
        return before is not None and now is not None and now - before < _LEAST_GROWTH_BYTES

    def _least(self, rule: StopRule) -> int:
        many = bool(self._micro_s) and len(self._micro_s[0]) >= _MICRO_STEPS_FOR_ONE
        return 1 if many else rule.least_steps


def memory_drift(levels: Sequence[int]) -> str:
    """That the memory held after each step (bytes) grows at a steady pace; "" where it does not."""
    growth = [after - before for before, after in pairwise(levels)][-_STEPS_TO_GROW:]
    if len(growth) < _STEPS_TO_GROW or min(growth) < _LEAST_GROWTH_BYTES:
        return ""
    if min(growth) < _STEADY_SHARE * max(growth):
        return ""
    each = format_bytes(sum(growth) / len(growth))
    return f"Memory grew by some {each} with each of its last {len(growth)} steps: longer, it may run out."


def time_drift(step_s: Sequence[float]) -> str:
    """That every step (seconds) took longer than the one before; "" where that is not so."""
    last = step_s[-_STEPS_TO_DRIFT:]
    rises = all(after > before for before, after in pairwise(last))
    if len(last) < _STEPS_TO_DRIFT or not rises or last[-1] < last[0] * (1 + _LEAST_GROWTH_SHARE):
        return ""
    return (
        f"Each of its last {len(last)} steps took longer than the one before, from {format_seconds(last[0])} "
        f"to {format_seconds(last[-1])}: longer, it may be slower than it looks."
    )
