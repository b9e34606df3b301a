"""Bars about single runs: the time of a step by phase, device memory by component.

Covered: what every trial records, and which runs have a bar. Not covered: curves (`report.step_plots`).
"""

from __future__ import annotations

from collections.abc import Sequence

from offtune.records import Run
from offtune.report.page import Column, Table
from offtune.report.plot_style import (
    BAR_SIGN,
    BLUE,
    GB,
    GRAY,
    PHASE_COLORS,
    PURPLE,
    bar_height_px,
    bar_layout,
    key,
)
from offtune.report.sections import Plot
from offtune.report.summary import Summary
from offtune.timeline import OTHER, PHASES
from offtune.trial import MemoryPeaks, PhaseTimes
from offtune.units import format_bytes, format_seconds

_BASELINES_SHOWN = 6


def phase_bars(rows: Sequence[tuple[str, PhaseTimes | None]]) -> Plot | None:
    """Where the time of a step goes, one bar a run; None where no run knows."""
    known = phase_rows(rows)
    if not known:
        return None
    bars = list(reversed(known))
    texts = [f"{name}: {format_seconds(sum(seconds.values()))}" for name, seconds in bars]
    data = [
        {
            "type": "bar",
            "orientation": "h",
            "name": phase,
            "y": [name for name, _ in bars],
            "x": [1000 * seconds[phase] for _, seconds in bars],
            "marker": {"color": PHASE_COLORS[phase], "line": {"width": 0}},
            "hovertemplate": f"{phase}: %{{x:.3g}} ms<extra></extra>",
        }
        for phase in (*PHASES, OTHER)
    ]
    first, seconds = known[0]
    largest = max(seconds, key=lambda phase: seconds[phase])
    share = 100 * seconds[largest] / sum(seconds.values())
    columns = (Column(title="run"), *(Column(title=phase, right=True) for phase in (*PHASES, OTHER)))
    return Plot(
        name="phases",
        title="Where the time of a step goes",
        alt=f"{len(known)} stacked bars. In {first} the longest phase is {largest}, {share:.0f} %.",
        data=data,
        layout=bar_layout([name for name, _ in bars], texts, "ms per optimizer step"),
        height_px=bar_height_px(len(known)),
        legend=tuple(key(BAR_SIGN, PHASE_COLORS[phase], phase) for phase in (*PHASES, OTHER)),
        table=Table(
            columns=columns,
            rows=tuple((name, *(format_seconds(one[p]) for p in (*PHASES, OTHER))) for name, one in known),
        ),
    )


def phase_rows(rows: Sequence[tuple[str, PhaseTimes | None]]) -> list[tuple[str, dict[str, float]]]:
    """Seconds by phase of the runs that know them."""
    known = [(name, _seconds(times)) for name, times in rows if times is not None]
    return [(name, seconds) for name, seconds in known if sum(seconds.values()) > 0]


def memory_bars(rows: Sequence[tuple[str, MemoryPeaks]]) -> Plot | None:
    """Device memory at its peak by component; None where no run knows more than the total."""
    known = [(name, parts) for name, memory in rows if (parts := _components(memory))]
    if not known:
        return None
    names = ("allocated", "reserved, not allocated", "outside the allocator")
    colors = (BLUE, PURPLE, GRAY)
    bars = list(reversed(known))
    texts = [f"{name}: {format_bytes(sum(parts.values()))}" for name, parts in bars]
    data = [
        {
            "type": "bar",
            "orientation": "h",
            "name": part,
            "y": [name for name, _ in bars],
            "x": [parts[part] / GB for _, parts in bars],
            "marker": {"color": color},
            "hovertemplate": f"{part}: %{{x:.3g}} GB<extra></extra>",
        }
        for part, color in zip(names, colors, strict=True)
    ]
    columns = (Column(title="run"), *(Column(title=part, right=True) for part in names))
    first, parts = known[0]
    return Plot(
        name="components",
        title="Device memory at its peak, by component",
        alt=f"Stacked bars. {first}: " + ", ".join(f"{p} {format_bytes(parts[p])}" for p in names) + ".",
        data=data,
        layout=bar_layout([name for name, _ in bars], texts, "GB"),
        height_px=bar_height_px(len(known)),
        legend=tuple(key(BAR_SIGN, color, part) for part, color in zip(names, colors, strict=True)),
        table=Table(
            columns=columns,
            rows=tuple((name, *(format_bytes(one[part]) for part in names)) for name, one in known),
        ),
        caption="Outside the allocator: CUDA context, NCCL and what the driver adds.",
    )


def _components(memory: MemoryPeaks) -> dict[str, int] | None:
    used, reserved, allocated = memory.used_device_bytes, memory.reserved_bytes, memory.allocated_bytes
    if used is None or reserved is None or allocated is None:
        return None
    return {
        "allocated": allocated,
        "reserved, not allocated": max(0, reserved - allocated),
        "outside the allocator": max(0, used - reserved),
    }


def _seconds(times: PhaseTimes) -> dict[str, float]:
    values = (times.forward_s, times.backward_s, times.update_s, times.other_s)
    return {name: max(0.0, value or 0.0) for name, value in zip((*PHASES, OTHER), values, strict=True)}


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
