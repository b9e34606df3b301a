"""optuna-dashboard on a copy of a study: to look around in, with nothing to break.

Covered: a study in memory, made from our own rows, with what a person wants to sort by as user attributes and
the ds_config of each trial as its note. The dashboard writes (notes, deletions) to what it is given, hence
the copy. Trials that break a limit are marked infeasible and have the value 0, because its best trial
ignores constraints (optuna-dashboard 0.21). Not covered: the dashboard itself.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Iterable
from datetime import datetime
from typing import Any

import optuna
from optuna.distributions import BaseDistribution, CategoricalDistribution, IntDistribution
from optuna.exceptions import ExperimentalWarning
from optuna.trial import FrozenTrial, TrialState, create_trial

from offtune.errors import OfftuneError, UsageError
from offtune.knobs import describe
from offtune.records import Limits, Run, StudyRecord
from offtune.score import score
from offtune.trial import Status

GB = 1e9
METRIC = "samples/s"
# Where Optuna kept constraints before 5.0; the only place the dashboard looks (0.21).
_CONSTRAINTS = "constraints"


def serve(study: StudyRecord, runs: Iterable[Run], limits: Limits, *, host: str, port: int) -> None:
    """Serve the dashboard until interrupted. Raises UsageError where the package is missing."""
    dashboard = check_package()
    copied = copy_of(study, runs, limits)
    for trial in copied.get_trials(deepcopy=False):
        note = trial.user_attrs.get("ds_config")
        if note:
            dashboard.save_note(optuna.trial.Trial(copied, trial._trial_id), f"```json\n{note}\n```")
    try:
        dashboard.run_server(copied._storage, host=host, port=port)
    except OSError as error:
        raise OfftuneError(
            f"The dashboard cannot use port {port} of {host}: {error.strerror or error}.",
            "Name another with --port.",
        ) from error


def check_package() -> Any:
    """The dashboard's package. Raises UsageError where it is missing."""
    try:
        import optuna_dashboard
    except ImportError as error:
        raise UsageError(
            "optuna-dashboard is not installed.", 'pip install "optuna-dashboard>=0.21"'
        ) from error
    return optuna_dashboard


def copy_of(study: StudyRecord, runs: Iterable[Run], limits: Limits) -> optuna.Study:
    """The study as an Optuna study in memory; its trial numbers are ours as long as none is missing."""
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    copied = optuna.create_study(study_name=study.name, direction="maximize")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ExperimentalWarning)
        copied.set_metric_names([METRIC])
    for name in ("model", "device", "budget_bytes", "created_at"):
        copied.set_user_attr(name, getattr(study, name))
    ended = [run for run in runs if run.result is not None]
    domains = _domains(ended)
    copied.add_trials([_trial(run, domains, limits) for run in ended])
    return copied


def _domains(runs: Iterable[Run]) -> dict[str, BaseDistribution]:
    """Every knob with the values it took: numbers between the smallest and the largest, else a choice."""
    found: dict[str, list[Any]] = {}
    for run in runs:
        for name, value in run.point.items():
            if value not in found.setdefault(name, []):
                found[name].append(value)
    return {name: _domain(values) for name, values in found.items()}


def _domain(values: list[Any]) -> BaseDistribution:
    if all(isinstance(value, int) and not isinstance(value, bool) for value in values):
        low, high = min(values), max(values)
        return IntDistribution(low, high, log=low > 0)
    return CategoricalDistribution(sorted(values, key=str))


def _trial(run: Run, domains: dict[str, BaseDistribution], limits: Limits) -> FrozenTrial:
    assert run.result is not None
    interrupted = run.status is Status.INTERRUPTED
    scored = None if interrupted else score(run.result, limits)
    trial = create_trial(
        state=TrialState.FAIL if interrupted else TrialState.COMPLETE,
        value=None if scored is None else scored.value,
        params=dict(run.point),
        distributions={name: domains[name] for name in run.point},
        user_attrs=_attributes(run, scored is not None and scored.feasible),
        system_attrs={} if scored is None else {_CONSTRAINTS: list(scored.constraints.values())},
    )
    trial.datetime_start = _moment(run.started_at) or trial.datetime_start
    trial.datetime_complete = _moment(run.finished_at) or trial.datetime_complete
    return trial


def _attributes(run: Run, feasible: bool) -> dict[str, Any]:
    """What the dashboard can sort and filter by, then what one reads."""
    assert run.result is not None
    result, memory, phases = run.result, run.result.memory, run.result.phases
    known = {
        "trial": run.number,
        "status": str(run.status),
        "feasible": feasible,
        "origin": run.origin,
        "label": run.label,
        "what": describe(run.point, {}),
        "samples_per_s": result.samples_per_s,
        "used_device_gb": _gb(memory.used_device_bytes),
        "used_host_gb": _gb(memory.used_host_bytes),
        "forward_s": phases.forward_s if phases else None,
        "backward_s": phases.backward_s if phases else None,
        "update_s": phases.update_s if phases else None,
        "effective_ratio": result.effective_ratio,
        "seconds": result.seconds,
        "reuse_of": run.reuse_of,
        "reason": result.reason,
        "ds_config": json.dumps(run.ds_config, indent=2),
    }
    return {name: value for name, value in known.items() if value is not None and value != ""}


def _gb(size_bytes: int | None) -> float | None:
    return None if size_bytes is None else round(size_bytes / GB, 3)


def _moment(text: str | None) -> datetime | None:
    return datetime.fromisoformat(text).replace(tzinfo=None) if text else None
