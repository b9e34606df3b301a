"""Bytes, seconds and rates: read what a person types, print what a person reads.

`GB` is 10^9, `GiB` is 2^30, as everywhere in offtune. A bare number is refused for sizes, because
nobody can tell 40 bytes from 40 GB after the fact.
"""

from __future__ import annotations

import re

from offtune.errors import UsageError

_SIZE_UNITS = {
    "B": 1,
    "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12,
    "KIB": 2**10, "MIB": 2**20, "GIB": 2**30, "TIB": 2**40,
}  # fmt: skip
_TIME_UNITS = {"s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86400.0}
_NUMBER_AND_UNIT = re.compile(r"\s*([0-9]+(?:\.[0-9]+)?|\.[0-9]+)\s*([A-Za-z]*)\s*\Z")


def parse_bytes(text: str, option: str = "size") -> int:
    """Bytes from '40GB' (40e9) or '40GiB' (40 x 2^30). Raises UsageError naming `option`."""
    match = _NUMBER_AND_UNIT.match(text)
    if match is None:
        raise UsageError(
            f"{option}: '{text}' is not a size.", "Write a number and a unit, such as 40GB or 40GiB."
        )
    number, unit = match.groups()
    if not unit:
        raise UsageError(
            f"{option}: '{text}' has no unit.", f"Did you mean {text.strip()}GB or {text.strip()}GiB?"
        )
    if unit.upper() not in _SIZE_UNITS:
        raise UsageError(
            f"{option}: unknown unit '{unit}' in '{text}'.",
            "Units are B, KB, MB, GB, TB and KiB, MiB, GiB, TiB.",
        )
    size = _whole(number, _SIZE_UNITS[unit.upper()])
    if size <= 0:
        raise UsageError(f"{option}: '{text}' is not more than nothing.", "Write a size such as 40GB.")
    return size


def _whole(number: str, factor: int) -> int:
    """`number` times `factor`, exactly, rounded to the nearest byte."""
    whole, _, fraction = number.partition(".")
    scaled = int((whole + fraction) or "0") * factor
    denominator: int = 10 ** len(fraction)
    return (scaled + denominator // 2) // denominator


def parse_share(text: str, option: str, forms: str = "5%") -> float:
    """0.05 from '5%'. Raises UsageError naming `option`, with `forms` as what can be written."""
    number, sign, rest = text.strip().partition("%")
    try:
        if sign and not rest:
            return float(number) / 100
    except ValueError:
        pass
    raise UsageError(f"{option}: '{text}' is not a percentage.", f"Write it like {forms}.")


def parse_seconds(text: str, option: str = "time") -> float:
    """Seconds from '90s', '30m', '2h', '1h30m'; a bare number is seconds. Raises UsageError."""
    pieces = re.findall(r"([0-9]+(?:\.[0-9]+)?)\s*([A-Za-z]*)\s*", text)
    complete = "".join(re.split(r"\s+", text)) == "".join(number + unit for number, unit in pieces)
    if not pieces or not complete or any(unit not in _TIME_UNITS for _, unit in pieces if unit):
        raise UsageError(f"{option}: '{text}' is not a time.", "Write it like 90s, 30m, 2h or 1h30m.")
    if len(pieces) > 1 and not all(unit for _, unit in pieces):
        raise UsageError(f"{option}: '{text}' mixes numbers with and without a unit.", "Write it like 1h30m.")
    seconds = sum(float(number) * _TIME_UNITS[unit or "s"] for number, unit in pieces)
    if seconds <= 0:
        raise UsageError(f"{option}: '{text}' is no time at all.", "Write it like 90s, 30m or 2h.")
    return seconds


def format_bytes(size: int | float | None) -> str:
    """'39.8 GB' (decimal units, three figures); '-' for unknown."""
    if size is None:
        return "-"
    magnitude = abs(size)
    for unit, factor in (("TB", 10**12), ("GB", 10**9), ("MB", 10**6), ("KB", 10**3)):
        if magnitude >= factor:
            return f"{_three_figures(size / factor)} {unit}"
    return f"{size:.0f} B"


def format_seconds(seconds: float | None) -> str:
    """'850 ms', '12.3 s', '4 min 05 s', '2 h 10 min'; '-' for unknown."""
    if seconds is None:
        return "-"
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 60:
        return f"{_three_figures(seconds)} s"
    if seconds < 3600:
        return f"{int(seconds) // 60} min {int(seconds) % 60:02d} s"
    return f"{int(seconds) // 3600} h {int(seconds) % 3600 // 60:02d} min"


def format_rate(per_second: float | None, unit: str = "samples/s") -> str:
    """'12.3 samples/s'; '-' for unknown."""
    return "-" if per_second is None else f"{_three_figures(per_second)} {unit}"


def _three_figures(value: float) -> str:
    magnitude = abs(value)
    if magnitude >= 100:
        return f"{value:.0f}"
    return f"{value:.1f}" if magnitude >= 10 else f"{value:.2f}"
