"""Records the study and store tests are made of: a small space, a workload-free result, a run."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from offtune.knobs import Knob
from offtune.records import Limits, Run, StudyRecord
from offtune.space import Space
from offtune.trial import MemoryPeaks, Point, Status, TrialResult

LIMITS = Limits(device_bytes=1000, host_bytes=5000)
PLACEMENTS = ("zero1", "zero2", "zero3", "zero3 opt=cpu")


def small_space() -> Space:
    """Three unconditional knobs and one that only "zero3 opt=cpu" has."""
    knobs = (
        Knob(name="placement", about="Where.", kind="choices", default="zero2", choices=PLACEMENTS),
        Knob(name="micro_batch", about="How much.", kind="pow2", default=1, low=0, high=4),
        Knob(name="resident_sixteenths", about="Rest.", kind="int", default=0, low=0, high=16,
             when={"placement": ("zero3 opt=cpu",)}),
        Knob(name="overlap_comm", about="Both.", kind="choices", default=True, choices=(True, False)),
    )  # fmt: skip
    return Space(name="small", about="For tests.", knobs=knobs)


def study_record(name: str = "study-1", created_at: str = "2026-08-01T10:00:00.000000+00:00") -> StudyRecord:
    return StudyRecord(
        name=name,
        created_at=created_at,
        settings={"seq_len": 128, "note": "größer"},
        target_trials=12,
        model="llama-5m",
        device="cpu",
        budget_bytes=1000,
    )


def result(
    speed: float | None = 10.0,
    used: int | None = 900,
    status: Status = Status.OK,
    host: int | None = 100,
    **more: Any,
) -> TrialResult:
    memory = MemoryPeaks(used_device_bytes=used, used_host_bytes=host, device_source="test")
    return TrialResult(status=status, samples_per_s=speed, memory=memory, **more)


def run(number: int, study: str = "study-1", **more: Any) -> Run:
    fields: dict[str, Any] = {
        "origin": "search",
        "point": {"placement": "zero2", "micro_batch": 4},
        "ds_config": {"zero_optimization": {"stage": 2}},
        "fingerprint": f"f{number}",
    }
    return Run(study=study, number=number, **{**fields, **more})


def measure(point: Point) -> TrialResult:
    """A made-up machine: faster with more resident and larger micro-batches, until it does not fit."""
    resident = point.get("resident_sixteenths", 16)
    used = 300 + 25 * resident + 40 * point["micro_batch"]
    speed = 5 + resident / 4 + 3 * point["micro_batch"].bit_length() + (1 if point["overlap_comm"] else 0)
    return result(speed=speed, used=used, status=Status.OK if used <= 1000 else Status.OVER_BUDGET)


def start_python(code: str, *arguments: str) -> subprocess.Popen[str]:
    """A Python process that can import offtune and this module, whether or not offtune is installed."""
    here = Path(__file__).parent
    paths = [str(here.parent), str(here), os.environ.get("PYTHONPATH", "")]
    return subprocess.Popen(
        [sys.executable, "-c", code, *arguments],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))},
        stdout=subprocess.PIPE,
        text=True,
    )
