"""One value of a ds_config brought to the kind its key takes: "5e8" to 500000000, "true" to true, [2] to 2.

Covered: what can be read in one way only, each with a sentence. Not covered: which key takes what
(`ds_schema`).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any

from offtune.ds_change import Kind, shown
from offtune.ds_placeholders import is_word
from offtune.ds_schema import ValueKind

_SWITCHES = {
    "true": True,
    "false": False,
    "1": True,
    "0": False,
    "yes": True,
    "no": False,
    "on": True,
    "off": False,
}
_DEVICES = {
    "none": "none", "cpu": "cpu", "nvme": "nvme", "gpu": "none", "cuda": "none", "null": "none", "": "none",
    "ssd": "nvme", "disk": "nvme",
}  # fmt: skip
_WANTED: dict[ValueKind, str] = {
    "whole": "a whole number",
    "number": "a number",
    "switch": "true or false",
    "text": "a text",
    "list": "a list",
    "block": "a block of keys, {...}",
    "device": "none, cpu or nvme",
    "any": "anything",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Converted:
    """The value as its key takes it; `kind` and `text` are for the log, empty when nothing had to be done."""

    value: Any
    kind: Kind = "understood"
    text: str = ""


def convert(value: Any, kind: ValueKind) -> Converted:
    """`value` as `kind`; a Converted of kind "refused" where that cannot be."""
    if isinstance(value, list) and kind not in ("list", "any") and value:
        return _first(value, kind)
    reader = _READERS.get(kind)
    return reader(value) if reader is not None else Converted(value=value)


def _first(values: list[Any], kind: ValueKind) -> Converted:
    if values[0] == "auto":
        return Converted(value="auto", text=f'{shown(values)} read as "auto".')
    first = convert(values[0], kind)
    if first.kind == "refused":
        return first
    if len(values) == 1:
        text = f"{shown(values)}, a list of one as autotuning has it; read as {shown(first.value)}."
        return Converted(value=first.value, text=text)
    text = (
        f"{shown(values)}, alternatives for DeepSpeed's autotuning; your file counts with the first one, "
        f"{shown(first.value)}."
    )
    return Converted(value=first.value, kind="changed", text=text)


def _refused(value: Any, kind: ValueKind) -> Converted:
    why = f"{shown(value)} is not {_WANTED[kind]}"
    if isinstance(value, str) and is_word(value):
        why += ", but a placeholder that nobody has filled in"
    return Converted(value=value, kind="refused", text=f"{why}; write one.")


def _whole(value: Any) -> Converted:
    number = _number(value)
    if number.kind == "refused" or not math.isfinite(number.value):
        return _refused(value, "whole")
    whole = number.value
    if isinstance(whole, float):
        if not whole.is_integer():
            up = math.ceil(whole)
            text = f"{shown(value)} is rounded up to {up}: DeepSpeed refuses a fraction here."
            return Converted(value=up, kind="changed", text=text)
        whole = int(whole)
    if isinstance(value, int) and not isinstance(value, bool):
        return Converted(value=whole)
    written = f"{shown(value)} in quotes" if isinstance(value, str) else f"{value:g}, a float"
    return Converted(value=whole, text=f"{written}; read as the whole number {whole}.")


def _number(value: Any) -> Converted:
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return Converted(value=value) if math.isfinite(value) else _refused(str(value), "number")
    if not isinstance(value, str):
        return _refused(value, "number")
    for read in (int, float):
        try:
            number = read(value.strip())
        except ValueError:
            continue
        if math.isfinite(number):
            return Converted(value=number, text=f"{shown(value)} in quotes; read as the number {number}.")
    return _refused(value, "number")


def _switch(value: Any) -> Converted:
    if isinstance(value, bool):
        return Converted(value=value)
    meant = _SWITCHES.get(str(value).strip().lower()) if isinstance(value, (str, int)) else None
    if meant is None:
        return _refused(value, "switch")
    return Converted(value=meant, text=f"{shown(value)} read as {shown(meant)}.")


def _text(value: Any) -> Converted:
    return Converted(value=value) if value is None or isinstance(value, str) else _refused(value, "text")


def _list(value: Any) -> Converted:
    return Converted(value=value) if isinstance(value, list) else _refused(value, "list")


def _block(value: Any) -> Converted:
    return Converted(value=value) if isinstance(value, dict) else _refused(value, "block")


def _device(value: Any) -> Converted:
    if value in ("none", "cpu", "nvme"):
        return Converted(value=value)
    word = "" if value is None or value is False else "cpu" if value is True else str(value).strip().lower()
    if word in _DEVICES:
        meant = _DEVICES[word]
        return Converted(
            value=meant, text=f"{shown(value)} is no device of DeepSpeed; read as {shown(meant)}."
        )
    near = get_close_matches(word, ("none", "cpu", "nvme"), n=1)
    refused = _refused(value, "device")
    return Converted(
        value=value, kind="refused", text=refused.text + (f" Did you mean {near[0]}?" if near else "")
    )


_READERS = {
    "whole": _whole,
    "number": _number,
    "switch": _switch,
    "text": _text,
    "list": _list,
    "block": _block,
    "device": _device,
}
