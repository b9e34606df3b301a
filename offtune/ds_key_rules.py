"""Rules for single keys of a ds_config: names and types that this version of DeepSpeed refuses.

Covered: removed keys, unknown keys where those are an error, values of the wrong type. Not covered: rules
across keys (`ds_rules`).
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from difflib import get_close_matches
from functools import lru_cache
from typing import Any

from offtune.ds_keys import (
    ADDED,
    DEPRECATED_ZERO_KEYS,
    REMOVED,
    STRICT_BLOCKS,
    WHOLE_NUMBERS,
    ZERO_ALIASES,
    Version,
    block,
    parse_version,
)
from offtune.trial import DsConfig


def key_problems(ds_config: DsConfig, version_text: str) -> Iterator[str]:
    """Keys and values that this version of DeepSpeed refuses by themselves, one sentence each."""
    version = parse_version(version_text)
    for path, first_refused in REMOVED.items():
        if version < first_refused:
            continue
        place, key = _place(ds_config, path)
        if key in place:
            yield f"{path}: DeepSpeed {version_text} refuses this key, which it no longer has; remove it."
    for path in WHOLE_NUMBERS:
        place, key = _place(ds_config, path)
        value = place.get(key, 1)
        if _wanted(1, value) or value < 1:
            yield f"{path}: {value!r} is not a whole number above 0, which DeepSpeed needs there; write one."
    for path in STRICT_BLOCKS:
        yield from _shape_problems(ds_config, path)
        known = _known_keys(path, version)
        for key, value in block(ds_config, path).items():
            yield from _entry_problems(path, key, value, known, version)


def _place(ds_config: DsConfig, path: str) -> tuple[DsConfig, str]:
    """The block that a dotted path ends in, and the last key."""
    parent, _, key = path.rpartition(".")
    return (block(ds_config, parent) if parent else ds_config), key


def _shape_problems(ds_config: DsConfig, path: str) -> Iterator[str]:
    place, key = _place(ds_config, path)
    value = place.get(key)
    if value is not None and not isinstance(value, Mapping):
        yield f"{path}: {value!r} is not a block of keys; write one, such as {{}}, or remove it."


@lru_cache(maxsize=64)
def _known_keys(path: str, version: Version) -> dict[str, Any]:
    defaults = STRICT_BLOCKS[path]
    known = {key: value for key, value in defaults.items() if version >= ADDED.get(f"{path}.{key}", ())}
    if path == "zero_optimization":
        known |= {alias: defaults[key] for alias, key in ZERO_ALIASES.items()}
        known |= dict.fromkeys(DEPRECATED_ZERO_KEYS)
    return known


def _entry_problems(
    path: str, key: str, value: Any, known: Mapping[str, Any], version: Version
) -> Iterator[str]:
    where = f"{path}.{key}"
    if version >= REMOVED.get(where, (sys.maxsize,)):
        return  # said already, by name
    if key not in known:
        near = get_close_matches(key, known, n=1)
        remedy = f"write {near[0]}" if near else "remove it"
        yield f"{where}: DeepSpeed has no such key and refuses unknown ones in this block; {remedy}."
    elif value is not None and (wanted := _wanted(known[key], value)):
        yield f"{where}: {value!r} is not {wanted}, which DeepSpeed needs there; write one."


def _wanted(default: Any, value: Any) -> str:
    """What `value` should have been, judged by the key's default; empty when it is that."""
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if isinstance(default, bool):
        return "" if isinstance(value, bool) else "true or false"
    if isinstance(default, int):
        return "" if number and float(value).is_integer() else "a whole number"
    if isinstance(default, float):
        return "" if number and 0 <= value <= 1 else "a number between 0 and 1"
    return ""
