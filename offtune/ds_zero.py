"""The zero_optimization block that a point means: stage, buckets, stage-3 sizes and both offload blocks.

Covered: the point over a person's own block over DeepSpeed's defaults, and what follows from a choice: tile
size, ratio, NVMe buffers. Not covered: the other blocks (`ds_config`), rules (`ds_rules`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from offtune import models
from offtune.ds_keys import (
    DEPRECATED_ZERO_KEYS,
    OFFLOAD_OPTIMIZER_DEFAULTS,
    OFFLOAD_PARAM_DEFAULTS,
    ZERO_ALIASES,
    ZERO_DEFAULTS,
    block,
)
from offtune.ds_nvme_rules import SINGLE_MODULE_BUFFERS, STATES_PER_BUFFER_SET
from offtune.knobs import DEFAULT_SUB_GROUP_NUMEL, Placement, parse_placement
from offtune.trial import DsConfig, Facts, Point

_SIXTEENTHS = 16

# Knobs that are one key of zero_optimization, and their keys.
_ZERO_KEYS = {
    "reduce_bucket_size": "reduce_bucket_size",
    "overlap_comm": "overlap_comm",
    "contiguous_gradients": "contiguous_gradients",
}
_STAGE_1_2_KEYS = {"round_robin_gradients": "round_robin_gradients"}
_STAGE_3_KEYS = {
    "prefetch_bucket_size": "stage3_prefetch_bucket_size",
    "param_persistence_threshold": "stage3_param_persistence_threshold",
    "max_live_parameters": "stage3_max_live_parameters",
    "max_reuse_distance": "stage3_max_reuse_distance",
}


def placement_of(base: DsConfig, point: Point) -> Placement:
    """The point's placement, or the base's own where the point leaves it alone."""
    if "placement" in point:
        return parse_placement(point["placement"])
    zero = block(base, "zero_optimization")
    return Placement(
        stage=int(zero.get("stage", 0)),
        optimizer=_device(zero, "offload_optimizer", "cpu_offload"),
        param=_device(zero, "offload_param", "cpu_offload_param"),
    )


def placement_text(ds_config: DsConfig) -> str:
    """Where a ds_config puts things, in the words of a placement: 'zero3 opt=cpu'; stage 0 is 'zero0'."""
    found = placement_of(ds_config, {})
    parts = [
        f"{name}={device}"
        for name, device in (("opt", found.optimizer), ("param", found.param))
        if device != "none"
    ]
    return " ".join([f"zero{found.stage}", *parts])


def _device(zero: dict[str, Any], name: str, old_name: str) -> Any:
    """Where a block offloads to; `old_name` is the flag that stood for it before there were blocks."""
    return block(zero, name).get("device", "cpu" if zero.get(old_name) is True else "none")


def chosen(
    keys: Mapping[str, str],
    point: Point,
    own: Mapping[str, Any],
    defaults: Mapping[str, Any] = ZERO_DEFAULTS,
) -> dict[str, Any]:
    """For each knob its key: the point's value, else the base's own, else DeepSpeed's default."""
    return {key: _plain(point.get(knob, own.get(key, defaults[key]))) for knob, key in keys.items()}


def _plain(value: Any) -> Any:
    """5e8 as an integer: DeepSpeed reads it, others of the file's readers do not."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


def zero_block(
    base: DsConfig, point: Point, placement: Placement, facts: Facts, swap_dir: str | None
) -> dict[str, Any]:
    """The block for `placement`; `swap_dir` is where NVMe offload writes."""
    written = block(base, "zero_optimization")
    own = {
        ZERO_ALIASES.get(key, key): value for key, value in written.items() if key not in DEPRECATED_ZERO_KEYS
    }
    zero = {key: value for key, value in own.items() if not key.startswith("offload_")}
    zero |= {"stage": placement.stage, "reduce_scatter": own.get("reduce_scatter", True)}
    zero |= chosen(_ZERO_KEYS, point, own)
    if zero["overlap_comm"] is None:
        zero["overlap_comm"] = placement.stage == 3
    zero |= chosen(_STAGE_1_2_KEYS, point, own) if placement.stage < 3 else {}
    if placement.stage == 3:
        zero |= _stage_3(point, own, placement, facts)
    if placement.optimizer != "none":
        zero["offload_optimizer"] = _offload_optimizer(zero, own, point, placement, facts, swap_dir)
    if placement.param != "none":
        zero["offload_param"] = _offload_param(own, point, placement, facts, swap_dir)
    return zero


def _stage_3(point: Point, own: Mapping[str, Any], placement: Placement, facts: Facts) -> dict[str, Any]:
    zero = chosen(_STAGE_3_KEYS, point, own)
    zero["sub_group_size"] = _sub_group_size(point, own, facts)
    if placement.param == "nvme" and "placement" in point:
        # One of the two settings known to train with parameters on NVMe (DeepSpeed issue 3062).
        quiet = ("stage3_prefetch_bucket_size", "stage3_max_live_parameters", "stage3_max_reuse_distance")
        zero |= dict.fromkeys(quiet, 0)
    return zero


def _sub_group_size(point: Point, own: Mapping[str, Any], facts: Facts) -> int:
    if "sub_groups" not in point:
        return int(own.get("sub_group_size", DEFAULT_SUB_GROUP_NUMEL))
    total = sum(models.partition_numels(facts.parameter_numels, facts.workload.world_size))
    return min(DEFAULT_SUB_GROUP_NUMEL, -(-total // int(point["sub_groups"])))


def _ratio(point: Point, own: Mapping[str, Any], sub_group_size: int, facts: Facts) -> float:
    """The ratio that leaves the point's share of sub-groups, rounded to whole ones, on the GPU."""
    if "resident_sixteenths" not in point:
        return _own_ratio(own, sub_group_size, facts) if "placement" not in point else 1.0
    world = facts.workload.world_size
    groups = len(models.sub_group_numels(facts.parameter_numels, world, sub_group_size))
    resident = (2 * int(point["resident_sixteenths"]) * groups + _SIXTEENTHS) // (2 * _SIXTEENTHS)
    return models.ratio_for(resident, groups) if groups > 1 else 1.0


def _own_ratio(own: Mapping[str, Any], sub_group_size: int, facts: Facts) -> float:
    """The base's ratio; 1 where it leaves no whole sub-group on the GPU, as DeepSpeed has it."""
    ratio = float(own.get("ratio", 1.0))
    groups = len(models.sub_group_numels(facts.parameter_numels, facts.workload.world_size, sub_group_size))
    return ratio if models.resident_groups(ratio, groups) else 1.0


def _offload_optimizer(
    zero: Mapping[str, Any],
    own: Mapping[str, Any],
    point: Point,
    placement: Placement,
    facts: Facts,
    swap_dir: str | None,
) -> dict[str, Any]:
    mine = block(dict(own), "offload_optimizer")
    built = {**mine, "device": placement.optimizer}
    built |= chosen({"pin_memory": "pin_memory"}, point, mine, OFFLOAD_OPTIMIZER_DEFAULTS)
    built.pop("nvme_path", None)
    if placement.stage == 3 and placement.optimizer == "cpu":
        built["ratio"] = _ratio(point, mine, int(zero["sub_group_size"]), facts)
    elif "placement" in point:
        built.pop("ratio", None)
    if placement.optimizer == "nvme":
        built |= {"nvme_path": swap_dir, **_optimizer_buffers(point, mine)}
    return built


def _optimizer_buffers(point: Point, own: Mapping[str, Any]) -> dict[str, Any]:
    pipeline = ("pipeline_read", "pipeline_write")
    built = chosen({name: name for name in pipeline}, point, own, OFFLOAD_OPTIMIZER_DEFAULTS)
    needed = STATES_PER_BUFFER_SET * (1 + sum(bool(built[name]) for name in pipeline))
    count = (
        needed + int(point["spare_buffers"]) if "spare_buffers" in point else own.get("buffer_count", needed)
    )
    return {**built, "buffer_count": count, "fast_init": own.get("fast_init", False)}


def _offload_param(
    own: Mapping[str, Any], point: Point, placement: Placement, facts: Facts, swap_dir: str | None
) -> dict[str, Any]:
    mine = block(dict(own), "offload_param")
    built = {**mine, "device": placement.param}
    built |= chosen({"pin_memory": "pin_memory"}, point, mine, OFFLOAD_PARAM_DEFAULTS)
    built.pop("nvme_path", None)
    if placement.param == "nvme":
        keys = {f"param_{key}": key for key in ("buffer_count", "buffer_size", "max_in_cpu")}
        built |= chosen(keys, point, mine, OFFLOAD_PARAM_DEFAULTS)
        largest = max(models.partition_numels(facts.parameter_numels, facts.workload.world_size))
        built["buffer_size"] = max(built["buffer_size"], largest)
        built["buffer_count"] = max(built["buffer_count"], SINGLE_MODULE_BUFFERS)
        built["nvme_path"] = swap_dir
    return built
