"""What is said about an export: what the training must say to match it, how its verification went.

Covered: lines, page and JSON of both. Not covered: the files (`export_formats.py`), verifying (`verify.py`).
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from offtune.export_formats import Export
from offtune.records import Run, StudyRecord
from offtune.report.page import Facts, Heading, Page
from offtune.trial import TrialResult
from offtune.units import format_bytes, format_rate
from offtune.verify import Verification


def export_lines(made: Export, study: StudyRecord, run: Run, files: Iterable[Path]) -> list[str]:
    """What was written, and what the person's own arguments must or may say."""
    written = ", ".join(str(path) for path in files)
    lines = [f"Wrote {written}: trial {run.number} of study {study.name}."] if written else []
    if made.must_match:
        lines.append(f"Must match: {' '.join(made.must_match)}")
    if made.chosen:
        lines.append(f"Yours to choose; measured with: {' '.join(made.chosen)}")
    return [*lines, *made.remarks]


def export_entry(made: Export) -> dict[str, Any]:
    """The ds_config with what goes with it, in base units."""
    return {
        "ds_config": made.ds_config,
        "must_match": list(made.must_match),
        "chosen": list(made.chosen),
        "remarks": list(made.remarks),
    }


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
