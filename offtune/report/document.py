"""The JSON documents of a study, a list of studies and a trial: base units, null for unknown, strictly JSON.

Covered: what `--json` prints. Not covered: deciding anything (`report.summary`).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

from offtune.ds_quiet import restored
from offtune.export import base_of, portable, provenance
from offtune.export_formats import Export
from offtune.records import Run, StudyRecord
from offtune.repeats import Repeat
from offtune.report.claim import Claim
from offtune.report.export_page import export_entry, verification_entry
from offtune.report.forecasts import is_foretold
from offtune.report.gain import Gain
from offtune.report.more_memory import Step, memory_steps
from offtune.report.overview import Standing
from offtune.report.summary import Summary
from offtune.trial import Status, as_dict
from offtune.verify import Verification

STUDY_SCHEMA = "offtune.study/1"
LIST_SCHEMA = "offtune.studies/1"
EXPORT_SCHEMA = "offtune.export/1"
TRIAL_SCHEMA = "offtune.trial/1"


def document(summary: Summary) -> dict[str, Any]:
    """The study as strict JSON values: base units, null for unknown."""
    study, best = summary.study, summary.best
    whole = {
        "schema": STUDY_SCHEMA,
        **_study_head(summary),
        "limit_bytes": summary.limits.device_bytes,
        "host_limit_bytes": summary.limits.host_bytes,
        "best": _best_entry(study, best) if best else None,
        "baselines": [_gain_entry(gain) for gain in summary.gains],
        "trials": [_trial_entry(run) for run in summary.runs],
        "finals": as_dict(summary.outcome) if summary.outcome else None,
        "front": [run.number for run in summary.front],
        "more_memory": [_memory_step_entry(step) for step in memory_steps(summary)],
        "nearest_miss": _miss_entry(summary),
        "infeasible_share": summary.infeasible_share,
        "predictions": as_dict(summary.forecasts) if summary.forecasts else None,
        "versions": _versions(summary),
        "machine": study.settings.get("machine") or {},
        "notes": list(study.settings.get("notes") or ()),
    }
    return _strict_dict(whole)


def list_document(studies: Iterable[Standing]) -> dict[str, Any]:
    """All studies of a database, one short entry each."""
    entries = [{**_study_head(one), "best": _list_best(one)} for one in studies]
    return _strict_dict({"schema": LIST_SCHEMA, "studies": entries})


def trial_document(run: Run, repeats: Iterable[Repeat] = ()) -> dict[str, Any]:
    """One trial in full: what was asked, what came of it, where it ran, and its repeats in the finals."""
    again = [_repeat_entry(repeat) for repeat in repeats]
    return _strict_dict({"schema": TRIAL_SCHEMA, **as_dict(run), "repeats": again})


def export_document(
    study: StudyRecord, run: Run, made: Export, claim: Claim | None, outcome: Verification | None
) -> dict[str, Any]:
    """An exported configuration: where it comes from, what is claimed of it, and its check if asked for."""
    whole = {"schema": EXPORT_SCHEMA, **provenance(study, run), **export_entry(made)}
    claimed = as_dict(claim) if claim else None
    verification = verification_entry(outcome) if outcome else None
    return _strict_dict({**whole, "claim": claimed, "verification": verification})


def _study_head(standing: Standing) -> dict[str, Any]:
    study = standing.study
    return {
        "study": study.name,
        "created_at": study.created_at,
        "model": study.model,
        "device": study.device,
        "budget_bytes": study.budget_bytes,
        "target_trials": study.target_trials,
        "measured": standing.measured,
        "reused": standing.reused,
        "running": standing.running,
        "counts": standing.counts,
        "state": standing.state.word if standing.state else None,
        "ended": _ending_entry(standing),
    }


def _ending_entry(standing: Standing) -> dict[str, Any] | None:
    """Why the search ended; None while it has not."""
    ending = standing.state.ending if standing.state else None
    return as_dict(ending) if ending else None


def _figures(run: Run) -> dict[str, Any]:
    # What was told without running has predicted figures; they stand under "predicted" alone.
    result = None if is_foretold(run) else run.result
    return {
        "samples_per_s": result.samples_per_s if result else None,
        "tokens_per_s": result.tokens_per_s if result else None,
        "used_device_bytes": result.memory.used_device_bytes if result else None,
        "used_host_bytes": result.memory.used_host_bytes if result else None,
        "effective_ratio": result.effective_ratio if result else None,
    }


def _best_entry(study: StudyRecord, run: Run) -> dict[str, Any]:
    # The trial's own swap folder is gone; where the person's is not known, the folder is left as it was.
    nvme_path = study.settings.get("nvme_path")
    base = base_of(study)
    whole = restored(run.ds_config, base) if base else run.ds_config
    ds_config = portable(run.ds_config, nvme_path, base) if nvme_path else whole
    return {
        "trial": run.number,
        "label": run.label,
        **_figures(run),
        "ds_config": ds_config,
        "point": run.point,
    }


def _list_best(standing: Standing) -> dict[str, Any] | None:
    return {"trial": standing.best.number, **_figures(standing.best)} if standing.best else None


def _trial_entry(run: Run) -> dict[str, Any]:
    result = run.result
    return {
        "number": run.number,
        "status": run.status,
        "reason": result.reason if result else "",
        "origin": run.origin,
        "label": run.label,
        **_figures(run),
        "predicted": as_dict(result.forecast) if result and result.forecast else None,
        "point": run.point,
        "seconds": result.seconds if result else None,
        "step_interval_s": result.step_interval_s if result else None,
        "stopped": result.stopped if result else None,
        "unsafe": result.unsafe if result else None,
        "start": result.start if result else None,
        "loss_check": result.loss_check.verdict if result and result.loss_check else None,
        "ran": run.ran,
        "reuse_of": run.reuse_of,
    }


def _repeat_entry(repeat: Repeat) -> dict[str, Any]:
    result = repeat.result
    return {
        "finals": repeat.finals,
        "kind": repeat.kind,
        "round": repeat.round,
        "status": repeat.status,
        "samples_per_s": result.samples_per_s if result else None,
        "steps": len(result.step_s) if result else None,
        "step_s": result.step_s if result else None,
        "started_at": repeat.started_at,
        "finished_at": repeat.finished_at,
    }


def _gain_entry(gain: Gain) -> dict[str, Any]:
    return {
        "trial": gain.trial,
        "label": gain.label,
        "status": gain.status,
        "samples_per_s": gain.samples_per_s,
        "gain_percent": gain.percent,
        "noise_percent": gain.noise_percent,
    }


def _memory_step_entry(step: Step) -> dict[str, Any]:
    """A run that is faster than the one before by more than the noise."""
    return {
        "trial": step.run.number,
        **_figures(step.run),
        "samples_per_s": step.samples_per_s,
        "confirmed": step.confirmed,
        "lead": as_dict(step.lead) if step.lead else None,
    }


def _miss_entry(summary: Summary) -> dict[str, Any] | None:
    miss = summary.nearest_miss
    if miss is None:
        return None
    return {
        "trial": miss.run.number,
        "device_over_bytes": miss.device_over_bytes,
        "host_over_bytes": miss.host_over_bytes,
        "advice": summary.advice,
    }


def _versions(summary: Summary) -> dict[str, str]:
    """What the winner ran with; before there is one, what the study was started with."""
    if summary.best and summary.best.result and summary.best.result.versions:
        return summary.best.result.versions
    return dict(summary.study.settings.get("versions") or {})


def _strict_dict(values: Mapping[str, Any]) -> dict[str, Any]:
    return {str(key): _strict(value) for key, value in values.items()}


def _strict(value: Any) -> Any:
    """`value` in terms of strict JSON: no NaN, no infinity, no enumerations, no tuples."""
    if isinstance(value, Mapping):
        return _strict_dict(value)
    if isinstance(value, (list, tuple)):
        return [_strict(item) for item in value]
    if isinstance(value, Status):
        return value.value
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
