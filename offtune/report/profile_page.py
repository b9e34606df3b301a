"""What a profile found, as blocks for a terminal or a web page.

Covered: the order of what is said, and what stands where something was not measured. Not covered: tables
(`report.profile_tables`), curves (`report.profile_html`).
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable

from offtune.bounds import bound
from offtune.ds_zero import placement_text
from offtune.phase_analysis import StepAnalysis
from offtune.profile import Profiled
from offtune.report.base_page import log_blocks
from offtune.report.bounds_page import AT_BEST, NOT_SAMPLED, bounds_blocks
from offtune.report.inside import reason_sentences
from offtune.report.page import Block, Facts, Heading, Line, Page, Table, Verbatim
from offtune.report.profile_tables import (
    checklist,
    copies_table,
    counter_table,
    ops_table,
    parts_table,
    predicted_memory_table,
    predicted_table,
    traffic_table,
)
from offtune.report.words import CPU_CAVEATS, STATUS_WORDS, budget_text
from offtune.traffic_check import TrafficCheck, counter_checks, traffic_checks
from offtune.trial import Status
from offtune.units import format_bytes, format_rate, format_seconds

_NO_COPIES_SEEN = "The profiler saw no copy between host and device."
_COUNTER_NOTE = "In published traces counters run 10 to 18 % above the copies."
_BACKGROUND_NOTE = (
    "Gradients are written to NVMe in the background: their bytes count in the phase that waits for them."
)
_LOOK_FAILED = (
    "The steps under torch's profiler failed ({error}); what was measured before them stands. Leave them out "
    "with --close-steps 0."
)
_PROFILER_NOTE = "Means over {steps} under torch's profiler, {slower}; they do not count above."


def profile_page(found: Profiled) -> Page:
    """Everything for a terminal."""
    analysis = found.result.analysis
    blocks: list[Block] = [*head_blocks(found)]
    if found.result.log_tail and analysis is None:
        return (*blocks, Heading(text="The end of its log"), Verbatim(text=found.result.log_tail))
    if analysis is None:
        return (*blocks, Line(text=NOT_SAMPLED, tone="warn"))
    blocks += [Heading(text="Phase by phase"), *phase_blocks(found, analysis)]
    blocks += [Heading(text="What bounds it"), *bound_blocks(found, analysis)]
    for title, inside in (
        ("Bytes by formula and as measured", traffic_blocks(found, analysis)),
        ("Copies between host and device, one by one", copy_blocks(found)),
        ("Predicted beside measured", predicted_blocks(found, analysis)),
    ):
        blocks += [Heading(text=title), *inside]
    return tuple(blocks)


def head_blocks(found: Profiled) -> list[Block]:
    """What was run and how it ended."""
    config, result = found.config, found.result
    blocks: list[Block] = [
        Heading(text=f"Profile of {found.base.path}"),
        Facts(rows=tuple(row for row in _facts(found) if row[1])),
    ]
    if result.status is not Status.OK:
        words = STATUS_WORDS[result.status]
        blocks.append(Line(text=f"{words.title}: {result.reason or words.meaning}", tone="bad"))
    blocks += [Line(text=text, tone="warn") for text in found.notes]
    if found.base.changes:
        blocks += log_blocks(found.base.path, found.base.changes)
    if config.device == "cpu":
        blocks += [Line(text=text, tone="dim") for text in CPU_CAVEATS]
    return blocks


def _facts(found: Profiled) -> Iterable[tuple[str, str]]:
    config, work, result = found.config, found.config.workload, found.result
    tokens = f" of {work.seq_len} tokens" if work.seq_len else ""
    yield "model", f"{work.model_name}, {sum(found.facts.parameter_numels) / 1e6:.4g} M parameters"
    yield "a step", f"{work.global_batch} samples{tokens}, {work.precision}, {work.world_size} rank(s)"
    yield "placement", f"{placement_text(found.ds_config)}, {_batches(found)}"
    if found.has_budget:
        yield "budget", budget_text(config.budget_bytes, config.limit_bytes)
    if result.step_s:
        yield "measured", f"{format_rate(result.samples_per_s)}, step {_spread(result.step_s)}"
    if found.flops_per_s is not None:
        yield "computed", f"{found.flops_per_s / 1e12:.3g} TFLOP/s per rank, what is recomputed counted"
    used = result.memory
    yield "used memory", f"{format_bytes(used.used_device_bytes)} ({used.device_source or 'unknown'})"
    yield "host memory", f"{format_bytes(used.used_host_bytes)}, pinned {format_bytes(used.pinned_bytes)}"
    yield "machine's rates", found.hardware.about
    yield "machine", ", ".join(f"{name} {value}" for name, value in config.machine.items())
    yield "versions", ", ".join(f"{name} {version}" for name, version in result.versions.items() if version)


def _batches(found: Profiled) -> str:
    config = found.ds_config
    micro, steps = config["train_micro_batch_size_per_gpu"], config["gradient_accumulation_steps"]
    return f"micro-batch {micro} x {steps}"


def _spread(step_s: tuple[float, ...]) -> str:
    text = format_seconds(statistics.median(step_s))
    if len(step_s) == 1:
        return f"{text} (one step)"
    return f"{text} ({len(step_s)} steps, {format_seconds(min(step_s))} to {format_seconds(max(step_s))})"


def phase_blocks(found: Profiled, analysis: StepAnalysis) -> list[Block]:
    """The checklist and the parts inside the phases."""
    blocks: list[Block] = [Line(text=_what(analysis), tone="dim"), checklist(found, analysis)]
    parts = parts_table(analysis)
    if parts is not None:
        blocks += [Line(text="Inside the phases, as far as DeepSpeed lets it be seen:"), parts]
    return [*blocks, *(Line(text=text, tone="dim") for text in reason_sentences(analysis.reasons))]


def _what(analysis: StepAnalysis) -> str:
    ranks = "" if analysis.devices == 1 else f", {analysis.devices} ranks (means; peaks of the highest)"
    return f"Means over {analysis.steps} steps{ranks}. Recorded by: {analysis.source or 'unknown'}."


def bound_blocks(found: Profiled, analysis: StepAnalysis) -> list[Block]:
    """What bounds each phase, and the knobs."""
    return [*bounds_blocks(bound(analysis, found.peaks)), Line(text=AT_BEST, tone="dim")]


def traffic_blocks(found: Profiled, analysis: StepAnalysis) -> list[Block]:
    """What moved against what should move, per rank and step."""
    checks = traffic_checks(found.expected.work, analysis, found.look)
    table = traffic_table(checks)
    if found.expected.work is None:
        missing = f"Nothing to compare with: {found.expected.reason}."
        return [Line(text=missing, tone="dim"), *([table] if table else [])]
    if table is None:
        return [Line(text="By the formulas nothing crosses the link or goes to NVMe.", tone="dim")]
    notes = [f"Not measured: {text}." for text in _reasons(checks)]
    if any(one.path == "NVMe write" for one in checks):
        notes.append(_BACKGROUND_NOTE)
    return [table, *(Line(text=text, tone="dim") for text in notes)]


def _reasons(checks: Iterable[TrafficCheck]) -> list[str]:
    """One entry a reason, with the paths it is about."""
    paths: dict[str, dict[str, None]] = {}
    for one in checks:
        if one.reason:
            paths.setdefault(one.reason, {})[one.path] = None
    return [f"{', '.join(names)} ({reason})" for reason, names in paths.items()]


def copy_blocks(found: Profiled) -> list[Block]:
    """What torch's profiler saw."""
    look = found.look
    if look is None and found.look_error:
        return [Line(text=_LOOK_FAILED.format(error=found.look_error), tone="warn")]
    if look is None:
        return [Line(text="No step ran under torch's profiler (--close-steps).", tone="dim")]
    blocks: list[Block] = [Line(text=_profiler_note(found), tone="dim")]
    table = copies_table(look)
    if table is not None:
        blocks.append(table)
    elif look.copies is None:
        blocks.append(Line(text=f"No copies: {look.copies_reason}.", tone="dim"))
    else:
        blocks.append(Line(text=_NO_COPIES_SEEN, tone="dim"))
    blocks += _optional(counter_table(counter_checks(found.result.analysis, look)), _COUNTER_NOTE)
    blocks += _optional(ops_table(look), "Operations of the host, by their own time:")
    return blocks


def _optional(table: Table | None, above: str) -> list[Block]:
    return [] if table is None else [Line(text=above), table]


def _profiler_note(found: Profiled) -> str:
    look = found.look
    assert look is not None
    median_s = statistics.median(found.result.step_s) if found.result.step_s else None
    slower = f"{look.step_s / median_s:.2f} times as long as unwatched" if median_s else "not timed otherwise"
    steps = "1 step" if look.steps == 1 else f"{look.steps} steps"
    ranks = "" if len(found.looks) == 1 else f" Rank 0 of {len(found.looks)}."
    return _PROFILER_NOTE.format(steps=steps, slower=slower) + ranks


def predicted_blocks(found: Profiled, analysis: StepAnalysis) -> list[Block]:
    """The prediction, labelled as one."""
    prediction = found.expected.prediction
    time, memory = predicted_table(found, analysis), predicted_memory_table(found, analysis)
    if prediction is None or time is None or memory is None:
        return [Line(text=f"No prediction: {found.expected.reason}.", tone="dim")]
    error = (
        f"Nine of ten predictions are within {100 * prediction.time.error_share:.0f} % for time, "
        f"{100 * prediction.memory.error_share:.0f} % for memory"
    )
    return [time, memory, Line(text=f"{error}; rates: {found.hardware.about}.", tone="dim")]
