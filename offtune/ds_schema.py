"""What kind of value each key of a ds_config takes, block by block, for reading a person's file.

Covered: the strict blocks of `ds_keys` and the keys that DeepSpeed takes without checking them. Not covered:
keys of data_efficiency, compression and other blocks that are handed on as they are. Read from DeepSpeed
0.19.8: runtime/config.py, runtime/constants.py, monitor/config.py, comm/config.py, profiling/config.py,
runtime/activation_checkpointing/config.py, runtime/lr_schedules.py.
"""

from __future__ import annotations

from typing import Any, Literal

from offtune.ds_keys import AIO_DEFAULTS, STRICT_BLOCKS

# whole: an integer; number; switch: true or false; text; list; block; any: not looked at.
ValueKind = Literal["whole", "number", "switch", "text", "list", "block", "device", "any"]

_KINDS: tuple[tuple[type, ValueKind], ...] = (
    (bool, "switch"),
    (int, "whole"),
    (float, "number"),
    (str, "text"),
    (list, "list"),
    (dict, "block"),
)

TOP_LEVEL: dict[str, ValueKind] = {
    **dict.fromkeys(
        (
            "train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps",
            "steps_per_print", "sequence_parallel_size", "vocabulary_size", "allgather_size",
        ),
        "whole",
    ),
    **dict.fromkeys(("gradient_clipping", "gradient_predivide_factor"), "number"),
    **dict.fromkeys(
        (
            "wall_clock_breakdown", "memory_breakdown", "dump_state", "prescale_gradients",
            "disable_allgather", "disable_python_gc", "managed_gradient_accumulation",
            "zero_allow_untested_optimizer", "zero_force_ds_cpu_optimizer", "dataloader_drop_last",
            "use_data_before_expert_parallelism", "ddp_bf16",
        ),
        "switch",
    ),
    **dict.fromkeys(
        (
            "gradient_allreduce_op", "communication_data_type", "seq_parallel_communication_data_type",
            "log_level",
        ),
        "text",
    ),
    **dict.fromkeys(
        (
            "optimizer", "scheduler", "fp16", "bf16", "torch_autocast", "data_types", "zero_optimization",
            "aio", "activation_checkpointing", "comms_logger", "flops_profiler", "tensorboard", "wandb",
            "csv_monitor", "comet", "checkpoint", "pipeline", "hybrid_engine", "data_efficiency",
            "weight_quantization", "compile", "timers", "tensor_parallel", "expert_parallel", "autotuning",
            "datastates_ckpt", "inference",
        ),
        "block",
    ),
}  # fmt: skip

# Blocks whose unknown keys DeepSpeed ignores without a word.
LOOSE_BLOCKS: dict[str, dict[str, ValueKind]] = {
    "optimizer": {"type": "text", "params": "block", "legacy_fusion": "switch"},
    "optimizer.params": {
        "lr": "number", "betas": "list", "eps": "number", "weight_decay": "number", "momentum": "number",
        "bias_correction": "switch", "adam_w_mode": "switch", "torch_adam": "switch", "amsgrad": "switch",
        "fp32_optimizer_states": "switch", "max_grad_norm": "number", "freeze_step": "whole",
    },
    "scheduler": {"type": "text", "params": "block"},
    "scheduler.params": {
        "warmup_min_lr": "number", "warmup_max_lr": "number", "warmup_num_steps": "whole",
        "total_num_steps": "whole", "warmup_type": "text", "last_batch_iteration": "whole",
        "warmup_min_ratio": "number", "cos_min_ratio": "number",
    },
    "aio": {key: "switch" if isinstance(value, bool) else "whole" for key, value in AIO_DEFAULTS.items()},
    "activation_checkpointing": {
        "partition_activations": "switch", "cpu_checkpointing": "switch", "number_checkpoints": "whole",
        "contiguous_memory_optimization": "switch", "synchronize_checkpoint_boundary": "switch",
        "profile": "switch",
    },
    "data_types": {
        "grad_accum_dtype": "text", "param_dtype": "text", "buffer_dtype": "text",
        "keep_in_fp32_modules": "any",
    },
    "torch_autocast": {"enabled": "switch", "dtype": "text", "lower_precision_safe_modules": "list"},
    "flops_profiler": {
        "enabled": "switch", "profile_step": "whole", "module_depth": "whole", "top_modules": "whole",
        "detailed": "switch", "output_file": "text", "recompute_fwd_factor": "number",
    },
    "comms_logger": {
        "enabled": "switch", "verbose": "switch", "prof_all": "switch", "debug": "switch", "prof_ops": "list",
    },
}  # fmt: skip

# Where a default does not tell the kind.
_SPECIAL: dict[str, ValueKind] = {
    "zero_optimization.overlap_comm": "switch",
    "zero_optimization.offload_optimizer": "block",
    "zero_optimization.offload_param": "block",
    "zero_optimization.zenflow": "block",
    "zero_optimization.offload_optimizer.device": "device",
    "zero_optimization.offload_optimizer.nvme_path": "text",
    "zero_optimization.offload_param.device": "device",
    "zero_optimization.offload_param.nvme_path": "text",
    "fp16.loss_scale": "number",
}
# Older than every version offtune runs with, but known: deprecated keys of zero_optimization by kind.
_OLD_ZERO: dict[str, ValueKind] = {
    "cpu_offload": "switch",
    "cpu_offload_param": "switch",
    "cpu_offload_params": "switch",
    "cpu_offload_use_pin_memory": "switch",
    "stage3_gather_fp16_weights_on_model_save": "switch",
}


def kinds_of(block: str) -> dict[str, ValueKind] | None:
    """The keys a block (dotted; "" is the top level) may have, and their kinds; None: not looked into."""
    if not block:
        return TOP_LEVEL
    if block in LOOSE_BLOCKS:
        return LOOSE_BLOCKS[block]
    if block not in STRICT_BLOCKS:
        return None
    kinds = {key: _SPECIAL.get(f"{block}.{key}", _kind(value)) for key, value in STRICT_BLOCKS[block].items()}
    return kinds | _OLD_ZERO if block == "zero_optimization" else kinds


def _kind(default: Any) -> ValueKind:
    return next((kind for kind_type, kind in _KINDS if isinstance(default, kind_type)), "any")
