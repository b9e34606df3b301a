"""The figures of a profile as tables, in the units of published studies: seconds, %, GiB, GiB/s.

Covered: phases, parts inside them, copies, traffic beside its formulas, prediction beside measurement. Rows
of what was not measured are left out; `Timeline.reasons` says why. Not covered: working figures out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from offtune.close_look import CloseLook
from offtune.phase_analysis import PhaseFigures, StepAnalysis
from offtune.profile import Profiled
from offtune.report.page import Column, Table
from offtune.report.phase_table import core_group_names
from offtune.report.predicted_memory import PREDICTED_NAMES, predicted_peaks
from offtune.timeline import OTHER
from offtune.traffic_check import CounterCheck, TrafficCheck
from offtune.units import format_bytes, format_seconds

GIB = 2**30
_LINKS = (("D2H", "d2h_bytes_per_s"), ("H2D", "h2d_bytes_per_s"))
_DISKS = (("NVMe read", "nvme_read_bytes_per_s"), ("NVMe write", "nvme_write_bytes_per_s"))
_LEVELS = (
    ("memory by driver, peak GiB", "device_used_bytes"),
    ("allocator, allocated peak GiB", "allocated_bytes"),
    ("allocator, reserved peak GiB", "reserved_bytes"),
    ("host memory of a rank, peak GiB", "host_resident_bytes"),
    ("pinned host memory, peak GiB", "pinned_bytes"),
    ("NVMe footprint, peak GiB", "nvme_footprint_bytes"),
)
_ON_CPU = {"memory by driver, peak GiB": "memory above its start, peak GiB"}

Read = Callable[[PhaseFigures], float | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One line of the checklist: a figure of each phase, printed with `digits` after the point."""

    name: str
    read: Read
    digits: int = 2


def checklist(found: Profiled, analysis: StepAnalysis) -> Table:
    """Every phase and the step, line by line as published studies have them."""
    rows = [
        (row.name, *(_number(row.read(phase), row.digits) for phase in analysis.phases))
        for row in _rows(found, analysis)
    ]
    columns = (Column(title=""), *(Column(title=phase.name, right=True) for phase in analysis.phases))
    return Table(columns=columns, rows=tuple(row for row in rows if any(cell != "-" for cell in row[1:])))


def _rows(found: Profiled, analysis: StepAnalysis) -> Iterable[Row]:
    yield Row(name="time, s", read=lambda phase: phase.seconds, digits=3)
    count = analysis.micro_steps
    if count is not None and count > 1:
        yield Row(name="time of a micro-step, s", read=lambda phase: phase.micro_step_s(count), digits=3)
    yield Row(name="of the step, %", read=lambda phase: 100 * phase.share, digits=1)
    for name, key in _LEVELS:
        shown = _ON_CPU.get(name, name) if analysis.device == "cpu" else name
        yield Row(name=shown, read=_scaled(key, "peak", 1 / GIB))
        if key == "reserved_bytes":
            yield Row(name="outside the allocator, GiB", read=_outside_allocator_gib)
    yield Row(name="below the step's peak, GiB", read=_idle_gib(analysis))
    if found.has_budget:
        limit = found.config.limit_bytes
        yield Row(name="left of the budget, GiB", read=lambda phase: _left(phase, limit))
    for name, key in (*_LINKS, *_DISKS):
        yield Row(name=f"{name}, mean GiB/s", read=_scaled(key, "mean", 1 / GIB))
        yield Row(name=f"{name}, peak GiB/s", read=_scaled(key, "peak", 1 / GIB))
        best = getattr(found.peaks, key)
        if best:
            yield Row(name=f"{name}, mean as % of its peak", read=_scaled(key, "mean", 100 / best), digits=1)
    for name, key in (*_LINKS, *_DISKS):
        yield Row(name=f"{name}, bytes per parameter", read=_per_parameter(key, found.local_params))
    yield Row(name="GPU busy, %", read=_scaled("gpu_busy_share", "mean", 100), digits=0)
    yield Row(name="CPU busy, %", read=_scaled("cpu_busy_share", "mean", 100), digits=0)
    for key, name in core_group_names(analysis):
        yield Row(name=f"{name} busy, %", read=_scaled(key, "mean", 100), digits=0)


def _scaled(key: str, which: str, factor: float) -> Read:
    def read(phase: PhaseFigures) -> float | None:
        value = phase.peak(key) if which == "peak" else phase.mean(key)
        return None if value is None else value * factor

    return read


def _outside_allocator_gib(phase: PhaseFigures) -> float | None:
    size = phase.outside_allocator_bytes
    return None if size is None else size / GIB


def _idle_gib(analysis: StepAnalysis) -> Read:
    """What a phase leaves unused: of the allocator where that is known, for the driver sees its pool full."""
    key = "allocated_bytes" if analysis.peak("allocated_bytes") is not None else "device_used_bytes"
    most, peak = (analysis.peak(key) or 0.0) / GIB, _scaled(key, "peak", 1 / GIB)
    return lambda phase: None if (used := peak(phase)) is None else most - used


def _left(phase: PhaseFigures, limit_bytes: int) -> float | None:
    used = phase.peak("device_used_bytes")
    return None if used is None else (limit_bytes - used) / GIB


def _per_parameter(key: str, params: float) -> Read:
    def read(phase: PhaseFigures) -> float | None:
        moved = phase.moved_bytes(key)
        return None if moved is None or not params else moved / params

    return read


def _number(value: float | None, digits: int) -> str:
    return "-" if value is None else f"{value:.{digits}f}"


def parts_table(analysis: StepAnalysis) -> Table | None:
    """What DeepSpeed exposes inside the phases, the longest first; None where it exposes nothing."""
    if not analysis.parts:
        return None
    paths = [(name, key) for name, key in (*_LINKS, *_DISKS) if _any_rate(analysis, key)]
    columns = (
        Column(title="part", stretch=True),
        Column(title="time", right=True),
        Column(title="% of phase", right=True),
        *(Column(title=f"{name.removeprefix('NVMe ')} GiB/s", right=True) for name, _ in paths),
        Column(title="CPU %", right=True),
    )
    rows = tuple(
        (
            part.name,
            format_seconds(part.seconds),
            _number(_of_phase(part, analysis), 0),
            *(_number(_scaled(key, "mean", 1 / GIB)(part), 2) for _, key in paths),
            _number(_scaled("cpu_busy_share", "mean", 100)(part), 0),
        )
        for part in sorted(analysis.parts, key=lambda one: -one.seconds)
    )
    return Table(columns=columns, rows=rows)


def _any_rate(analysis: StepAnalysis, key: str) -> bool:
    return any(part.mean(key) for part in analysis.parts)


def _of_phase(part: PhaseFigures, analysis: StepAnalysis) -> float | None:
    phase = analysis.find(part.name.partition(".")[0])
    return None if phase is None or not phase.seconds else 100 * part.seconds / phase.seconds


def copies_table(look: CloseLook) -> Table | None:
    """Every kind of copy by phase; None where there were none or they are not known."""
    if not look.copies:
        return None
    titles = ("copies", "bytes", "ms", "GiB/s", "exposed ms", "streams")
    columns = (
        Column(title="phase"),
        Column(title="way"),
        Column(title="host memory"),
        *(Column(title=title, right=True) for title in titles),
    )
    rows = tuple(
        (
            one.phase,
            one.direction.upper(),
            one.memory,
            f"{one.count:.0f}",
            format_bytes(one.moved_bytes),
            _number(1000 * one.copy_s, 2),
            _number(None if one.bytes_per_s is None else one.bytes_per_s / GIB, 2),
            _number(1000 * one.exposed_s, 2),
            ", ".join(str(stream) for stream in one.streams),
        )
        for one in look.copies
    )
    return Table(columns=columns, rows=rows)


def ops_table(look: CloseLook, shown: int = 4) -> Table | None:
    """The host's longest operations in each phase; None where the profiler saw none."""
    phases = [name for name in look.phase_s if name != OTHER]
    kept = [
        op
        for phase in phases
        for op in sorted((op for op in look.ops if op.phase == phase), key=lambda op: -op.own_s)[:shown]
    ]
    if not kept:
        return None
    columns = (
        Column(title="phase"),
        Column(title="operation", stretch=True),
        Column(title="calls", right=True),
        Column(title="own time", right=True),
    )
    rows = tuple(
        (op.phase, op.name, f"{op.calls:.0f}" if op.calls else "-", format_seconds(op.own_s)) for op in kept
    )
    return Table(columns=columns, rows=rows)


def traffic_table(checks: Iterable[TrafficCheck]) -> Table | None:
    """Bytes of a step by formula and as measured; None where nothing moves."""
    columns = (
        Column(title="path"),
        Column(title="phase"),
        Column(title="by formula", right=True),
        Column(title="measured", right=True),
        Column(title="difference", right=True),
    )
    rows = tuple(
        (
            check.path,
            check.phase,
            format_bytes(check.formula_bytes),
            format_bytes(check.measured_bytes),
            "-" if check.difference_share is None else f"{100 * check.difference_share:+.1f} %",
        )
        for check in checks
    )
    return Table(columns=columns, rows=rows) if rows else None


def counter_table(checks: Iterable[CounterCheck]) -> Table | None:
    """The driver's counters beside the copies; None where one of the two is missing everywhere."""
    known = [check for check in checks if check.ratio is not None]
    if not known:
        return None
    columns = (
        Column(title="phase"),
        Column(title="way"),
        Column(title="counter", right=True),
        Column(title="copies", right=True),
        Column(title="counter / copies", right=True),
    )
    rows = tuple(
        (
            one.phase,
            one.direction.upper(),
            format_bytes(one.counter_bytes),
            format_bytes(one.payload_bytes),
            _number(one.ratio, 2),
        )
        for one in known
    )
    return Table(columns=columns, rows=rows)


def predicted_table(found: Profiled, analysis: StepAnalysis) -> Table | None:
    """Predicted beside measured seconds; None without a prediction."""
    prediction = found.expected.prediction
    if prediction is None:
        return None
    predicted = {
        "forward": prediction.time.forward_s,
        "backward": prediction.time.backward_s,
        "update": prediction.time.update_s,
        "step": prediction.time.step_s,
    }
    measured = {phase.name: phase.seconds for phase in analysis.phases} | {"step": analysis.step_s}
    columns = (Column(title=""), *(Column(title=name, right=True) for name in predicted))
    return Table(
        columns=columns,
        rows=(
            ("measured", *(format_seconds(measured.get(name)) for name in predicted)),
            ("predicted", *(format_seconds(value) for value in predicted.values())),
            ("predicted / measured", *(_ratio(predicted[name], measured.get(name)) for name in predicted)),
        ),
    )


def predicted_memory_table(found: Profiled, analysis: StepAnalysis) -> Table | None:
    """Predicted beside measured peaks of memory by phase; None without a prediction."""
    if found.expected.prediction is None:
        return None
    columns = (Column(title=""), *(Column(title=phase.name, right=True) for phase in analysis.phases))
    rows: list[tuple[str, ...]] = []
    for key, peaks in predicted_peaks(found.expected.prediction.memory, analysis.device).items():
        name = PREDICTED_NAMES[key]
        measured = [(phase.peak(key), peaks.get(phase.name)) for phase in analysis.phases]
        rows += [
            (f"{name} peak, measured", *(format_bytes(here) for here, _ in measured)),
            (f"{name} peak, predicted", *(format_bytes(there) for _, there in measured)),
            ("predicted / measured", *("-" if b is None else _ratio(b, a) for a, b in measured)),
        ]
    return Table(columns=columns, rows=tuple(row for row in rows if any(cell != "-" for cell in row[1:])))


def _ratio(predicted: float, measured: float | None) -> str:
    return "-" if not measured else f"{predicted / measured:.2f}"
