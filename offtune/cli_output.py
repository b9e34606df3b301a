"""How commands print: one JSON document, or a page for the terminal.

Covered: stdout. Not covered: what is said on stderr, which each command does itself.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import typer

if TYPE_CHECKING:
    from offtune.report.page import Page


def print_json(document: dict[str, Any]) -> None:
    """Strict JSON on stdout."""
    typer.echo(json.dumps(document, indent=2, allow_nan=False))


def print_page(page: Page) -> None:
    """A page on stdout, as wide as the terminal."""
    from offtune.report.terminal import draw, make_console

    draw(make_console(), page)
