"""A profile as a web page: curves of a step, measured and predicted, phases, copies, what bounds it.

Covered: sections and plots. Not covered: the blocks shared with the terminal (`report.profile_page`).
"""

from __future__ import annotations

from collections.abc import Iterable

from offtune import __version__
from offtune.bounds import bound
from offtune.phase_analysis import StepAnalysis
from offtune.profile import Profiled
from offtune.report.bounds_page import step_sentences
from offtune.report.inside import NO_CURVE, PREDICTED_CAPTION, memory_note
from offtune.report.page import Line
from offtune.report.predicted_step import predicted_course
from offtune.report.profile_page import (
    bound_blocks,
    copy_blocks,
    head_blocks,
    phase_blocks,
    predicted_blocks,
    traffic_blocks,
)
from offtune.report.sections import Report, Section, Tile, WebBlock
from offtune.report.step_plots import timeline_plot
from offtune.timeline import Timeline
from offtune.units import format_bytes, format_rate, format_seconds


def profile_report(found: Profiled) -> Report:
    """The whole page of a run that left an analysis. Raises ValueError for one that did not."""
    analysis = found.result.analysis
    if analysis is None:
        raise ValueError("a run without analysis has no page")
    sections: tuple[tuple[str, str, Iterable[WebBlock]], ...] = (
        ("run", "The run", head_blocks(found)[1:]),
        ("inside", "Inside a step", _curves(found)),
        ("phases", "Phase by phase", phase_blocks(found, analysis)),
        ("bounds", "What bounds it", bound_blocks(found, analysis)),
        ("traffic", "Bytes by formula and as measured", traffic_blocks(found, analysis)),
        ("copies", "Copies between host and device", copy_blocks(found)),
        ("predicted", "Predicted beside measured", predicted_blocks(found, analysis)),
    )
    return Report(
        kicker="offtune profile",
        title=found.base.path,
        subtitle=f"{found.config.workload.model_name}, {analysis.steps} measured steps",
        verdict=" ".join([_longest(analysis), *step_sentences(bound(analysis, found.peaks))]),
        tiles=_tiles(found, analysis),
        sections=tuple(
            Section(anchor=anchor, title=title, blocks=tuple(blocks)) for anchor, title, blocks in sections
        ),
        footer=(f"offtune {__version__}",),
    )


def _longest(analysis: StepAnalysis) -> str:
    longest = max(analysis.phases, key=lambda phase: phase.seconds)
    share = f"{100 * longest.share:.0f} % of the {format_seconds(analysis.step_s)} step"
    return f"{longest.name.capitalize()} takes {share}."


def _tiles(found: Profiled, analysis: StepAnalysis) -> tuple[Tile, ...]:
    used = found.result.memory.used_device_bytes
    share = used / found.config.limit_bytes if used is not None and found.has_budget else None
    return (
        Tile(label="Throughput", value=format_rate(found.result.samples_per_s)),
        Tile(label="Step", value=format_seconds(analysis.step_s)),
        Tile(label="Used memory", value=format_bytes(used), share=share),
    )


def _curves(found: Profiled) -> list[WebBlock]:
    """One measured step of the first rank, and the predicted one on the same axis."""
    timeline = next((one for one in found.timelines if one.steps()), None)
    if timeline is None:
        return [Line(text=NO_CURVE, tone="dim")]
    steps = sorted(timeline.steps(), key=lambda mark: mark.length_s)
    middle = steps[len(steps) // 2]
    predicted = expected_course(found)
    memory = found.expected.prediction.memory if found.expected.prediction else None
    span_s = max(middle.length_s, *(mark.length_s for mark in predicted.steps()) if predicted else (0.0,))
    limit = found.config.limit_bytes if found.has_budget else None
    title = f"Measured: step {middle.step} of rank {timeline.rank}, of median length"
    blocks: list[WebBlock] = [
        timeline_plot(
            "measured", title, timeline, middle.step, limit_bytes=limit, span_s=span_s, memory=memory
        )
    ]
    if predicted is None or memory is None:
        return [*blocks, Line(text=f"No prediction beside it: {found.expected.reason}.", tone="dim")]
    title = "Predicted, not measured"
    return [
        *blocks,
        timeline_plot(
            "predicted",
            title,
            predicted,
            0,
            limit_bytes=limit,
            span_s=span_s,
            memory=memory,
            caption=PREDICTED_CAPTION,
        ),
        Line(text=memory_note(memory, predicted.device), tone="dim"),
    ]


def expected_course(found: Profiled) -> Timeline | None:
    """The predicted step in the form of a recording, labelled as predicted; None without a prediction."""
    work, prediction = found.expected.work, found.expected.prediction
    if work is None or prediction is None:
        return None
    return predicted_course(work, prediction.time, found.config.device)
