"""The change log of a person's ds_config: what was understood, changed, left out, filled in, and where.

Covered: the records and the draft they are noted on while a file is read. Not covered: the rules, which are
in the other ds_* files.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Literal

from offtune.errors import ConfigError
from offtune.trial import DsConfig

KeyPath = tuple[str, ...]
# understood: read as meant, nothing lost. changed: another value counts now. ignored: not taken over, or
# without effect. filled: "auto" or a gap, now a value. refused: the file cannot be used as it is.
Kind = Literal["understood", "changed", "ignored", "filled", "refused"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One entry: `line` counts from 1 (None: not about one line), `path` is the dotted key, may be empty."""

    kind: Kind
    line: int | None
    path: str
    text: str

    def __str__(self) -> str:
        where = [f"line {self.line}" if self.line else "", self.path]
        return ": ".join(part for part in (*where, self.text) if part)


@dataclass(frozen=True, slots=True, kw_only=True)
class Base:
    """A person's ds_config as it counts in a study: its file, its content in plain JSON, the change log."""

    path: str
    ds_config: DsConfig
    changes: tuple[Change, ...] = ()


class BaseRefused(ConfigError):
    """A ds_config cannot be the base; `changes` has every reason, and what was understood before."""

    def __init__(self, path: str, changes: tuple[Change, ...]) -> None:
        reasons = [str(change) for change in changes if change.kind == "refused"]
        super().__init__(
            f"{path} cannot be the base:\n  " + "\n  ".join(reasons),
            "Correct what is named, or search without --base.",
        )
        self.path = path
        self.changes = changes


@dataclass(slots=True, kw_only=True)
class Draft:
    """A ds_config under correction: content, the line of each key, and the log so far."""

    content: DsConfig
    lines: dict[KeyPath, int] = field(default_factory=dict)
    changes: list[Change] = field(default_factory=list)

    def note(self, kind: Kind, path: KeyPath, text: str) -> None:
        """Add an entry about the key at `path`."""
        self.changes.append(Change(kind=kind, line=self.line(path), path=".".join(path), text=text))

    def line(self, path: KeyPath) -> int | None:
        """The line of the key, or of the nearest block around it."""
        for length in range(len(path), 0, -1):
            if path[:length] in self.lines:
                return self.lines[path[:length]]
        return None

    def get(self, *path: str, default: Any = None) -> Any:
        """The value at `path`; `default` where there is none."""
        found: Any = self.content
        for key in path:
            if not isinstance(found, dict) or key not in found:
                return default
            found = found[key]
        return found

    def block(self, *path: str) -> dict[str, Any]:
        """The block at `path` itself, not a copy; an empty one where there is none."""
        found = self.get(*path)
        return found if isinstance(found, dict) else {}

    def put(self, path: KeyPath, value: Any, line: int | None = None) -> None:
        """Set a value, making the blocks above it; `line` is where it comes from."""
        place = self.content
        for key in path[:-1]:
            place = place.setdefault(key, {})
        place[path[-1]] = value
        if line is not None:
            self.lines.setdefault(path, line)

    def drop(self, path: KeyPath) -> Any:
        """Take a key out and return its value."""
        place = self.get(*path[:-1]) if len(path) > 1 else self.content
        return place.pop(path[-1], None) if isinstance(place, dict) else None

    def rename(self, path: KeyPath, name: str) -> None:
        """Give a key another name in the same block, its line kept; the order of keys is not."""
        new = (*path[:-1], name)
        moved = {old: line for old, line in self.lines.items() if old[: len(path)] == path}
        for old, line in moved.items():
            self.lines[new + old[len(path) :]] = line
        self.put(new, self.drop(path))


def in_order(changes: Iterable[Change]) -> tuple[Change, ...]:
    """The log from the top of the file to its end; what is about the whole file comes first."""
    return tuple(sorted(changes, key=lambda change: change.line or 0))


def shown(value: Any) -> str:
    """A value as it would be written in the file, cut to a readable length."""
    limit = 60
    text = json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= limit else text[:limit] + "..."
