"""Somebody else's trace: an NVML poller's CSV and a CSV of phase times, as one Timeline a device.

Covered: the form of mauryaavinash95/deep-optimizer-states-results, with the phase times that its logs hold.
`nvml.csv`: device_id, timestamp (unix ns), txpci and rxpci (MiB/s out of and into the GPU), gpu_util (%),
mem_used (bytes). `phases.csv`: end_of_step_unix_ns, forward_ms, backward_ms, step_ms, iteration_ms of each
iteration. Not covered: NVTX exports.

Where the phases lie is not in the files, only how long they took. Some 0.35 s of each iteration belong to no
phase; they are put in equal parts before forward, before backward and before the update, which ends with the
iteration. In both public traces the memory curve confirms this to about one poll of 42 ms: memory starts to
grow with that forward and drops with the end of that backward. Phases laid end to end before the end of the
iteration instead would put the first 0.2 s of the backward traffic into forward.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator, Sequence
from pathlib import Path

from offtune.errors import UsageError
from offtune.timeline import PHASES, STEP, Mark, Series, Timeline

MIB = 2**20
_NS = 1e9
_MS = 1e-3
_TRACE_COLUMNS = ("device_id", "timestamp", "txpci", "rxpci", "gpu_util", "mem_used")
_PHASE_COLUMNS = ("end_of_step_unix_ns", "forward_ms", "backward_ms", "step_ms", "iteration_ms")
# From MiB/s, percent and bytes to the units of a Timeline.
_SERIES = (
    ("device_used_bytes", "mem_used", 1.0),
    ("d2h_bytes_per_s", "txpci", float(MIB)),
    ("h2d_bytes_per_s", "rxpci", float(MIB)),
    ("gpu_busy_share", "gpu_util", 0.01),
)
_NOT_IN_TRACE = "an NVML trace has no such column"
_REASONS = dict.fromkeys(
    ("allocated_bytes", "reserved_bytes", "host_resident_bytes", "nvme_read_bytes_per_s",
     "nvme_write_bytes_per_s", "cpu_busy_share"),
    _NOT_IN_TRACE,
)  # fmt: skip


def read_trace(nvml_csv: Path, phases_csv: Path) -> tuple[Timeline, ...]:
    """One Timeline a device, by device number; zero is the first sample. Raises UsageError."""
    samples = [_numbers(nvml_csv, row, _TRACE_COLUMNS) for row in _rows(nvml_csv, _TRACE_COLUMNS)]
    iterations = [_numbers(phases_csv, row, _PHASE_COLUMNS) for row in _rows(phases_csv, _PHASE_COLUMNS)]
    zero_ns = min(row["timestamp"] for row in samples)
    marks = place_phases(iterations, zero_ns)
    devices = sorted({row["device_id"] for row in samples})
    return tuple(
        _timeline(int(device), [row for row in samples if row["device_id"] == device], marks, zero_ns)
        for device in devices
    )


def steady_steps(timeline: Timeline) -> tuple[int, ...]:
    """The steps published averages are taken over: from the fourth on, without the last; all if too few."""
    numbers = [mark.step for mark in timeline.steps()]
    return tuple(numbers[3:-1] or numbers[1:] or numbers)


def place_phases(iterations: Sequence[dict[str, float]], zero_ns: float) -> tuple[Mark, ...]:
    """Marks of every iteration: durations as given, the time that belongs to no phase split in three."""
    marks: list[Mark] = []
    previous_end_s: float | None = None
    for number, row in enumerate(iterations, start=1):
        end_s = (row["end_of_step_unix_ns"] - zero_ns) / _NS
        start_s = end_s - row["iteration_ms"] * _MS if previous_end_s is None else previous_end_s
        marks += _place_one(
            number, start_s, end_s, [row[f"{name}_ms"] * _MS for name in ("forward", "backward", "step")]
        )
        previous_end_s = end_s
    return tuple(marks)


def _place_one(number: int, start_s: float, end_s: float, durations_s: Sequence[float]) -> Iterator[Mark]:
    gap_s = max(0.0, (end_s - start_s - sum(durations_s)) / len(durations_s))
    # From the end backwards: the update ends with the iteration, whatever the rounding of the clock.
    at_s = end_s
    for name, seconds in reversed(list(zip(PHASES, durations_s, strict=True))):
        yield Mark(name=name, step=number, start_s=at_s - seconds, end_s=at_s)
        at_s -= seconds + gap_s
    yield Mark(name=STEP, step=number, start_s=start_s, end_s=end_s)


def _timeline(device: int, rows: list[dict[str, float]], marks: tuple[Mark, ...], zero_ns: float) -> Timeline:
    rows = sorted(rows, key=lambda row: row["timestamp"])
    times = tuple((row["timestamp"] - zero_ns) / _NS for row in rows)
    return Timeline(
        rank=device,
        source="NVML trace",
        series=tuple(
            Series(key=key, times_s=times, values=tuple(row[column] * factor for row in rows))
            for key, column, factor in _SERIES
        ),
        marks=marks,
        reasons=_REASONS,
    )


def _rows(path: Path, columns: Sequence[str]) -> list[dict[str, str | None]]:
    try:
        with path.open(newline="", encoding="utf-8") as file:
            reader = csv.DictReader(file)
            missing = [name for name in columns if name not in (reader.fieldnames or ())]
            rows = list(reader)
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{path} cannot be read: {error}.", "Name the two CSV files of a trace.") from error
    if missing or not rows:
        what = f"has no column {', '.join(missing)}" if missing else "has no rows"
        raise UsageError(f"{path} {what}.", f"It needs a heading and the columns {', '.join(columns)}.")
    return rows


def _numbers(path: Path, row: dict[str, str | None], columns: Sequence[str]) -> dict[str, float]:
    try:
        return {name: float(row[name] or "") for name in columns}
    except ValueError as error:
        raise UsageError(f"{path}: {error} in the row {row}.", "Every column must be a number.") from error
