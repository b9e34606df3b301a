"""The section about the inside of a step: curves of winner and baseline, or why there are none.

Covered: which plots are shown and what is said where nothing was recorded. Not covered: the plots
(`report.step_plots`).
"""

from __future__ import annotations

from offtune.records import Run
from offtune.report.bar_plots import memory_bars, phase_bars
from offtune.report.page import Facts, Line
from offtune.report.sections import Columns, Plot, Section, WebBlock
from offtune.report.step_plots import timeline_plot
from offtune.report.study_report import Side, StudyReport
from offtune.report.summary import Summary
from offtune.units import format_bytes

NO_CURVE = (
    "There is no curve over time: these trials recorded phase times and peaks, not samples. "
    "offtune profile DS_CONFIG measures one run closely."
)
_BASELINES_SHOWN = 6


def inside_section(found: StudyReport) -> Section:
    """Time, memory and traffic within one optimizer step."""
    summary = found.summary
    blocks: list[WebBlock] = [*_curves(found), *_bars(summary), *_memory(found.sides)]
    return Section(anchor="inside", title="Inside a step", blocks=tuple(blocks))


def _curves(found: StudyReport) -> list[WebBlock]:
    plots = [plot for side in found.sides if (plot := _curve(side, found.summary.limits.device_bytes))]
    missing = [side for side in found.sides if side.timeline is None]
    notes: list[WebBlock] = []
    if missing and plots:
        notes = [
            Line(text=f"Nothing was sampled of trial {side.run.number}.", tone="dim") for side in missing
        ]
    elif missing:
        notes = [Line(text=NO_CURVE, tone="dim")]
    return [*([Columns(columns=tuple((plot,) for plot in plots))] if plots else []), *notes]


def _curve(side: Side, limit_bytes: int) -> Plot | None:
    steps = side.timeline.steps() if side.timeline else []
    if side.timeline is None or not steps:
        return None
    # The one in the middle: not the first, which still warms up, nor the last, which the end may cut.
    step = steps[len(steps) // 2].step
    title = f"{side.title}: trial {side.run.number}"
    name = f"curve-{side.run.number}"
    return timeline_plot(name, title, side.timeline, step, limit_bytes=limit_bytes)


def _bars(summary: Summary) -> list[WebBlock]:
    rows = [(_name(run, summary), run.result.phases) for run in _bar_runs(summary) if run.result]
    plot = phase_bars([(name, phases) for name, phases in rows if phases is not None])
    return [plot] if plot else []


def _bar_runs(summary: Summary) -> list[Run]:
    """The winner, then the baselines that trained."""
    best = [summary.best] if summary.best else []
    numbers = {run.number for run in best}
    baselines = [
        run
        for run in summary.runs
        if run.origin == "baseline" and run.number not in numbers and run.result and run.result.samples_per_s
    ]
    return [*best, *baselines[:_BASELINES_SHOWN]]


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
