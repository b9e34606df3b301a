"""Where the time of a step goes: forward, backward and update; clocks on CPU, events on CUDA.

Covered: when each phase was and how long, per optimizer step and micro-step. Not covered: parts of phases
(`parts.py`), memory and traffic (`recorder.py`).
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from statistics import median
from typing import NamedTuple, TypeAlias

import torch

from offtune.timeline import OTHER
from offtune.trial import DeviceKind, PhaseTimes

Moment: TypeAlias = object  # a float of `time.perf_counter`, or an event on the device
Anchor: TypeAlias = "tuple[float, torch.cuda.Event] | None"  # the same moment by both; None without a device


class Stretch(NamedTuple):
    """A phase, while it is not known yet what a moment on the device is in host seconds.

    A tuple, because there can be hundreds in a step, and a dataclass takes four times as long to make.
    """

    name: str
    micro_step: int
    start: Moment
    end: Moment


class Timed(NamedTuple):
    """A phase, or a part of one, in seconds of `time.perf_counter`."""

    name: str
    micro_step: int
    start_s: float
    end_s: float


class PhaseClock:
    """Notes the phases of one optimizer step; `next_step` closes it.

    `edge` is called beside each phase, outside of its time. `inside` is the phase under way, if any.
    """

    def __init__(self, device: DeviceKind) -> None:
        self.on_device: Callable[[], Moment] = _cuda_mark if device == "cuda" else time.perf_counter
        self.edge: Callable[[], object] = do_nothing
        self.inside: str | None = None
        self.micro_step = -1
        self.has_device = device == "cuda"
        self._anchor: Anchor = None
        self._open: list[Stretch] = []
        self._steps: list[dict[str, float]] = []
        self.micro_s: tuple[float, ...] = ()  # forward and backward of each micro-step of the last step

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        if self.has_device and not self._open:
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
        self._open.append(Stretch(name, self.micro_step, start, end))
        self.edge()

    def next_step(self, step_s: float) -> list[Timed]:
        """Close the step, which took `step_s` in all; the device must be synchronised."""
        # Without a device moments are seconds already; many micro-steps make each microsecond count.
        in_seconds = self._timed if self.has_device else Timed._make
        timed = [in_seconds(one) for one in self._open]
        self.micro_s = _micro_steps(timed)
        sums: dict[str, float] = defaultdict(float)
        for one in timed:
            sums[one.name] += one.end_s - one.start_s
        sums[OTHER] = step_s - sum(sums.values())
        self._steps.append(dict(sums))
        self._open, self.micro_step = [], -1
        return timed

    def _timed(self, stretch: Stretch) -> Timed:
        start, end = self.host_s(stretch.start), self.host_s(stretch.end)
        return Timed(stretch.name, stretch.micro_step, start, max(start, end))

    @property
    def host_s(self) -> Callable[[Moment], float]:
        """A moment of this step in seconds of `time.perf_counter`, also once other steps have come.

        The device must be synchronised.
        """
        return partial(_host_s, self._anchor)

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
        if one.name in ("forward", "backward"):
            pairs[one.micro_step][one.name] = one.end_s - one.start_s
    whole = all(len(pair) == 2 for pair in pairs.values())
    return tuple(sum(pair.values()) for pair in pairs.values()) if whole else ()


def _host_s(anchor: Anchor, moment: Moment) -> float:
    if isinstance(moment, float):
        return moment
    assert anchor is not None
    assert isinstance(moment, torch.cuda.Event)
    host_s, event = anchor
    return host_s + float(event.elapsed_time(moment)) / 1000.0


def _cuda_mark() -> torch.cuda.Event:
    event = torch.cuda.Event(enable_timing=True)
    event.record()
    return event
