"""The JSON of a plan, in base units: everything in it is predicted, and says how far it may be off.

Covered: the document of `offtune plan --json`. Not covered: the page (`plan_page`), planning (`plan`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from offtune.candidates import Candidate
from offtune.export import portable
from offtune.plan import Plan, predictor_of
from offtune.plan_ladder import Rung
from offtune.plan_request import Request
from offtune.predict import HOST_ERROR_SHARE, Prediction
from offtune.step_timeline import predicted_timeline
from offtune.time_model import PHASES

# Enough to draw: with more micro-steps, several share a stretch.
_MOST_STRETCHES = 200
PLAN_SCHEMA = "offtune.prediction/1"


def plan_document(plan: Plan, ladder: Sequence[Rung], faster: Rung | None = None) -> dict[str, Any]:
    """The same in base units; null for unknown. `predicted` is true throughout."""
    request = plan.request
    front = [
        {
            "budget_bytes": entry.budget_bytes,
            "beyond_card": entry.beyond_card,
            "choice": _choice_entry(entry.choice, request) if entry.choice else None,
            "short": entry.short,
        }
        for entry in plan.front
    ]
    return {
        "schema": PLAN_SCHEMA,
        "predicted": True,
        "request": _request_entry(request),
        "verdict": plan.verdict,
        "looked_at": plan.looked_at,
        "choices": [_choice_entry(choice, request) for choice in plan.choices],
        "close": _choice_entry(plan.close, request) if plan.close else None,
        "nearest": _choice_entry(plan.nearest, request) if plan.nearest else None,
        "faster": _rung_entry(faster) if faster else None,
        "ladder": [_rung_entry(rung) for rung in ladder],
        "front": front,
        "training": asdict(plan.training) if plan.training else None,
        "timeline": _timeline(plan.best, request) if plan.best else None,
    }


def _timeline(best: Candidate, request: Request) -> list[dict[str, Any]] | None:
    """The predicted course of one step of the best: phases and rates, with the peak of memory in each."""
    time, peaks = best.prediction.time, best.prediction.memory.peak_by_phase
    if not math.isfinite(time.step_s):
        return None
    stretches = predicted_timeline(predictor_of(request).work(best.ds_config), time, _MOST_STRETCHES)
    return [{**asdict(one), "allocated_bytes": peaks[one.phase]} for one in stretches]


def _request_entry(request: Request) -> dict[str, Any]:
    return {
        "model": request.model.name,
        "n_params": request.shape.n_params,
        "hardware": request.hardware.name,
        "hardware_about": request.hardware.about,
        "gpus": request.gpus,
        "budget_bytes": request.budget_bytes,
        "host_budget_bytes": request.host_budget_bytes,
        "seq_len": request.seq_len,
        "global_batch": request.global_batch,
        "precision": request.precision,
        "activation_checkpointing": request.activation_checkpointing,
        "nvme_path": request.nvme_path,
    }


def _choice_entry(choice: Candidate, request: Request) -> dict[str, Any]:
    found = choice.prediction
    # NVMe configurations exist only where a folder was named, or stood in for.
    return {
        "point": choice.point,
        "verdict": found.verdict,
        "reason": found.reason,
        **prediction_entry(found),
        "ds_config": portable(choice.ds_config, request.nvme_path),
    }


def prediction_entry(found: Prediction) -> dict[str, Any]:
    """Predicted figures in base units, memory by component, the bound of each phase."""
    time, memory = found.time, found.memory
    return {
        "samples_per_s": found.samples_per_s,
        "tokens_per_s": found.tokens_per_s,
        "step_s": _finite(time.step_s),
        "phases_s": {phase: _finite(getattr(time, f"{phase}_s")) for phase in PHASES},
        "bound": dict(time.bound),
        "allocated_bytes_by_phase": dict(memory.peak_by_phase),
        "exposed_s": {name: _finite(seconds) for name, seconds in time.exposed.items()},
        "step_error_share": time.error_share,
        "used_device_bytes": found.used_device_bytes,
        "device_error_share": memory.error_share,
        "device_bytes": dict(memory.device),
        "used_host_bytes": found.used_host_bytes,
        "host_error_share": HOST_ERROR_SHARE,
        "host_bytes": dict(memory.host),
        "nvme_bytes": dict(memory.nvme),
    }


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _rung_entry(rung: Rung) -> dict[str, Any]:
    found = rung.candidate.prediction if rung.candidate else None
    return {
        "change": rung.change,
        "option": rung.option,
        "fits": rung.fits,
        "used_device_bytes": found.used_device_bytes if found else None,
        "used_host_bytes": found.used_host_bytes if found else None,
        "samples_per_s": found.samples_per_s if found and rung.fits else None,
        "point": rung.candidate.point if rung.candidate else None,
    }
