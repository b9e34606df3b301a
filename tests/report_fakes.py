"""Made-up records for the tests of reports: one study with a bit of everything that can happen."""

from __future__ import annotations

from typing import Any

from offtune.records import Run, StudyRecord
from offtune.trial import MemoryPeaks, PhaseTimes, Point, Status, Traffic, TrialResult

GB = 10**9
POINT: Point = {
    "placement": "zero3 opt=cpu param=cpu",
    "micro_batch": 4,
    "pin_memory": True,
    "reduce_bucket_size": 2**22,
}
DS_CONFIG: dict[str, Any] = {
    "train_batch_size": 8,
    "train_micro_batch_size_per_gpu": 4,
    "gradient_accumulation_steps": 2,
    "bf16": {"enabled": True},
    "optimizer": {"type": "AdamW", "params": {"lr": 1e-4, "betas": [0.9, 0.999]}},
    "zero_optimization": {
        "stage": 3,
        "reduce_bucket_size": 4194304,
        "offload_optimizer": {"device": "cpu", "pin_memory": True, "ratio": 0.75},
        "offload_param": {"device": "cpu", "pin_memory": True},
    },
}


def make_study(device: str = "cuda", **settings: Any) -> StudyRecord:
    return StudyRecord(
        name="calm-otter",
        created_at="2026-01-31T08:30:00.000000+00:00",
        settings={
            "limit_bytes": 38 * GB,
            "host_limit_bytes": 200 * GB,
            "nvme_path": None,
            "workload": {"activation_checkpointing": False, "seq_len": 1024},
            "versions": {"deepspeed": "0.19.8", "torch": "2.13.0"},
            **settings,
        },
        target_trials=12,
        model="llama-1b",
        device=device,
        budget_bytes=40 * GB,
    )


def make_run(
    number: int,
    status: Status | None = Status.OK,
    *,
    samples_per_s: float | None = None,
    used_gb: float | None = None,
    host_gb: float | None = 60.0,
    reason: str = "",
    spread: float = 0.01,
    **changes: Any,
) -> Run:
    """A run whose steps scatter by `spread` of their median, evenly to both sides."""
    middle = 8 / samples_per_s if samples_per_s else 0.0
    steps = tuple(middle * (1 + spread * k) for k in (-2, -1, 0, 1, 2)) if samples_per_s else ()
    result = TrialResult(
        status=status or Status.OK,
        reason=reason,
        samples_per_s=samples_per_s,
        tokens_per_s=samples_per_s * 1024 if samples_per_s else None,
        step_s=steps,
        losses=(8.31, 8.12, 7.98, 7.9, 7.83, 7.7) if samples_per_s else (),
        phases=PhaseTimes(forward_s=0.21, backward_s=0.4, update_s=0.31, other_s=0.02),
        memory=MemoryPeaks(
            used_device_bytes=None if used_gb is None else round(used_gb * GB),
            device_source="NVML, our processes" if used_gb else "",
            used_host_bytes=None if host_gb is None else round(host_gb * GB),
        ),
        traffic=Traffic(pcie_reason="no PCIe counter on this device", nvme_reason="no NVMe offload"),
        seconds=41.3,
        first_step_s=9.8,
        start="warm",
        exit_codes=(0,),
        versions={"deepspeed": "0.19.8"},
    )
    fields: dict[str, Any] = {
        "study": "calm-otter",
        "number": number,
        "origin": "search",
        "label": "",
        "point": POINT,
        "ds_config": DS_CONFIG,
        "fingerprint": f"f{number}",
        "status": status,
        "result": result if status is not None else None,
        "started_at": "2026-01-31T08:31:00.000000+00:00",
    }
    return Run(**{**fields, **changes})


def rich_study() -> list[Run]:
    """Baselines that fit and do not, winners, a reused measurement, and five ways to fail."""
    opt: Point = {**POINT, "placement": "zero2 opt=cpu", "reduce_bucket_size": 2**29}
    fast: Point = {**POINT, "placement": "zero3 opt=cpu", "micro_batch": 8, "resident_sixteenths": 9}
    crash = "Rank 0: exit -11 (SIGSEGV): a memory fault in compiled code."
    host = "Stopped by offtune: over the host budget of 200 GB."
    base: dict[str, Any] = {"origin": "baseline", "point": opt}
    return [
        make_run(0, Status.OOM_GPU, used_gb=37.9, reason="CUDA out of memory", label="stage 2", **base),
        make_run(1, samples_per_s=8.2, used_gb=30.1, label="stage 2 + optimizer offload", **base),
        make_run(2, samples_per_s=6.1, used_gb=17.5, origin="baseline", label="stage 3 + both offloads"),
        make_run(3, samples_per_s=10.9, used_gb=36.8, point=fast),
        make_run(4, Status.OVER_BUDGET, samples_per_s=12.0, used_gb=38.4, point={**fast, "micro_batch": 16}),
        make_run(5, samples_per_s=9.4, used_gb=33.0, point={**fast, "resident_sixteenths": 4}),
        make_run(6, Status.CRASHED, reason=crash),
        make_run(
            7, reuse_of=3, ran=False, samples_per_s=10.9, used_gb=36.8, point={**fast, "pin_memory": False}
        ),
        make_run(8, Status.OOM_HOST, host_gb=230.0, reason=host),
        make_run(9, Status.TIMEOUT, reason="Not finished after 10 min 00 s (--trial-timeout)."),
        make_run(10, Status.INVALID, ran=False, reason="offload_param needs stage 3."),
        make_run(11, None),
    ]
