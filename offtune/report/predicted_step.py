"""One step as the models predict it, to be drawn beside the measured one: phases, course and memory.

Covered: the winner of a study with a built-in model whose layers are known, on its machine's own rates
where that was calibrated, on its kind's else. Not covered: commands, and what a search corrected its
predictions by: these are plain.
"""

from __future__ import annotations

import json
from dataclasses import dataclass

from offtune import hardware_profile
from offtune.calibrated_profile import profile
from offtune.errors import UsageError
from offtune.hardware_profile import HardwareProfile
from offtune.knob_workload import workload_at
from offtune.machine_profile import packaged_for
from offtune.memory_model import MemoryPrediction
from offtune.model_shape import shape_of
from offtune.predict import Bounds, Predictor
from offtune.records import Run, StudyRecord
from offtune.step_timeline import Stretch, predicted_timeline
from offtune.step_work import StepWork
from offtune.store import Store
from offtune.time_model import TimePrediction
from offtune.timeline import STEP, Mark, Series, Timeline
from offtune.trial import DeviceKind, Facts, PhaseTimes, Workload, load

_PREDICTED = "nobody; predicted by offtune's models, not measured"
_NVME_RATES = ("nvme_read_bytes_per_s", "nvme_write_bytes_per_s")
_LINK_RATES = ("d2h_bytes_per_s", "h2d_bytes_per_s")


@dataclass(frozen=True, slots=True, kw_only=True)
class PredictedStep:
    """A step's phases, course and memory as predicted; `rates` says which machine's."""

    phases: PhaseTimes
    course: Timeline
    memory: MemoryPrediction
    rates: str


def predicted_step(store: Store, study: StudyRecord, run: Run) -> PredictedStep | None:
    """The step predicted for a run read whole; None where nothing can be predicted of it."""
    known = study.settings.get("workload")
    rates = _rates(store, study)
    if not known or not known.get("model_config") or rates is None:
        return None
    workload = load(Workload, json.dumps(known))
    if workload.command is not None or workload.seq_len is None:
        return None
    try:
        predictor = _predictor(workload, study, run, rates)
        work, found = predictor.work(run.ds_config), predictor.predict(run.ds_config)
    except UsageError:  # a family without known layers, a precision without a rate
        return None
    time = found.time
    phases = PhaseTimes(
        forward_s=time.forward_s, backward_s=time.backward_s, update_s=time.update_s, other_s=0.0
    )
    course = predicted_course(work, time, predictor.facts.device)
    return PredictedStep(phases=phases, course=course, memory=found.memory, rates=rates.about)


def _predictor(workload: Workload, study: StudyRecord, run: Run, rates: HardwareProfile) -> Predictor:
    shape = shape_of(workload.model_config)
    facts = Facts(
        workload=workload_at(run.point, workload),
        device="cpu" if study.device == "cpu" else "cuda",
        parameter_numels=tuple(shape.parameter_numels),
        nvme_dir=None,
        ops=frozenset(),
        deepspeed_version=run.result.versions.get("deepspeed", "") if run.result else "",
    )
    bounds = Bounds(device_bytes=study.settings["limit_bytes"], host_bytes=None)
    return Predictor(facts=facts, shape=shape, hardware=rates, bounds=bounds)


def _rates(store: Store, study: StudyRecord) -> HardwareProfile | None:
    """Of the machine the study ran on, which need not be this one; None for a card that is not known."""
    machine = study.settings.get("machine") or {}
    calibration = store.calibration(machine)
    if calibration is not None:
        return profile(calibration)
    if study.device == "cpu":
        return hardware_profile.load("cpu")
    name = packaged_for(machine.get("GPUs", "").partition(",")[0])
    return hardware_profile.load(name) if name else None


def predicted_course(work: StepWork, time: TimePrediction, device: DeviceKind) -> Timeline:
    """The predicted step in the form of a recording, labelled as predicted."""
    stretches = predicted_timeline(work, time)
    marks = [Mark(name=one.phase, step=0, start_s=one.start_s, end_s=one.end_s) for one in stretches]
    step = Mark(name=STEP, step=0, start_s=0.0, end_s=stretches[-1].end_s)
    # On the CPU accelerator nothing crosses a link.
    keys = _NVME_RATES if device == "cpu" else (*_LINK_RATES, *_NVME_RATES)
    series = (_rate(key, stretches) for key in keys)
    return Timeline(
        device=device,
        source=_PREDICTED,
        marks=(step, *marks),
        series=tuple(one for one in series if any(one.values)),
    )


def _rate(key: str, stretches: tuple[Stretch, ...]) -> Series:
    """A rate that holds through each stretch: a sample at its end stands for all of it."""
    return Series(
        key=key,
        times_s=(0.0, *(one.end_s for one in stretches)),
        values=(0.0, *(float(getattr(one, key)) for one in stretches)),
        counted=True,
    )
