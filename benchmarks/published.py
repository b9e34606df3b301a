"""Published runs as cases for the cost models: what ran, on which machine, and what its log says.

Covered: rows of data/published_runs.csv. A row's model is a llama of the stated layers, width and heads whose
MLP is as wide as the stated parameter count asks.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from offtune import hardware_profile
from offtune.hardware_profile import HardwareProfile
from offtune.model_shape import ModelShape, shape_of
from offtune.step_work import StepWork, step_work
from offtune.trial import DsConfig, Facts, Workload

DATA = Path(__file__).parent / "data"
RUNS = DATA / "published_runs.csv"
_MACHINES = {
    "polaris": "a100-40gb",
    "jlse": "h100-80gb",
    "h200": "h200",
    "cxl": str(DATA / "machines" / "cxl.yaml"),
    "mpt-a100-40gb": "a100-40gb",
    "mpt-a100-80gb": "a100-80gb",
    "mpt-h100-80gb": "h100-80gb",
    "vtrain-a100": "a100-80gb",
}
_VOCAB = 32000
# Buckets and limits that every DeepSpeed log here states.
_BUCKET, _LIMIT, _PREFETCH = 500_000_000, 1_000_000_000, 50_000_000
# The logs' own loop around DeepSpeed (data, timers, printing): iteration less phases of runs C1 to C4 and of
# two logs with 16 micro-steps.
HARNESS_STEP_S, HARNESS_MICRO_STEP_S = 0.13, 0.25


@dataclass(frozen=True, kw_only=True)
class Case:
    """One published run; seconds are medians, None where the source does not say. `harness_s` is the time
    that the authors' loop spends outside of DeepSpeed."""

    row: dict[str, str]
    shape: ModelShape
    ds_config: DsConfig
    facts: Facts
    hardware: HardwareProfile
    work: StepWork
    measured: dict[str, float | None]
    harness_s: float

    @property
    def name(self) -> str:
        row = self.row
        copy = f" {row['gradient_copy']}" if row["gradient_copy"] else ""
        split = f" tp {row['tensor_parallel']}" if row["tensor_parallel"] != "1" else ""
        size = float(row["params"]) / 1e9
        return (
            f"{row['machine']} {size:.1f}B x{row['gpus']}{split} "
            f"micro {row['micro_batch']}x{row['micro_steps']} "
            f"{row['optimizer_device']} r {row['ratio'] or '-'} sg {row['sub_group_size'] or '-'}"
            f" {row['deepspeed']}{copy}"
        )


def cases() -> Iterator[Case]:
    """Every run that DeepSpeed itself, or a loop without offload, did; `excluded` names the others."""
    for row in rows():
        if excluded(row) is None:
            yield case_of(row)


def rows() -> list[dict[str, str]]:
    with RUNS.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def excluded(row: dict[str, str]) -> str | None:
    """Why a row is not predicted, None where it is."""
    if row["system"] not in ("DeepSpeed", "DeepSpeed HF", "FSDP", "Megatron"):
        return "an optimizer that DeepSpeed does not have"
    if row["memory_tier"]:
        return "states partly in CXL memory, a tier no profile describes"
    return None


@lru_cache(maxsize=256)
def _shape(params: int, layers: int, hidden: int, heads: int) -> ModelShape:
    inner = (params - 2 * _VOCAB * hidden) / layers - 4 * hidden * hidden
    config: dict[str, Any] = {
        "model_type": "llama",
        "hidden_size": hidden,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": heads,
        "intermediate_size": round(inner / (3 * hidden)),
        "vocab_size": _VOCAB,
        "tie_word_embeddings": False,
    }
    return shape_of(config)


def case_of(row: dict[str, str]) -> Case:
    split = int(row["tensor_parallel"])
    shape = _shape(*(int(row[key]) for key in ("params", "layers", "hidden", "heads")))
    ds_config = _ds_config(row)
    facts = _facts(row, shape)
    nodes = int(row["nodes"])
    work = step_work(
        ds_config,
        facts,
        shape,
        ranks_per_node=int(row["gpus"]) // nodes,
        cores_bound=row["cores_bound"] != "no",
        attention="flash" if row["system"] in ("FSDP", "DeepSpeed HF") else "eager",
    )
    if row["gradient_copy"] == "overlapped":
        work = replace(work, gradient_copy="overlapped")
    if split > 1:
        work = _tensor_parallel(work, split, int(row["gpus"]))
    log = row["system"] == "DeepSpeed"
    return Case(
        row=row,
        shape=shape,
        ds_config=ds_config,
        facts=facts,
        hardware=hardware_profile.load(_MACHINES[row["machine"]]),
        work=work,
        measured={
            key: float(row[f"{key}_s"]) if row[f"{key}_s"] else None
            for key in ("step", "forward", "backward", "update")
        },
        harness_s=HARNESS_STEP_S + HARNESS_MICRO_STEP_S * work.micro_steps if log else 0.0,
    )


_SPLIT_FIELDS = (
    "forward_flops",
    "recompute_flops",
    "backward_flops",
    "attention_flops",
    "score_bytes",
    "cpu_numel",
    "last_numel",
    "micro_d2h_bytes",
    "micro_h2d_bytes",
    "update_h2d_bytes",
)


def _tensor_parallel(work: StepWork, split: int, gpus: int) -> StepWork:
    """Work of one of `split` parts of every layer, as Megatron cuts them; `work` is that of the whole model.

    Each layer is reduced over the parts twice in a forward and twice in a backward, and twice more with
    recomputation; an all-reduce is a reduce-scatter and an all-gather.
    """
    reduced = 2.0 * 2.0 * work.state_bytes
    parts = {name: getattr(work, name) / split for name in _SPLIT_FIELDS}
    gathered = {"forward_gather_bytes": reduced, "backward_gather_bytes": 2 * reduced}
    return replace(work, ranks=gpus, ranks_per_node=gpus, **parts, **gathered)


def _ds_config(row: dict[str, str]) -> DsConfig:
    zero: dict[str, Any] = {
        "stage": 1 if row["system"] == "Megatron" else 3,
        "reduce_bucket_size": _BUCKET,
        "stage3_prefetch_bucket_size": _PREFETCH,
        "stage3_max_live_parameters": _LIMIT,
        "stage3_max_reuse_distance": _LIMIT,
        "sub_group_size": int(float(row["sub_group_size"] or _LIMIT)),
        "overlap_comm": True,
    }
    if row["optimizer_device"] != "none":
        offload: dict[str, Any] = {"device": row["optimizer_device"], "pin_memory": True}
        if row["optimizer_device"] == "cpu":
            offload["ratio"] = float(row["ratio"])
        zero["offload_optimizer"] = offload
    return {
        "train_micro_batch_size_per_gpu": int(row["micro_batch"]),
        "gradient_accumulation_steps": int(row["micro_steps"]),
        "bf16": {"enabled": True},
        "zero_optimization": zero,
    }


def _facts(row: dict[str, str], shape: ModelShape) -> Facts:
    ranks = int(row["gpus"]) // int(row["tensor_parallel"])
    workload = Workload(
        model_name="published",
        model_config={},
        seq_len=int(row["seq_len"]),
        global_batch=ranks * int(row["micro_batch"]) * int(row["micro_steps"]),
        world_size=ranks,
        precision="bf16",
        optimizer="adamw",
        activation_checkpointing=row["checkpointing"] == "yes",
        seed=0,
    )
    return Facts(
        workload=workload,
        device="cuda",
        parameter_numels=shape.parameter_numels,
        nvme_dir="/nvme",
        ops=frozenset(),
        deepspeed_version=row["deepspeed"] or "0.16.2",
    )
