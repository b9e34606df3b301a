"""Memory of published runs, as accuracy.py asks for it.

Covered: rows of data/published_runs.csv that DeepSpeed under Megatron did, which state allocator peaks and
the host memory of a node. Their models are worked out from the stated parameter counts.
"""

from __future__ import annotations

import math
from dataclasses import replace
from functools import lru_cache
from typing import Any

from offtune.activations import MEGATRON
from offtune.memory_model import MemoryPrediction, predict_memory
from offtune.model_shape import ModelShape, shape_of
from offtune.models import ratio_for, resident_groups, sub_group_numels

# Megatron's own models have four key heads and, with these, exactly the stated parameter counts for one of
# two vocabularies: GPT-2's, padded, in 2024 and Llama's in the runs of DeepSpeed 0.16.2.
_KEY_HEADS = 4
_VOCAB = {"0.13.3": 50304, "0.16.2": 32000}


# buffer_count as the logs (cxl) and the authors' ds_config (jlse) state it.
_SWAP_BUFFERS = {"cxl": 20, "jlse": 32}


def predicted_bytes(case: Any) -> dict[str, float]:
    """What each memory column of a run should say; empty for runs of other stacks."""
    if case.row["system"] != "DeepSpeed":
        return {}
    memory = prediction_of(case.row, case.ds_config, case.facts)
    peaks = memory.peak_by_phase
    return {
        "alloc_static_bytes": memory.resting_bytes,
        "alloc_forward_bytes": peaks["forward"],
        "alloc_backward_bytes": peaks["backward"],
        "host_bytes": memory.resting_host_bytes,
    }


def prediction_of(row: dict[str, str], ds_config: Any, facts: Any) -> MemoryPrediction:
    """The prediction for a row; tensor parallelism makes each rank's model narrower."""
    tensor = int(row["tensor_parallel"])
    keys = ("params", "layers", "hidden", "heads")
    shape = megatron_shape(*(int(row[key]) for key in keys), tensor, _VOCAB[row["deepspeed"]])
    ranks = int(row["gpus"]) // tensor
    workload = replace(facts.workload, world_size=ranks, activation_checkpointing=True)
    facts = replace(facts, workload=workload, parameter_numels=shape.parameter_numels)
    ds_config = _as_in_the_fork(row, ds_config, facts)
    per_node = int(row["gpus"]) // int(row["nodes"])
    return predict_memory(ds_config, facts, shape, MEGATRON, ranks_per_node=per_node)


def _as_in_the_fork(row: dict[str, str], ds_config: Any, facts: Any) -> Any:
    """The authors' fork keeps one sub-group more on the device than DeepSpeed 0.19.8 for a ratio below 1.

    Their allocator levels say so: 20B at ratio 0.5 to 0.9 holds 4, 7, 10, 13 and 16 of 31 sub-groups.
    """
    zero = ds_config["zero_optimization"]
    offload = {**zero["offload_optimizer"]}
    if offload["device"].startswith("cpu"):
        offload["device"] = "cpu"
    offload["buffer_count"] = _SWAP_BUFFERS.get(row["machine"], 4)
    groups = sub_group_numels(facts.parameter_numels, facts.workload.world_size, zero["sub_group_size"])
    if 0 < offload.get("ratio", 1.0) < 1:
        kept = resident_groups(offload["ratio"], len(groups)) + 1
        offload["ratio"] = ratio_for(kept, len(groups))
    return {**ds_config, "zero_optimization": {**zero, "offload_optimizer": offload}}


@lru_cache(maxsize=64)
def megatron_shape(params: int, layers: int, hidden: int, heads: int, tensor: int, vocab: int) -> ModelShape:
    """A gated decoder with joint projections; its MLP is as wide as the parameter count asks."""
    attention = hidden * hidden * (2 + 2 * _KEY_HEADS / heads)
    inner = (params - 2 * vocab * hidden) / layers - attention
    width = round(inner / (3 * hidden) / 64) * 64
    config = {
        "model_type": "phi3",
        "hidden_size": hidden,
        "num_hidden_layers": layers,
        "num_attention_heads": heads // tensor,
        "num_key_value_heads": _KEY_HEADS // math.gcd(_KEY_HEADS, tensor),
        "head_dim": hidden // heads,
        "intermediate_size": width // tensor,
        "vocab_size": vocab // tensor,
    }
    shape = shape_of(config)
    # Megatron registers the projections in the order of their use, and norms before them.
    order = [4, 1, 0, 5, 2, 3]
    numels = tuple(tuple(layer[i] for i in order) for layer in shape.layer_numels)
    return replace(shape, layer_numels=numels)
