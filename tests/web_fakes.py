"""A study with everything a report can show, written to a real database."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path
from typing import Any

from profile_fakes import make_profiled
from report_fakes import DS_CONFIG, GB, POINT, make_run, make_study, rich_study
from timeline_fakes import BACKWARD, FORWARD, GAP, UPDATE, make_timeline

from offtune.phase_analysis import analyse
from offtune.records import Run
from offtune.report.predicted_step import PredictedStep, predicted_course
from offtune.report.study_report import StudyReport
from offtune.store import Store
from offtune.trial import MemoryPeaks, PhaseTimes

LINK_PEAK = 25e9  # bytes per second


def studied_runs() -> list[Run]:
    """`rich_study` with more trials of the search, phases sampled, and memory by component."""
    chance = random.Random(4)
    runs = [_with_memory(run) for run in rich_study() if run.status is not None]
    for number in range(12, 30):
        micro, bucket = chance.choice((1, 2, 4, 8)), 2 ** chance.randint(16, 29)
        placement = chance.choice(("zero2 opt=cpu", "zero3 opt=cpu", "zero3 opt=cpu param=cpu"))
        speed = 3 + 0.6 * micro + (1.5 if placement == "zero3 opt=cpu" else 0) + chance.random()
        point = {**POINT, "placement": placement, "micro_batch": micro, "reduce_bucket_size": bucket}
        run = make_run(number, samples_per_s=speed, used_gb=14 + 2 * micro + 4 * chance.random(), point=point)
        runs.append(_with_memory(run))
    return [_sampled(run) if run.number in (1, 3) else run for run in runs]


def _with_memory(run: Run) -> Run:
    used = run.result.memory.used_device_bytes if run.result else None
    if run.result is None or used is None:
        return run
    memory = MemoryPeaks(
        used_device_bytes=used, device_source="NVML, our processes", allocated_bytes=round(0.8 * used),
        reserved_bytes=round(0.92 * used), used_host_bytes=60 * GB, pinned_bytes=44 * GB,
    )  # fmt: skip
    return replace(run, result=replace(run.result, memory=memory))


def timeline_of(run: Run) -> Any:
    """What was sampled of a run; the winner's update is shorter."""
    update = (*UPDATE[:1], 0.6 if run.number == 3 else 1.5, *UPDATE[2:])
    return make_timeline(phases=(FORWARD, BACKWARD, update, GAP))  # type: ignore[arg-type]


def _sampled(run: Run) -> Run:
    assert run.result is not None
    zero = {**DS_CONFIG["zero_optimization"], "reduce_bucket_size": 2**20, "overlap_comm": True}
    del zero["offload_param"]
    other = {**DS_CONFIG, "train_micro_batch_size_per_gpu": 8, "zero_optimization": zero}
    config = other if run.number == 3 else DS_CONFIG
    return replace(run, ds_config=config, result=replace(run.result, analysis=analyse(timeline_of(run))))


def with_predictions(found: StudyReport) -> StudyReport:
    """The same with a step predicted for both sides."""
    work, prediction = (expected := make_profiled().expected).work, expected.prediction
    assert work is not None and prediction is not None
    time = prediction.time
    step = PredictedStep(
        phases=PhaseTimes(forward_s=time.forward_s, backward_s=time.backward_s, update_s=time.update_s),
        course=predicted_course(work, time, "cuda"),
        memory=prediction.memory,
        rates="an A100; not measured here",
    )
    return replace(found, sides=tuple(replace(side, predicted=step) for side in found.sides))


def write_study(folder: Path, **settings: Any) -> str:
    """The study in a database of its own; returns its path."""
    location = str(folder / "studies.db")
    peaks = {"h2d_bytes_per_s": LINK_PEAK, "d2h_bytes_per_s": LINK_PEAK}
    study = make_study(peaks=peaks, machine={"processor": "AMD EPYC", "gpu 0": "NVIDIA H200"}, **settings)
    runs = studied_runs()
    with Store.open(location, write=True) as store:
        store.add_study(replace(study, target_trials=len(runs)))
        for run in runs:
            store.add_run(run)
        for run in runs:
            if run.result is not None and run.result.analysis is not None:
                store.add_timeline(study.name, run.number, timeline_of(run))
    return location
