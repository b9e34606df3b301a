"""What is said about an export: how its verification went.

Covered: the page and the JSON of a verification. Not covered: running it (`verify.py`).
"""

from __future__ import annotations

from typing import Any

from offtune.records import Run
from offtune.report.page import Facts, Heading, Page
from offtune.trial import TrialResult
from offtune.units import format_bytes, format_rate
from offtune.verify import Verification


def verification_page(run: Run, outcome: Verification) -> Page:
    """The exported file beside the record of its trial."""
    then, now = run.result, outcome.result
    return (
        Heading(text=f"Verified by training again: {now.status}"),
        Facts(
            rows=(
                ("recorded", _figures(then)),
                ("now", _figures(now)),
                (
                    "now / recorded",
                    _ratios(outcome),
                ),
            )
        ),
    )


def verification_entry(outcome: Verification) -> dict[str, Any]:
    """The same in base units."""
    result = outcome.result
    return {
        "status": result.status,
        "reason": result.reason,
        "samples_per_s": result.samples_per_s,
        "used_device_bytes": result.memory.used_device_bytes,
        "throughput_ratio": outcome.throughput_ratio,
        "device_memory_ratio": outcome.device_memory_ratio,
    }


def _figures(result: TrialResult | None) -> str:
    if result is None:
        return "-"
    return f"{format_rate(result.samples_per_s)}, {format_bytes(result.memory.used_device_bytes)}"


def _ratios(outcome: Verification) -> str:
    return f"throughput {_ratio(outcome.throughput_ratio)}, memory {_ratio(outcome.device_memory_ratio)}"


def _ratio(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"
