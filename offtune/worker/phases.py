"""Where the time of a step goes: forward, backward, update; clocks on CPU, events on CUDA.

Covered: seconds per phase and optimizer step. Not covered: what happens inside a phase.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from statistics import median

import torch

from offtune.trial import DeviceKind, PhaseTimes


class PhaseClock:
    """Adds up the seconds of each phase within one optimizer step; `next_step` closes a step."""

    def __init__(self, device: DeviceKind) -> None:
        self._mark = _cuda_mark if device == "cuda" else time.perf_counter
        self._open: dict[str, list[tuple[object, object]]] = defaultdict(list)
        self._steps: list[dict[str, float]] = []

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        start = self._mark()
        yield
        self._open[name].append((start, self._mark()))

    def next_step(self, step_s: float) -> None:
        """Close the step, which took `step_s` in all; the device must be synchronised."""
        sums = {name: sum(_between(a, b) for a, b in marks) for name, marks in self._open.items()}
        sums["other"] = step_s - sum(sums.values())
        self._steps.append(sums)
        self._open.clear()

    def forget(self) -> None:
        """Drop what was recorded so far (the warm-up)."""
        self._steps.clear()

    def times(self) -> PhaseTimes | None:
        if not self._steps:
            return None
        # A person's loop may leave a phase out (loss.backward() instead of the engine's): then it is unknown.
        names = set.intersection(*(set(step) for step in self._steps))
        middle = {name: median(step[name] for step in self._steps) for name in names}
        return PhaseTimes(
            forward_s=middle.get("forward"),
            backward_s=middle.get("backward"),
            update_s=middle.get("update"),
            other_s=middle.get("other"),
        )


def _cuda_mark() -> torch.cuda.Event:
    event = torch.cuda.Event(enable_timing=True)
    event.record()
    return event


def _between(start: object, end: object) -> float:
    if isinstance(start, float) and isinstance(end, float):
        return end - start
    assert isinstance(start, torch.cuda.Event)
    return float(start.elapsed_time(end)) / 1000.0
