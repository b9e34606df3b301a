"""What a page consists of, before anybody draws it: headings, lines, key-value pairs, tables, raw text.

Covered: plain records that a terminal, or a web page, renders. Not covered: colours and widths.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

# What a piece of text means; how that looks is for the renderer.
Tone = Literal["plain", "strong", "dim", "good", "warn", "bad"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Heading:
    """The title of what follows."""

    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """A sentence or a paragraph; `indent` is in characters."""

    text: str
    tone: Tone = "plain"
    indent: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """A command to be typed or copied; never broken over lines."""

    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """Names and values, one pair a line."""

    rows: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """A column's title; `stretch` takes what width is left and may fold, the others never do."""

    title: str
    right: bool = False
    stretch: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """Rows of texts under columns; `tones` are those of the first rows, the others are plain."""

    columns: tuple[Column, ...]
    rows: tuple[tuple[str, ...], ...]
    tones: tuple[Tone, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Verbatim:
    """Text shown as it is: JSON, the end of a log."""

    text: str


Block: TypeAlias = Heading | Line | Command | Facts | Table | Verbatim
Page: TypeAlias = tuple[Block, ...]
