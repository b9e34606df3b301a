"""The section about the inside of a step: curves of winner and baseline, or why there are none.

Covered: which plots are shown and what is said where nothing was recorded. Not covered: the plots
(`report.step_plots`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from offtune.bounds import Peaks, peaks_of
from offtune.memory_model import MemoryPrediction
from offtune.report.bar_plots import bar_runs, memory_bars, phase_bars
from offtune.report.forecasts import is_foretold
from offtune.report.page import Facts, Heading, Line
from offtune.report.phase_table import parts_table, phase_table
from offtune.report.sections import Columns, Plot, Section, WebBlock
from offtune.report.step_plots import SERIES_NAMES, timeline_plot
from offtune.report.study_report import Side, StudyReport
from offtune.timeline import Mark, Timeline
from offtune.trial import DeviceKind, PhaseTimes
from offtune.units import format_bytes

if TYPE_CHECKING:
    from offtune.report.predicted_step import PredictedStep

PREDICTED_CAPTION = "What offtune's models expect of a step; nothing of it was recorded."
NO_CURVE = (
    "There is no curve over time: these trials kept no samples. Trials of this version record them unless "
    "they failed; measure again for a curve."
)
_SOURCE = "Bars named predicted were not measured: offtune's models say them, with the rates of {rates}."
_ON_CPU = "Predicted memory is what a rank holds above its level before the model."
_ON_CUDA = (
    "Predicted memory of the device stays at its highest, for plain DeepSpeed keeps freed memory in torch's "
    "pool; predicted allocated memory is what is held in it."
)
_PARTS = "parts inside the phases"


def inside_section(found: StudyReport) -> Section:
    """Time, memory and traffic within one optimizer step."""
    blocks: list[WebBlock] = [*_curves(found), *_bars(found), *_parts(found.sides), *_memory(found.sides)]
    return Section(anchor="inside", title="Inside a step", blocks=tuple(blocks))


def _curves(found: StudyReport) -> list[WebBlock]:
    recorded = [(side, side.timeline) for side in found.sides if side.timeline and side.timeline.steps()]
    expected = [(side, side.predicted) for side in found.sides if side.predicted]
    steps = [_middle_step(timeline) for _, timeline in recorded]
    # All on the same axis, so that the shorter step looks shorter.
    span_s = max(
        (step.length_s for step in (*steps, *(one.course.steps()[0] for _, one in expected))), default=0
    )
    limit_bytes, peaks = found.summary.limits.device_bytes, peaks_of(found.summary.study)
    if not recorded:
        tables = [block for side in found.sides for block in _phases(side, peaks)]
        no_curve = [Line(text=NO_CURVE, tone="dim")] if found.sides else []
        return [*tables, *no_curve, *_predicted_curves(expected, limit_bytes, span_s)]
    plots = tuple((_curve(side, timeline, limit_bytes, span_s, peaks),) for side, timeline in recorded)
    shown = {side.run.number for side, _ in recorded}
    blank = [side.run.number for side in found.sides if side.run.number not in shown]
    return [
        Columns(columns=plots),
        *_predicted_curves(expected, limit_bytes, span_s),
        *(Line(text=f"Nothing was sampled of trial {number}.", tone="dim") for number in blank),
        *(Line(text=text, tone="dim") for text in _reasons_of_all(recorded)),
    ]


def _predicted_curves(
    expected: Sequence[tuple[Side, PredictedStep]], limit_bytes: int, span_s: float
) -> list[WebBlock]:
    """What the models expect of each side's step, on the axis of the measured curves."""
    if not expected:
        return []
    plots = tuple(
        timeline_plot(
            f"predicted-{side.run.number}",
            f"{side.title}: predicted, not measured",
            one.course,
            0,
            limit_bytes=limit_bytes,
            span_s=span_s,
            memory=one.memory,
            caption=PREDICTED_CAPTION,
        )
        for side, one in expected
    )
    _, first = expected[0]
    note = memory_note(first.memory, first.course.device)
    return [Columns(columns=tuple((plot,) for plot in plots)), Line(text=note, tone="dim")]


def memory_note(memory: MemoryPrediction, device: DeviceKind) -> str:
    """What predicted memory counts, and how far off it may be."""
    counted = _ON_CPU if device == "cpu" else _ON_CUDA
    return f"{counted} Nine of ten predicted peaks are within {100 * memory.error_share:.0f} %."


def _phases(side: Side, peaks: Peaks | None) -> list[WebBlock]:
    """The figures of each phase, where a run has them without a curve."""
    analysis = side.run.result.analysis if side.run.result else None
    if analysis is None:
        return []
    reasons = [Line(text=text, tone="dim") for text in reason_sentences(analysis.reasons)]
    table = phase_table(analysis, side.predicted.memory if side.predicted else None, peaks)
    return [Heading(text=f"{side.title}: trial {side.run.number}"), table, *reasons]


def _reasons_of_all(recorded: Sequence[tuple[Side, Timeline]]) -> list[str]:
    """Why something was not recorded: of all sides once, of one under its name."""
    told = [(side.title, reason_sentences(timeline.reasons)) for side, timeline in recorded]
    common = [text for text in told[0][1] if all(text in texts for _, texts in told)]
    return common + [f"{title}: {text}" for title, texts in told for text in texts if text not in common]


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


def _curve(side: Side, timeline: Timeline, limit_bytes: int, span_s: float, peaks: Peaks | None) -> Plot:
    """One side's step, with the memory that was predicted for it."""
    return timeline_plot(
        f"curve-{side.run.number}",
        f"{side.title}: trial {side.run.number}",
        timeline,
        _middle_step(timeline).step,
        limit_bytes=limit_bytes,
        span_s=span_s,
        memory=side.predicted.memory if side.predicted else None,
        peaks=peaks,
    )


def _bars(found: StudyReport) -> list[WebBlock]:
    """Measured phases by run; under those of winner and baseline the predicted ones."""
    predicted = {side.run.number: side.predicted for side in found.sides if side.predicted}
    rows: list[tuple[str, PhaseTimes | None]] = []
    for name, run in bar_runs(found.summary):
        rows.append((name, run.result.phases if run.result else None))
        if run.number in predicted:
            rows.append((f"{name}, predicted", predicted[run.number].phases))
    plot = phase_bars(rows)
    if plot is None:
        return []
    sources = dict.fromkeys(one.rates for one in predicted.values())
    return [plot, *(Line(text=_SOURCE.format(rates=rates), tone="dim") for rates in sources)]


def _parts(sides: tuple[Side, ...]) -> list[WebBlock]:
    """What DeepSpeed lets be seen inside the phases, each side in a column."""
    columns = tuple(
        (Heading(text=f"{side.title}: {_PARTS}"), parts_table(analysis))
        for side in sides
        if side.run.result and (analysis := side.run.result.analysis) and analysis.parts
    )
    return [Columns(columns=columns)] if columns else []


def _memory(sides: tuple[Side, ...]) -> list[WebBlock]:
    rows = [
        (f"{side.title.lower()}: trial {side.run.number}", side.run.result.memory)
        for side in sides
        if side.run.result and not is_foretold(side.run)
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
