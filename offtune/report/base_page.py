"""A person's ds_config as offtune understood it: the change log and the resolved base, as page and JSON.

Covered: `search --base FILE --dry-run`, and a file that is refused. Not covered: reading the file.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from offtune.ds_change import Base, Change
from offtune.report.page import Block, Column, Heading, Line, Page, Table, Tone, Verbatim

_TONES: dict[str, Tone] = {"changed": "warn", "refused": "bad", "ignored": "warn"}


def base_blocks(base: Base) -> list[Block]:
    """The change log and the base as it counts, every value written out."""
    return [
        *log_blocks(base.path, base.changes),
        Heading(text="The base, resolved"),
        Verbatim(text=json.dumps(base.ds_config, indent=2)),
        Line(text="What the space does not tune of it stays as it is, in the trials and in the export."),
    ]


def log_blocks(path: str, changes: Iterable[Change]) -> list[Block]:
    """One row a change, from the top of the file to its end."""
    log = tuple(changes)
    if not log:
        return [
            Heading(text=f"Base {path}"),
            Line(text="Read as it is: nothing had to be changed or filled in."),
        ]
    columns = (Column(title="line", right=True), Column(title=""), Column(title="what", stretch=True))
    rows = tuple((str(change.line or ""), change.kind, _what(change)) for change in log)
    tones = tuple(_TONES.get(change.kind, "plain") for change in log)
    return [Heading(text=f"Base {path}: {_counts(log)}"), Table(columns=columns, rows=rows, tones=tones)]


def refused_page(path: str, changes: Iterable[Change]) -> Page:
    """What was understood before the file had to be refused; the reasons are in the error."""
    return tuple(log_blocks(path, changes))


def base_document(base: Base) -> dict[str, Any]:
    """The base as JSON values."""
    return {
        "path": base.path,
        "usable": True,
        "ds_config": base.ds_config,
        "changes": change_entries(base.changes),
    }


def refused_document(path: str, changes: Iterable[Change]) -> dict[str, Any]:
    """A refused base as JSON values; `ds_config` is null."""
    log = tuple(changes)
    reasons = [str(change) for change in log if change.kind == "refused"]
    base = {
        "path": path,
        "usable": False,
        "ds_config": None,
        "changes": change_entries(log),
        "reasons": reasons,
    }
    return {"schema": "offtune.plan/1", "base": base}


def change_entries(changes: Iterable[Change]) -> list[dict[str, Any]]:
    """The log as JSON values: kind, line (null: the whole file), key path, sentence."""
    return [
        {"kind": change.kind, "line": change.line, "path": change.path, "text": change.text}
        for change in changes
    ]


def _what(change: Change) -> str:
    return f"{change.path}: {change.text}" if change.path else change.text


def _counts(changes: tuple[Change, ...]) -> str:
    kinds = [change.kind for change in changes]
    return ", ".join(f"{kinds.count(kind)} {kind}" for kind in dict.fromkeys(kinds))
