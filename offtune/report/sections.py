"""What a web report consists of: sections of blocks, and plots with their text alternative.

Covered: plain records that `report.html` renders, beside the blocks of `report.page`. Not covered: how they
look.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeAlias

from offtune.report.page import Block, Table, Tone


@dataclass(frozen=True, slots=True, kw_only=True)
class Key:
    """One entry of a plot's legend: a sign in a colour of the palette ('blue'), and what it stands for."""

    sign: str
    color: str
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Plot:
    """A plot: `data` and `layout` in plotly's terms, colours as '@name' of the page's own palette.

    `alt` says in words what is to be seen; `table` has the figures. The legend is the page's own, because it
    has to wrap on a phone.
    """

    name: str
    title: str
    alt: str
    data: list[dict[str, Any]]
    layout: dict[str, Any]
    height_px: int
    table: Table
    legend: tuple[Key, ...] = ()
    caption: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Columns:
    """Blocks beside each other where there is room, below each other where there is not."""

    columns: tuple[tuple[WebBlock, ...], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Tile:
    """One big figure: what it is, the value, what to know about it; `share` draws a meter (0 to 1)."""

    label: str
    value: str
    note: str = ""
    tone: Tone = "plain"
    share: float | None = None


WebBlock: TypeAlias = "Block | Plot | Columns"


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """A part of the report with an anchor of its own."""

    anchor: str
    title: str
    lead: str = ""
    blocks: tuple[WebBlock, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """A whole report: head, tiles, warnings, sections."""

    kicker: str
    title: str
    verdict: str
    subtitle: str = ""
    tiles: tuple[Tile, ...] = ()
    cautions: tuple[str, ...] = ()
    sections: tuple[Section, ...] = ()
    footer: tuple[str, ...] = ()
