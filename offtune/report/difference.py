"""What changed from one ds_config to another: one line a key, dotted.

Covered: keys added, removed and changed. Not covered: which of them have an effect (`ds_identity`).
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from offtune.trial import DsConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyChange:
    """One dotted key; `before` or `after` is "" where the key is not there."""

    key: str
    kind: Literal["added", "removed", "changed"]
    before: str
    after: str


def key_changes(before: DsConfig, after: DsConfig) -> tuple[KeyChange, ...]:
    """The keys whose values differ, in alphabetical order."""
    old, new = dict(_flat(before)), dict(_flat(after))
    return tuple(
        _change(key, old.get(key), new.get(key))
        for key in sorted({*old, *new})
        if old.get(key) != new.get(key)
    )


def _change(key: str, before: str | None, after: str | None) -> KeyChange:
    kind: Literal["added", "removed", "changed"] = "changed"
    if before is None or after is None:
        kind = "added" if before is None else "removed"
    return KeyChange(key=key, kind=kind, before=before or "", after=after or "")


def _flat(value: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    """Every leaf as (dotted key, JSON text): the text tells 1 from true and from 1.0."""
    for key, inner in value.items():
        if isinstance(inner, Mapping) and inner:
            yield from _flat(inner, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", json.dumps(inner)
