"""The report on somebody else's trace: one iteration as curves, every phase in figures, what bounds it.

Covered: Timelines of any number of devices of one run. Not covered: reading them (`nvml_trace.py`).
"""

from __future__ import annotations

from collections.abc import Sequence

from offtune import __version__
from offtune.bounds import Peaks, bound
from offtune.errors import UsageError
from offtune.nvml_trace import steady_steps
from offtune.phase_analysis import StepAnalysis, analyse, combined
from offtune.report.bounds_page import AT_BEST, bounds_blocks, step_sentences
from offtune.report.inside import reason_sentences
from offtune.report.page import Block, Heading, Line, Page
from offtune.report.phase_table import phase_table
from offtune.report.sections import Report, Section, Tile
from offtune.report.step_plots import timeline_plot
from offtune.timeline import Timeline
from offtune.units import format_bytes, format_seconds

_PLACEMENT = (
    "The trace has no phase marks, only how long each phase took: time that belongs to no phase is placed in "
    "equal parts before forward, before backward and before the update. That is good to about one poll."
)


def trace_report(name: str, timelines: Sequence[Timeline], peaks: Peaks | None = None) -> Report:
    """The whole report. Raises UsageError where no sample lies within the iterations."""
    found = trace_analysis(timelines)
    first = timelines[0]
    steps = steady_steps(first)
    plot = timeline_plot("curve", f"Iteration {steps[0]} of device {first.rank}", first, steps[0])
    return Report(
        kicker="offtune trace report",
        title=name,
        subtitle=_what(found, steps),
        verdict=" ".join([_verdict(found), *step_sentences(bound(found, peaks))[:1]]),
        tiles=_tiles(found),
        sections=(
            Section(anchor="inside", title="Inside an iteration", lead=_PLACEMENT, blocks=(plot,)),
            Section(
                anchor="phases",
                title="Phase by phase",
                blocks=(phase_table(found, peaks=peaks), *_reasons(found)),
            ),
            Section(
                anchor="bounds",
                title="What bounds it",
                lead=AT_BEST,
                blocks=tuple(bounds_blocks(bound(found, peaks))),
            ),
        ),
        footer=(f"offtune {__version__}",),
    )


def trace_page(name: str, timelines: Sequence[Timeline], peaks: Peaks | None = None) -> Page:
    """The same for a terminal, without the curves."""
    found = trace_analysis(timelines)
    blocks: list[Block] = [
        Heading(text=name),
        Line(text=_what(found, steady_steps(timelines[0])), tone="dim"),
        phase_table(found, peaks=peaks),
        Heading(text="What bounds it"),
        *bounds_blocks(bound(found, peaks)),
    ]
    return tuple(blocks)


def trace_analysis(timelines: Sequence[Timeline]) -> StepAnalysis:
    """The phases of the steady iterations over all devices. Raises UsageError where there is nothing."""
    single = [one for timeline in timelines if (one := analyse(timeline, steady_steps(timeline)))]
    found = combined(single)
    if found is None or not any(phase.figures for phase in found.phases):
        raise UsageError(
            "The trace has no sample within the iterations.", "Check that both files are of the same run."
        )
    return found


def _reasons(found: StepAnalysis) -> list[Line]:
    return [Line(text=text, tone="dim") for text in reason_sentences(found.reasons)]


def _what(found: StepAnalysis, steps: Sequence[int]) -> str:
    devices = "1 device" if found.devices == 1 else f"{found.devices} devices"
    return f"{found.source}, {devices}, means over iterations {steps[0]} to {steps[-1]}"


def _verdict(found: StepAnalysis) -> str:
    longest = max(found.phases, key=lambda phase: phase.seconds)
    share = f"{100 * longest.share:.0f} % of the {format_seconds(found.step_s)} step"
    return f"{longest.name.capitalize()} takes {share}."


def _tiles(found: StepAnalysis) -> tuple[Tile, ...]:
    busy = [(phase.mean("gpu_busy_share"), phase.seconds) for phase in found.phases]
    known = [(share, seconds) for share, seconds in busy if share is not None]
    tiles = [
        Tile(label="Iteration", value=format_seconds(found.step_s)),
        Tile(label="Memory peak", value=format_bytes(found.peak("device_used_bytes")), note="by the driver"),
    ]
    if known:
        mean = sum(share * seconds for share, seconds in known) / sum(seconds for _, seconds in known)
        tiles.append(Tile(label="GPU busy", value=f"{100 * mean:.0f} %", share=mean))
    d2h, h2d = found.peak("d2h_bytes_per_s"), found.peak("h2d_bytes_per_s")
    if d2h is not None and h2d is not None:
        note = f"H2D; D2H {format_bytes(d2h)}/s"
        tiles.append(Tile(label="Highest link rate sampled", value=f"{format_bytes(h2d)}/s", note=note))
    return tuple(tiles)
