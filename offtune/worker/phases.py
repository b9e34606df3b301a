"""Where the time of a step goes: forward, backward, update and their parts; clocks on CPU, events on CUDA.

Covered: when each phase and part was and how long, per optimizer step and micro-step. Not covered: which
parts there are (`parts.py`), memory and traffic (`recorder.py`).
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from statistics import median
from typing import NamedTuple, TypeAlias

import torch

from offtune.timeline import OTHER
from offtune.trial import DeviceKind, PhaseTimes

Moment: TypeAlias = object  # a float of `time.perf_counter`, or an event on the device


class Stretch(NamedTuple):
    """A phase, or a part of one, while it is not known yet what a moment on the device is in host seconds.

    A tuple, because there can be hundreds in a step, and a dataclass takes four times as long to make.
    """

    name: str
    micro_step: int
    start: Moment
    end: Moment
    part: bool


class Timed(NamedTuple):
    """The same in seconds of `time.perf_counter`."""

    name: str
    micro_step: int
    start_s: float
    end_s: float
    part: bool


class PhaseClock:
    """Notes the phases of one optimizer step; `next_step` closes it.

    `edge` is called beside each phase, outside of its time. `inside` is the phase under way, if any.
    """

    def __init__(self, device: DeviceKind) -> None:
        self.on_device: Callable[[], Moment] = _cuda_mark if device == "cuda" else time.perf_counter
        self.edge: Callable[[], object] = do_nothing
        self.inside: str | None = None
        self.micro_step = -1
        self._cuda = device == "cuda"
        self._anchor: tuple[float, torch.cuda.Event] | None = None
        self._open: list[Stretch] = []
        self._steps: list[dict[str, float]] = []
        self.micro_s: tuple[float, ...] = ()  # forward and backward of each micro-step of the last step

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        if self._cuda and not self._open:
            # The device has just been waited for: an event recorded now happens now.
            self._anchor = (time.perf_counter(), _cuda_mark())
        if name == "forward" or self.micro_step < 0:
            self.micro_step += 1
        self.edge()
        self.inside = name
        start = self.on_device()
        yield
        end = self.on_device()
        self.inside = None
        self.add(name, start, end)
        self.edge()

    def add(self, name: str, start: Moment, end: Moment, *, part: bool = False) -> None:
        """Note a phase, or a part of the one under way."""
        self._open.append(Stretch(name, self.micro_step, start, end, part))

    def next_step(self, step_s: float) -> list[Timed]:
        """Close the step, which took `step_s` in all; the device must be synchronised."""
        # Without a device moments are seconds already; hundreds of parts make each microsecond count.
        timed = [self._timed(one) for one in self._open] if self._cuda else [*map(Timed._make, self._open)]
        self.micro_s = _micro_steps(timed)
        sums: dict[str, float] = defaultdict(float)
        for one in timed:
            if not one.part:
                sums[one.name] += one.end_s - one.start_s
        sums[OTHER] = step_s - sum(sums.values())
        self._steps.append(dict(sums))
        self._open, self.micro_step = [], -1
        return timed

    def _timed(self, stretch: Stretch) -> Timed:
        start, end = self.host_s(stretch.start), self.host_s(stretch.end)
        return Timed(stretch.name, stretch.micro_step, start, max(start, end), stretch.part)

    def host_s(self, moment: Moment) -> float:
        """A moment of this step in seconds of `time.perf_counter`; the device must be synchronised."""
        if isinstance(moment, float):
            return moment
        assert self._anchor is not None
        assert isinstance(moment, torch.cuda.Event)
        host_s, event = self._anchor
        return host_s + float(event.elapsed_time(moment)) / 1000.0

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
            other_s=middle.get(OTHER),
        )


def do_nothing() -> None:
    """What is called at edges that nobody listens to."""


def _micro_steps(timed: Sequence[Timed]) -> tuple[float, ...]:
    """Seconds of each micro-step; empty where a loop shows no pairs of forward and backward."""
    pairs: dict[int, dict[str, float]] = defaultdict(dict)
    for one in timed:
        if not one.part and one.name in ("forward", "backward"):
            pairs[one.micro_step][one.name] = one.end_s - one.start_s
    whole = all(len(pair) == 2 for pair in pairs.values())
    return tuple(sum(pair.values()) for pair in pairs.values()) if whole else ()


def _cuda_mark() -> torch.cuda.Event:
    event = torch.cuda.Event(enable_timing=True)
    event.record()
    return event
