"""What fits and what does not: driver peaks, runs that ran, runs that ran out of memory.

    python benchmarks/memory_limits.py

Prints predicted and published device memory as the driver counts it (data/published_limits.csv), and
whether a prediction would have called a run safe (fits even if it is off by its error), impossible (does not
fit even then) or close. Exit code 1 if a run that ran is called impossible, one that ran out of memory safe,
or a driver peak is missed by more than the stated error. All runs of data/published_runs.csv are asked too:
they all ran.
"""

from __future__ import annotations

import csv
import sys
from collections.abc import Iterator

import published
from published_memory import prediction_of

from offtune.memory_model import MemoryPrediction, predict_memory
from offtune.model_shape import shape_of
from offtune.trial import Facts, Workload

_GIB = 1024**3
_LIMITS = published.DATA / "published_limits.csv"
# Memory the driver offers, as the logs state it.
_MACHINE_GIB = {"polaris": 39.4, "jlse": 79.65, "cxl": 79.65}
_QWEN3_14B = {
    "model_type": "qwen3", "hidden_size": 5120, "num_hidden_layers": 40, "num_attention_heads": 40,
    "num_key_value_heads": 8, "head_dim": 128, "intermediate_size": 17408, "vocab_size": 151936,
}  # fmt: skip
# What the rows of data/published_limits.csv do not say, in the terms of data/published_runs.csv.
_ROW = {
    "nodes": "1", "tensor_parallel": "1", "micro_steps": "1", "optimizer_device": "cpu", "cores_bound": "yes",
    "sub_group_size": "100000000", "checkpointing": "yes", "system": "DeepSpeed", "gradient_copy": "",
    "memory_tier": "", "step_s": "", "forward_s": "", "backward_s": "", "update_s": "",
}  # fmt: skip


def main() -> int:
    wrong = 0
    with _LIMITS.open(newline="", encoding="utf-8") as file:
        for row in csv.DictReader(file):
            wrong += _judge(row)
    impossible = [name for name, called in _runs() if called == "impossible"]
    print(f"\nruns of published_runs.csv called impossible: {len(impossible)}")
    return 1 if wrong or impossible else 0


def called(memory: MemoryPrediction, limit_bytes: float) -> str:
    """safe, close or impossible."""
    used, error = memory.used_device_bytes, memory.error_share
    if used * (1 + error) <= limit_bytes:
        return "safe"
    return "impossible" if used * (1 - error) > limit_bytes else "close"


def _judge(row: dict[str, str]) -> bool:
    """Whether the prediction for a row was wrong."""
    memory = _qwen(row) if row["machine"] == "h200" else _logged(row)
    verdict = called(memory, float(row["memory_gib"]) * _GIB)
    used = memory.used_device_bytes / _GIB
    peak = float(row["driver_peak_gib"]) if row["driver_peak_gib"] else None
    error = f"{used / peak - 1:+6.1%} of {peak:6.2f}" if peak else " " * 17
    size = f"{float(row['params']) / 1e9:5.1f}B s {row['seq_len']}"
    knobs = f"micro {row['micro_batch']:>2} r {row['ratio']:4}"
    print(
        f"{row['machine']:8} {size} {knobs}  {used:6.2f} GiB {error}  ran: {row['ran']:3}  called {verdict}"
    )
    off = peak is not None and abs(used / peak - 1) > memory.error_share
    return off or (verdict == "impossible" if row["ran"] == "yes" else verdict == "safe")


def _logged(row: dict[str, str]) -> MemoryPrediction:
    full = {**_ROW, **row}
    case = published.case_of(full)
    return prediction_of(full, case.ds_config, case.facts)


def _qwen(row: dict[str, str]) -> MemoryPrediction:
    """Hugging Face under DeepSpeed's defaults; the source does not speak of checkpointing."""
    shape = shape_of(_QWEN3_14B)
    ranks, micro = int(row["gpus"]), int(row["micro_batch"])
    workload = Workload(
        model_name="Qwen3-14B",
        model_config=_QWEN3_14B,
        seq_len=int(row["seq_len"]),
        global_batch=ranks * micro,
        world_size=ranks,
        precision="bf16",
        optimizer="adamw",
        activation_checkpointing=False,
        seed=0,
    )
    facts = Facts(
        workload=workload,
        device="cuda",
        parameter_numels=shape.parameter_numels,
        nvme_dir=None,
        ops=frozenset(),
        deepspeed_version=row["deepspeed"],
    )
    zero = {"stage": 3} | ({} if row["ratio"] == "none" else {"offload_optimizer": {"device": "cpu"}})
    return predict_memory({"train_micro_batch_size_per_gpu": micro, "zero_optimization": zero}, facts, shape)


def _runs() -> Iterator[tuple[str, str]]:
    for case in published.cases():
        if case.row["machine"] in _MACHINE_GIB:
            memory = prediction_of(case.row, case.ds_config, case.facts)
            yield case.name, called(memory, _MACHINE_GIB[case.row["machine"]] * _GIB)


if __name__ == "__main__":
    sys.exit(main())
