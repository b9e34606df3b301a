"""The vocabulary that crosses processes: what a trial is asked to do and what came of it.

Covered: plain records with JSON both ways. Not covered: any behaviour; this file imports nothing heavy, so
that parent and child can both read it. Units are in the names: bytes, seconds, per second.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Literal, TypeVar

from pydantic import TypeAdapter

from offtune.phase_analysis import StepAnalysis

DsConfig = dict[str, Any]
Point = dict[str, Any]
DeviceKind = Literal["cpu", "cuda"]
Precision = Literal["bf16", "fp16", "fp32"]
Stopped = Literal["tight", "worse", "over", "drift", "most", "level", ""]
T = TypeVar("T")


class Status(str, Enum):
    """How a trial ended. A closed list; everything but `ok` counts as infeasible or to be repeated."""

    OK = "ok"
    OVER_BUDGET = "over_budget"
    INVALID = "invalid"
    OOM_GPU = "oom_gpu"
    OOM_HOST = "oom_host"
    TIMEOUT = "timeout"
    DIVERGED = "diverged"
    CRASHED = "crashed"
    INTERRUPTED = "interrupted"

    def __str__(self) -> str:
        return self.value


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """The person's own training command: what is started for each trial, and what a look at it has shown.

    `arguments` still hold their placeholders. `cwd` is where the person gave the command; a trial runs there
    or, with `trial_cwd` scratch, in its own directory. `own_optimizer` is the class of the optimizer that the
    script builds ("" where the ds_config decides), `offloads` whether DeepSpeed takes it with offload.
    `settings` are the ds_config keys that the script's runtime fixes (clipping, learning rate, ...).
    """

    arguments: tuple[str, ...]
    cwd: str
    trial_cwd: Literal["here", "scratch"] = "here"
    own_optimizer: str = ""
    offloads: bool = True
    settings: DsConfig = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """What is trained; fixed within a study: a built-in language model, or the person's own `command`.

    `model_config` is a Hugging Face configuration as a dict (with `model_type`); weights are random and
    batches synthetic, always `seq_len` tokens long. With a `command` both are the script's own affair: the
    first is what a look has shown of its model, empty for nothing, the second None. `global_batch` is samples
    per optimizer step over all `world_size` ranks.
    `optimizer` is one of adamw, adam, lion, adagrad. `activation_checkpointing` None: each point decides.
    """

    model_name: str
    model_config: dict[str, Any]
    seq_len: int | None
    global_batch: int
    world_size: int
    precision: Precision
    optimizer: str
    activation_checkpointing: bool | None
    seed: int
    command: Command | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """What a point or a ds_config is judged against: workload, machine and installed software.

    `parameter_numels` are elements per trainable parameter in `model.parameters()` order; `ops` are the
    DeepSpeed ops that can be loaded here (`cpu_adam`, `fused_adam`, `async_io`, ...); `memlock_bytes` is
    RLIMIT_MEMLOCK, None when unlimited.
    """

    workload: Workload
    device: DeviceKind
    parameter_numels: tuple[int, ...]
    nvme_dir: str | None
    ops: frozenset[str]
    deepspeed_version: str
    memlock_bytes: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class StopRule:
    """When a trial has measured enough: its step time is known to within `accuracy_share`, either side.

    Not before `least_steps`, unless many micro-steps say more. With `best_step_s`, the upper end of what the
    best so far takes, also once it is certainly slower than that. `over_steps` are enough for a trial that
    has used more memory than it may. `scatter_share` is how much the steps of other trials scatter.
    With `level_steps`, `level_after` steps are enough where used memory was level for the last so many.
    """

    accuracy_share: float
    least_steps: int = 2
    best_step_s: float | None = None
    over_steps: int = 2
    scatter_share: float | None = None
    level_steps: int | None = None
    level_after: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialSpec:
    """Everything a runner needs for one trial.

    `limit_bytes` is the budget per rank less headroom, `host_limit_bytes` the node's host memory.
    `ops` are the DeepSpeed ops to load before the model is built.
    `trial_dir` is scratch of this trial alone; `swap_dir` likewise for NVMe offload. `token` is part of the
    names DeepSpeed gives its files in /dev/shm, by which they are found and removed. With `probe`, a command
    runs up to `deepspeed.initialize` only, and each rank leaves a ProbeReport instead of a RankReport. With
    `record`, memory, traffic and utilisation are sampled over time.
    `steps` are measured after the warm-up, with a `stop` rule at most so many.
    `close_steps` more steps run under torch's profiler after the measured ones (`close_look.py`).
    """

    study: str
    number: int
    workload: Workload
    device: DeviceKind
    gpus: tuple[int, ...] = ()
    ds_config: DsConfig
    warmup_steps: int
    steps: int
    deadline_s: float
    limit_bytes: int
    host_limit_bytes: int
    threads_per_rank: int
    ops: tuple[str, ...] = ()
    trial_dir: str
    swap_dir: str | None = None
    token: str = "0"
    probe: bool = False
    record: bool = True
    stop: StopRule | None = None
    close_steps: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class PhaseTimes:
    """Median seconds per whole optimizer step spent in each phase; `other_s` is what is left."""

    forward_s: float | None = None
    backward_s: float | None = None
    update_s: float | None = None
    other_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryPeaks:
    """Peaks over the whole trial, in bytes; None is "cannot be measured here".

    `used_device_bytes` is what the budget is compared with (maximum over ranks), `used_host_bytes` the sum
    over a node's ranks, of the fullest node. `device_source` says which counter `used_device_bytes` came
    from.
    """

    used_device_bytes: int | None = None
    device_source: str = ""
    allocated_bytes: int | None = None
    reserved_bytes: int | None = None
    used_host_bytes: int | None = None
    pinned_bytes: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Traffic:
    """Bytes moved during the measured steps; None with a `reason` where no counter exists."""

    h2d_bytes_per_s: float | None = None
    d2h_bytes_per_s: float | None = None
    pcie_reason: str = ""
    nvme_read_bytes: int | None = None
    nvme_write_bytes: int | None = None
    nvme_reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Forecast:
    """What was predicted before a trial: bytes of a rank's device and of the node's host, seconds of a step.

    Nine of ten such predictions are off by no more than the error shares; None is "not predicted".
    """

    used_device_bytes: int
    used_host_bytes: int
    step_s: float | None
    samples_per_s: float | None
    device_error_share: float
    step_error_share: float


@dataclass(frozen=True, slots=True, kw_only=True)
class LossCheck:
    """A trial's losses from its first step on, held against those of the study's reference run.

    `departs` makes the trial diverged; `noted` is a comparison that does not judge; `skipped` says why there
    is none. `departure_nat` is own loss less reference at `departure_step` (from 1, warm-up included): the
    first step beyond `tolerance_nat` or, where none is, the one nearest to it. None: not a finite number.
    """

    verdict: Literal["reference", "agrees", "departs", "noted", "skipped"]
    reason: str = ""
    reference_trial: int | None = None
    departure_step: int | None = None
    departure_nat: float | None = None
    tolerance_nat: float | None = None
    reference_losses: tuple[float | None, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialResult:
    """One trial, finished one way or another; what is stored.

    Throughput is the median over measured optimizer steps, barrier to barrier over all ranks. `seconds` is
    the wall time of the whole trial, `first_step_s` from request to the end of the first optimizer step.
    `forecast` is what was predicted before it, where anything was.
    `step_interval_s` is the 95 % interval of the step time within this trial, `stopped` why a trial with a
    stop rule measured no more steps: known well enough, certainly slower than the best, drifting, or the most
    it may. `unsafe` says in a sentence what grew from step to step, "" where nothing did.
    `analysis` is memory, traffic and utilisation by phase, where they were sampled.
    """

    status: Status
    reason: str = ""
    samples_per_s: float | None = None
    tokens_per_s: float | None = None
    step_s: tuple[float, ...] = ()
    step_interval_s: tuple[float, float] | None = None
    stopped: Stopped = ""
    unsafe: str = ""
    losses: tuple[float | None, ...] = ()
    warmup_losses: tuple[float | None, ...] = ()
    phases: PhaseTimes | None = None
    memory: MemoryPeaks = field(default_factory=MemoryPeaks)
    traffic: Traffic = field(default_factory=Traffic)
    analysis: StepAnalysis | None = None
    skipped_steps: int = 0
    warmup_skipped_steps: int = 0
    sub_groups: int | None = None
    effective_ratio: float | None = None
    seconds: float = 0.0
    first_step_s: float | None = None
    loss_check: LossCheck | None = None
    start: Literal["warm", "cold", "predicted", ""] = ""
    exit_codes: tuple[int | None, ...] = ()
    versions: dict[str, str] = field(default_factory=dict)
    log_tail: str = ""
    forecast: Forecast | None = None


_ADAPTERS: dict[type, TypeAdapter[Any]] = {}


def _adapter(kind: type) -> TypeAdapter[Any]:
    # Built on first use and kept: building one takes longer than using it a thousand times.
    if kind not in _ADAPTERS:
        _ADAPTERS[kind] = TypeAdapter(kind)
    return _ADAPTERS[kind]


def dump(record: object) -> str:
    """JSON text of a record; NaN and infinity become null, as strict JSON has neither."""
    return _adapter(type(record)).dump_json(record).decode()


def as_dict(record: object) -> dict[str, Any]:
    """The record as plain JSON values."""
    return dict(_adapter(type(record)).dump_python(record, mode="json"))


def load(kind: type[T], text: str | bytes) -> T:
    """A record from its JSON text. Raises pydantic.ValidationError (a ValueError) for anything else."""
    record: T = _adapter(kind).validate_json(text)
    return record
