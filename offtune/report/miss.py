"""The run that came closest to the budget without fitting, and what would make it fit.

Covered: overshoot in bytes on device and host, advice that knows what the run already does. Not covered:
runs that failed for another reason than memory.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from offtune.knob_workload import CHECKPOINTING, checkpoints
from offtune.records import Limits, Run, StudyRecord
from offtune.trial import Status

_MEASURED = (Status.OK, Status.OVER_BUDGET)
_RAN_OUT = (Status.OOM_GPU, Status.OOM_HOST)
_TO_DISK = "Let optimizer state and parameters go to disk: --nvme-path FOLDER."


@dataclass(frozen=True, slots=True, kw_only=True)
class NearestMiss:
    """How far one run is over the limits.

    None is "ran out before it could be measured", 0 is "within"; at least one of the two is not 0.
    """

    run: Run
    device_over_bytes: int | None
    host_over_bytes: int | None


def nearest_miss(runs: Sequence[Run], limits: Limits) -> NearestMiss | None:
    """The run with the smallest overshoot as a share of its limit; None when none failed for memory.

    A share, because a byte too many on the device and one on the host are not the same. Runs whose overshoot
    is unknown come last, those that did the most steps first.
    """
    candidates = [run for run in runs if run.ran and run.status in (*_MEASURED, *_RAN_OUT)]
    misses = [_miss(run, limits) for run in candidates]
    over = [miss for miss in misses if miss.device_over_bytes != 0 or miss.host_over_bytes != 0]
    return min(over, key=lambda miss: _order(miss, limits), default=None)


def _miss(run: Run, limits: Limits) -> NearestMiss:
    memory = run.result.memory if run.result else None
    device = _over(memory.used_device_bytes if memory else None, limits.device_bytes)
    host = _over(memory.used_host_bytes if memory else None, limits.host_bytes)
    # A run that ran out was stopped below its limit: its reading is no measure of what it needed.
    unknown_device = run.status is Status.OOM_GPU or (run.status is Status.OVER_BUDGET and not host)
    unknown_host = run.status is Status.OOM_HOST
    return NearestMiss(
        run=run,
        device_over_bytes=device or (None if unknown_device else 0),
        host_over_bytes=host or (None if unknown_host else 0),
    )


def _over(used_bytes: int | None, limit_bytes: int | None) -> int | None:
    return None if used_bytes is None or limit_bytes is None else max(0, used_bytes - limit_bytes)


def _order(miss: NearestMiss, limits: Limits) -> tuple[float, int, int]:
    steps = len(miss.run.result.step_s) if miss.run.result else 0
    if miss.device_over_bytes is None or miss.host_over_bytes is None:
        return math.inf, -steps, miss.run.number
    host_limit_bytes = limits.host_bytes or limits.device_bytes
    share = max(miss.device_over_bytes / limits.device_bytes, miss.host_over_bytes / host_limit_bytes)
    return share, 0, miss.run.number


def budget_needed_bytes(used_bytes: int, study: StudyRecord) -> int:
    """The budget under which a run of this size would fit, with the study's headroom kept in proportion."""
    return math.ceil(used_bytes * study.budget_bytes / study_limits(study).device_bytes)


def size_option(size_bytes: int) -> str:
    """A size as one types it, rounded up to three figures so that what is asked for suffices: '2.41GB'."""
    for unit, factor in (("GB", 10**9), ("MB", 10**6), ("KB", 10**3)):
        if size_bytes >= factor:
            step = max(factor // 100, 10 ** (len(str(size_bytes)) - 3))
            whole, rest = divmod(-(-size_bytes // step) * step, factor)
            fraction = f".{rest * 100 // factor:02d}".rstrip(".0")
            return f"{whole}{fraction}{unit}"
    return f"{size_bytes}B"


def study_limits(study: StudyRecord) -> Limits:
    """The limits the study ran under: the budget less headroom, and the host limit where it is known."""
    return Limits(
        device_bytes=int(study.settings.get("limit_bytes") or study.budget_bytes),
        host_bytes=study.settings.get("host_limit_bytes"),
    )


def advice(miss: NearestMiss, study: StudyRecord, limits: Limits) -> list[str]:
    """What would help this run fit, one sentence each, the cheapest first."""
    sentences: list[str] = []
    if miss.device_over_bytes != 0:
        sentences += _device_advice(miss, study, limits.device_bytes)
    if miss.host_over_bytes != 0:
        sentences += _host_advice(miss, study, limits.host_bytes)
    return list(dict.fromkeys(sentences))


def _device_advice(miss: NearestMiss, study: StudyRecord, limit_bytes: int) -> list[str]:
    workload = study.settings.get("workload") or {}
    sentences = [*_batch_advice(miss.run.ds_config), *_offload_advice(miss.run.ds_config, study.device)]
    own = workload.get(CHECKPOINTING, True)  # where nothing is known of it nothing is said
    if not checkpoints(miss.run.point, own) and not workload.get("command"):
        sentences.append("Recompute activations instead of keeping them: --activation-checkpointing.")
    if workload.get("seq_len"):
        sentences.append(f"Shorten the sequences: --seq-len is {workload['seq_len']}.")
    if study.device == "cpu" and study.settings.get("nvme_path") is None:
        sentences.append(_TO_DISK)
    return [*sentences, _budget_advice(miss.device_over_bytes, limit_bytes, study)]


def _batch_advice(ds_config: dict[str, Any]) -> list[str]:
    micro = ds_config.get("train_micro_batch_size_per_gpu")
    if isinstance(micro, int) and micro > 1:
        return [
            f"Let the search try a micro-batch below {micro}: more --trials, or a space with lower values."
        ]
    return []


def _offload_advice(ds_config: dict[str, Any], device: str) -> list[str]:
    if device == "cpu":
        return []  # host and device are one memory there, so that moving from one to the other frees nothing
    zero = ds_config.get("zero_optimization") or {}
    kept = [
        name
        for name, block in (("optimizer state", "offload_optimizer"), ("parameters", "offload_param"))
        if (zero.get(block) or {}).get("device", "none") == "none"
    ]
    if zero.get("stage") != 3 or kept:
        what = " and ".join(kept) or "parameters"
        return [f"Offload more: this run is ZeRO stage {zero.get('stage', 0)} and keeps {what} on the GPU."]
    return []


def _budget_advice(over_bytes: int | None, limit_bytes: int, study: StudyRecord) -> str:
    needed = size_option(budget_needed_bytes(limit_bytes + (over_bytes or 0), study))
    if over_bytes is None:
        return f"Allow more memory per rank: --budget above {needed}."
    return f"Allow more memory per rank: --budget {needed} would hold this run."


def _host_advice(miss: NearestMiss, study: StudyRecord, host_limit_bytes: int | None) -> list[str]:
    sentences = ["Free host memory: close other programs, or raise the limit of the container."]
    if study.settings.get("nvme_path") is None:
        sentences.append(_TO_DISK)
    zero = miss.run.ds_config.get("zero_optimization") or {}
    if any((zero.get(block) or {}).get("pin_memory") for block in ("offload_optimizer", "offload_param")):
        sentences.append("Try it without pinned memory, which rounds up and cannot be swapped.")
    if miss.host_over_bytes and host_limit_bytes:
        needed = size_option(host_limit_bytes + miss.host_over_bytes)
        sentences.append(f"Allow more host memory, if the machine has it: --host-budget {needed}.")
    return sentences
