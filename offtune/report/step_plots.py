"""A plot of one optimizer step: memory, link, storage and utilisation over time, the phases shaded.

Covered: timelines of any source, recorded or predicted, and memory as predicted for the same step. Not
covered: analysis (`phase_analysis`, `bounds`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from typing import Any

from offtune.bounds import Peaks
from offtune.memory_model import MemoryPrediction
from offtune.phase_analysis import StepAnalysis, analyse
from offtune.report.page import Table
from offtune.report.phase_table import phase_table, rate_per_s
from offtune.report.plot_style import (
    BLUE,
    GB,
    GRAY,
    GREEN,
    LINE_SIGNS,
    ORANGE,
    PURPLE,
    RED,
    SHADES,
    axis,
    key,
    layout,
)
from offtune.report.predicted_memory import predicted_peaks, predicted_series
from offtune.report.sections import Key, Plot
from offtune.timeline import CORE_GROUPS, LEVELS, Mark, Series, Timeline, cores_key
from offtune.units import format_bytes, format_seconds

Style = tuple[str, str, float, str]
Panel = tuple[str, list[tuple[Series, Style]]]
_MEMORY, _BUSY = "memory, GB", "busy, %"
# (name, colour, factor, dash) of each series' line, by panel from the top; an "area" is told from a line
# without colour, too.
_PANELS: dict[str, dict[str, Style]] = {
    _MEMORY: {
        "device_used_bytes": ("device memory", BLUE, 1 / GB, "solid"),
        "reserved_bytes": ("reserved", PURPLE, 1 / GB, "dash"),
        "allocated_bytes": ("allocated", GRAY, 1 / GB, "dot"),
    },
    "link, GB/s": {
        "d2h_bytes_per_s": ("D2H", ORANGE, 1 / GB, "area"),
        "h2d_bytes_per_s": ("H2D", GREEN, 1 / GB, "solid"),
    },
    "NVMe, GB/s": {
        "nvme_write_bytes_per_s": ("NVMe write", ORANGE, 1 / GB, "area"),
        "nvme_read_bytes_per_s": ("NVMe read", GREEN, 1 / GB, "solid"),
    },
    _BUSY: {
        "gpu_busy_share": ("GPU", BLUE, 100.0, "solid"),
        "cpu_busy_share": ("CPU", GRAY, 100.0, "dot"),
    },
}
# The same for predicted memory, in the panel of memory.
_PREDICTED: dict[str, Style] = {
    "device_used_bytes": ("device memory, predicted", ORANGE, 1 / GB, "dash"),
    "allocated_bytes": ("allocated, predicted", ORANGE, 1 / GB, "dot"),
}
SERIES_NAMES: dict[str, str] = {
    **{series_key: style[0] for styles in _PANELS.values() for series_key, style in styles.items()},
    "gpu_busy_share": "GPU utilisation",
    "cpu_busy_share": "CPU utilisation",
    CORE_GROUPS: "utilisation of groups of cores",
    "host_resident_bytes": "host memory",
    "pinned_bytes": "pinned memory",
    "nvme_footprint_bytes": "NVMe footprint",
    "host_memory_bytes_per_s": "host memory bandwidth",
}
# Of the first groups of cores; more lines in one panel could not be told apart, the table has them all.
_CORE_COLORS = (ORANGE, GREEN, PURPLE, RED)
_PANEL_PX = 140
_FRAME_PX = 60
_WIDE = 0.25  # of the step, for the name of a phase to stand over its middle
_LATE = 0.85  # of the step, from where on a name has no room to run on
_PANEL_GAP = 0.06  # of the plot's height
_NAME = 0.2  # of the width, what a phase's name takes on a phone
_ROW_PX = 14
_BEFORE_ANCHOR = {"left": 0.0, "center": 0.5, "right": 1.0}  # of a name, what stands before its anchor
_ON_TOP: dict[str, Any] = {"y": 1, "yref": "paper", "yanchor": "bottom", "showarrow": False}


def timeline_plot(
    name: str,
    title: str,
    timeline: Timeline,
    step: int,
    *,
    limit_bytes: int | None = None,
    span_s: float | None = None,
    memory: MemoryPrediction | None = None,
    peaks: Peaks | None = None,
    caption: str = "",
) -> Plot:
    """One step on an axis of `span_s`, with the predicted `memory`. Raises KeyError for an unmarked step."""
    one = timeline.of_step(step)
    panels = _panels(one, memory)
    limit = _limit_line(panels, limit_bytes)
    end_s = span_s or one.steps()[0].end_s
    names = _phase_names(one, end_s)
    names_px = _ROW_PX * len({name["yshift"] for name in names})
    analysis = analyse(timeline, [step])
    data, axes = [], {}
    for number, (label, lines) in enumerate(panels, start=1):
        top = 1 - (number - 1) / len(panels)
        bottom = 1 - number / len(panels) + (_PANEL_GAP if number < len(panels) else 0)
        axes[_axis_name("yaxis", number)] = axis(label, domain=[bottom, top], rangemode="tozero")
        data += [_line(series, number, style) for series, style in lines]
    return Plot(
        name=name,
        title=title,
        alt=_timeline_alt(title, analysis, memory),
        data=data,
        layout=layout(
            **axes,
            xaxis=axis("seconds of the step", range=[0, end_s], anchor=_axis_name("y", len(panels))),
            shapes=[*_shading(one), *limit],
            annotations=names,
            hovermode="x",
            margin={"l": 56, "r": 12, "t": 10 + names_px, "b": 48},
        ),
        height_px=_FRAME_PX + names_px + _PANEL_PX * len(panels),
        legend=(*_legend(panels), *(key(LINE_SIGNS["solid"], RED, "limit") for _ in limit)),
        table=phase_table(analysis, memory, peaks) if analysis else Table(columns=(), rows=()),
        caption=caption or f"Step {step}. Recorded by: {timeline.source or 'unknown'}.",
    )


def _legend(panels: Iterable[Panel]) -> Iterator[Key]:
    for _, lines in panels:
        for _, (text, color, _, dash) in lines:
            yield key(LINE_SIGNS[dash], color, text)


def _panels(one: Timeline, memory: MemoryPrediction | None) -> list[Panel]:
    """What is drawn of a step, by panel; panels without anything are left out."""
    expected = () if memory is None else predicted_series(memory, one.device, one.marks)
    found = []
    for label, styles in _panel_styles(one).items():
        lines = [(series, style) for key, style in styles.items() if (series := _worth(one, key))]
        if label == _MEMORY:
            lines += [(series, _PREDICTED[series.key]) for series in expected]
        if lines:
            found.append((label, lines))
    return found


def _panel_styles(one: Timeline) -> dict[str, dict[str, Style]]:
    cores = {
        cores_key(name): (f"cores of {name}", color, 100.0, "dash")
        for name, color in zip(one.core_groups, _CORE_COLORS, strict=False)
    }
    return {**_PANELS, _BUSY: {**_PANELS[_BUSY], **cores}}


def _worth(timeline: Timeline, key: str) -> Series | None:
    """A series that was recorded and is not flat zero."""
    series = timeline.find(key)
    return series if series is not None and any(series.values) else None


def _axis_name(axis_name: str, number: int) -> str:
    return axis_name if number == 1 else f"{axis_name}{number}"


def _line(series: Series, panel: int, style: Style) -> dict[str, Any]:
    name, color, factor, dash = style
    level = series.key in LEVELS
    values = series.values if level else _quiet_start(series.values)
    return {
        "type": "scatter",
        "mode": "lines",
        "name": name,
        "x": [round(time, 6) for time in series.times_s],
        "y": [round(value * factor, 6) for value in values],
        "yaxis": _axis_name("y", panel),
        # A rate or a share is a mean since the sample before: drawn as a step that ends at its sample.
        "line": {
            "color": color,
            "width": 0.8 if dash == "area" else 1.6,
            "dash": "solid" if dash == "area" else dash,
            "shape": "linear" if level else "vh",
        },
        "fill": "tozeroy" if dash == "area" else "none",
        "fillcolor": "@area",
        "hovertemplate": f"{name}: %{{y:.3g}}<extra></extra>",
    }


def _quiet_start(values: Sequence[float]) -> Sequence[float]:
    """Without the jump from the sample before the step, which would be drawn on its edge."""
    return (values[1], *values[1:]) if len(values) > 1 else values


def _shading(timeline: Timeline) -> list[dict[str, Any]]:
    return [
        {
            "type": "rect",
            "layer": "below",
            "x0": mark.start_s,
            "x1": mark.end_s,
            "yref": "paper",
            "y0": 0,
            "y1": 1,
            "line": {"width": 0},
            "fillcolor": SHADES[mark.name],
        }
        for mark in timeline.marks
        if mark.name in SHADES
    ]


def _limit_line(panels: Sequence[Panel], limit_bytes: int | None) -> list[dict[str, Any]]:
    """The budget in the memory panel, where the memory comes near it: it must not flatten the curve."""
    lines = [lines for label, lines in panels if label == _MEMORY]
    most = max((value for series, _ in chain(*lines) for value in series.values), default=0.0)
    if limit_bytes is None or most < 0.5 * limit_bytes:
        return []
    height = limit_bytes / GB
    return [{"type": "line", "xref": "paper", "x0": 0, "x1": 1, "y0": height, "y1": height,
             "line": {"color": RED, "width": 1.5}}]  # fmt: skip


def _phase_names(timeline: Timeline, end_s: float) -> list[dict[str, Any]]:
    """The name over each phase, once; a narrow one's starts with it or, near the edge, ends with it.

    A name that would run into another stands a row higher.
    """
    widest: dict[str, Mark] = {}
    for mark in timeline.marks:
        before = widest.get(mark.name)
        if mark.name in SHADES and (before is None or mark.length_s > before.length_s):
            widest[mark.name] = mark
    names: list[dict[str, Any]] = []
    taken_s: list[float] = []  # where the last name of each row ends, from the lowest row
    for mark in sorted(widest.values(), key=lambda mark: mark.start_s):
        place = _name_place(mark, end_s)
        begin_s = place["x"] - _BEFORE_ANCHOR[place["xanchor"]] * _NAME * end_s
        row = next((row for row, taken in enumerate(taken_s) if taken <= begin_s), len(taken_s))
        taken_s[row : row + 1] = [begin_s + _NAME * end_s]
        names.append({"text": mark.name, **place, "yshift": _ROW_PX * row, **_ON_TOP})
    return names


def _name_place(mark: Mark, end_s: float) -> dict[str, Any]:
    if mark.length_s > _WIDE * end_s:
        return {"x": (mark.start_s + mark.end_s) / 2, "xanchor": "center"}
    if mark.start_s > _LATE * end_s:
        return {"x": mark.end_s, "xanchor": "right"}
    return {"x": mark.start_s, "xanchor": "left"}


def _timeline_alt(title: str, analysis: StepAnalysis | None, memory: MemoryPrediction | None) -> str:
    if analysis is None:
        return title
    expected = predicted_peaks(memory, analysis.device)["device_used_bytes"] if memory else {}
    parts: Iterable[str] = (
        f"{phase.name} {format_seconds(phase.seconds)}, memory peak "
        f"{format_bytes(phase.peak('device_used_bytes'))}{_predicted_text(expected.get(phase.name))}, "
        f"D2H {rate_per_s(phase.mean('d2h_bytes_per_s'))}, H2D {rate_per_s(phase.mean('h2d_bytes_per_s'))}"
        for phase in analysis.phases
    )
    return f"{title}: curves over one step. " + "; ".join(parts) + "."


def _predicted_text(size: int | None) -> str:
    return "" if size is None else f" (predicted {format_bytes(size)})"
