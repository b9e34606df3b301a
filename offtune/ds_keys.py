"""DeepSpeed's configuration keys: what each block may hold, its defaults, and what came and went by version.

Covered: the blocks in which DeepSpeed refuses unknown keys, and the keys it refuses by name. Not covered:
judging a file by them (`ds_key_rules`). Read from the releases 0.19.6, 0.19.7 and 0.19.8, under deepspeed/:
runtime/config.py, runtime/zero/config.py, runtime/zero/offload_config.py, runtime/precision_config.py,
runtime/zenflow/zenflow_config.py, runtime/swap_tensor/aio_config.py and compile/config.py.
"""

from __future__ import annotations

import re
import sys
from typing import Any

from offtune.knobs import DEFAULT_SUB_GROUP_NUMEL
from offtune.trial import DsConfig

Version = tuple[int, ...]

# Elements; DeepSpeed writes it as 5e8.
DEFAULT_BUCKET_NUMEL = 500_000_000
# runtime/constants.py; 0 (off) before 0.19.6.
DEFAULT_GRADIENT_CLIPPING = 1.0

OFFLOAD_OPTIMIZER_DEFAULTS: dict[str, Any] = {
    "device": "none",
    "nvme_path": None,
    "buffer_count": 4,
    "pin_memory": True,
    "pipeline_read": False,
    "pipeline_write": False,
    "fast_init": False,
    "ratio": 1.0,
    "super_offload": False,
    "cpuadam_cores_perc": 0.8,
}
OFFLOAD_PARAM_DEFAULTS: dict[str, Any] = {
    "device": "none",
    "nvme_path": None,
    "buffer_count": 5,
    "buffer_size": 100_000_000,
    "max_in_cpu": 1_000_000_000,
    "pin_memory": True,
}
ZERO_DEFAULTS: dict[str, Any] = {
    "stage": 0,
    "contiguous_gradients": True,
    "reduce_scatter": True,
    "reduce_bucket_size": DEFAULT_BUCKET_NUMEL,
    "use_multi_rank_bucket_allreduce": True,
    "allgather_partitions": True,
    "allgather_bucket_size": DEFAULT_BUCKET_NUMEL,
    "overlap_comm": None,
    "compute_grad_norm": True,
    "load_from_fp32_weights": True,
    "elastic_checkpoint": False,
    "offload_param": None,
    "offload_optimizer": None,
    "zenflow": None,
    "sub_group_size": DEFAULT_SUB_GROUP_NUMEL,
    "stage3_prefetch_bucket_size": 50_000_000,
    "stage3_param_persistence_threshold": 100_000,
    "stage3_model_persistence_threshold": sys.maxsize,
    "stage3_max_live_parameters": 1_000_000_000,
    "stage3_max_reuse_distance": 1_000_000_000,
    "stage3_gather_16bit_weights_on_model_save": False,
    "stage3_module_granularity_threshold": 0,
    "stage3_use_all_reduce_for_fetch_params": False,
    "stage3_allgather_sequential": False,
    "ignore_unused_parameters": True,
    "legacy_stage1": False,
    "round_robin_gradients": False,
    "parameter_alignment": False,
    "zero_hpz_partition_size": 1,
    "zero_quantized_weights": False,
    "zero_quantized_nontrainable_weights": False,
    "zero_quantized_gradients": False,
    "memory_efficient_linear": True,
    "pipeline_loading_checkpoint": False,
    "override_module_apply": True,
    "log_trace_cache_warnings": False,
    "enable_sanity_checks": False,
    "save_muon_momentum_buffer_in_memory": False,
    "leaf_module": None,
    "mics_shard_size": -1,
    "mics_hierarchical_params_gather": False,
    "zeropp_loco_param": None,
}
# Older spellings, still read; they collide with the blocks that offtune writes.
DEPRECATED_ZERO_KEYS = (
    "cpu_offload",
    "cpu_offload_param",
    "cpu_offload_use_pin_memory",
    "stage3_gather_fp16_weights_on_model_save",
)
AIO_DEFAULTS: dict[str, Any] = {
    "block_size": 1_048_576,
    "queue_depth": 8,
    "intra_op_parallelism": 1,
    "single_submit": False,
    "overlap_events": True,
    "use_gds": False,
}
BF16_DEFAULTS: dict[str, Any] = {
    "enabled": False,
    "immediate_grad_update": False,
    "check_grad_overflow": True,
    "bf16_master_weights_and_grads": False,
    "bf16_optimizer_states": False,
}
FP16_DEFAULTS: dict[str, Any] = {
    "enabled": False,
    "auto_cast": False,
    "loss_scale": None,
    "initial_scale_power": 16,
    "loss_scale_window": 1000,
    "hysteresis": 2,
    "consecutive_hysteresis": False,
    "min_loss_scale": 1,
    "fp16_master_weights_and_grads": False,
}
# None: any type; the intervals, for one, are numbers or the word "auto".
ZENFLOW_DEFAULTS: dict[str, Any] = {
    "topk_ratio": 0.1,
    "select_strategy": None,
    "select_interval": None,
    "update_interval": None,
    "overlap_step": False,
    "offload": False,
    "auto_ratio": 0.99,
    "full_warm_up_rounds": 0,
    "pt_reserved_cores_perc": 0.5,
    "steps_per_epoch": None,
}
COMPILE_DEFAULTS: dict[str, Any] = {
    "deepcompile": False,
    "autoep_non_moe": False,
    "free_activation": False,
    "free_activation_threshold": 10_485_760,
    "offload_activation": False,
    "offload_activation_pin_memory": True,
    "offload_opt_states": False,
    "double_buffer": True,
    "symmetric_memory": False,
    "debug_log": False,
    "offload_parameters": False,
    "sync_before_reduce": False,
    "sync_after_reduce": False,
    "sync_before_allgather": False,
    "sync_after_allgather": False,
    "keep_int_input_tensors": True,
    "keep_all_input_tensors": False,
    "passes": None,
}

# At the top level and in aio nothing is checked when read, and anything but a whole number fails much later.
WHOLE_NUMBERS = (
    "train_batch_size",
    "train_micro_batch_size_per_gpu",
    "gradient_accumulation_steps",
    "aio.block_size",
    "aio.queue_depth",
    "aio.intra_op_parallelism",
)

# Blocks in which an unknown key is an error for DeepSpeed; elsewhere it is ignored without a word.
STRICT_BLOCKS: dict[str, dict[str, Any]] = {
    "zero_optimization": ZERO_DEFAULTS,
    "zero_optimization.offload_optimizer": OFFLOAD_OPTIMIZER_DEFAULTS,
    "zero_optimization.offload_param": OFFLOAD_PARAM_DEFAULTS,
    "zero_optimization.zenflow": ZENFLOW_DEFAULTS,
    "bf16": BF16_DEFAULTS,
    "bfloat16": BF16_DEFAULTS,
    "fp16": FP16_DEFAULTS,
    "compile": COMPILE_DEFAULTS,
}

# The version that first knows a key, and the one that first refuses it, even empty or disabled.
ADDED: dict[str, Version] = {
    "zero_optimization.compute_grad_norm": (0, 19, 7),
    "zero_optimization.parameter_alignment": (0, 19, 7),
    "compile.autoep_non_moe": (0, 19, 8),
}
REMOVED: dict[str, Version] = {
    "nebula": (0, 19, 7),
    "compression_training": (0, 19, 7),
    "quantize_training": (0, 19, 7),
    "sparse_attention": (0, 19, 7),
    "zero_optimization.mics_shard_size": (0, 19, 7),
    "zero_optimization.mics_hierarchical_params_gather": (0, 19, 7),
    "amp": (0, 19, 8),
    "sparse_gradients": (0, 19, 8),
    "eigenvalue": (0, 19, 8),
    "elasticity": (0, 19, 8),
    "graph_harvesting": (0, 19, 8),
    "curriculum_learning": (0, 19, 8),
    "progressive_layer_drop": (0, 19, 8),
    "zero_optimization.zeropp_loco_param": (0, 19, 8),
}

# The field's own name is read as well as its stage3_ alias (populate_by_name in runtime/config_utils.py).
ZERO_ALIASES: dict[str, str] = {
    key.removeprefix("stage3_"): key for key in ZERO_DEFAULTS if key.startswith("stage3_")
}


def parse_version(text: str) -> Version:
    """(0, 19, 8) from '0.19.8+cu126'; an unreadable version counts as newer than any."""
    numbers = re.match(r"(\d+)\.(\d+)(?:\.(\d+))?", text)
    return tuple(int(part or 0) for part in numbers.groups()) if numbers else (sys.maxsize,)


def block(ds_config: DsConfig, path: str) -> dict[str, Any]:
    """The block at a dotted path, empty where there is none."""
    found: Any = ds_config
    for name in path.split("."):
        found = found.get(name) if isinstance(found, dict) else None
    return dict(found) if isinstance(found, dict) else {}
