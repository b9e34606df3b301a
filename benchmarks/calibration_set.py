"""The published runs that constants of the time model were fitted to; all others are predictions.

Set C is one model on one A100 and one on four H100. What it cannot show comes from a few more runs, the first
of their kind each: another micro-batch, several ranks, several nodes, no NVLink, NVMe, no offload at all.
"""

from __future__ import annotations

from collections.abc import Callable

_Row = dict[str, str]

CALIBRATION: tuple[tuple[str, Callable[[_Row], bool]], ...] = (
    ("C1, C2: 7B on one A100", lambda r: r["run"] == "7B-scale-GA-single-GPU" and r["micro_steps"] == "1"),
    ("C3, C4: 20B on four H100", lambda r: r["run"] == "20B-scale-twinflow" and r["ratio"] == "1.0"),
    ("launch: 7B at micro-batch 1 on one A100", lambda r: r["run"] == "DOS sample-logs"),
    ("launch: 7B on four H100", lambda r: r["run"].startswith("scale-models") and _size(r) == 5.949),
    ("cores bound: 9.1B on four A100", lambda r: r["run"] == "8B-scale-gaps-a100"),
    ("cores unbound: 7B on 2 and 4 A100", lambda r: _shared(r, ("2", "4")) and not r["gradient_copy"]),
    ("fabric: 7B on two nodes", lambda r: _shared(r, ("8",))),
    ("no NVLink, DRAM and NVMe: 20B", lambda r: r["machine"] == "cxl" and _rerun(r) and _size(r) == 15.139),
    (
        "no offload, A100",
        lambda r: r["machine"] == "mpt-a100-80gb" and _size(r) in (29.964, 12.849, 2.814, 1.313),
    ),
    ("no offload, H100", lambda r: r["machine"] == "mpt-h100-80gb" and _size(r) in (12.849, 2.814, 1.313)),
    ("no offload, eager attention", lambda r: r["machine"] == "vtrain-a100" and _corner(r)),
)


def fitted_to(row: _Row) -> bool:
    """Whether a constant of the model was fitted to this run."""
    return row["system"] in ("DeepSpeed", "FSDP", "Megatron") and any(
        belongs(row) for _, belongs in CALIBRATION if row["tensor_parallel"] == "1" and not row["memory_tier"]
    )


def _size(row: _Row) -> float:
    return int(row["params"]) / 1e9


def _shared(row: _Row, gpus: tuple[str, ...]) -> bool:
    return row["run"] == "7B-scale-DP" and row["gpus"] in gpus


def _rerun(row: _Row) -> bool:
    return "newbios-rerun" in row["run"]


def _corner(row: _Row) -> bool:
    """Smallest and largest micro-batch that were run on eight GPUs."""
    return row["gpus"] == "8" and (row["micro_batch"], row["micro_steps"]) in (
        ("1", "16"),
        ("8", "2"),
        ("1", "2"),
    )
