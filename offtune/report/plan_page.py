"""The page and the JSON of a plan: everything on it is predicted, and says how far it may be off.

Covered: what `offtune plan` shows. Not covered: planning (`plan`, `plan_ladder`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from offtune.candidates import Candidate
from offtune.export import portable
from offtune.knobs import describe
from offtune.plan import Plan
from offtune.plan_ladder import Rung
from offtune.plan_request import Request
from offtune.predict import HOST_ERROR_SHARE, Prediction
from offtune.report.page import Block, Column, Facts, Heading, Line, Page, Table
from offtune.report.words import rate_text
from offtune.time_model import PHASES, Phase, Resource
from offtune.units import format_bytes, format_rate, format_seconds

PLAN_SCHEMA = "offtune.prediction/1"
_DAY_S = 86400
_PREDICTED = (
    "Everything here is predicted; nothing was run. Errors are what nine of ten predictions stay within."
)
# What a resource is called on the page.
_RESOURCES: dict[Resource, str] = {
    "compute": "GPU computing",
    "launch": "launching kernels",
    "link": "the link to the host",
    "collective": "collectives",
    "host": "host memory",
    "cpu_adam": "CPU Adam",
    "nvme": "NVMe",
}


def plan_page(plan: Plan, ladder: Sequence[Rung]) -> Page:
    """Whether it fits, how, at what speed; what would help; what other budgets buy."""
    blocks: list[Block] = [
        Heading(
            text=f"Plan: {plan.request.model.name} on {plan.request.gpus} x {plan.request.hardware.name}"
        ),
        Facts(rows=_request_facts(plan.request)),
        Line(text=_PREDICTED, tone="dim"),
        *_verdict_lines(plan),
    ]
    for number, choice in enumerate(plan.choices, start=1):
        blocks += _choice(f"{number}. {_settings(choice)}", choice)
    if plan.close is not None:
        blocks += _choice(f"May fit: {_settings(plan.close)}", plan.close)
    blocks += _ladder(ladder)
    return (*blocks, *_training(plan), *_front(plan))


def _request_facts(request: Request) -> tuple[tuple[str, str], ...]:
    checkpointing = "on" if request.activation_checkpointing else "off"
    nvme = "none" if request.nvme_path is None else request.nvme_path
    return (
        ("model", f"{request.model.name}, {request.shape.n_params / 1e9:.3g} B parameters"),
        ("hardware", request.hardware.about),
        (
            "budget",
            f"{format_bytes(request.budget_bytes)} a GPU, {format_bytes(request.host_budget_bytes)} a host",
        ),
        ("a step", f"{request.global_batch} samples of {request.seq_len} tokens, {request.precision}"),
        ("checkpointing", checkpointing),
        ("NVMe", nvme),
    )


def _settings(choice: Candidate) -> str:
    """What distinguishes one candidate from another; other knobs are at their defaults."""
    resident = choice.point.get("resident_sixteenths")
    told = ("placement", "micro_batch", *(("sub_groups", "resident_sixteenths") if resident else ()))
    return describe({name: choice.point[name] for name in told if name in choice.point}, {})


def _verdict_lines(plan: Plan) -> list[Block]:
    if plan.choices:
        return [Line(text=f"It fits, {plan.looked_at} configurations looked at.", tone="good")]
    if plan.close:
        return [Line(text="It may fit: too close to call. Measure it with offtune search.", tone="warn")]
    missed = f" Nearest: {plan.nearest.prediction.reason}" if plan.nearest else ""
    return [Line(text=f"Nothing fits.{missed}", tone="bad")]


def _choice(title: str, choice: Candidate) -> list[Block]:
    found = choice.prediction
    return [
        Heading(text=title),
        Facts(
            rows=(
                ("throughput", f"{_rates(found)}, error {_percent(found.time.error_share)}"),
                ("step", format_seconds(found.time.step_s)),
                *(_phase(found, phase) for phase in PHASES),
                (
                    "device",
                    f"{format_bytes(found.used_device_bytes)}, error {_percent(found.memory.error_share)}",
                ),
                ("", _parts(found.memory.device)),
                ("host", f"{format_bytes(found.used_host_bytes)}, error {_percent(HOST_ERROR_SHARE)}"),
                *((("", _parts(found.memory.host)),) if found.memory.host else ()),
                *((("NVMe", format_bytes(sum(found.memory.nvme.values()))),) if found.memory.nvme else ()),
            )
        ),
    ]


def _rates(found: Prediction) -> str:
    return f"{format_rate(found.samples_per_s)}, {format_rate(found.tokens_per_s, 'tokens/s')}"


def _phase(found: Prediction, phase: Phase) -> tuple[str, str]:
    bound = found.time.bound[phase]
    return phase, f"{format_seconds(getattr(found.time, f'{phase}_s'))}, bound by {_RESOURCES[bound]}"


def _parts(sizes: Mapping[str, int]) -> str:
    """Components, the largest first; those below a hundredth of the whole together."""
    whole = sum(sizes.values())
    large = {name: size for name, size in sizes.items() if size * 100 >= whole}
    rest = whole - sum(large.values())
    parts = [
        f"{name} {format_bytes(size)}" for name, size in sorted(large.items(), key=lambda pair: -pair[1])
    ]
    return ", ".join([*parts, f"other {format_bytes(rest)}"] if rest else parts)


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %"


def _ladder(rungs: Sequence[Rung]) -> list[Block]:
    if not rungs:
        return []
    columns = (
        Column(title="tried, one change at a time", stretch=True),
        Column(title="device", right=True),
        Column(title="host", right=True),
        Column(title="samples/s", right=True),
        Column(title=""),
    )
    rows = tuple(_rung_row(rung) for rung in rungs)
    winner = next((rung for rung in rungs if rung.fits), None)
    closing = (
        Line(text=f"The first that fits: {winner.change}. {winner.option}".strip(), tone="strong")
        if winner
        else Line(text="No single change makes it fit.", tone="bad")
    )
    return [Heading(text="What would make it fit"), Table(columns=columns, rows=rows), closing]


def _rung_row(rung: Rung) -> tuple[str, ...]:
    found = rung.candidate.prediction if rung.candidate else None
    return (
        rung.change,
        format_bytes(found.used_device_bytes if found else None),
        format_bytes(found.used_host_bytes if found else None),
        rate_text(found.samples_per_s) if found and rung.fits else "-",
        "fits" if rung.fits else "no",
    )


def _training(plan: Plan) -> list[Block]:
    training, best = plan.training, plan.best
    if training is None or best is None:
        return []
    cost = "" if training.cost is None else f", cost {training.cost:,.0f} at the price given"
    text = (
        f"{training.tokens:.3g} tokens take {training.seconds / _DAY_S:,.1f} days, {training.gpu_hours:,.0f} "
        f"GPU hours{cost}; error {_percent(best.prediction.time.error_share)}."
    )
    return [Heading(text="Training"), Line(text=text)]


def _front(plan: Plan) -> list[Block]:
    columns = (
        Column(title="budget", right=True),
        Column(title="samples/s", right=True),
        Column(title="device", right=True),
        Column(title="settings", stretch=True),
    )
    rows = []
    for entry in plan.front:
        budget = format_bytes(entry.budget_bytes) + ("*" if entry.beyond_card else "")
        if entry.choice is None:
            rows.append((budget, "-", "-", "nothing surely fits"))
        else:
            found = entry.choice.prediction
            used = format_bytes(found.used_device_bytes)
            rows.append((budget, rate_text(found.samples_per_s), used, _settings(entry.choice)))
    blocks: list[Block] = [Heading(text="What a budget buys"), Table(columns=columns, rows=tuple(rows))]
    if any(entry.beyond_card for entry in plan.front):
        blocks.append(Line(text="* more than this card has", tone="dim", indent=1))
    return blocks


def plan_document(plan: Plan, ladder: Sequence[Rung]) -> dict[str, Any]:
    """The same in base units; null for unknown. `predicted` is true throughout."""
    request = plan.request
    front = [
        {
            "budget_bytes": entry.budget_bytes,
            "beyond_card": entry.beyond_card,
            "choice": _choice_entry(entry.choice, request) if entry.choice else None,
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
        "ladder": [_rung_entry(rung) for rung in ladder],
        "front": front,
        "training": asdict(plan.training) if plan.training else None,
    }


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
