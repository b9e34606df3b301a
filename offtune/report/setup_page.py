"""Pages before a search: what `doctor` found, and what a search would do (`--dry-run`).

Covered: checks with their remedies; resolved settings, the space and its notes. Not covered: resolving them.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from offtune.knobs import Knob, format_value
from offtune.records import Limits, StudyRecord
from offtune.report.base_page import base_blocks, base_document
from offtune.report.page import Block, Facts, Heading, Line, Page, Tone
from offtune.report.words import CPU_CAVEATS, CPU_REMEDY, budget_text
from offtune.trial import Point, Workload, as_dict
from offtune.units import format_bytes, format_seconds

if TYPE_CHECKING:
    from offtune.config import RunConfig
    from offtune.space import Space

_TONES: dict[str, Tone] = {"ok": "good", "warn": "warn", "warning": "warn", "fail": "bad", "failed": "bad"}


class Check(Protocol):
    """What one line of `doctor` says; `remedy` is empty where nothing is wrong."""

    @property
    def name(self) -> str: ...
    @property
    def state(self) -> str: ...
    @property
    def detail(self) -> str: ...
    @property
    def remedy(self) -> str: ...


def doctor_page(checks: Sequence[Check]) -> Page:
    """One line a check, and under each that is not well what to do."""
    blocks: list[Block] = []
    for check in checks:
        state = str(check.state)
        blocks.append(Line(text=f"{state:<5} {check.name}: {check.detail}", tone=_TONES.get(state, "plain")))
        if check.remedy and state != "ok":
            blocks.append(Line(text=check.remedy, indent=6))
    return tuple(blocks)


def dry_run_page(
    config: RunConfig, space: Space, notes: Iterable[str] = (), trial_s: float | None = None
) -> Page:
    """What a search with these settings would do; nothing has been run. A trial usually takes `trial_s`."""
    lines = [*space.notes, *notes]
    return (
        Heading(text="Settings (nothing is run)"),
        Facts(rows=(*_config_facts(config), ("expected length", _length_text(config, trial_s)))),
        *cpu_lines(config.device),
        *(base_blocks(config.base) if config.base is not None else []),
        Heading(text=f"Space {space.name}: {space.size():,} points"),
        Line(text=space.about),
        *(block for knob in space.knobs for block in _knob_lines(knob)),
        *(Line(text=line, tone="dim") for line in lines),
        *_baseline_blocks(config, space),
    )


def start_page(study: StudyRecord, limits: Limits, *, done: int = 0, notes: Iterable[str] = ()) -> Page:
    """The first lines of a search: what is tuned for which budget, and what to know about the figures."""
    target = "until stopped" if study.target_trials is None else f"{study.target_trials} trials"
    so_far = f", {done} done before" if done else ""
    return (
        Heading(text=f"Study {study.name}: {study.model} on {study.device}, {target}{so_far}"),
        Facts(
            rows=(
                ("budget", budget_text(study.budget_bytes, limits.device_bytes)),
                ("host limit", format_bytes(limits.host_bytes)),
            )
        ),
        *cpu_lines(study.device),
        *(Line(text=note, tone="dim") for note in notes),
    )


def cpu_lines(device: str) -> list[Block]:
    """What to know before reading figures of the CPU accelerator; nothing for a GPU."""
    if device != "cpu":
        return []
    first, *rest = CPU_CAVEATS
    dim: list[Block] = [Line(text=text, tone="dim") for text in (*rest, CPU_REMEDY)]
    return [Line(text=first, tone="warn"), *dim]


def _config_facts(config: RunConfig) -> tuple[tuple[str, str], ...]:
    work = config.workload
    return (
        *_what_is_trained(work),
        ("global batch", f"{work.global_batch} samples a step over {_ranks(work.world_size)}"),
        ("precision", work.precision),
        ("optimizer", _optimizer(work)),
        ("device", _device_text(config)),
        ("budget", budget_text(config.budget_bytes, config.limit_bytes)),
        ("host limit", f"{format_bytes(config.host_limit_bytes)} for all ranks together"),
        ("NVMe folder", config.nvme_path or "none"),
        ("trials", _trials_text(config)),
        ("a trial", f"{config.warmup_steps} warm-up steps, then {_measured_text(config)}"),
        ("trial timeout", format_seconds(config.trial_timeout_s)),
        ("sampler", f"{config.sampler}, seed {config.seed}"),
        ("predictions", "on" if config.predict else "off"),
    )


def _measured_text(config: RunConfig) -> str:
    if config.accuracy_share is None:
        return f"{config.steps} measured"
    known = f"its step time is known to {100 * config.accuracy_share:g} %"
    return f"measured until {known} or it cannot win, at most {config.steps}"


def _what_is_trained(work: Workload) -> tuple[tuple[str, str], ...]:
    if work.command is None:
        own = work.activation_checkpointing
        checkpointing = "searched" if own is None else format_value(own)
        sequence = ("sequence", f"{work.seq_len} tokens")
        return (("model", work.model_name), sequence, ("checkpointing", checkpointing))
    where = work.command.cwd if work.command.trial_cwd == "here" else "a scratch directory of the trial"
    return (("command", shlex.join(work.command.arguments)), ("runs in", where))


def _optimizer(work: Workload) -> str:
    own = work.command.own_optimizer if work.command is not None else ""
    return f"{own}, built by the script" if own else work.optimizer


def _device_text(config: RunConfig) -> str:
    where = ", ".join(f"GPU {index}" for index in config.gpus) or "DeepSpeed's CPU accelerator"
    threads = "1 thread" if config.threads_per_rank == 1 else f"{config.threads_per_rank} threads"
    return f"{where}, {threads} a rank"


def _trials_text(config: RunConfig) -> str:
    until = "" if config.time_s is None else f", at most {format_seconds(config.time_s)}"
    return f"{config.trials}{until}"


def _ranks(count: int) -> str:
    return "1 rank" if count == 1 else f"{count} ranks"


def _knob_lines(knob: Knob) -> tuple[Block, ...]:
    return Line(text=f"{knob.name} {knob.domain}"), Line(text=knob.about, tone="dim", indent=4)


def _baselines(config: RunConfig, space: Space) -> list[tuple[str, Point]]:
    own: list[tuple[str, Point]] = [] if config.base is None else [("your file", {})]
    return [*own, *space.baselines()]


def _length_text(config: RunConfig, trial_s: float | None) -> str:
    longest = format_seconds(_longest_s(config))
    if trial_s is None:
        return f"at most {longest}; no trial of this model has been run on this device yet"
    usual = format_seconds(min(trial_s * config.trials, _longest_s(config)))
    return f"about {usual}, as trials of this model took {format_seconds(trial_s)} here; at most {longest}"


def _longest_s(config: RunConfig) -> float:
    """Every trial at its timeout, or the time limit and one trial more."""
    whole = config.trials * config.trial_timeout_s
    return whole if config.time_s is None else min(whole, config.time_s + config.trial_timeout_s)


def _baseline_blocks(config: RunConfig, space: Space) -> list[Block]:
    names = [label for label, _ in _baselines(config, space)]
    return [Line(text=f"Tried first, as baselines: {'; '.join(names)}.")] if names else []


def dry_run_document(
    config: RunConfig, space: Space, notes: Iterable[str] = (), trial_s: float | None = None
) -> dict[str, Any]:
    """The same as JSON values."""
    knobs = [
        {"name": knob.name, "about": knob.about, "values": list(knob.values), "default": knob.default}
        for knob in space.knobs
    ]
    return {
        "schema": "offtune.plan/1",
        "base": None if config.base is None else base_document(config.base),
        "settings": {key: value for key, value in as_dict(config).items() if key != "base"},
        "space": {"name": space.name, "points": space.size(), "knobs": knobs},
        "baselines": [{"label": label, "point": point} for label, point in _baselines(config, space)],
        "expected_s": None if trial_s is None else min(trial_s * config.trials, _longest_s(config)),
        "longest_s": _longest_s(config),
        "notes": [*space.notes, *notes],
    }


def doctor_document(checks: Sequence[Check]) -> dict[str, Any]:
    """The checks as JSON values."""
    entries = [
        {"name": check.name, "state": str(check.state), "detail": check.detail, "remedy": check.remedy}
        for check in checks
    ]
    return {"schema": "offtune.doctor/1", "checks": entries}
