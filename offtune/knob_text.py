"""One knob as a person writes it in YAML, and the checks that such text has to pass.

Covered: domains, defaults, conditions and their patterns; every refusal says where, what and the remedy. Not
covered: files and inclusion (`space_file`).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from difflib import get_close_matches
from fnmatch import fnmatchcase
from typing import Any

from offtune.errors import SpaceError
from offtune.knobs import KNOBS, PLACEMENTS, Knob

_KINDS = ("choices", "int", "pow2")
_KNOB_KEYS = ("about", *_KINDS, "default", "when")
_RANGE_KEYS = {"int": ("low", "high", "step"), "pow2": ("low", "high", "zero")}
_POWER = re.compile(r"2\s*(?:\^|\*\*)\s*(\d{1,2})\Z")
# What fits every integer that DeepSpeed (64 bits) and SQLite keep.
_MAX_EXPONENT = 62
# More values than anybody tries; a sampler that lists them all still takes no time.
_MAX_VALUES = 10_000


def read_knob(where: str, name: str, content: Any, earlier: Mapping[str, Knob]) -> Knob:
    """The knob `name` from its YAML block. Raises SpaceError."""
    require_known(where.rpartition(".")[0], [name], tuple(KNOBS), "knob")
    content = require_mapping(where, content)
    require_known(where, content, _KNOB_KEYS, "key")
    about = require_sentence(f"{where}.about", content.get("about"))
    knob = Knob(name=name, about=about, default=None, **_domain(where, name, content))
    if "default" not in content:
        raise SpaceError(f"{where}: no default.", "Add `default`, the value used by baselines.")
    default = _number(content["default"])
    if not knob.holds(default):
        raise SpaceError(
            f"{where}.default: {default!r} is not in {knob.domain}.", "Give a value of the domain."
        )
    return replace(knob, default=default, when=_conditions(f"{where}.when", content.get("when"), earlier))


def _domain(where: str, name: str, content: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of `Knob` that make up its domain."""
    kinds = [kind for kind in _KINDS if kind in content]
    if len(kinds) != 1:
        raise SpaceError(f"{where}: {len(kinds)} domains.", f"Give it exactly one of {', '.join(_KINDS)}.")
    where, domain = f"{where}.{kinds[0]}", content[kinds[0]]
    if kinds[0] == "choices":
        return {"kind": "choices", "choices": _choices(where, name, domain)}
    domain = require_mapping(where, domain)
    require_known(where, domain, _RANGE_KEYS[kinds[0]], "key")
    low, high = (_whole(f"{where}.{key}", domain.get(key)) for key in ("low", "high"))
    if not 0 <= low <= high:
        raise SpaceError(f"{where}: low {low}, high {high}.", "low is at least 0 and at most high.")
    return (_int if kinds[0] == "int" else _pow2)(where, low, high, domain)


def _whole(where: str, text: Any) -> int:
    value = _number(text)
    if type(value) is not int:
        raise SpaceError(f"{where}: {text!r} is not a whole number.", "Write it like 65536 or 2^16.")
    return value


def _int(where: str, low: int, high: int, domain: Mapping[str, Any]) -> dict[str, Any]:
    step = domain.get("step", 1)
    if type(step) is not int or step < 1 or (high - low) % step:
        raise SpaceError(
            f"{where}.step: {step!r} does not lead from {low} to {high}.", "Change step or high."
        )
    if (high - low) // step >= _MAX_VALUES:
        raise SpaceError(
            f"{where}: more than {_MAX_VALUES} values.", "Write sizes as pow2, or take a larger step."
        )
    return {"kind": "int", "low": low, "high": high, "step": step}


def _pow2(where: str, low: int, high: int, domain: Mapping[str, Any]) -> dict[str, Any]:
    zero = domain.get("zero", False)
    if not isinstance(zero, bool):
        raise SpaceError(f"{where}.zero: {zero!r} is not true or false.", "Write true or false.")
    for key, value in (("low", low), ("high", high)):
        if value < 1 or value & (value - 1) or value > 2**_MAX_EXPONENT:
            near = 2 ** max(0, min(value.bit_length() - 1, _MAX_EXPONENT))
            raise SpaceError(
                f"{where}.{key}: {value} is not a power of two.", f"The nearest below is {near}."
            )
    # With zero, the raw number just below the lowest exponent stands for the value 0.
    lowest = low.bit_length() - 1 - int(zero)
    return {"kind": "pow2", "low": lowest, "high": high.bit_length() - 1, "zero": zero}


def _choices(where: str, name: str, content: Any) -> tuple[Any, ...]:
    if not isinstance(content, list) or not content:
        raise SpaceError(f"{where}: {content!r} is not a list of values.", "Write it like [false, true].")
    values = tuple(_number(value) for value in content)
    if any(not isinstance(value, (str, int, float, bool)) for value in values):
        raise SpaceError(f"{where}: a choice is neither text nor number nor truth.", "Write plain values.")
    if len({(type(value), value) for value in values}) < len(values):
        raise SpaceError(f"{where}: a value is there twice.", "Remove one of them.")
    if name == "placement":
        require_known(where, values, PLACEMENTS, "placement")
    return values


def _conditions(where: str, content: Any, earlier: Mapping[str, Knob]) -> dict[str, tuple[Any, ...]]:
    conditions = require_mapping(where, content or {})
    for name in conditions:
        if name not in earlier:
            state = "comes later" if name in KNOBS else "is no knob"
            known = ", ".join(earlier) or "none"
            raise SpaceError(f"{where}: '{name}' {state}.", f"Conditions look at earlier knobs: {known}.")
    return {name: expand(f"{where}.{name}", earlier[name], wanted) for name, wanted in conditions.items()}


def expand(where: str, knob: Knob, wanted: Any) -> tuple[Any, ...]:
    """The values of `knob` that `wanted` lists, patterns resolved, in the order of the domain."""
    items = [_number(item) for item in (wanted if isinstance(wanted, list) else [wanted])]
    for item in items:
        if not any(_matches(item, value) for value in knob.values):
            raise SpaceError(f"{where}: {item!r} is no value of {knob.name}.", f"It has {knob.domain}.")
    found = tuple(value for value in knob.values if any(_matches(item, value) for item in items))
    if not found:
        raise SpaceError(f"{where}: an empty list.", "List at least one value.")
    return found


def _matches(item: Any, value: Any) -> bool:
    if isinstance(item, str) and isinstance(value, str):
        return fnmatchcase(value, item)
    return type(item) is type(value) and item == value


def _number(value: Any) -> Any:
    """2^16 as a number, everything else as it is."""
    power = _POWER.match(value) if isinstance(value, str) else None
    return 2 ** int(power.group(1)) if power else value


def require_sentence(where: str, text: Any) -> str:
    """`text` as one sentence. Raises SpaceError when there is none."""
    if not isinstance(text, str) or not text.strip():
        raise SpaceError(f"{where}: missing.", "Add one sentence that says what it trades.")
    return text.strip()


def require_mapping(where: str, content: Any) -> dict[str, Any]:
    """`content` as a block of keys. Raises SpaceError for anything else."""
    if not isinstance(content, dict):
        raise SpaceError(f"{where}: {content!r} is not a block of keys.", "Write it as `key: value` lines.")
    return content


def require_known(
    where: str, names: Mapping[Any, Any] | Sequence[Any], known: Sequence[str], noun: str
) -> None:
    """Nothing when all `names` are `known`; otherwise SpaceError with the nearest known one."""
    for name in names:
        if name not in known:
            near = get_close_matches(str(name), known, n=1, cutoff=0.5)
            guess = f"Did you mean '{near[0]}'? " if near else ""
            raise SpaceError(f"{where}: unknown {noun} '{name}'.", f"{guess}Known: {', '.join(known)}.")
