"""One rank's short training: start, build, warm up, measure, report.

Covered: the measured loop and telling apart how it can fail. Not covered: starting and ending the process
(`rank.py`, `server.py`) and deciding the trial's status, which is the parent's.
"""

from __future__ import annotations

import time
import traceback
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import deepspeed
import torch
import torch.distributed as dist

from offtune.trial import DeviceKind, MemoryPeaks, RankReport, TrialSpec
from offtune.worker import memory, workload
from offtune.worker.phases import PhaseClock


@dataclass(slots=True)
class _Progress:
    """How far a rank has come; what remains known when it fails on the way."""

    stage: str = "start"
    step_s: list[float] = field(default_factory=list)
    losses: list[float | None] = field(default_factory=list)
    first_step_at: float | None = None
    skipped_before: int = 0


class Rank:
    """One rank of one trial. `run` returns its report and raises nothing that a configuration can cause."""

    def __init__(self, spec: TrialSpec, rank: int, gpu: int) -> None:
        self.spec, self.rank, self.gpu = spec, rank, gpu
        self.progress = _Progress()
        self.resident: memory.ResidentMemory | None = None
        self.driver: memory.DriverMemory | None = None
        self.traffic: memory.LinkTraffic | None = None
        self.clock = PhaseClock(spec.device)

    def run(self) -> RankReport:
        try:
            engine = self._start()
            self._steps(engine)
        except Exception as error:  # noqa: BLE001 the configuration under trial may raise anything; it is a value
            return self._failed(error)
        return self._done(engine)

    def _start(self) -> Any:
        self._stage("start the process group")
        device = torch.device("cuda", 0) if self.spec.device == "cuda" else torch.device("cpu")
        if self.spec.device == "cuda":
            torch.cuda.set_device(device)
        torch.manual_seed(self.spec.workload.seed)
        _join(self.spec, self.rank)
        self._watch_memory(device)
        self._stage("build the model")
        model = workload.build_model(self.spec.workload, self.spec.ds_config, device)
        self._stage("initialize DeepSpeed")
        parameters = [p for p in model.parameters() if p.requires_grad]
        engine, *_ = deepspeed.initialize(
            model=model, model_parameters=parameters, config=dict(self.spec.ds_config)
        )
        return engine

    def _watch_memory(self, device: torch.device) -> None:
        if self.spec.device == "cuda":
            self.driver = memory.DriverMemory(self.gpu)
            _cap_allocator(device, self.spec.limit_bytes, self.driver.now_bytes())
        self.resident = memory.ResidentMemory()

    def _steps(self, engine: Any) -> None:
        total = self.spec.warmup_steps + self.spec.steps
        for step in range(total):
            measured = step >= self.spec.warmup_steps
            self._stage(f"{'measured' if measured else 'warm-up'} step {step + 1} of {total}")
            if step == self.spec.warmup_steps:
                self.clock.forget()
                self.progress.skipped_before = int(engine.skipped_steps)
                self.traffic = memory.LinkTraffic(self.spec.device, self.gpu)
            self._one_step(engine, step, measured)

    def _one_step(self, engine: Any, step: int, measured: bool) -> None:
        spec = self.spec
        micro = int(spec.ds_config["train_micro_batch_size_per_gpu"])
        batches = workload.micro_batches(spec.workload, step, self.rank, micro, engine.device)
        losses = []
        start = self._barrier()
        for tokens in batches:
            losses.append(self._micro_step(engine, tokens))
        step_s = self._barrier() - start
        self.clock.next_step(step_s)
        if self.progress.first_step_at is None:
            self.progress.first_step_at = time.time()
        if measured:
            self.progress.step_s.append(step_s)
            self.progress.losses.append(_mean_loss(losses))

    def _micro_step(self, engine: Any, tokens: torch.Tensor) -> torch.Tensor:
        with self.clock.phase("forward"):
            loss: torch.Tensor = engine(input_ids=tokens, labels=tokens).loss
        with self.clock.phase("backward"):
            engine.backward(loss)
        with self.clock.phase("update"):
            engine.step()
        return loss.detach()

    def _barrier(self) -> float:
        """The time at which every rank's device has finished what was asked of it."""
        if self.spec.device == "cuda":
            torch.cuda.synchronize()
        if self.spec.workload.world_size > 1:
            dist.barrier()
        return time.perf_counter()

    def _stage(self, stage: str) -> None:
        self.progress.stage = stage
        print(f"offtune: {stage}", flush=True)  # noqa: T201 into the trial's log, for the person reading its tail

    def _done(self, engine: Any) -> RankReport:
        self._stage("report")
        finite = all(loss is not None for loss in self.progress.losses)
        groups, ratio = optimizer_placement(engine)
        report = self._report("done" if finite else "diverged", "" if finite else "The loss is not finite.")
        return replace(
            report,
            phases=self.clock.times(),
            traffic=self.traffic.finish() if self.traffic else report.traffic,
            skipped_steps=int(engine.skipped_steps) - self.progress.skipped_before,
            sub_groups=groups,
            effective_ratio=ratio,
        )

    def _failed(self, error: Exception) -> RankReport:
        traceback.print_exc()
        return self._report(
            outcome_of(error, self.progress.stage), f"{type(error).__name__}: {_first_lines(error)}"
        )

    def _report(self, outcome: Any, error: str) -> RankReport:
        return RankReport(
            rank=self.rank,
            outcome=outcome,
            error=error,
            stage=self.progress.stage,
            step_s=tuple(self.progress.step_s),
            losses=tuple(self.progress.losses),
            memory=self._peaks(),
            first_step_at=self.progress.first_step_at,
            versions=versions(),
        )

    def _peaks(self) -> MemoryPeaks:
        if self.resident is None:
            return MemoryPeaks()
        allocated = reserved = None
        if self.spec.device == "cuda":
            allocated, reserved = torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved()
        return memory.peaks(self.resident, self.driver, allocated, reserved, _pinned_bytes(self.spec.device))


def _join(spec: TrialSpec, rank: int) -> None:
    """Join the trial's process group through a file: no port to find, none to be taken by somebody else."""
    deepspeed.init_distributed(
        auto_mpi_discovery=False,
        verbose=False,
        init_method=f"file://{Path(spec.trial_dir) / 'rendezvous'}",
        rank=rank,
        world_size=spec.workload.world_size,
    )


def _cap_allocator(device: torch.device, limit_bytes: int, context_bytes: int | None) -> None:
    """Make a large card behave like the budgeted one: what is left for the allocator after the context."""
    total = torch.cuda.get_device_properties(device).total_memory
    for_allocator = max(limit_bytes - (context_bytes or 0), 0)
    torch.cuda.set_per_process_memory_fraction(min(1.0, for_allocator / total), device)


def _pinned_bytes(device: DeviceKind) -> int | None:
    """Peak bytes of torch's pinned-host allocator; None where nothing is pinned or torch cannot tell."""
    if device != "cuda" or not hasattr(torch.cuda, "host_memory_stats"):
        return None
    value = torch.cuda.host_memory_stats().get("allocated_bytes.peak")
    return None if value is None else int(value)


def _mean_loss(losses: list[torch.Tensor]) -> float | None:
    """Mean over micro-batches and ranks; None when it is not finite."""
    mean = torch.stack(losses).float().mean()
    if dist.get_world_size() > 1:
        dist.all_reduce(mean)
        mean = mean / dist.get_world_size()
    return float(mean) if torch.isfinite(mean) else None


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


def outcome_of(error: Exception, stage: str) -> str:
    """The kind of failure, from the exception's type and the stage; never from its wording."""
    if isinstance(error, torch.OutOfMemoryError):
        return "oom_gpu"
    if isinstance(error, MemoryError):
        return "oom_host"
    if getattr(error, "error_code", None) == _CUDA_ERROR_MEMORY_ALLOCATION:
        return "oom_gpu" if _device_is_full() else "oom_host"
    refused = (AssertionError, ValueError, TypeError, NotImplementedError, KeyError, IndexError)
    if stage == "initialize DeepSpeed" and isinstance(error, (*refused, *_deepspeed_refusals())):
        return "invalid"
    return "crashed"


# cudaErrorMemoryAllocation; torch.AcceleratorError carries it also when pinned host memory ran out.
_CUDA_ERROR_MEMORY_ALLOCATION = 2
# Less than one large segment of torch's allocator (20 MiB, CUDACachingAllocator): the device is full.
_FULL_BELOW_BYTES = 20 * 2**20


def _device_is_full() -> bool:
    free, _ = torch.cuda.mem_get_info()
    return bool(free < _FULL_BELOW_BYTES)


def _deepspeed_refusals() -> tuple[type[Exception], ...]:
    from deepspeed.runtime.config import DeepSpeedConfigError
    from deepspeed.runtime.zero.utils import ZeRORuntimeException

    return (DeepSpeedConfigError, ZeRORuntimeException)


def _first_lines(error: Exception) -> str:
    """The beginning of the message: pydantic and CUDA messages run over many lines."""
    limit = 600
    text = " ".join(str(error).split())
    return text if len(text) <= limit else text[:limit] + " ..."


def versions() -> dict[str, str]:
    import platform

    import transformers

    return {
        "python": platform.python_version(),
        "torch": str(torch.__version__),
        "deepspeed": str(deepspeed.__version__),
        "transformers": str(transformers.__version__),
        "cuda": str(torch.version.cuda or ""),
    }
