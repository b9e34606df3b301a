"""A profile as one JSON document: base units in the names, null for unknown, with its reason.

Covered: what `offtune profile --json` prints. Not covered: curves and single events, which `--trace` has.
"""

from __future__ import annotations

from typing import Any

from offtune.bounds import bound
from offtune.close_look import CloseLook
from offtune.phase_analysis import PhaseFigures
from offtune.profile import Profiled
from offtune.report.base_page import change_entries
from offtune.report.predicted_memory import predicted_peaks
from offtune.traffic_check import CounterCheck, TrafficCheck, counter_checks, traffic_checks
from offtune.trial import as_dict

PROFILE_SCHEMA = "offtune.profile/1"


def profile_document(found: Profiled) -> dict[str, Any]:
    """Everything of one run as strict JSON values."""
    analysis, config = found.result.analysis, found.config
    result = as_dict(found.result)
    result.pop("analysis")
    return {
        "schema": PROFILE_SCHEMA,
        "ds_config": found.ds_config,
        "base": {"path": found.base.path, "changes": change_entries(found.base.changes)},
        "workload": as_dict(config.workload),
        "device": config.device,
        "machine": config.machine,
        "budget_bytes": config.budget_bytes if found.has_budget else None,
        "params": sum(found.facts.parameter_numels),
        "local_params": found.local_params,
        "notes": list(found.notes),
        "result": result,
        "analysis": None if analysis is None else as_dict(analysis),
        "bytes_per_local_param": None if analysis is None else _per_param(analysis.phases, found),
        "flops_per_s": found.flops_per_s,
        "bounds": None if analysis is None else as_dict(bound(analysis, found.peaks)),
        "peaks": {**as_dict(found.peaks), "source": found.hardware.about},
        "traffic_checks": [
            _check_entry(one) for one in traffic_checks(found.expected.work, analysis, found.look)
        ],
        "counter_checks": [_counter_entry(one) for one in counter_checks(analysis, found.look)],
        "close_looks": _looks(found),
        "close_looks_reason": found.look_error,
        "predicted": _predicted(found),
    }


def _per_param(phases: tuple[PhaseFigures, ...], found: Profiled) -> dict[str, dict[str, float]]:
    """Bytes per local parameter of every rate that was recorded, by phase."""
    return {
        phase.name: {
            key.removesuffix("_per_s"): moved / found.local_params
            for key in phase.figures
            if (moved := phase.moved_bytes(key)) is not None
        }
        for phase in phases
    }


def _check_entry(check: TrafficCheck) -> dict[str, Any]:
    return {**as_dict(check), "difference_share": check.difference_share}


def _counter_entry(check: CounterCheck) -> dict[str, Any]:
    return {**as_dict(check), "counter_over_payload": check.ratio}


def _looks(found: Profiled) -> list[dict[str, Any]] | None:
    """Those that were taken; None where all of them failed."""
    if found.look_error and not found.looks:
        return None
    return [_look_entry(look) for look in found.looks]


def _look_entry(look: CloseLook) -> dict[str, Any]:
    """Without its events, which are what a trace is for."""
    entry = as_dict(look)
    entry.pop("events")
    return entry


def _predicted(found: Profiled) -> dict[str, Any]:
    prediction = found.expected.prediction
    if prediction is None:
        return {"reason": found.expected.reason, "step_s": None}
    time = prediction.time
    return {
        "reason": "",
        "step_s": time.step_s,
        "forward_s": time.forward_s,
        "backward_s": time.backward_s,
        "update_s": time.update_s,
        "step_error_share": time.error_share,
        "used_device_bytes": prediction.used_device_bytes,
        "peak_bytes_by_phase": predicted_peaks(prediction.memory, found.config.device),
        "device_error_share": prediction.memory.error_share,
    }
