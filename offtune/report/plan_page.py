"""The page of a plan: everything on it is predicted, and says how far it may be off.

Covered: what `offtune plan` shows. Not covered: its JSON (`plan_document`), planning (`plan`, `plan_ladder`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from offtune.candidates import Candidate
from offtune.knobs import describe
from offtune.plan import Plan
from offtune.plan_ladder import Rung
from offtune.plan_request import Request
from offtune.predict import HOST_ERROR_SHARE, Prediction
from offtune.report.page import Block, Column, Facts, Heading, Line, Page, Table
from offtune.report.words import rate_text
from offtune.time_model import PHASES, Phase, Resource
from offtune.units import format_bytes, format_rate, format_seconds

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


def plan_page(plan: Plan, ladder: Sequence[Rung], faster: Rung | None = None) -> Page:
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
    blocks += [*_faster(faster), *_ladder(ladder)]
    return (*blocks, *_training(plan), *_front(plan))


def _request_facts(request: Request) -> tuple[tuple[str, str], ...]:
    checkpointing = "on" if request.activation_checkpointing else "off"
    nvme = "none" if request.nvme_path is None else request.nvme_path
    return (
        ("model", f"{request.model.name}, {_count(request.shape.n_params)} parameters"),
        ("hardware", request.hardware.about),
        (
            "budget",
            f"{format_bytes(request.budget_bytes)} a rank, {format_bytes(request.host_budget_bytes)} a host",
        ),
        ("a step", f"{request.global_batch} samples of {request.seq_len} tokens, {request.precision}"),
        ("checkpointing", checkpointing),
        ("NVMe", nvme),
    )


def _count(number: int) -> str:
    return f"{number / 1e9:.3g} B" if number >= 1e9 else f"{number / 1e6:.3g} M"


def _settings(choice: Candidate) -> str:
    """What distinguishes one candidate from another; other knobs are at their defaults."""
    told = ("placement", "micro_batch")
    text = describe({name: choice.point[name] for name in told if name in choice.point}, {})
    resident = choice.point.get("resident_sixteenths")
    return f"{text}, {resident}/16 of the optimizer on the GPU" if resident else text


def _verdict_lines(plan: Plan) -> list[Block]:
    if plan.choices:
        return [Line(text=f"It fits, {plan.looked_at} configurations looked at.", tone="good")]
    if plan.close:
        return [Line(text="It may fit: too close to call. Measure it with offtune search.", tone="warn")]
    return [Line(text=f"Nothing fits.{_missed(plan)}", tone="bad")]


def _missed(plan: Plan) -> str:
    """What comes nearest, by both memories."""
    if plan.nearest is None:
        return ""
    found, request = plan.nearest.prediction, plan.request
    device = f"{format_bytes(found.used_device_bytes)} of {format_bytes(request.budget_bytes)} a rank"
    host = f"{format_bytes(found.used_host_bytes)} of {format_bytes(request.host_budget_bytes)} a host"
    return f" Nearest: {_settings(plan.nearest)}, with {device} and {host}."


def _faster(rung: Rung | None) -> list[Block]:
    if rung is None or rung.candidate is None:
        return []
    text = f"With {rung.change}: {_rates(rung.candidate.prediction)}. {rung.option}"
    return [Heading(text="What would be faster"), Line(text=text, tone="strong")]


def _choice(title: str, choice: Candidate) -> list[Block]:
    found = choice.prediction
    return [
        Heading(text=title),
        Facts(
            rows=(
                ("throughput", f"{_rates(found)}, error {_percent(found.time.error_share)}"),
                ("step", format_seconds(found.time.step_s)),
                *(_phase(found, phase, _words(found)) for phase in PHASES),
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


def _words(found: Prediction) -> dict[Resource, str]:
    """What resources are called on this device."""
    return {**_RESOURCES, "compute": "computing"} if found.time.hardware.device == "cpu" else _RESOURCES


def _phase(found: Prediction, phase: Phase, words: Mapping[Resource, str]) -> tuple[str, str]:
    bound = found.time.bound[phase]
    peak = format_bytes(found.memory.peak_by_phase[phase])
    seconds = format_seconds(getattr(found.time, f"{phase}_s"))
    return phase, f"{seconds}, bound by {words[bound]}; {peak} allocated at its peak"


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
            short = ": host memory is short" if entry.short == "host" else ""
            rows.append((budget, "-", "-", f"nothing surely fits{short}"))
        else:
            found = entry.choice.prediction
            used = format_bytes(found.used_device_bytes)
            rows.append((budget, rate_text(found.samples_per_s), used, _settings(entry.choice)))
    blocks: list[Block] = [Heading(text="What a budget buys"), Table(columns=columns, rows=tuple(rows))]
    if any(entry.beyond_card for entry in plan.front):
        blocks.append(Line(text="* more than this card has", tone="dim", indent=1))
    return blocks
