"""Some more steps of a rank under torch's profiler, once the measured ones are over.

Covered: naming the phases, keeping what the profiler saw. Not covered: reading it (`profiler_trace.py`).
A phase ends with a synchronised device here, so that each copy belongs to one; these steps are not timed.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from torch.profiler import ProfilerActivity, profile, record_function

from offtune.close_look import look_path
from offtune.trial import TrialSpec, dump
from offtune.worker.phases import PhaseClock, Timed
from offtune.worker.profiler_trace import PREFIX, ZERO, Taken, read_profile


class ProfiledClock(PhaseClock):
    """Names the phases of a step in torch's profiler, which runs from the start to `finish`.

    `origin_s` is the time of time.perf_counter that is zero on the rank's timeline.
    """

    def __init__(self, spec: TrialSpec, rank: int, origin_s: float) -> None:
        super().__init__(spec.device)
        self._spec, self._rank = spec, rank
        self._has_device = spec.device == "cuda"
        activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if self._has_device else [])]
        self._profiler = profile(activities=activities)
        self._step_s: list[float] = []
        self._profiler.start()
        with record_function(ZERO):
            self._zero_s = time.perf_counter() - origin_s

    @property
    def steps(self) -> int:
        """How many steps have ended."""
        return len(self._step_s)

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Name a phase in the profile."""
        with record_function(PREFIX + name):
            yield
            if self._has_device:
                torch.cuda.synchronize()

    def next_step(self, step_s: float) -> list[Timed]:
        """A profiled step has ended; it is not timed."""
        self._step_s.append(step_s)
        return []

    def finish(self) -> None:
        """Stop, read and leave the close look in the trial's directory, whole or not at all."""
        self._profiler.stop()
        exported = Path(self._spec.trial_dir) / f"profiler{self._rank}.json"
        self._profiler.export_chrome_trace(str(exported))
        taken = Taken(
            rank=self._rank,
            step_s=tuple(self._step_s),
            zero_s=self._zero_s,
            has_device=self._has_device,
        )
        look = read_profile(json.loads(exported.read_bytes()), taken)
        exported.unlink()
        final = look_path(self._spec.trial_dir, self._rank)
        draft = final.with_suffix(".tmp")
        draft.write_text(dump(look))
        draft.rename(final)
