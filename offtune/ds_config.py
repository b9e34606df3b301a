"""ds_configs: build the one that a point means for a workload, over a person's own as base.

Covered: the base, the workload's fixed keys, a point's knobs, every tuned key and every key
whose default drifts between DeepSpeed versions written out. Not covered: reading a base (`ds_read`),
rules (`ds_rules`), sameness (`ds_identity`), files for others (`export`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from offtune.ds_identity import canonical, effective_ratio, fingerprint
from offtune.ds_key_rules import key_problems
from offtune.ds_keys import AIO_DEFAULTS, DEFAULT_GRADIENT_CLIPPING, block
from offtune.ds_quiet import quiet
from offtune.ds_rules import problems
from offtune.ds_zero import chosen, placement_of, zero_block
from offtune.errors import ConfigError
from offtune.knobs import KNOBS
from offtune.trial import DsConfig, Facts, Point, Workload

__all__ = ["KNOBS", "build", "canonical", "effective_ratio", "fingerprint", "problems"]

# Rates at which a short run of a fresh model stays finite; speed and memory do not depend on them.
_LEARNING_RATES = {"adamw": 1e-4, "adam": 1e-4, "lion": 1e-5, "adagrad": 1e-3}
_OPTIMIZER_PARAMS: dict[str, dict[str, Any]] = {
    "adamw": {"betas": [0.9, 0.999], "eps": 1e-8, "weight_decay": 0.01, "torch_adam": False},
    "adam": {"betas": [0.9, 0.999], "eps": 1e-8, "weight_decay": 0.0, "torch_adam": False},
    "lion": {"betas": [0.9, 0.99], "weight_decay": 0.01},
    "adagrad": {"eps": 1e-10, "weight_decay": 0.0},
}
_OPTIMIZER_TYPES = {"adamw": "AdamW", "adam": "Adam", "lion": "Lion", "adagrad": "Adagrad"}
# DeepSpeed starts at 2^16 and skips steps until the scale fits, and a skipped step looks fast.
_INITIAL_SCALE_POWER = 12
# What DeepSpeed takes where a file names an optimizer and no parameter: ops/adam/fused_adam.py,
# ops/lion/fused_lion.py and torch.optim.Adagrad. Adam is AdamW unless told otherwise (engine.py,
# _configure_basic_optimizer, 0.19.8).
_UNWRITTEN_PARAMS: dict[str, dict[str, Any]] = {
    "adamw": {"lr": 1e-3, "betas": [0.9, 0.999], "eps": 1e-8, "weight_decay": 0.0},
    "adam": {"lr": 1e-3, "betas": [0.9, 0.999], "eps": 1e-8, "weight_decay": 0.0},
    "lion": {"lr": 1e-3, "betas": [0.9, 0.99], "weight_decay": 0.0},
    "adagrad": {"lr": 1e-2, "eps": 1e-10, "weight_decay": 0.0},
}


def build(base: DsConfig, point: Point, facts: Facts, swap_dir: str | None) -> DsConfig:
    """The ds_config that `point` means: the base, the workload's fixed keys, and the point over both.

    What neither says is written with DeepSpeed's default. "auto", a word of the Hugging Face Trainer, counts
    as not said. `swap_dir` is the folder for NVMe offload. Whether the whole may run is for `problems` to
    say; a base with keys that DeepSpeed refuses by themselves raises ConfigError.
    """
    plain = _without_auto(base)
    for sentence in key_problems(plain, facts.deepspeed_version) if plain else ():
        raise ConfigError(sentence, "Correct the base file, or search without it.")
    placement = placement_of(plain, point)
    built = {key: value for key, value in plain.items() if key not in ("bfloat16", "aio")}
    built |= _batch(plain, point, facts.workload)
    built |= _precision(plain, point, facts.workload)
    built["zero_optimization"] = zero_block(plain, point, placement, facts, swap_dir)
    if _by_ds_config(facts.workload):
        built["optimizer"] = _optimizer(plain, facts.workload)
    built["gradient_clipping"] = plain.get("gradient_clipping", DEFAULT_GRADIENT_CLIPPING)
    if "nvme" in (placement.optimizer, placement.param):
        built["aio"] = _aio(plain, point)
    elif block(plain, "aio"):
        built["aio"] = block(plain, "aio")  # without effect here, but the person's own
    return quiet(built)


def _by_ds_config(workload: Workload) -> bool:
    """Whether the optimizer is the ds_config's to say, not built by the person's script."""
    return workload.command is None or not workload.command.own_optimizer


def _without_auto(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _without_auto(item) for key, item in value.items() if item != "auto"}
    return value


def _batch(base: DsConfig, point: Point, workload: Workload) -> DsConfig:
    micro = int(point.get("micro_batch") or base.get("train_micro_batch_size_per_gpu", 1))
    steps = workload.global_batch // (micro * workload.world_size)
    return {
        "train_batch_size": workload.global_batch,
        "train_micro_batch_size_per_gpu": micro,
        "gradient_accumulation_steps": max(1, steps),
    }


def _precision(base: DsConfig, point: Point, workload: Workload) -> DsConfig:
    own_bf16, own_fp16 = {**block(base, "bfloat16"), **block(base, "bf16")}, block(base, "fp16")
    bf16 = {"check_grad_overflow": True, **own_bf16}
    for name in ("bf16_master_weights_and_grads", "bf16_optimizer_states"):
        if name in point:
            bf16[name] = point[name]
    fp16 = {"loss_scale": 0, "initial_scale_power": _INITIAL_SCALE_POWER, **own_fp16}
    built: DsConfig = {
        "bf16": {**bf16, "enabled": True} if workload.precision == "bf16" else {**own_bf16, "enabled": False},
        "fp16": {**fp16, "enabled": True} if workload.precision == "fp16" else {**own_fp16, "enabled": False},
    }
    if "grad_accum_dtype" in point:
        built["data_types"] = _data_types(block(base, "data_types"), point["grad_accum_dtype"])
    return built


def _data_types(base: dict[str, Any], accumulate_in: str) -> dict[str, Any]:
    rest = {key: value for key, value in base.items() if key != "grad_accum_dtype"}
    return rest if accumulate_in == "model" else {**rest, "grad_accum_dtype": accumulate_in}


def _optimizer(base: DsConfig, workload: Workload) -> dict[str, Any]:
    """The workload's optimizer; the base's parameters are kept where it has the same one."""
    kind, own = workload.optimizer, block(base, "optimizer")
    same = str(own.get("type", "")).lower() == kind
    params = {"lr": _LEARNING_RATES[kind], **_OPTIMIZER_PARAMS[kind]}
    if same:
        params = {**_UNWRITTEN_PARAMS[kind], **block(own, "params")}
        # ZenFlow hands all parameters on to torch's AdamW, which does not know these two (0.19.8).
        if kind in ("adam", "adamw") and not block(base, "zero_optimization").get("zenflow"):
            params = {"adam_w_mode": True, "torch_adam": False, **params}
    elif kind in ("adam", "adamw"):
        params["adam_w_mode"] = kind == "adamw"
    kept = {key: value for key, value in own.items() if key not in ("type", "params")} if same else {}
    return {**kept, "type": _OPTIMIZER_TYPES[kind], "params": params}


def _aio(base: DsConfig, point: Point) -> dict[str, Any]:
    own = block(base, "aio")
    tuned = ("block_size", "queue_depth", "intra_op_parallelism", "single_submit", "overlap_events")
    return {**own, **chosen({f"aio_{key}": key for key in tuned}, point, own, AIO_DEFAULTS)}
