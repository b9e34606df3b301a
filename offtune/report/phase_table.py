"""Every phase of a step in figures, as a table, and the parts that were seen inside.

Covered: time, memory, rates, bytes moved, utilisation of a StepAnalysis. Not covered: working them out
(`phase_analysis`) and what they mean (`report.bounds_page`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from offtune.bounds import Peaks
from offtune.memory_model import MemoryPrediction
from offtune.phase_analysis import PhaseFigures, StepAnalysis
from offtune.report.page import Column, Table
from offtune.report.predicted_memory import PREDICTED_NAMES, predicted_peaks
from offtune.timeline import cores_key
from offtune.units import format_bytes, format_seconds

Row = tuple[str, Callable[[PhaseFigures], str]]
_PATHS = (
    ("D2H", "d2h_bytes_per_s"),
    ("H2D", "h2d_bytes_per_s"),
    ("NVMe read", "nvme_read_bytes_per_s"),
    ("NVMe write", "nvme_write_bytes_per_s"),
)


def phase_table(
    analysis: StepAnalysis, memory: MemoryPrediction | None = None, peaks: Peaks | None = None
) -> Table:
    """Every phase in figures, one column a phase; rows of what was not recorded are left out.

    With `peaks` rates stand beside what the machine can do; predicted peaks of memory at the end, labelled.
    """
    columns = (Column(title=""), *(Column(title=phase.name, right=True) for phase in analysis.phases))
    shown = (*_time_rows(analysis), *_PHASE_ROWS, *_core_rows(analysis), *_link_rows(peaks or Peaks()))
    rows = [(name, *(read(phase) for phase in analysis.phases)) for name, read in shown]
    rows += _predicted_rows(analysis, memory) if memory is not None else []
    return Table(columns=columns, rows=tuple(row for row in rows if any(cell != "-" for cell in row[1:])))


def _predicted_rows(analysis: StepAnalysis, memory: MemoryPrediction) -> list[tuple[str, ...]]:
    return [
        (
            f"{PREDICTED_NAMES[key]}, predicted peak",
            *(format_bytes(peaks.get(phase.name)) for phase in analysis.phases),
        )
        for key, peaks in predicted_peaks(memory, analysis.device).items()
    ]


def parts_table(analysis: StepAnalysis) -> Table:
    """The parts that were seen inside phases, the longest first; without rows where there are none."""
    columns = (Column(title=""), Column(title="time", right=True), Column(title="of the step", right=True))
    parts = sorted(analysis.parts, key=lambda part: -part.seconds)
    rows = tuple(
        (_part_name(part.name), format_seconds(part.seconds), _percent(part.share)) for part in parts
    )
    return Table(columns=columns, rows=rows)


def _part_name(name: str) -> str:
    """'update: cpu optimizer'."""
    phase, _, part = name.partition(".")
    return f"{phase}: {part.replace('_', ' ')}"


def rate_per_s(bytes_per_s: float | None) -> str:
    """'5.81 GB/s'; '-' for unknown."""
    return "-" if bytes_per_s is None else f"{format_bytes(bytes_per_s)}/s"


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{100 * share:.0f} %"


def core_group_names(analysis: StepAnalysis) -> Iterator[tuple[str, str]]:
    """(key, what to call it) of each group of the host's cores: 'cores of node0 (16)'."""
    for name, count in analysis.core_groups.items():
        yield cores_key(name), f"cores of {name} ({count})"


def _link_rows(peaks: Peaks) -> Iterator[Row]:
    for name, key in _PATHS:
        if best := getattr(peaks, key):
            yield f"{name}, mean of its peak {rate_per_s(best)}", _mean_of(key, best)


def _time_rows(analysis: StepAnalysis) -> Iterator[Row]:
    yield "time", lambda phase: format_seconds(phase.seconds)
    count = analysis.micro_steps
    if count is not None and count > 1:
        yield f"each of {count} micro-steps", lambda phase: format_seconds(phase.micro_step_s(count))


def _core_rows(analysis: StepAnalysis) -> Iterator[Row]:
    for key, name in core_group_names(analysis):
        yield f"{name} busy", _mean_share(key)


def _mean_share(key: str) -> Callable[[PhaseFigures], str]:
    return lambda phase: _percent(phase.mean(key))


def _mean_of(key: str, best: float) -> Callable[[PhaseFigures], str]:
    def read(phase: PhaseFigures) -> str:
        mean = phase.mean(key)
        return _percent(None if mean is None else mean / best)

    return read


def _mean_rate(key: str) -> Callable[[PhaseFigures], str]:
    return lambda phase: rate_per_s(phase.mean(key))


def _peak_rate(key: str) -> Callable[[PhaseFigures], str]:
    return lambda phase: rate_per_s(phase.peak(key))


def _peak_bytes(key: str) -> Callable[[PhaseFigures], str]:
    return lambda phase: format_bytes(phase.peak(key))


def _moved(key: str) -> Callable[[PhaseFigures], str]:
    return lambda phase: format_bytes(phase.moved_bytes(key))


_PHASE_ROWS: tuple[Row, ...] = (
    ("of the step", lambda phase: _percent(phase.share)),
    ("memory, peak", lambda phase: format_bytes(phase.peak("device_used_bytes"))),
    ("memory, mean", lambda phase: format_bytes(phase.mean("device_used_bytes"))),
    ("allocated, peak", _peak_bytes("allocated_bytes")),
    ("reserved, peak", _peak_bytes("reserved_bytes")),
    ("outside the allocator", lambda phase: format_bytes(phase.outside_allocator_bytes)),
    *(
        (f"{name}, peak", _peak_bytes(key))
        for name, key in (
            ("host memory", "host_resident_bytes"),
            ("pinned", "pinned_bytes"),
            ("NVMe footprint", "nvme_footprint_bytes"),
        )
    ),
    *(
        (f"{name}, {what}", make(key))
        for name, key in _PATHS
        for what, make in (("mean", _mean_rate), ("peak", _peak_rate), ("moved", _moved))
    ),
    ("GPU busy", _mean_share("gpu_busy_share")),
    ("GPU idle", lambda phase: format_seconds(phase.gpu_idle_s)),
    ("CPU busy", _mean_share("cpu_busy_share")),
)
