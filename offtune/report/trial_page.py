"""The page about one trial: everything that was asked of it and measured on it.

Covered: every stored figure with its unit, '-' and the reason where there is none. Not covered: series.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Sequence

from offtune.bounds import bound, peaks_of
from offtune.knobs import format_value
from offtune.phase_analysis import StepAnalysis
from offtune.records import Run, StudyRecord
from offtune.repeats import Repeat
from offtune.report.bounds_page import bounds_blocks
from offtune.report.forecasts import is_foretold
from offtune.report.inside import reason_sentences
from offtune.report.page import Block, Column, Facts, Heading, Line, Page, Table, Verbatim
from offtune.report.phase_table import parts_table, phase_table
from offtune.report.words import CPU_CAVEATS, STATUS_WORDS, status_text, time_text
from offtune.spread import relative_spread
from offtune.trial import Forecast, LossCheck, PhaseTimes, Status, Stopped, Traffic, TrialResult
from offtune.units import format_bytes, format_rate, format_seconds

LOSSES_SHOWN = 8
_STOPPED: dict[Stopped, str] = {
    "": "",
    "tight": "its step time was known well enough",
    "worse": "it was certainly slower than the best",
    "over": "it had used more memory than it may",
    "drift": "it drifted",
    "most": "it had made all the steps it may",
    "level": "its memory had not risen for a while",
}


def trial_page(study: StudyRecord, run: Run, repeats: Sequence[Repeat] = ()) -> Page:
    """One trial in full, with its `repeats` in the finals."""
    blocks: list[Block] = [Heading(text=f"Trial {run.number} of {study.name}"), Facts(rows=_head_facts(run))]
    if run.status is not None and run.status is not Status.OK and not is_foretold(run):
        words = STATUS_WORDS[run.status]
        remedy = words.remedy.format(study=study.name, trial=run.number)
        blocks.append(Line(text=f"{words.meaning} {remedy}", tone="warn"))
    blocks += [Heading(text="Settings"), Facts(rows=_point_facts(run))]
    if run.result is not None and run.result.forecast is not None:
        blocks += [Heading(text="Predicted before it"), Facts(rows=_forecast_facts(run.result.forecast))]
    if run.result is not None and not is_foretold(run):
        blocks += _measured(run.result, study.device)
        blocks += _repeats(repeats)
        blocks += _by_phase(study, run, run.result.analysis)
    blocks += [Heading(text="ds_config"), Verbatim(text=_config_text(run))]
    if run.result is not None and run.result.log_tail.strip():
        blocks += [Heading(text="End of its log"), Verbatim(text=run.result.log_tail.strip())]
    return tuple(blocks)


def _head_facts(run: Run) -> tuple[tuple[str, str], ...]:
    result = run.result
    facts = [
        ("status", status_text(run)),
        ("reason", result.reason if result else ""),
        ("reuses", "" if run.reuse_of is None else f"the measurement of trial {run.reuse_of}"),
        ("origin", f"{run.origin}: {run.label}" if run.label else run.origin),
        ("started", time_text(run.started_at)),
        ("finished", time_text(run.finished_at or "")),
        ("start", _start_text(result) if result else ""),
        ("exit codes", _exit_text(result) if result else ""),
        ("folder", (run.trial_dir or "") if result is None else ""),
    ]
    return tuple((name, value) for name, value in facts if value)


def _start_text(result: TrialResult) -> str:
    first, whole = format_seconds(result.first_step_s), format_seconds(result.seconds)
    return f"{result.start or '-'}, first step after {first}, whole trial {whole}"


def _exit_text(result: TrialResult) -> str:
    if not any(result.exit_codes):
        return ""
    return ", ".join(
        f"rank {rank}: {'-' if code is None else code}" for rank, code in enumerate(result.exit_codes)
    )


def _point_facts(run: Run) -> tuple[tuple[str, str], ...]:
    if not run.point:
        return (("your file", "as it is"),)
    return tuple((name, format_value(value)) for name, value in run.point.items())


def _measured(result: TrialResult, device: str) -> list[Block]:
    caveats = CPU_CAVEATS if device == "cpu" else ()
    return [
        Heading(text="Measured"),
        Facts(rows=(*_speed_facts(result), *_phase_facts(result.phases), *_memory_facts(result))),
        Heading(text="Moved"),
        Facts(rows=_traffic_facts(result.traffic)),
        *(Line(text=text, tone="dim") for text in caveats),
    ]


def _repeats(repeats: Sequence[Repeat]) -> list[Block]:
    """What the finals measured of the trial, a line for each training."""
    if not repeats:
        return []
    names = ("round", "status", "samples/s", "steps")
    columns = tuple(Column(title=name, right=name in names[2:]) for name in names)
    rows = tuple(_repeat_row(repeat) for repeat in repeats)
    return [Heading(text="Trained again in the finals"), Table(columns=columns, rows=rows)]


def _repeat_row(repeat: Repeat) -> tuple[str, ...]:
    when = "confirmation" if repeat.kind == "confirmation" else str(repeat.round)
    where = when if repeat.finals == 1 else f"{when} of finals {repeat.finals}"
    status = STATUS_WORDS[repeat.status].title if repeat.status else "running"
    result = repeat.result
    speed = format_rate(result.samples_per_s, "").strip() if result else "-"
    return where, status, speed, str(len(result.step_s)) if result else "-"


def _forecast_facts(forecast: Forecast) -> tuple[tuple[str, str], ...]:
    device, step = 100 * forecast.device_error_share, 100 * forecast.step_error_share
    return (
        ("throughput", f"{format_rate(forecast.samples_per_s)}, error {step:.0f} %"),
        ("step", format_seconds(forecast.step_s)),
        ("used memory", f"{format_bytes(forecast.used_device_bytes)}, error {device:.0f} %"),
        ("host memory", format_bytes(forecast.used_host_bytes)),
    )


def _by_phase(study: StudyRecord, run: Run, analysis: StepAnalysis | None) -> list[Block]:
    if analysis is None:
        return []
    peaks = peaks_of(study)
    return [
        Heading(text="By phase"),
        phase_table(analysis, peaks=peaks),
        *([parts_table(analysis)] if analysis.parts else []),
        *(Line(text=text, tone="dim") for text in reason_sentences(analysis.reasons)),
        Heading(text="What bounds it"),
        *bounds_blocks(bound(analysis, peaks, run.point)),
    ]


def _speed_facts(result: TrialResult) -> list[tuple[str, str]]:
    return [
        ("throughput", format_rate(result.samples_per_s)),
        ("", format_rate(result.tokens_per_s, "tokens/s")),
        ("step", _step_text(result.step_s)),
        *_length_facts(result),
        ("skipped steps", str(result.skipped_steps)),
        ("losses", _loss_text((*result.warmup_losses, *result.losses))),
        *_loss_check_facts(result.loss_check),
        ("offload ratio", _ratio_text(result)),
    ]


def _step_text(step_s: tuple[float, ...]) -> str:
    """'1.23 s (median of 5, half the middle spread 2.1 %)'."""
    if not step_s:
        return "-"
    spread = relative_spread(step_s)
    noise = "" if spread is None else f", middle half within +-{100 * spread:.1f} %"
    return f"{format_seconds(statistics.median(step_s))} (median of {len(step_s)}{noise})"


def _length_facts(result: TrialResult) -> list[tuple[str, str]]:
    """How well the step time is known, why no more steps were measured, what grew."""
    facts = []
    if result.step_interval_s is not None:
        low, high = result.step_interval_s
        facts.append(("known to", f"{format_seconds(low)} to {format_seconds(high)} (95 %, this process)"))
    if result.stopped:
        facts.append(("stopped", _STOPPED[result.stopped]))
    if result.unsafe:
        facts.append(("unsafe", result.unsafe))
    return facts


def _loss_text(losses: tuple[float | None, ...]) -> str:
    texts = ["not finite" if loss is None else f"{loss:.4f}" for loss in losses[:LOSSES_SHOWN]]
    return ", ".join(texts) + (", ..." if len(losses) > LOSSES_SHOWN else "") or "-"


def _loss_check_facts(check: LossCheck | None) -> list[tuple[str, str]]:
    """What the comparison with the reference run gave, and the reference's own curve."""
    if check is None:
        return []
    words = {
        "reference": "the reference of this study",
        "agrees": f"agrees with trial {check.reference_trial}: at most {_nat(check.departure_nat)} apart "
        f"(step {check.departure_step}), {_nat(check.tolerance_nat)} allowed",
    }
    text = words.get(check.verdict, f"{check.verdict}: {check.reason}")
    curve = check.reference_losses
    return [("loss check", text), *([("reference losses", _loss_text(curve))] if curve else [])]


def _nat(value: float | None) -> str:
    return "-" if value is None else f"{abs(value):.4f}"


def _ratio_text(result: TrialResult) -> str:
    """The share of sub-groups updated on the host, as it came out."""
    if result.effective_ratio is None:
        return "-"
    groups = "" if result.sub_groups is None else f" (of {result.sub_groups} sub-groups)"
    return f"{result.effective_ratio:.3f}{groups}"


def _phase_facts(phases: PhaseTimes | None) -> list[tuple[str, str]]:
    phases = phases or PhaseTimes()
    return [
        ("forward", format_seconds(phases.forward_s)),
        ("backward", format_seconds(phases.backward_s)),
        ("update", format_seconds(phases.update_s)),
        ("other", format_seconds(phases.other_s)),
    ]


def _memory_facts(result: TrialResult) -> list[tuple[str, str]]:
    memory = result.memory
    source = f" ({memory.device_source})" if memory.device_source else ""
    return [
        ("used memory", f"{format_bytes(memory.used_device_bytes)}{source}"),
        ("allocated", format_bytes(memory.allocated_bytes)),
        ("reserved", format_bytes(memory.reserved_bytes)),
        ("host memory", format_bytes(memory.used_host_bytes)),
        ("pinned", format_bytes(memory.pinned_bytes)),
    ]


def _traffic_facts(traffic: Traffic) -> tuple[tuple[str, str], ...]:
    return (
        ("PCIe H2D", _or_reason(_per_second(traffic.h2d_bytes_per_s), traffic.pcie_reason)),
        ("PCIe D2H", _or_reason(_per_second(traffic.d2h_bytes_per_s), traffic.pcie_reason)),
        ("NVMe read", _or_reason(format_bytes(traffic.nvme_read_bytes), traffic.nvme_reason)),
        ("NVMe write", _or_reason(format_bytes(traffic.nvme_write_bytes), traffic.nvme_reason)),
    )


def _per_second(bytes_per_s: float | None) -> str:
    return "-" if bytes_per_s is None else f"{format_bytes(bytes_per_s)}/s"


def _or_reason(text: str, reason: str) -> str:
    return f"- ({reason})" if text == "-" and reason else text


def _config_text(run: Run) -> str:
    return json.dumps(run.ds_config, indent=2)
