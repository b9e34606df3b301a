"""A short note that goes beside an exported file: where it comes from and what was measured, with the spread.

Covered: the note as Markdown. Not covered: the same in JSON (`export.provenance`), writing it.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable

from offtune.export import provenance
from offtune.knob_workload import CHECKPOINTING, checkpoints
from offtune.records import Run, StudyRecord
from offtune.trial import LossCheck, TrialResult
from offtune.units import format_bytes, format_rate, format_seconds

_QUARTERS = 4


def note_text(
    study: StudyRecord, run: Run, files: Iterable[str], arguments: Iterable[str], finals: str = ""
) -> str:
    """Markdown for a person who finds the files a year later.

    `arguments` are what the training must say, `finals` what the finals say of the run.
    """
    origin = provenance(study, run)
    lines = [
        f"# Provenance of {' and '.join(files) or 'a ds_config'}",
        "",
        f"offtune {origin['offtune_version']}, study {study.name}, trial {run.number}"
        f"{f' ({run.label})' if run.label else ''}, measured {_date(run)}.",
        *_section("Measured", _measured(run.result) if run.result else []),
        *([f"- in the finals: {finals}"] if finals else []),
        *_section("Workload", _workload(study, run)),
        *_section("Machine", [*(study.settings.get("machine") or {}).items()]),
        *_section("Versions", [pair for pair in origin["versions"].items() if pair[1]]),
        *_section("The training must say", [(argument, "") for argument in arguments]),
        "",
        f"Again: `offtune show {study.name} --trial {run.number}`",
    ]
    return "\n".join(lines) + "\n"


def quartiles(values: tuple[float, ...]) -> tuple[float, float, float] | None:
    """Lower quartile, median, upper quartile; None for fewer than two values."""
    if len(values) < 2:
        return None
    low, middle, high = statistics.quantiles(values, n=_QUARTERS, method="inclusive")
    return low, middle, high


def _measured(result: TrialResult) -> list[tuple[str, str]]:
    memory = result.memory
    source = f" ({memory.device_source})" if memory.device_source else ""
    return [
        ("throughput", f"{_rate(result)}, {format_rate(result.tokens_per_s, 'tokens/s')}"),
        ("optimizer step", _steps(result.step_s)),
        ("device memory", f"{format_bytes(memory.used_device_bytes)} at its peak{source}"),
        ("host memory", f"{format_bytes(memory.used_host_bytes)} at its peak, all ranks"),
        ("spread of memory", "unknown: a peak is one value a run, and that was one run"),
        ("loss check", _loss_words(result.loss_check)),
    ]


def _rate(result: TrialResult) -> str:
    """'10.1 samples/s, middle half 9.9 to 10.3', from the steps' quartiles."""
    text = format_rate(result.samples_per_s)
    steps = quartiles(result.step_s)
    if result.samples_per_s is None or steps is None:
        return text
    low, middle, high = steps
    samples = result.samples_per_s * middle
    return f"{text}, middle half {format_rate(samples / high, '').strip()} to {format_rate(samples / low)}"


def _steps(step_s: tuple[float, ...]) -> str:
    found = quartiles(step_s)
    if found is None:
        return "-"
    low, middle, high = found
    return (
        f"median {format_seconds(middle)} of {len(step_s)}, "
        f"middle half {format_seconds(low)} to {format_seconds(high)}"
    )


def _loss_words(check: LossCheck | None) -> str:
    if check is None:
        return "-"
    words = {"reference": "it is the reference", "agrees": f"agrees with trial {check.reference_trial}"}
    return words.get(check.verdict, f"{check.verdict}: {check.reason}")


def _workload(study: StudyRecord, run: Run) -> list[tuple[str, str]]:
    settings = study.settings
    workload = settings.get("workload") or {}
    told = (
        ("sequence length", workload.get("seq_len")),
        ("samples a step", workload.get("global_batch")),
        ("ranks", workload.get("world_size")),
        ("precision", workload.get("precision")),
        ("optimizer", workload.get("optimizer")),
        ("activation checkpointing", checkpoints(run.point, workload.get(CHECKPOINTING))),
    )
    return [
        ("model", study.model),
        *((name, str(value)) for name, value in told if value is not None),
        ("device", study.device),
        ("budget", f"{format_bytes(study.budget_bytes)} a rank"),
    ]


def _section(title: str, pairs: list[tuple[str, str]]) -> list[str]:
    if not pairs:
        return []
    return [
        "",
        f"## {title}",
        "",
        *(f"- {name}: {value}" if value else f"- `{name}`" for name, value in pairs),
    ]


def _date(run: Run) -> str:
    return f"{run.finished_at[:16].replace('T', ' ')} UTC" if run.finished_at else "at an unknown time"
