"""Memory as the model predicts it, laid over the phases of a step, to be held against what was measured.

Covered: the course over phases that were marked or predicted themselves, peaks by phase. Not covered: the
prediction (`memory_model`), drawing (`report.step_plots`). On a GPU the course is what torch's allocator
counts. What the driver counts stays at its highest: plain DeepSpeed keeps freed memory in torch's pool.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from offtune.memory_course import Level
from offtune.memory_model import MemoryPrediction
from offtune.timeline import PHASES, Mark, Series, Timeline
from offtune.trial import DeviceKind

# What each predicted series is called in a table.
PREDICTED_NAMES = {"device_used_bytes": "memory", "allocated_bytes": "allocated"}


def predicted_series(
    memory: MemoryPrediction, device: DeviceKind, marks: Iterable[Mark]
) -> tuple[Series, ...]:
    """The predicted memory over one step's phases; none where no phase was marked."""
    phases = sorted((mark for mark in marks if mark.name in PHASES), key=lambda mark: mark.start_s)
    points = [point for mark in phases for point in _points(mark, memory.levels)]
    if not points:
        return ()
    times = tuple(time for time, _ in points)
    course = tuple(float(size) for _, size in points)
    if device == "cpu":
        return (Series(key="device_used_bytes", times_s=times, values=course),)
    flat = (float(memory.used_device_bytes),) * 2
    return (
        Series(key="device_used_bytes", times_s=(times[0], times[-1]), values=flat),
        Series(key="allocated_bytes", times_s=times, values=course),
    )


def _points(mark: Mark, levels: Iterable[Level]) -> list[tuple[float, int]]:
    return [
        (mark.start_s + level.share * mark.length_s, level.size)
        for level in levels
        if level.phase == mark.name
    ]


def predicted_peaks(memory: MemoryPrediction, device: DeviceKind) -> dict[str, dict[str, int]]:
    """Predicted peaks by key of a series and phase."""
    course = {phase: memory.peak_by_phase[phase] for phase in PHASES}
    if device == "cpu":
        return {"device_used_bytes": course}
    return {"device_used_bytes": dict.fromkeys(PHASES, memory.used_device_bytes), "allocated_bytes": course}


def with_memory(course: Timeline, memory: MemoryPrediction) -> Timeline:
    """A predicted step with its memory among its series."""
    found = predicted_series(memory, course.device, course.marks)
    return replace(course, series=(*found, *course.series))
