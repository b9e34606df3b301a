"""What one rank sees of its training, built-in or the person's own: steps, losses, memory; its report.

Covered: barriers, timing of whole optimizer steps, memory, and the report in its three kinds. Not covered:
the loop that trains (`train.py`) and the watching of somebody else's (`watch.py`).
"""

from __future__ import annotations

import math
import os
import platform
import sys
import time
import traceback
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import deepspeed
import torch
import torch.distributed as dist

from offtune.rank_report import RankReport
from offtune.trial import MemoryPeaks, TrialSpec
from offtune.worker import memory
from offtune.worker.close_look import ProfiledClock
from offtune.worker.failures import described, outcome_of
from offtune.worker.pace import Pace
from offtune.worker.phases import PhaseClock
from offtune.worker.recorder import Recorder, pinned_bytes

_VERSIONED = ("transformers", "accelerate")


class Record:
    """The record of one rank in one trial; what is in it stays known when the rank fails on the way.

    `gpu` is the NVML index of the rank's card.
    """

    def __init__(self, spec: TrialSpec, rank: int, gpu: int) -> None:
        self.spec, self.rank, self.gpu = spec, rank, gpu
        self.stage = "start"
        self.steps_begun = self.steps_done = 0
        self.step_s: list[float] = []
        self.losses: list[float | None] = []
        self.warmup_losses: list[float | None] = []
        self.diverged = False
        self.clock = PhaseClock(spec.device)
        self.recorder: Recorder | None = None
        self.pace = Pace(spec)
        self.resident: memory.ResidentMemory | None = None
        self.driver: memory.DriverMemory | None = None
        self._first_step_at: float | None = None
        self._skipped_before = 0
        self._traffic: memory.LinkTraffic | None = None
        self._barrier_s = 0.0

    @property
    def total_steps(self) -> int:
        """Optimizer steps, warm-up included; with a stop rule the most there may be."""
        return self.spec.warmup_steps + self.spec.steps

    def is_over(self) -> bool:
        """Whether enough steps were made; asked by all ranks after each step, outside of its window."""
        return self.steps_done > self.spec.warmup_steps and self.pace.is_over()

    @property
    def is_usable(self) -> bool:
        """Whether a trial that may stop early could have stopped by now."""
        rule = self.spec.stop
        return rule is not None and len(self.step_s) >= rule.least_steps

    def enter(self, stage: str) -> None:
        """Name what comes now, for the report and for the person reading the log."""
        self.stage = stage
        print(f"offtune: {stage}", flush=True)  # noqa: T201 into the trial's log

    def watch_memory(self, level_bytes: int | None = None) -> None:
        """Begin to watch this process; the resident level is `level_bytes`, or taken now."""
        if self.spec.device == "cuda":
            self.driver = memory.DriverMemory(self.gpu)
        self.resident = memory.ResidentMemory()
        if level_bytes is not None:
            self.resident.level_bytes = level_bytes

    def cap_allocator(self, device: torch.device) -> None:
        """Make a large card behave like the budgeted one: the allocator gets what the context leaves."""
        if self.driver is None:
            return
        total = torch.cuda.get_device_properties(device).total_memory
        outside = (self.driver.now_bytes() or 0) - torch.cuda.memory_reserved(device)
        for_allocator = max(self.spec.limit_bytes - max(outside, 0), 0)
        torch.cuda.set_per_process_memory_fraction(min(1.0, for_allocator / total), device)

    def barrier(self) -> float:
        """The time at which every rank's device has finished what was asked of it."""
        if self.spec.device == "cuda":
            torch.cuda.synchronize()
        if self.spec.workload.world_size > 1:
            dist.barrier()
        self._barrier_s = time.perf_counter()
        return self._barrier_s

    def begin_step(self, engine: Any) -> None:
        """The next optimizer step begins; the first measured one forgets what the warm-up showed."""
        step, self.steps_begun = self.steps_begun, self.steps_begun + 1
        measured = step >= self.spec.warmup_steps
        self.enter(f"{'measured' if measured else 'warm-up'} step {step + 1} of {self.total_steps}")
        if step == self.spec.warmup_steps:
            self.clock.forget()
            self._skipped_before = int(engine.skipped_steps)
            self._begin_recording(engine)
        if self.recorder is not None:
            self.recorder.begin_step()

    def _begin_recording(self, engine: Any) -> None:
        """Time series from the first measured step on; without them still the traffic as a whole."""
        self._traffic = memory.LinkTraffic(self.spec.device, self.gpu)
        if self.spec.record and self.resident is not None:
            self.start_recording(engine)

    def start_recording(self, engine: Any, recorder: Recorder | None = None) -> Recorder:
        """From the next step on, record what the samplers of `watch_memory` and the phases tell.

        A `recorder` that was stopped goes on.
        """
        assert self.resident is not None
        self.recorder = recorder or Recorder(self.spec, self.rank, self.gpu, self.clock, self.resident)
        self.recorder.begin(engine, self.driver, self._traffic)
        return self.recorder

    def stop_recording(self) -> None:
        """Forget the recording, and leave the engine as it was before."""
        if self.recorder is not None:
            self.recorder.stop()
            self.recorder = None

    def end_step(self, step_s: float, losses: Sequence[torch.Tensor]) -> None:
        """The step took `step_s`; its loss is the mean over ranks of the sum of `losses`, if any.

        Call it right after the `barrier` that ended the step.
        """
        timed = self.clock.next_step(step_s)
        if self.recorder is not None:
            self.recorder.end_step(timed, step_s, self._barrier_s)
        self._first_step_at = self._first_step_at or time.time()
        loss = _mean_over_ranks(losses)
        measured = self.steps_done >= self.spec.warmup_steps
        curve = self.losses if measured else self.warmup_losses
        curve.append(loss if loss is not None and math.isfinite(loss) else None)
        self.diverged = self.diverged or (loss is not None and not math.isfinite(loss))
        if measured:
            self.step_s.append(step_s)
            self.pace.book(step_s, self.clock.micro_s, self._held_bytes(), self._peaks().used_device_bytes)
        self.steps_done += 1

    def done(self, engine: Any, step_tokens: float | None = None) -> RankReport:
        """The report of a rank that has made all its steps."""
        self.enter("report")
        groups, ratio = optimizer_placement(engine)
        known = self.pace.interval()
        outcome = ("diverged", "The loss is not finite.") if self.diverged else ("done", "")
        report = self.report(*outcome)
        return replace(
            report,
            step_interval_s=(known.low, known.high) if known else None,
            stopped=self.pace.stopped,
            unsafe=self.pace.unsafe(),
            phases=self.clock.times(),
            traffic=self._traffic.finish() if self._traffic else report.traffic,
            analysis=self.recorder.finish() if self.recorder else None,
            skipped_steps=int(engine.skipped_steps) - self._skipped_before,
            warmup_skipped_steps=self._skipped_before,
            sub_groups=groups,
            effective_ratio=ratio,
            step_tokens=step_tokens,
        )

    def look_closely(self) -> ProfiledClock:
        """From here on torch's profiler watches, and nothing is measured any more."""
        self.enter("steps under torch's profiler")
        zero_s = self.recorder.zero_s if self.recorder is not None else None
        clock = ProfiledClock(self.spec, self.rank, time.perf_counter() if zero_s is None else zero_s)
        self.clock = clock
        return clock

    def failed(self, error: BaseException) -> RankReport:
        """The report of a rank that an exception ended; the traceback goes to the log."""
        traceback.print_exception(error)
        return self.report(outcome_of(error, self.stage), described(error))

    def report(self, outcome: Any, error: str) -> RankReport:
        """A report of what is known so far."""
        return RankReport(
            rank=self.rank,
            host=platform.node(),
            outcome=outcome,
            error=error,
            stage=self.stage,
            step_s=tuple(self.step_s),
            losses=tuple(self.losses),
            warmup_losses=tuple(self.warmup_losses),
            memory=self._peaks(),
            first_step_at=self._first_step_at,
            versions=versions(),
        )

    def _held_bytes(self) -> int:
        """Memory held between two steps: by torch on the device, else by this process."""
        if self.spec.device == "cuda":
            return int(torch.cuda.memory_allocated())
        return memory.private_resident_bytes()

    def _peaks(self) -> MemoryPeaks:
        if self.resident is None:
            return MemoryPeaks()
        allocated = reserved = None
        pinned = pinned_bytes("peak") if self.spec.device == "cuda" else None
        if self.spec.device == "cuda":
            allocated, reserved = self._allocator_peaks()
        return memory.peaks(self.resident, self.driver, allocated, reserved, pinned)

    def _allocator_peaks(self) -> tuple[int, int]:
        """The recorder restarts torch's own high-water marks at each phase, so both are needed."""
        own = self.recorder.allocator if self.recorder is not None else None
        before = (own.allocated_peak, own.reserved_peak) if own is not None else (0, 0)
        return (
            max(before[0], torch.cuda.max_memory_allocated()),
            max(before[1], torch.cuda.max_memory_reserved()),
        )


def _mean_over_ranks(losses: Sequence[torch.Tensor]) -> float | None:
    if not losses:
        return None
    total = torch.stack([loss.float().reshape(()) for loss in losses]).sum()
    if dist.is_initialized() and dist.get_world_size() > 1:
        dist.all_reduce(total)
        total = total / dist.get_world_size()
    return float(total)


def optimizer_placement(engine: Any) -> tuple[int | None, float | None]:
    """(number of sub-groups, share of optimizer elements updated on the host), as DeepSpeed really has them.

    Outside stage 3 there are no sub-groups: the share is 1 with an offloaded optimizer, else 0.
    """
    offload = engine.zero_offload_optimizer()
    offloaded = offload is not None and str(getattr(offload.device, "value", offload.device)) != "none"
    devices = getattr(engine.optimizer, "subgroup_to_device", None)
    sizes = getattr(engine.optimizer, "fp16_partitioned_groups_flat_numel", None)
    if not sizes:
        return None, 1.0 if offloaded else 0.0
    if not offloaded:
        return len(sizes), 0.0
    if not devices:  # NVMe: every sub-group passes through the host
        return len(sizes), 1.0
    on_host = sum(size for i, size in enumerate(sizes) if devices.get(i, "cpu") == "cpu")
    return len(sizes), on_host / sum(sizes)


def versions() -> dict[str, str]:
    """Versions of what trained; of packages that are not loaded nothing is said."""
    loaded = {name: sys.modules[name] for name in _VERSIONED if name in sys.modules}
    return {
        "python": platform.python_version(),
        "torch": str(torch.__version__),
        "deepspeed": str(deepspeed.__version__),
        "cuda": str(torch.version.cuda or ""),
        **{name: str(getattr(module, "__version__", "")) for name, module in loaded.items()},
    }


def gpu_of(spec: TrialSpec, local_index: int) -> int:
    """The NVML index of the card that torch counts as `local_index`, by the order of CUDA_VISIBLE_DEVICES."""
    visible = [part for part in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if part.isdigit()]
    order = [int(part) for part in visible] or list(spec.gpus) or [0]
    return order[local_index] if local_index < len(order) else order[-1]
