"""A made-up profile of a run on a GPU that is not here, and what torch's profiler would have exported."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import cost_cases
from timeline_fakes import make_timeline

from offtune import hardware_profile
from offtune.config import RunConfig
from offtune.ds_change import Base
from offtune.model_shape import shape_of
from offtune.phase_analysis import analyse
from offtune.predict import Bounds, Predictor
from offtune.profile import Expected, Profiled
from offtune.timeline import Mark, Timeline
from offtune.trial import MemoryPeaks, Status, TrialResult
from offtune.worker.profiler_trace import PREFIX, ZERO, Taken, read_profile

GB = 10**9
STEP_S = 4.0  # of `timeline_fakes.make_timeline`
COPY_BYTES = 1_000_000


def event(cat: str, name: str, start: float, length: float, tid: int = 1, **args: Any) -> dict[str, Any]:
    """A complete event as kineto writes it; microseconds."""
    return {
        "ph": "X",
        "cat": cat,
        "name": name,
        "ts": start,
        "dur": length,
        "pid": 0,
        "tid": tid,
        "args": args,
    }


def copy(name: str, start: float, length: float, size: int = COPY_BYTES, stream: int = 20) -> dict[str, Any]:
    return event("gpu_memcpy", f"Memcpy {name}", start, length, stream, bytes=size, stream=stream)


def exported_trace() -> dict[str, Any]:
    """Two equal steps of 1000 µs: forward 100 to 300, backward 300 to 700, update 700 to 900 of each."""
    events = [event("user_annotation", ZERO, 0.0, 1.0), {"ph": "M", "name": "process_name", "args": {}}]
    for at in (0.0, 1000.0):
        phases = (("forward", 100, 200), ("backward", 300, 400), ("update", 700, 200))
        events += [
            event("user_annotation", PREFIX + name, at + start, length) for name, start, length in phases
        ]
        events += [
            event("kernel", "matmul", at + 110, 100, 7, stream=7),
            event("kernel", "matmul", at + 320, 200, 7, stream=7),
            copy("HtoD (Pinned -> Device)", at + 100, 50, stream=21),  # 40 of 50 µs beside a kernel
            copy("DtoH (Device -> Pinned)", at + 400, 200),  # 120 of 200 µs beside a kernel
            copy("HtoD (Pageable -> Device)", at + 710, 100),
            copy("HtoD (Pageable -> Device)", at + 820, 50, 2 * COPY_BYTES),
            copy("DtoD (Device -> Device)", at + 530, 10, stream=7),
            event("cpu_op", "aten::linear", at + 100, 100),
            event("cpu_op", "aten::mm", at + 120, 60),
            event("cpu_op", "aten::copy_", at + 705, 150),
            event("cpu_op", "autograd", at + 310, 300, 2),
        ]
    return {"schemaVersion": 1, "traceEvents": events}


def taken(**changes: Any) -> Taken:
    fields = {"rank": 0, "step_s": (1e-3, 1e-3), "zero_s": 12.0, "has_device": True, **changes}
    return Taken(**fields)


def make_profiled(**changes: Any) -> Profiled:
    """7B on one A100 with offload: phases as `timeline_fakes` has them, copies as `exported_trace`."""
    facts = cost_cases.facts()
    built = cost_cases.ds_config(steps=8, **cost_cases.offloaded())
    timeline = with_parts(make_timeline(steps=3))
    rates = replace(hardware_profile.load("a100-40gb"), about="an A100; not measured here")
    bounds = Bounds(device_bytes=40 * GB, host_bytes=None)
    shape = shape_of(cost_cases.CONFIG, facts.parameter_numels)
    predictor = Predictor(facts=facts, shape=shape, hardware=rates, bounds=bounds)
    fields: dict[str, Any] = {
        "base": Base(path="ds_config.json", ds_config=built),
        "config": _config(facts.workload),
        "facts": facts,
        "ds_config": built,
        "result": _result(timeline),
        "timelines": (timeline,),
        "looks": (read_profile(exported_trace(), taken()),),
        "hardware": rates,
        "has_budget": True,
        "expected": Expected(
            work=predictor.work(built),
            prediction=predictor.predict(built),
            sample_flops=shape.flops(2048, True, "eager").total,
        ),
    }
    return Profiled(**{**fields, **changes})


def with_parts(timeline: Timeline) -> Timeline:
    """The same with one part inside each update."""
    updates = [mark for mark in timeline.marks if mark.name == "update"]
    parts = tuple(
        Mark(name="update.cpu_optimizer", step=mark.step, start_s=mark.start_s + 0.1, end_s=mark.end_s - 0.2)
        for mark in updates
    )
    return replace(timeline, marks=(*timeline.marks, *parts))


def _result(timeline: Timeline) -> TrialResult:
    return TrialResult(
        status=Status.OK,
        samples_per_s=2.0,
        step_s=(STEP_S,) * 3,
        memory=MemoryPeaks(used_device_bytes=31 * GB, device_source="driver, this process",
                           used_host_bytes=120 * GB, pinned_bytes=90 * GB),
        analysis=analyse(timeline),
    )  # fmt: skip


def _config(workload: Any) -> RunConfig:
    return RunConfig(
        workload=workload, device="cuda", gpus=(0,), threads_per_rank=16, budget_bytes=40 * GB,
        limit_bytes=40 * GB, host_limit_bytes=400 * GB, nvme_path=None, space="default", trials=1,
        time_s=None, trial_timeout_s=600.0, warmup_steps=2, steps=3, seed=0, sampler="tpe", machine={},
    )  # fmt: skip
