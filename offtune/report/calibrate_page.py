"""What `offtune calibrate` found: a table of figures with their spread, and what to know about them.

Covered: a page and a JSON document. Not covered: measuring (`calibrate`).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from offtune import calibrated_profile
from offtune.calibration import BYTES, ELEMENTS, FLOPS, RATE, SECONDS, Calibration, Figure
from offtune.report.page import Block, Column, Facts, Heading, Line, Page, Table, Tone
from offtune.trial import as_dict
from offtune.units import format_bytes, format_seconds

_COLUMNS = (
    Column(title="what"),
    Column(title="value", right=True),
    Column(title="spread", right=True),
    Column(title="how, or why not", stretch=True),
)
_SCATTERED = 0.25  # a spread above this is marked
_SPREAD_NOTE = "The value is the median of repeats, the spread their interquartile range as a share of it."

_CPU_LINE = Line(
    text="No GPU is used: host and device are one memory here, nothing crosses a link.", tone="warn"
)


def calibrate_page(calibration: Calibration, written: Path | None) -> Page:
    """The figures, then notes, then where they were kept."""
    blocks: list[Block] = [
        Heading(text=f"Calibration of this machine, {calibration.measured_at[:16].replace('T', ' ')} UTC"),
        Facts(rows=_facts(calibration)),
        *([_CPU_LINE] if calibration.device == "cpu" else []),
        Table(
            columns=_COLUMNS,
            rows=tuple(_row(figure) for figure in calibration.figures),
            tones=tuple(_tone(figure) for figure in calibration.figures),
        ),
        Line(text=_SPREAD_NOTE, tone="dim"),
        *(Line(text=note, tone="warn") for note in calibration.notes),
    ]
    if written is not None:
        base, numbers = calibrated_profile.like(calibration), calibrated_profile.taken_over(calibration)
        blocks += [
            Line(text=f"Wrote {written}, a hardware profile."),
            Line(text=f"Not measured, taken over from {base}: {', '.join(numbers)}.", tone="dim"),
        ]
    return tuple(blocks)


def calibrate_document(calibration: Calibration) -> dict[str, Any]:
    """The same as JSON values; figures in base units, null with the reason in `detail`."""
    return {
        "schema": "offtune.calibration/1",
        **as_dict(calibration),
        "profile": calibrated_profile.document(calibration),
        "taken_over": calibrated_profile.taken_over(calibration),
    }


def _facts(calibration: Calibration) -> tuple[tuple[str, str], ...]:
    ranks = "1 rank" if calibration.ranks == 1 else f"{calibration.ranks} ranks"
    threads = "1 thread" if calibration.threads == 1 else f"{calibration.threads} threads"
    return (
        *((name, value) for name, value in calibration.fingerprint.items()),
        ("as trials", f"{ranks}, {threads} a rank"),
        ("load", f"{calibration.load_per_core:.1f} per core"),
        ("took", format_seconds(calibration.seconds)),
    )


def _row(figure: Figure) -> tuple[str, str, str, str]:
    spread = "-" if figure.spread is None else f"{100 * figure.spread:.0f} %"
    return figure.key, figure_text(figure), spread, figure.detail


def _tone(figure: Figure) -> Tone:
    if figure.value is None:
        return "dim"
    return "warn" if (figure.spread or 0.0) > _SCATTERED else "plain"


def figure_text(figure: Figure) -> str:
    """The value in a unit for people; '-' for what could not be measured."""
    if figure.value is None:
        return "-"
    if figure.unit == BYTES:
        return format_bytes(figure.value)
    if figure.unit == RATE:
        return f"{format_bytes(figure.value)}/s"
    if figure.unit == FLOPS:
        return f"{figure.value / 1e9:,.0f} GFLOP/s"
    if figure.unit == ELEMENTS:
        return f"{figure.value / 1e6:.0f} M elements/s"
    return f"{figure.value * 1e6:.3g} µs" if figure.unit == SECONDS else f"{figure.value:.2f}"
