"""Plots about a whole study: throughput against memory, how the search went, which knobs matter.

Covered: each plot with a sentence that says what is to be seen and a table of its figures. Not covered: what
happens inside a step (`report.step_plots`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from offtune.effects import KnobEffect, considered
from offtune.knobs import describe
from offtune.records import Run
from offtune.report.more_memory import memory_steps
from offtune.report.page import Column, Table
from offtune.report.plot_style import (
    BLUE,
    GB,
    GRAY,
    GREEN,
    LINE_SIGNS,
    MARKERS,
    RED,
    SIGNS,
    axis,
    bar_height_px,
    bar_layout,
    hover_text,
    key,
    kind_of,
    layout,
)
from offtune.report.sections import Key, Plot
from offtune.report.summary import Summary
from offtune.report.words import rate_text, status_text
from offtune.units import format_bytes, format_rate

# Where everything measured lies below this share of the limit, the limit is named, not drawn to scale.
_LIMIT_IN_VIEW = 0.45
_FRONT = "what more memory buys"
_FRONT_CAPTION = "The line joins trials that are faster than those with less memory by more than the noise."


def frontier_plot(summary: Summary) -> Plot | None:
    """Throughput against used memory, with the limit and what more memory buys; None without such a run."""
    shown = [run for run in summary.runs if _speed(run) and _used(run) and run.reuse_of is None]
    if not shown:
        return None
    front = _front_line(summary)
    return Plot(
        name="frontier",
        title="Every trial that trained",
        alt=_frontier_alt(summary, shown),
        data=[*front, *_run_traces(shown, summary, lambda run: (_used(run) or 0) / GB)],
        layout=_frontier_layout(summary, shown),
        height_px=400,
        legend=_legend(shown, summary, [key(LINE_SIGNS["solid"], GRAY, _FRONT)] if front else []),
        table=_runs_table(shown, summary),
        caption=_FRONT_CAPTION if front else "",
    )


def progress_plot(summary: Summary) -> Plot | None:
    """Throughput trial by trial and the best so far; trials without throughput on the ground line."""
    shown = [run for run in summary.runs if run.status is not None]
    if not shown:
        return None
    return Plot(
        name="progress",
        title="Throughput, trial by trial",
        alt=_progress_alt(summary, shown),
        data=[_best_line(summary, shown), *_run_traces(shown, summary, lambda run: run.number)],
        layout=layout(
            xaxis=axis("trial", dtick=_tick(len(shown)), range=_all_numbers(shown)),
            yaxis=axis("samples/s", rangemode="tozero"),
        ),
        height_px=320,
        legend=_legend(shown, summary, [key(LINE_SIGNS["solid"], GREEN, "best so far")]),
        table=_runs_table(shown, summary),
        caption="Crosses at zero have no throughput: they failed. The line is the best so far that fits.",
    )


def importance_plot(effects: Sequence[KnobEffect], trials: int) -> Plot | None:
    """The knobs by importance; None where it cannot be said."""
    if not effects:
        return None
    rows = tuple(
        (one.name, f"{100 * one.importance:.0f} %", one.direction, str(one.trials)) for one in effects
    )
    columns = (
        Column(title="knob"),
        Column(title="importance", right=True),
        Column(title="effect", stretch=True),
        Column(title="trials", right=True),
    )
    bars = list(reversed(effects))
    texts = [f"{one.name}: {100 * one.importance:.0f} %\n{one.direction}" for one in bars]
    data = [
        {
            "type": "bar",
            "orientation": "h",
            "x": [100 * one.importance for one in bars],
            "y": [one.name for one in bars],
            "marker": {"color": BLUE},
            "hoverinfo": "skip",
        }
    ]
    top = effects[0]
    return Plot(
        name="importance",
        title="Importance of each knob, and what faster trials had",
        alt=f"Bars by knob. {top.name} matters most, {100 * top.importance:.0f} %: {top.direction}.",
        data=data,
        layout=bar_layout([one.name for one in bars], texts, "share of the importance, %"),
        height_px=bar_height_px(len(effects)),
        table=Table(columns=columns, rows=rows),
        caption=f"PED-ANOVA over {considered(trials)}. The search looks where it is fast, "
        "so this is about the trials seen, not about the whole space.",
    )


def _speed(run: Run) -> float | None:
    return run.result.samples_per_s if run.result else None


def _used(run: Run) -> int | None:
    return run.result.memory.used_device_bytes if run.result else None


def _run_traces(runs: Sequence[Run], summary: Summary, x_of: Any) -> list[dict[str, Any]]:
    """One trace a kind of run, so that each has its own marker and its line in the legend."""
    best = summary.best
    kinds = {kind: [run for run in runs if kind_of(run, best) == kind] for kind in MARKERS}
    return [
        {
            "type": "scatter",
            "mode": "markers",
            "name": kind,
            "x": [x_of(run) for run in found],
            "y": [_speed(run) or 0.0 for run in found],
            "marker": MARKERS[kind],
            "text": [hover_text(run, run.label or describe(run.point, {})) for run in found],
            "hoverinfo": "text",
            "cliponaxis": False,
        }
        for kind, found in kinds.items()
        if found
    ]


def _legend(runs: Sequence[Run], summary: Summary, lines: Sequence[Key]) -> tuple[Key, ...]:
    kinds = {kind_of(run, summary.best) for run in runs}
    marks = [key(SIGNS[kind], MARKERS[kind]["color"], kind) for kind in MARKERS if kind in kinds]
    return (*marks, *lines)


def _front_line(summary: Summary) -> list[dict[str, Any]]:
    front = [step.run for step in memory_steps(summary)]
    if len(front) < 2:
        return []
    return [
        {
            "type": "scatter",
            "mode": "lines",
            "name": "front",
            "x": [(_used(run) or 0) / GB for run in front],
            "y": [_speed(run) for run in front],
            "line": {"color": GRAY, "width": 1.5, "shape": "hv"},
            "hoverinfo": "skip",
        }
    ]


def _frontier_layout(summary: Summary, shown: Sequence[Run]) -> dict[str, Any]:
    limit = summary.limits.device_bytes / GB
    used = [(_used(run) or 0) / GB for run in shown]
    low, high = min(used), max(used)
    in_view = high >= _LIMIT_IN_VIEW * limit
    right = max(high, limit if in_view else high)
    pad = 0.06 * max(right - low, 0.05 * right)
    note = {
        "text": f"{'limit' if in_view else 'limit, far to the right:'} {format_bytes(limit * GB)}",
        "xref": "x" if in_view else "paper",
        "yref": "paper",
        "x": limit if in_view else 1,
        "y": 0.02,
        "yanchor": "bottom",
        "xanchor": "right",
        "xshift": -4,
        "showarrow": False,
        "font": {"color": RED},
    }
    line = {"type": "line", "x0": limit, "x1": limit, "yref": "paper", "y0": 0, "y1": 1,
            "line": {"color": RED, "width": 1.5, "dash": "dash"}}  # fmt: skip
    return layout(
        xaxis=axis("used memory per rank, GB", range=[low - pad, right + pad]),
        yaxis=axis("samples/s", rangemode="tozero"),
        shapes=[line] if in_view else [],
        annotations=[note],
    )


def _frontier_alt(summary: Summary, shown: Sequence[Run]) -> str:
    speeds = [_speed(run) or 0.0 for run in shown]
    best = summary.best
    winner = (
        f"The winner, trial {best.number}, reaches {format_rate(_speed(best))} with "
        f"{format_bytes(_used(best))}"
        if best
        else "No trial fits"
    )
    return (
        f"Scatter plot of {len(shown)} trials between {format_rate(min(speeds))} and "
        f"{format_rate(max(speeds))}. {winner}; the limit is {format_bytes(summary.limits.device_bytes)}."
    )


def _best_line(summary: Summary, shown: Sequence[Run]) -> dict[str, Any]:
    fitting = {run.number for run in summary.ranking}
    best = 0.0
    x, y = [], []
    for run in shown:
        if run.number in fitting:
            best = max(best, _speed(run) or 0.0)
        x.append(run.number)
        y.append(best or None)
    return {"type": "scatter", "mode": "lines", "name": "best so far", "x": x, "y": y, "hoverinfo": "skip",
            "line": {"color": GREEN, "width": 2, "shape": "hv"}}  # fmt: skip


def _progress_alt(summary: Summary, shown: Sequence[Run]) -> str:
    best = summary.best
    failed = sum(not _speed(run) for run in shown)
    end = f"The best, trial {best.number}, has {format_rate(_speed(best))}." if best else "No trial fits."
    return f"Throughput trial by trial, {len(shown)} in all, {failed} without any. {end}"


def _all_numbers(shown: Sequence[Run]) -> list[float]:
    """From before the first trial to behind the last: a trial -1 is none."""
    numbers = [run.number for run in shown]
    pad = 0.5 + 0.02 * len(numbers)
    return [min(numbers) - min(pad, 0.9), max(numbers) + pad]


def _tick(count: int) -> int:
    """Round trial numbers, at most some ten of them."""
    least = max(1, math.ceil(count / 10))
    ten: int = 10 ** (len(str(least)) - 1)
    return next(step * ten for step in (1, 2, 5, 10) if step * ten >= least)


def _runs_table(runs: Sequence[Run], summary: Summary) -> Table:
    columns = (
        Column(title="trial", right=True),
        Column(title="status"),
        Column(title="samples/s", right=True),
        Column(title="used", right=True),
        Column(title="what", stretch=True),
    )
    rows = tuple(
        (
            str(run.number),
            status_text(run),
            rate_text(_speed(run)),
            format_bytes(_used(run)),
            run.label or describe(run.point, {}),
        )
        for run in runs
    )
    return Table(columns=columns, rows=rows)
