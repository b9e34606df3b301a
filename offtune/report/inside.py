"""The section about the inside of a step: curves of winner and baseline, or why there are none.

Covered: which plots are shown and what is said where nothing was recorded. Not covered: the plots
(`report.step_plots`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from offtune.memory_model import MemoryPrediction
from offtune.records import Run
from offtune.report.bar_plots import memory_bars, phase_bars
from offtune.report.page import Facts, Heading, Line
from offtune.report.phase_table import phase_table
from offtune.report.sections import Columns, Plot, Section, WebBlock
from offtune.report.step_plots import SERIES_NAMES, timeline_plot
from offtune.report.study_report import Side, StudyReport
from offtune.report.summary import Summary
from offtune.timeline import Mark, Timeline
from offtune.trial import DeviceKind
from offtune.units import format_bytes

if TYPE_CHECKING:
    from offtune.report.predicted_step import PredictedStep

NO_CURVE = (
    "There is no curve over time: these trials kept no samples. Trials of this version record them unless "
    "they failed; measure again for a curve."
)
PREDICTED = "winner, predicted"
_SOURCE = (
    f"'{PREDICTED}' was not measured: offtune's models say it of the winner, with the rates of {{rates}}."
)
_ON_CPU = "Predicted memory is what a rank holds above its level before the model."
_ON_CUDA = (
    "Predicted memory of the device stays at its highest, for plain DeepSpeed keeps freed memory in torch's "
    "pool; predicted allocated memory is what is held in it."
)
_BASELINES_SHOWN = 6


def inside_section(found: StudyReport) -> Section:
    """Time, memory and traffic within one optimizer step."""
    summary = found.summary
    blocks: list[WebBlock] = [*_curves(found), *_bars(summary, found.predicted), *_memory(found.sides)]
    return Section(anchor="inside", title="Inside a step", blocks=tuple(blocks))


def _curves(found: StudyReport) -> list[WebBlock]:
    recorded = [(side, side.timeline) for side in found.sides if side.timeline and side.timeline.steps()]
    if not recorded:
        tables = [block for side in found.sides for block in _phases(side)]
        return [*tables, Line(text=NO_CURVE, tone="dim")] if found.sides else []
    # Both on the same axis, so that the shorter step looks shorter.
    predicted = found.predicted
    lengths_s = [_middle_step(timeline).length_s for _, timeline in recorded]
    span_s = max([*lengths_s, predicted.course.steps()[0].length_s] if predicted else lengths_s)
    plots = tuple((_curve(side, timeline, found, span_s),) for side, timeline in recorded)
    shown = {side.run.number for side, _ in recorded}
    blank = [side.run.number for side in found.sides if side.run.number not in shown]
    return [
        Columns(columns=plots),
        *_predicted_curve(predicted, span_s),
        *(Line(text=f"Nothing was sampled of trial {number}.", tone="dim") for number in blank),
        *(Line(text=text, tone="dim") for text in reason_sentences(recorded[0][1].reasons)),
    ]


def _predicted_curve(predicted: PredictedStep | None, span_s: float) -> list[WebBlock]:
    """What the models expect of the winner's step, on the axis of the measured curves."""
    if predicted is None:
        return []
    title = "Winner: predicted, not measured"
    plot = timeline_plot("predicted", title, predicted.course, 0, span_s=span_s, memory=predicted.memory)
    return [plot, Line(text=memory_note(predicted.memory, predicted.course.device), tone="dim")]


def memory_note(memory: MemoryPrediction, device: DeviceKind) -> str:
    """What predicted memory counts, and how far off it may be."""
    counted = _ON_CPU if device == "cpu" else _ON_CUDA
    return f"{counted} Nine of ten predicted peaks are within {100 * memory.error_share:.0f} %."


def _phases(side: Side) -> list[WebBlock]:
    """The figures of each phase, where a run has them without a curve."""
    analysis = side.run.result.analysis if side.run.result else None
    if analysis is None:
        return []
    reasons = [Line(text=text, tone="dim") for text in reason_sentences(analysis.reasons)]
    return [Heading(text=f"{side.title}: trial {side.run.number}"), phase_table(analysis), *reasons]


def reason_sentences(reasons: Mapping[str, str]) -> list[str]:
    """Why something was not recorded, one sentence a reason."""
    by_reason: dict[str, list[str]] = {}
    for key, reason in reasons.items():
        by_reason.setdefault(reason, []).append(SERIES_NAMES.get(key, key))
    return [f"Not recorded: {', '.join(names)} ({reason})." for reason, names in by_reason.items()]


def _middle_step(timeline: Timeline) -> Mark:
    """Not the first step, which still warms up, nor the last, which the end may cut."""
    steps = timeline.steps()
    return steps[len(steps) // 2]


def _curve(side: Side, timeline: Timeline, found: StudyReport, span_s: float) -> Plot:
    """One side's step; the winner's with the memory that was predicted for it."""
    predicted = found.predicted if side is found.sides[0] else None
    return timeline_plot(
        f"curve-{side.run.number}",
        f"{side.title}: trial {side.run.number}",
        timeline,
        _middle_step(timeline).step,
        limit_bytes=found.summary.limits.device_bytes,
        span_s=span_s,
        memory=predicted.memory if predicted else None,
    )


def _bars(summary: Summary, predicted: PredictedStep | None) -> list[WebBlock]:
    """Measured phases by run, with the winner's predicted ones under its own."""
    rows = [(name, run.result.phases) for name, run in bar_runs(summary) if run.result]
    if rows and predicted is not None:
        rows.insert(1, (PREDICTED, predicted.phases))
    plot = phase_bars(rows)
    if plot is None:
        return []
    return [plot, *([Line(text=_SOURCE.format(rates=predicted.rates), tone="dim")] if predicted else [])]


def bar_runs(summary: Summary) -> list[tuple[str, Run]]:
    """The winner, then the baselines that trained, each with its name."""
    best = [summary.best] if summary.best else []
    numbers = {run.number for run in best}
    baselines = [
        run
        for run in summary.runs
        if run.origin == "baseline" and run.number not in numbers and run.result and run.result.samples_per_s
    ]
    return [(_name(run, summary), run) for run in (*best, *baselines[:_BASELINES_SHOWN])]


def _name(run: Run, summary: Summary) -> str:
    name = run.label if run.origin == "baseline" and run.label else f"trial {run.number}"
    return f"winner: {name}" if summary.best and run.number == summary.best.number else name


def _memory(sides: tuple[Side, ...]) -> list[WebBlock]:
    rows = [
        (f"{side.title.lower()}: trial {side.run.number}", side.run.result.memory)
        for side in sides
        if side.run.result
    ]
    plot = memory_bars(rows)
    facts = tuple(
        (name, f"{format_bytes(memory.used_host_bytes)}, pinned {format_bytes(memory.pinned_bytes)}")
        for name, memory in rows
        if memory.used_host_bytes is not None
    )
    blocks: list[WebBlock] = [plot] if plot else []
    if rows and plot is None:
        blocks.append(Line(text=_why_no_components(sides), tone="dim"))
    if facts:
        blocks += [Line(text="Host memory at its peak:"), Facts(rows=facts)]
    return blocks


def _why_no_components(sides: tuple[Side, ...]) -> str:
    sources = {side.run.result.memory.device_source for side in sides if side.run.result}
    source = ", ".join(sorted(text for text in sources if text)) or "no counter"
    return f"Memory by component is not known here: used memory is {source}, and no allocator reports on it."
