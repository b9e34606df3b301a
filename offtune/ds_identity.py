"""Sameness of ds_configs: two that act the same have the same canonical form and fingerprint.

Covered: what has no effect for a workload and device, by DeepSpeed's own code (0.19.8), and the ratio as the
share that it really offloads. Not covered: configurations that differ but measure alike.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

from offtune import models
from offtune.ds_keys import (
    AIO_DEFAULTS,
    BF16_DEFAULTS,
    FP16_DEFAULTS,
    OFFLOAD_OPTIMIZER_DEFAULTS,
    OFFLOAD_PARAM_DEFAULTS,
    ZERO_DEFAULTS,
    block,
)
from offtune.ds_layout import Layout, layout
from offtune.trial import DsConfig, Facts

_FINGERPRINT_CHARS = 20
# Read and never used, or of no consequence for a run: reference of ZeRO keys in runtime/zero/, 0.19.8.
_DEAD_KEYS = ("allgather_partitions", "allgather_bucket_size", "log_trace_cache_warnings")
_SILENT_KEYS = ("steps_per_print", "dump_state")
_NVME_OPTIMIZER_KEYS = ("buffer_count", "pipeline_read", "pipeline_write", "fast_init")
_NVME_PARAM_KEYS = ("buffer_count", "buffer_size", "max_in_cpu")
_STAGE_3_KEYS = ("sub_group_size", "memory_efficient_linear")
_STAGE_1_2_KEYS = ("round_robin_gradients", "parameter_alignment", "use_multi_rank_bucket_allreduce")


def fingerprint(ds_config: DsConfig, facts: Facts) -> str:
    """The same text for two ds_configs that act the same under `facts`."""
    text = json.dumps(canonical(ds_config, facts), sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:_FINGERPRINT_CHARS]


def canonical(ds_config: DsConfig, facts: Facts) -> DsConfig:
    """The ds_config without what has no effect, defaults or swap paths, values brought to one form."""
    plan = layout(ds_config, facts)
    zero = {key: value for key, value in plan.zero.items() if not key.startswith("offload_")}
    zero["overlap_comm"] = plan.overlap_comm
    for simplify in (_by_stage, _by_model, _by_device):
        zero = simplify(zero, plan)
    kept = {key: value for key, value in ds_config.items() if key not in _SILENT_KEYS}
    kept["zero_optimization"] = _changed(zero, {**ZERO_DEFAULTS, "overlap_comm": plan.stage == 3})
    for name, found in (("offload_optimizer", _optimizer(plan)), ("offload_param", _param(plan))):
        if found is not None:
            kept["zero_optimization"][name] = found
    whole = {**kept, **_side_blocks(ds_config, plan)}
    return {key: _plain(value) for key, value in whole.items() if value not in ({}, None)}


def effective_ratio(ds_config: DsConfig, facts: Facts) -> float | None:
    """Share of the optimizer's elements updated on the CPU; None on the CPU accelerator, where all are.

    The share is of elements, not of sub-groups: the first ones stay, and they differ in size.
    """
    plan = layout(ds_config, facts)
    if facts.device == "cpu":
        return None
    if plan.optimizer_device == "none":
        return 0.0
    if plan.stage != 3 or plan.optimizer_device == "nvme":
        return 1.0
    return sum(plan.sub_groups[plan.resident_sub_groups :]) / sum(plan.sub_groups)


def _changed(values: Mapping[str, Any], defaults: Mapping[str, Any]) -> dict[str, Any]:
    """`values` without those that say what DeepSpeed does anyway."""
    return {key: value for key, value in values.items() if key not in defaults or value != defaults[key]}


def _without(values: Mapping[str, Any], dropped: tuple[str, ...]) -> dict[str, Any]:
    return {key: value for key, value in values.items() if key not in dropped}


def _by_stage(zero: dict[str, Any], plan: Layout) -> dict[str, Any]:
    """Without keys that belong to another stage, or to several ranks."""
    zero = {**_without(zero, _DEAD_KEYS), "stage": plan.stage}
    if plan.stage == 3:
        return _without(zero, _STAGE_1_2_KEYS)
    zero = {key: value for key, value in zero.items() if not key.startswith("stage3_")}
    zero = _without(zero, _STAGE_3_KEYS)
    if plan.stage == 0 or plan.facts.workload.world_size == 1:
        zero = _without(zero, ("round_robin_gradients",))
    # stage_1_and_2.py: contiguous_gradients or cpu_offload.
    return _without(zero, ("contiguous_gradients",)) if plan.optimizer_device != "none" else zero


def _by_model(zero: dict[str, Any], plan: Layout) -> dict[str, Any]:
    """With sizes that cut or keep the same parameters written as the same number."""
    if plan.stage != 3:
        return zero
    numels = plan.facts.parameter_numels
    # With recomputation a parameter is used three times in a step; beyond that nothing is further away.
    trace = 4 * sum(numels)
    threshold = zero["stage3_param_persistence_threshold"]
    # parameter_offload.py keeps parameters of up to `threshold` elements.
    persistent = max((numel for numel in numels if numel <= threshold), default=0)
    zero = {**zero, "sub_group_size": _tile(plan), "stage3_param_persistence_threshold": persistent}
    for key in ("stage3_prefetch_bucket_size", "stage3_max_live_parameters", "stage3_max_reuse_distance"):
        zero[key] = min(zero[key], trace)
    # partitioned_param_coordinator.py asks for the live limit only where it prefetches.
    idle = ("stage3_max_live_parameters",) if zero["stage3_prefetch_bucket_size"] == 0 else ()
    return _without(zero, idle)


def _tile(plan: Layout) -> int:
    """The largest sub_group_size that cuts the model the same way: what its smallest full group holds."""
    full = plan.sub_groups[:-1]
    return min(full) if full else sum(plan.partitions)


def _by_device(zero: dict[str, Any], plan: Layout) -> dict[str, Any]:
    """On the CPU accelerator there are no streams, and at stage 3 overlap is nothing but a second one."""
    inert = plan.facts.device == "cpu" and plan.stage == 3
    return _without(zero, ("overlap_comm",)) if inert else zero


def _optimizer(plan: Layout) -> dict[str, Any] | None:
    if plan.optimizer_device == "none":
        return None
    found = _without(plan.optimizer, ("nvme_path", "ratio"))
    if plan.stage != 3 or plan.optimizer_device == "cpu":
        # Stages 1 and 2 take nvme for cpu.
        found = {**_without(found, _NVME_OPTIMIZER_KEYS), "device": "cpu"}
    if plan.stage == 3 and plan.optimizer_device == "cpu" and plan.facts.device != "cpu":
        # A staircase: every ratio that leaves as many sub-groups on the GPU is the same one.
        found["ratio"] = models.ratio_for(plan.resident_sub_groups, len(plan.sub_groups))
    return _offload(found, plan, OFFLOAD_OPTIMIZER_DEFAULTS)


def _param(plan: Layout) -> dict[str, Any] | None:
    if plan.param_device == "none" or plan.stage != 3:
        return None
    found = _without(plan.param, ("nvme_path",))
    if plan.param_device == "cpu":
        return _offload(_without(found, _NVME_PARAM_KEYS), plan, OFFLOAD_PARAM_DEFAULTS)
    found["max_in_cpu"] = min(found["max_in_cpu"], sum(plan.partitions))
    return _offload(found, plan, OFFLOAD_PARAM_DEFAULTS)


def _offload(found: dict[str, Any], plan: Layout, defaults: Mapping[str, Any]) -> dict[str, Any]:
    # Pinning on the CPU accelerator returns the same tensor (accelerator/cpu_accelerator.py, 0.19.8).
    inert = ("pin_memory",) if plan.facts.device == "cpu" else ()
    return _changed(_without(found, inert), defaults)


def _side_blocks(ds_config: DsConfig, plan: Layout) -> DsConfig:
    """aio where something swaps, precision blocks where they are on; both without defaults."""
    swaps = plan.stage == 3 and "nvme" in (plan.optimizer_device, plan.param_device)
    found: DsConfig = {"aio": _changed(plan.aio, AIO_DEFAULTS) if swaps else {}}
    for name, defaults in (("bf16", BF16_DEFAULTS), ("fp16", FP16_DEFAULTS)):
        values = block(ds_config, name)
        found[name] = _changed(values, defaults) if values.get("enabled") else {}
    return found


def _plain(value: Any) -> Any:
    """Whole numbers as integers, however they were written."""
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    if isinstance(value, float) and value.is_integer():
        return int(value)
    return value
