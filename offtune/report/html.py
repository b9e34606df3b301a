"""A report as one page of HTML that needs no network: text, tables, plots and all of plotly.js inside.

Covered: rendering. Not covered: what is said (`report.study_sections`, `report.trace_sections`). The page
tells the browser to load nothing (Content-Security-Policy), so that it cannot.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from functools import cache, partial
from pathlib import Path
from typing import Any

import jinja2
from markupsafe import Markup
from plotly.offline import get_plotlyjs

from offtune.report.page import Command, Facts, Heading, Line, Table, Verbatim
from offtune.report.sections import Columns, Plot, Report, WebBlock

# On a phone a cell may fold, but never between a number and its unit or its interval.
_INSIDE_A_FIGURE = re.compile(r"(?<=\d) (?=[%A-Za-z±])|(?<=±) (?=\d)")
_NO_BREAK = "\u00a0"
_FOLDER = Path(__file__).parent / "web"
_KINDS: dict[type, str] = {
    Heading: "heading",
    Line: "line",
    Command: "command",
    Facts: "facts",
    Table: "table",
    Verbatim: "verbatim",
    Plot: "plot",
    Columns: "columns",
}


def render(report: Report) -> str:
    """The page."""
    blocks = (block for section in report.sections for block in section.blocks)
    return (
        _environment()
        .get_template("report.html")
        .render(
            report=report,
            style=Markup((_FOLDER / "report.css").read_text(encoding="utf-8")),
            script=Markup((_FOLDER / "report.js").read_text(encoding="utf-8")),
            plotly=Markup(get_plotlyjs()),
            plots=_script_json([_plot_entry(plot) for plot in plots_of(blocks)]),
        )
    )


def plots_of(blocks: Iterable[WebBlock]) -> Iterator[Plot]:
    """Every plot among the blocks, those in columns included."""
    for block in blocks:
        if isinstance(block, Plot):
            yield block
        elif isinstance(block, Columns):
            for column in block.columns:
                yield from plots_of(column)


@cache
def _environment() -> jinja2.Environment:
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(_FOLDER),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )
    environment.filters["kind"] = lambda block: _KINDS[type(block)]
    environment.filters["figure"] = partial(_INSIDE_A_FIGURE.sub, _NO_BREAK)
    return environment


def _plot_entry(plot: Plot) -> dict[str, Any]:
    return {"name": plot.name, "data": plot.data, "layout": {**plot.layout, "height": plot.height_px}}


def _script_json(value: Any) -> Markup:
    """JSON that cannot end the script element it stands in, whatever is in the data."""
    text = json.dumps(value, allow_nan=False, separators=(",", ":"))
    return Markup(text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026"))
