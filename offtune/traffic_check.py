"""What a step moved beside what DeepSpeed's design says it moves, by phase and path, per rank.

Covered: bytes over the link from the profiler's copies, bytes to and from NVMe from the kernel's accounting,
both against `step_work`; the driver's PCIe counters against the copies. Not covered: where the bytes come
from. What was not measured is None with its reason.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from offtune.close_look import CloseLook, Direction
from offtune.phase_analysis import StepAnalysis
from offtune.step_timeline import step_volumes
from offtune.step_work import StepWork
from offtune.timeline import PHASES

Path = Literal["H2D", "D2H", "NVMe read", "NVMe write"]
WHOLE = "step"
# Name, field of a Volume, series of the recording, direction of the profiler's copies.
_PATHS: tuple[tuple[Path, str, str, Direction | None], ...] = (
    ("D2H", "d2h", "d2h_bytes_per_s", "d2h"),
    ("H2D", "h2d", "h2d_bytes_per_s", "h2d"),
    ("NVMe read", "read", "nvme_read_bytes_per_s", None),
    ("NVMe write", "written", "nvme_write_bytes_per_s", None),
)
_NOT_LOOKED = "no step ran under torch's profiler"
_NOT_RECORDED = "not recorded"
NO_LAYERS = "the layers of a model that only a script knows are not known to offtune"


@dataclass(frozen=True, slots=True, kw_only=True)
class TrafficCheck:
    """Bytes per optimizer step over one path in one phase, or in the whole step."""

    phase: str
    path: Path
    formula_bytes: float | None
    measured_bytes: float | None
    reason: str = ""

    @property
    def difference_share(self) -> float | None:
        """How far the measured bytes are from the formula's, as a share of these."""
        if self.measured_bytes is None or not self.formula_bytes:
            return None
        return self.measured_bytes / self.formula_bytes - 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class CounterCheck:
    """The driver's counter beside the copies of the profiler, per step of one phase and direction."""

    phase: str
    direction: Direction
    counter_bytes: float | None
    payload_bytes: float | None
    reason: str = ""

    @property
    def ratio(self) -> float | None:
        """Counter over payload: 1.10 to 1.18 in published traces."""
        if self.counter_bytes is None or not self.payload_bytes:
            return None
        return self.counter_bytes / self.payload_bytes


def traffic_checks(
    work: StepWork | None, analysis: StepAnalysis | None, look: CloseLook | None
) -> tuple[TrafficCheck, ...]:
    """Every phase and path over which anything goes, by formula or by measurement, and the step's sums."""
    found = [check for path in _PATHS for check in _of_path(*path, work, analysis, look)]
    return tuple(check for check in found if check.formula_bytes or check.measured_bytes)


def _of_path(
    path: Path,
    field: str,
    key: str,
    direction: Direction | None,
    work: StepWork | None,
    analysis: StepAnalysis | None,
    look: CloseLook | None,
) -> Iterator[TrafficCheck]:
    volumes = step_volumes(work) if work is not None else {}
    sums: list[tuple[float | None, float | None]] = []
    missing = ""
    for phase in PHASES:
        formula = next((float(getattr(one, field)) for name, one in volumes.items() if name == phase), None)
        if direction is not None:
            measured, reason = _copied(look, phase, direction)
        else:
            measured, reason = _recorded(analysis, phase, key)
        missing = missing or reason
        sums.append((formula, measured))
        yield TrafficCheck(
            phase=phase, path=path, formula_bytes=formula, measured_bytes=measured, reason=reason
        )
    yield TrafficCheck(
        phase=WHOLE,
        path=path,
        formula_bytes=_sum(formula for formula, _ in sums),
        measured_bytes=_sum(measured for _, measured in sums),
        reason=missing,
    )


def _sum(values: Iterator[float | None]) -> float | None:
    """The sum; None where a part of it is not known."""
    found = list(values)
    return None if any(value is None for value in found) else sum(value for value in found if value)


def _copied(look: CloseLook | None, phase: str, direction: Direction) -> tuple[float | None, str]:
    if look is None:
        return None, _NOT_LOOKED
    return look.moved_bytes(phase, direction), look.copies_reason


def _recorded(analysis: StepAnalysis | None, phase: str, key: str) -> tuple[float | None, str]:
    figures = analysis.find(phase) if analysis is not None else None
    moved = figures.moved_bytes(key) if figures is not None else None
    if moved is not None:
        return moved, ""
    return None, (analysis.reasons.get(key) if analysis is not None else None) or _NOT_RECORDED


def counter_checks(analysis: StepAnalysis | None, look: CloseLook | None) -> tuple[CounterCheck, ...]:
    """Counter and payload of each phase and direction, where either saw anything or why it is not known."""
    found = []
    for _, _, key, direction in _PATHS:
        if direction is None:
            continue
        for phase in PHASES:
            payload, no_payload = _copied(look, phase, direction)
            counter, no_counter = _recorded(analysis, phase, key)
            if payload == 0 and not counter:
                continue
            check = CounterCheck(phase=phase, direction=direction, counter_bytes=counter,
                                 payload_bytes=payload, reason=no_payload or no_counter)  # fmt: skip
            found.append(check)
    return tuple(found)
