"""One run of one ds_config, measured closely, with everything that explains it.

Covered: reading the file as a base is read, what keeps it from running, the run itself, the machine's rates
and the prediction to hold it against. Not covered: what is shown of it (`report.profile_*`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from offtune import ds_config, hardware, prepare, scratch
from offtune.base_check import check_base
from offtune.bound_peaks import machine_peaks
from offtune.bounds import Peaks
from offtune.calibrated_machine import profile_at
from offtune.close_look import CloseLook, look_path
from offtune.config import Options, RunConfig, resolve
from offtune.ds_change import Base, BaseRefused
from offtune.ds_zero import placement_text
from offtune.errors import ConfigError, UsageError
from offtune.hardware_profile import HardwareProfile
from offtune.knob_workload import decided
from offtune.model_shape import ModelShape, seq_len_of, shape_of
from offtune.phase_analysis import StepAnalysis, analyse, combined
from offtune.predict import Bounds, Prediction, Predictor
from offtune.recording import read_timelines
from offtune.runner import read_reports
from offtune.space import Space
from offtune.step_work import StepWork
from offtune.timeline import Timeline
from offtune.traffic_check import NO_LAYERS
from offtune.trial import DsConfig, Facts, TrialResult, TrialSpec, Workload, load

Say = Callable[[str], None]
_STUDY = "profile"
# Nothing is searched: the file is the only point.
_ONE_POINT = Space(name="profile", about="The file itself.", knobs=())


@dataclass(frozen=True, slots=True, kw_only=True)
class Expected:
    """What the models say of the run: the work of a step and the prediction; None with a `reason`.

    `sample_flops` are of one sample, with what is recomputed and what a mask hides, as published figures are;
    None for a command.
    """

    work: StepWork | None = None
    prediction: Prediction | None = None
    sample_flops: float | None = None
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Profiled:
    """One run and what it is held against. `timelines` and `looks` are by rank, empty where there is none.

    `look_error` is why a rank has no look although steps were to be looked at, "" where nothing failed.
    """

    base: Base
    config: RunConfig
    facts: Facts
    ds_config: DsConfig
    result: TrialResult
    timelines: tuple[Timeline, ...]
    looks: tuple[CloseLook, ...]
    hardware: HardwareProfile
    has_budget: bool
    expected: Expected
    look_error: str = ""
    notes: tuple[str, ...] = ()

    @property
    def look(self) -> CloseLook | None:
        """The first rank's look under the profiler."""
        return self.looks[0] if self.looks else None

    @property
    def local_params(self) -> float:
        """Parameters of the model over the ranks that share them."""
        return sum(self.facts.parameter_numels) / self.config.workload.world_size

    @property
    def flops_per_s(self) -> float | None:
        """What one rank computed over whole steps; None where its operations are not known."""
        of_sample, rate = self.expected.sample_flops, self.result.samples_per_s
        if of_sample is None or rate is None:
            return None
        return of_sample * rate / self.config.workload.world_size

    @property
    def peaks(self) -> Peaks:
        """What the machine can do at best, as one rank's share."""
        return machine_peaks(self.hardware, self.config)


def profile(options: Options, storage: str, close_steps: int, say: Say) -> Profiled:
    """Run it. Raises UsageError, with every reason, for a file that cannot run here."""
    config = _settings(options)
    ready = prepare.prepare(config, _ONE_POINT, say, options)
    with ready.runner:
        _refuse_faults(ready)
        spec = _spec(ready, close_steps)
        try:
            say(f"Training {spec.warmup_steps} + {spec.steps} steps, then {close_steps} under the profiler.")
            return _profiled(ready, spec, ready.runner(spec), storage, options)
        finally:
            scratch.remove_trial(spec.trial_dir, spec.swap_dir, spec.token)


def _settings(options: Options) -> RunConfig:
    """Everything resolved; without a card and a budget the host's memory is the limit."""
    machine = hardware.detect()
    if options.budget is None and (options.device == "cpu" or not hardware.cuda_gpus(machine)):
        options = replace(options, budget=f"{machine.memory_bytes}B")
    try:
        config = resolve(options, machine)
    except BaseRefused as refused:
        reasons = [str(change) for change in refused.changes if change.kind == "refused"]
        raise _cannot(refused.path, reasons) from refused
    return replace(config, workload=decided(config.workload, ()))


def _cannot(path: str, reasons: Iterable[str]) -> ConfigError:
    return ConfigError(f"{path} cannot be profiled:\n  " + "\n  ".join(reasons), "Correct what is named.")


def _refuse_faults(ready: prepare.Prepared) -> None:
    base = ready.config.base
    assert base is not None
    built = ds_config.build(base.ds_config, {}, ready.facts, ready.config.nvme_path)
    if reasons := ds_config.problems(built, ready.facts):
        lost = [str(one) for one in base.changes if one.kind == "ignored" and one.path.endswith("nvme_path")]
        raise _cannot(base.path, [*lost, *reasons])


def _spec(ready: prepare.Prepared, close_steps: int) -> TrialSpec:
    """The trial, with folders of its own."""
    config = ready.config
    assert config.base is not None
    swap_dir = None
    if config.nvme_path is not None and "nvme" in placement_text(config.base.ds_config):
        swap_dir = str(scratch.make_swap_dir(config.nvme_path, _STUDY, 0))
    return TrialSpec(
        **prepare.spec_fields(config, ready.ops),
        study=_STUDY,
        number=0,
        ds_config=ds_config.build(config.base.ds_config, {}, ready.facts, swap_dir),
        trial_dir=str(scratch.make_trial_dir(_STUDY, 0)),
        swap_dir=swap_dir,
        token=scratch.new_token(),
        close_steps=close_steps,
    )


def _profiled(
    ready: prepare.Prepared, spec: TrialSpec, result: TrialResult, storage: str, options: Options
) -> Profiled:
    """What the run left, read before its folder goes."""
    config, base = ready.config, ready.config.base
    assert base is not None
    rates = profile_at(storage, config.device, hardware.detect(), config.gpus)
    timelines = read_timelines(spec.trial_dir)
    return Profiled(
        base=base,
        config=config,
        facts=ready.facts,
        ds_config=spec.ds_config,
        result=replace(result, analysis=_analysis(timelines)),
        timelines=timelines,
        looks=_looks(spec),
        look_error=_look_error(spec),
        hardware=rates,
        has_budget=options.budget is not None or config.device == "cuda",
        expected=_expected(config, ready.facts, rates, spec, result),
        notes=(*ready.notes, *check_base(base, ready.facts)),
    )


def _analysis(timelines: Sequence[Timeline]) -> StepAnalysis | None:
    """All there is to say, of parts too; a trial's result only carries the essence of it."""
    return combined([found for found in map(analyse, timelines) if found is not None])


def _looks(spec: TrialSpec) -> tuple[CloseLook, ...]:
    """The looks of the ranks that left one, whole."""
    paths = [look_path(spec.trial_dir, rank) for rank in range(spec.workload.world_size)]
    return tuple(load(CloseLook, path.read_bytes()) for path in paths if path.exists())


def _look_error(spec: TrialSpec) -> str:
    """The first rank's that failed under the profiler."""
    reports = (report for report in read_reports(spec) if report is not None and report.close_error)
    return next((f"rank {report.rank}: {report.close_error}" for report in reports), "")


def _expected(config: RunConfig, facts: Facts, rates: HardwareProfile, spec: TrialSpec, result: TrialResult
              ) -> Expected:  # fmt: skip
    """Predicted for the very run; how long the samples of a command are only the run has shown."""
    work = facts.workload
    if not work.model_config:
        return Expected(reason=NO_LAYERS)
    if work.seq_len is None:
        if not result.tokens_per_s or not result.samples_per_s:
            return Expected(reason="the script's batches do not show how long its samples are")
        work = replace(work, seq_len=max(1, round(result.tokens_per_s / result.samples_per_s)))
    bounds = Bounds(device_bytes=config.limit_bytes, host_bytes=config.host_limit_bytes)
    try:
        shape = shape_of(work.model_config, facts.parameter_numels)
        seen = replace(facts, workload=work)
        predictor = Predictor(facts=seen, shape=shape, hardware=rates, bounds=bounds)
        return Expected(
            work=predictor.work(spec.ds_config),
            prediction=predictor.predict(spec.ds_config),
            sample_flops=None if work.command else _sample_flops(shape, work),
        )
    except UsageError as error:  # a family without known layers, a precision without a rate
        return Expected(reason=error.message)


def _sample_flops(shape: ModelShape, work: Workload) -> float:
    """Of a built-in loop, which recomputes as it is told; what a script recomputes is not known."""
    return shape.flops(seq_len_of(work), bool(work.activation_checkpointing), "eager").total
