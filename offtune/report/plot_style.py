"""What all plots share: names of the page's colours, axes, and how runs are drawn.

Covered: the plain dictionaries plotly takes. Colours are names ('@blue') that the page turns into
those of its light, dark or printed palette; kinds of runs differ in shape as well as colour. Not covered: any
one plot.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from offtune.records import Run
from offtune.report.sections import Key
from offtune.report.words import status_text
from offtune.trial import Status
from offtune.units import format_bytes, format_rate

GB = 1e9
GRAY, BLUE, ORANGE, GREEN, RED, PURPLE = "@gray", "@blue", "@orange", "@green", "@red", "@purple"
INK, FAINT = "@ink", "@faint"
SHADES = {"forward": "@shade-a", "backward": "@shade-b", "update": "@shade-c"}
PHASE_COLORS = {"forward": "@blue", "backward": "@orange", "update": "@green", "other": "@gray"}


def layout(**changes: Any) -> dict[str, Any]:
    """A layout without decoration, to be read and not to be dragged."""
    base: dict[str, Any] = {
        "paper_bgcolor": "@none",
        "plot_bgcolor": "@none",
        "font": {"color": INK, "size": 13},
        "margin": {"l": 56, "r": 16, "t": 16, "b": 48},
        "hovermode": "closest",
        "dragmode": False,
        "showlegend": False,
        "hoverlabel": {"align": "left"},
    }
    return {**base, **changes}


def axis(title: str = "", **changes: Any) -> dict[str, Any]:
    """An axis with hair lines; it cannot be zoomed, so that a finger on it scrolls the page."""
    base: dict[str, Any] = {
        "title": {"text": title, "standoff": 8, "font": {"size": 12}},
        "gridcolor": FAINT,
        "zeroline": False,
        "linecolor": FAINT,
        "fixedrange": True,
        "automargin": True,
        "ticks": "",
    }
    return {**base, **changes}


def hover_text(run: Run, what: str) -> str:
    """What one sees with the pointer on a run; plotly breaks lines at <br> and takes the rest as text."""
    result = run.result
    rate = format_rate(result.samples_per_s if result else None)
    used = format_bytes(result.memory.used_device_bytes if result else None)
    return f"trial {run.number}: {status_text(run)}<br>{escape(what)}<br>{rate}, {used}"


def escape(text: str) -> str:
    """A text that plotly shall not take for markup."""
    return text.replace("&", "&amp;").replace("<", "&lt;")


def kind_of(run: Run, best: Run | None) -> str:
    """How a run is drawn: the key of its marker."""
    if best is not None and run.number == best.number:
        return "winner"
    if run.status is not Status.OK:
        return "over budget" if run.status is Status.OVER_BUDGET else "failed"
    return "baseline" if run.origin == "baseline" else "trial"


MARKERS: dict[str, dict[str, Any]] = {
    "trial": {"symbol": "circle", "size": 9, "color": BLUE, "opacity": 0.85},
    "baseline": {"symbol": "diamond", "size": 11, "color": ORANGE},
    "over budget": {"symbol": "triangle-up-open", "size": 11, "color": RED, "line": {"width": 2}},
    "failed": {"symbol": "x-thin", "size": 9, "color": RED, "line": {"width": 2, "color": RED}},
    "winner": {"symbol": "star", "size": 17, "color": GREEN, "line": {"width": 1, "color": INK}},
}

# The same marks in text, for the legend.
SIGNS = {"trial": "●", "baseline": "◆", "over budget": "△", "failed": "✕", "winner": "★"}
LINE_SIGNS = {"solid": "━", "dash": "╍", "dot": "┉", "area": "■"}
BAR_SIGN = "■"
_BAR_PX = 56
_FRAME_PX = 62


def bar_height_px(bars: int) -> int:
    """The height of a plot of so many bars, each under its name."""
    return _FRAME_PX + _BAR_PX * bars


def bar_layout(names: Sequence[str], texts: Sequence[str], x_title: str, **changes: Any) -> dict[str, Any]:
    """Lying bars with one or two lines of text over each: on a phone there is no room for it beside them."""
    over = [
        {
            "text": escape(text).replace("\n", "<br>"),
            "x": 0,
            "y": name,
            "xanchor": "left",
            "yanchor": "bottom",
            "yshift": 10,
            "showarrow": False,
            "align": "left",
        }
        for name, text in zip(names, texts, strict=True)
    ]
    return layout(
        barmode="stack",
        bargap=0.64,
        margin={"l": 12, "r": 16, "t": 10, "b": 44},
        xaxis=axis(x_title, rangemode="tozero"),
        yaxis=axis(gridcolor="@none", showticklabels=False),
        annotations=over,
        **changes,
    )


def key(sign: str, color: str, text: str) -> Key:
    """A legend entry from a colour as plots have it ('@blue')."""
    return Key(sign=sign, color=color.removeprefix("@"), text=text)
