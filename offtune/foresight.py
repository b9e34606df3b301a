"""Predictions inside a search: what surely does not fit is not run, what looks best is tried first.

Covered: the verdict before a trial, points worth queueing, correction by what the study measured. Not
covered: the loop (`search`), how good the predictions were (`report.forecasts`). Baselines and what somebody
asked for are always run: a prediction decides about the sampler's own proposals only.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from functools import partial
from statistics import median

from offtune.candidates import candidates, distinct
from offtune.config import RunConfig
from offtune.errors import UsageError
from offtune.hardware_profile import HardwareProfile
from offtune.model_shape import shape_of
from offtune.predict import Bounds, Prediction, Predictor, judge
from offtune.records import QUEUED_LABEL, Run, is_measured
from offtune.space import Space
from offtune.time_fit import MeasuredStep, corrected
from offtune.trial import DsConfig, Facts, Forecast, MemoryPeaks, Point, Status, TrialResult

QUEUED = 5
# What else lives in the memory of the CPU accelerator moves its figures by more than the model's error; only
# what is far over is not run there.
_CPU_SKIP_SHARE = 0.3
# A median of fewer trials is one trial's mood.
_LEAST_TRIALS = 3
# Fitting takes a step's prediction some forty times for each trial; older ones say nothing new.
_RECENT = 12
# A study that is off by more than this has another cause than the model's constants.
_MOST, _LEAST = 2.0, 0.5
_TRAINED = frozenset({Status.OK, Status.OVER_BUDGET})
# What a script holds beside its model is in no model of ours; so much is left to it.
_SCRIPT_SKIP_SHARE = 0.2


@dataclass(slots=True, kw_only=True)
class Foresight:
    """Predicts for one study. `plain` is what the models say, `fitted` the same corrected by the study.

    Of a person's command nobody knows how long its samples are before a trial has trained; from then on it is
    `ready`, and corrected by that trial. `base` is under every point.
    """

    plain: Predictor
    space: Space
    nvme_path: str | None
    base: DsConfig | None = None
    least_trials: int = _LEAST_TRIALS
    fitted: Predictor = field(init=False)
    seen: set[int] = field(default_factory=set)  # numbers of the runs it has learned from
    _ratios: list[float] = field(default_factory=list)
    _steps: deque[MeasuredStep] = field(default_factory=partial(deque, maxlen=_RECENT))

    def __post_init__(self) -> None:
        self.fitted = self.plain

    @property
    def ready(self) -> bool:
        """Whether there is enough to go by."""
        return self.plain.facts.workload.seq_len is not None

    def predict(self, ds_config: DsConfig, point: Point) -> Prediction:
        """The best prediction so far for the ds_config of `point`. Raises UsageError before it is ready."""
        return self.fitted.at(point).predict(ds_config)

    def forecast(self, ds_config: DsConfig, point: Point) -> Forecast | None:
        """What to keep beside a trial; None before it is ready."""
        return self.predict(ds_config, point).forecast if self.ready else None

    def hopeless(self, ds_config: DsConfig, point: Point) -> TrialResult | None:
        """What to tell instead of running: the configuration is over by more than any doubt; else None.

        Both the plain and the corrected prediction have to say so, and a guessed model shape says nothing.
        """
        if not self.ready or not self.plain.shape.exact:
            return None
        found = self.predict(ds_config, point)
        used = min(found.used_device_bytes, found.memory.used_device_bytes)
        share = max(found.memory.error_share, self._least_doubt())
        # The level of the processes is the least certain part of the host's figure.
        host = found.used_host_bytes - found.memory.host.get("processes", 0)
        verdict, reason = judge(used, host, share, self.plain.bounds)
        return _unrun(found, reason) if verdict == "over" else None

    def best(self, count: int) -> list[Point]:
        """The fastest predicted points that may fit, one a placement; none before it is ready."""
        if not self.ready:
            return []
        found = candidates(self.space, self.fitted, self.nvme_path, base=self.base)
        return [one.point for one in distinct(found, count) if one.prediction.verdict != "over"]

    def learn(self, runs: Iterable[Run]) -> None:
        """Correct memory by the median ratio of measured to predicted, times by their phases."""
        for run in runs:
            if run.number in self.seen or not is_measured(run):
                continue
            self.seen.add(run.number)
            if run.status in _TRAINED:
                self._take(run)
        if len(self._ratios) < self.least_trials:
            return
        ratio = min(_MOST, max(_LEAST, median(self._ratios)))
        self.fitted = replace(
            self.plain, memory_ratio=ratio, hardware=corrected(self.plain.hardware, list(self._steps))
        )

    def _least_doubt(self) -> float:
        """The share by which a prediction has to be over at the least, whatever its own error."""
        on_cpu, work = self.plain.facts.device == "cpu", self.plain.facts.workload
        return _CPU_SKIP_SHARE if on_cpu else _SCRIPT_SKIP_SHARE if work.command else 0.0

    def _saw_length(self, result: TrialResult) -> bool:
        """Take the tokens of a command's samples from its first trial; False where it counted none."""
        if not result.tokens_per_s or not result.samples_per_s:
            return False
        facts = self.plain.facts
        length = max(1, round(result.tokens_per_s / result.samples_per_s))
        facts = replace(facts, workload=replace(facts.workload, seq_len=length))
        self.plain = self.fitted = replace(self.plain, facts=facts)
        return True

    def _take(self, run: Run) -> None:
        result = run.result
        used = result.memory.used_device_bytes if result else None
        if result is None or not used or not (self.ready or self._saw_length(result)):
            return
        plain = self.plain.at(run.point)
        self._ratios.append(used / plain.predict(run.ds_config).memory.used_device_bytes)
        phases = result.phases
        backward_s = _backward_s(result)
        if phases and phases.forward_s and backward_s and phases.update_s:
            step = MeasuredStep(
                work=plain.work(run.ds_config),
                forward_s=phases.forward_s,
                backward_s=backward_s,
                update_s=phases.update_s,
            )
            self._steps.append(step)


def foresight_for(
    config: RunConfig, facts: Facts, space: Space, hardware: HardwareProfile, runs: Iterable[Run] = ()
) -> Foresight | None:
    """The foresight of a study that has `runs` already; None where it is off or there is nothing to go by.

    A model may show nothing of its shape, a family may be unknown, and a card may have no rate for the
    precision: a search does without.
    """
    work = config.workload
    if not config.predict or not work.model_config:
        return None
    if not hardware.matrix_flops_per_s.get(work.precision):
        return None
    try:
        shape = shape_of(work.model_config, facts.parameter_numels)
    except UsageError:
        return None
    host = None if config.device == "cpu" else config.host_limit_bytes
    bounds = Bounds(device_bytes=config.limit_bytes, host_bytes=host)
    plain = Predictor(facts=facts, shape=shape, hardware=hardware, bounds=bounds)
    found = Foresight(
        plain=plain, space=space, nvme_path=config.nvme_path, base=config.under_points,
        # One trial of a command says more of it than everything before.
        least_trials=1 if work.command else _LEAST_TRIALS,
    )  # fmt: skip
    found.learn(runs)
    return found


def _backward_s(result: TrialResult) -> float | None:
    """The backward of a step; of a script with `loss.backward()`, which nobody sees, what is left of it."""
    phases = result.phases
    if phases is None or phases.backward_s or not (phases.forward_s and phases.update_s and result.step_s):
        return phases.backward_s if phases else None
    return max(0.0, median(result.step_s) - phases.forward_s - phases.update_s)


def _unrun(found: Prediction, reason: str) -> TrialResult:
    memory = MemoryPeaks(
        used_device_bytes=found.used_device_bytes,
        device_source=QUEUED_LABEL,
        used_host_bytes=found.used_host_bytes,
    )
    return TrialResult(
        status=Status.OVER_BUDGET, reason=reason, memory=memory, start="predicted", forecast=found.forecast
    )
