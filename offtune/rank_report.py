"""What the ranks of a trial tell the parent: one small file each.

Covered: the records. Not covered: what they add up to (`verdict.py`).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from offtune.phase_analysis import StepAnalysis
from offtune.trial import DsConfig, MemoryPeaks, PhaseTimes, Stopped, Traffic


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """The exception that ended a process of a command before it had a report to write.

    `overridden` is set where the script's runtime refused a ds_config that contradicts its own arguments.
    """

    error: str
    program: str
    overridden: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class RankReport:
    """What one rank saw; written once, under a temporary name and then renamed.

    `outcome` is done, or the kind of exception that ended it. `step_tokens` is the median number of tokens
    fed per optimizer step. `step_interval_s`, `stopped` and `unsafe` are as in a
    TrialResult. `close_error` is why its steps under torch's profiler came to nothing, "" where they did
    not fail. `losses` are of the measured steps, `warmup_losses` of those before, in nats.
    """

    rank: int
    host: str = ""
    outcome: Literal["done", "oom_gpu", "oom_host", "invalid", "diverged", "crashed", "bad_fork"]
    error: str = ""
    stage: str = ""
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
    first_step_at: float | None = None
    step_tokens: float | None = None
    close_error: str = ""
    versions: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeReport:
    """What `deepspeed.initialize` was about to be given by one rank of a command.

    `ds_config` is as it arrived, "auto" replaced where the runtime does that; `optimizer` is a class, "" for
    none; `by_accelerate` says who called. `hidden_size` is the width of a Hugging Face model, `model_config`
    what its configuration says; `matrix_shapes` are those of the trainable parameters.
    """

    rank: int
    world_size: int
    parameter_numels: tuple[int, ...]
    ds_config: DsConfig | None
    optimizer: str = ""
    by_accelerate: bool = False
    hidden_size: int | None = None
    model_config: dict[str, Any] = field(default_factory=dict)
    matrix_shapes: tuple[tuple[int, int], ...] = ()
    activation_checkpointing: bool = False
