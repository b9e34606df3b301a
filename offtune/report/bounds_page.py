"""What bounds a run, in words: one line a phase with its evidence, the unused time, the knobs that act on it.

Covered: blocks for a terminal or a web page. Not covered: finding it out (`bounds.py`).
"""

from __future__ import annotations

from collections.abc import Sequence

from offtune.bound_knobs import NOT_KNOWN
from offtune.bounds import PhaseBound, StepBound, Use
from offtune.report.page import Block, Column, Line, Table
from offtune.units import format_bytes, format_seconds

_USES_SHOWN = 3
_MISSING_SHOWN = 3
AT_BEST = (
    "The busiest resource of each phase, and what the phase would take at best if that took no time: an "
    "estimate from the shares, not a prediction."
)
_NO_KNOB = "No knob that can be turned here acts on it."
NOT_SAMPLED = "Memory and traffic by phase were not sampled in this run, so what bounds it is not known."


def bounds_blocks(found: StepBound) -> list[Block]:
    """What bounds each phase, what nobody uses, and what to turn."""
    columns = (
        Column(title="phase"),
        Column(title="time", right=True),
        Column(title="bound by"),
        Column(title="at best without it", right=True),
        Column(title="evidence", stretch=True),
    )
    rows = tuple(
        (one.phase, format_seconds(one.seconds), one.resource, format_seconds(one.free_s), evidence(one))
        for one in found.phases
    )
    return [Table(columns=columns, rows=rows), *(Line(text=text) for text in step_sentences(found))]


def evidence(one: PhaseBound) -> str:
    """'GPU compute 48 %, D2H 25 % (6.2 GB/s of 25 GB/s); not known: CPU utilisation'."""
    texts = [_use_text(use) for use in one.uses[:_USES_SHOWN]]
    if one.cpu_cores is not None:
        texts.append(f"{one.cpu_cores:.1f} CPU cores")
    uses = ", ".join(texts)
    lacking = one.missing[:_MISSING_SHOWN] if one.resource == NOT_KNOWN else ()
    missing = f"not known: {', '.join(lacking)}" if lacking else ""
    return "; ".join(text for text in (uses, missing) if text) or "-"


def step_sentences(found: StepBound) -> list[str]:
    """The time nothing measured uses, and the knobs."""
    sentences = []
    if found.unused_low_s is not None and found.unused_high_s is not None:
        low, high = format_seconds(found.unused_low_s), format_seconds(found.unused_high_s)
        span = low if low == high else f"{low} to {high}"
        sentences.append(f"Nothing that was measured is busy for {span} of each step.")
    if found.knobs:
        sentences.append(f"Knobs that act on it: {_and(found.knobs)}.")
    else:
        sentences.append(_NO_KNOB)
    return sentences


def _use_text(use: Use) -> str:
    text = f"{use.resource} {100 * use.share:.0f} %"
    if use.rate_bytes_per_s is None:
        return text
    return f"{text} ({format_bytes(use.rate_bytes_per_s)}/s of {format_bytes(use.peak_bytes_per_s)}/s)"


def _and(names: Sequence[str]) -> str:
    return " and ".join(names)
