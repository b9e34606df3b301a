"""A profile in Chrome's trace event format, which Perfetto and chrome://tracing draw.

Covered: steps, phases and parts as complete events, series as counters, kernels and copies of the steps under
the profiler, the predicted step as a process of its own. Not covered: flows between events.

Source: Trace Event Format (Google, 2016): "X" complete events, "C" counters, "M" names; microseconds.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from offtune.close_look import CloseLook
from offtune.timeline import LEVELS, PHASES, RATES, STEP, Mark, Series, Timeline

TraceEvent = dict[str, Any]
_MICROSECONDS = 1e6
_GIB = 2**30
_STEPS_TRACK, _PHASES_TRACK = "steps", "phases"


def trace_document(
    timelines: Sequence[Timeline], looks: Sequence[CloseLook], predicted: Timeline | None, about: str
) -> dict[str, Any]:
    """The whole trace: one process a rank, times from the first recorded moment on."""
    origin_s = min((_earliest(one) for one in timelines), default=0.0)
    events: list[TraceEvent] = []
    for timeline in timelines:
        look = next((one for one in looks if one.rank == timeline.rank), None)
        events += _process(timeline.rank, f"rank {timeline.rank} (measured)", timeline, look, origin_s)
    if predicted is not None:
        number = max((one.rank for one in timelines), default=-1) + 1
        events += _process(number, "predicted, not measured", predicted, None, 0.0)
    # Names first, then by time; of two that begin together the longer one, which holds the other.
    events.sort(key=lambda event: (event["ph"] != "M", event["ts"], -event.get("dur", 0.0)))
    return {"traceEvents": events, "displayTimeUnit": "ms", "otherData": {"about": about}}


def _earliest(timeline: Timeline) -> float:
    starts = [mark.start_s for mark in timeline.marks]
    return min([*starts, *(one.times_s[0] for one in timeline.series if one.times_s)], default=0.0)


def _process(
    number: int, name: str, timeline: Timeline, look: CloseLook | None, origin_s: float
) -> Iterator[TraceEvent]:
    tracks = _Tracks(number)
    events = [*_marks(timeline.marks, tracks, origin_s), *(_look_events(look, tracks, origin_s))]
    yield _name("process_name", number, 0, name)
    yield from tracks.names()
    yield from events
    for series in timeline.series:
        yield from _counters(series, number, origin_s)


class _Tracks:
    """The rows of one process, numbered as they come up."""

    def __init__(self, process: int) -> None:
        self.process = process
        self._numbers = {_STEPS_TRACK: 1, _PHASES_TRACK: 2}

    def number(self, track: str) -> int:
        return self._numbers.setdefault(track, len(self._numbers) + 1)

    def names(self) -> Iterator[TraceEvent]:
        for track, number in self._numbers.items():
            yield _name("thread_name", self.process, number, track)


def _name(kind: str, process: int, track: int, name: str) -> TraceEvent:
    return {"ph": "M", "name": kind, "pid": process, "tid": track, "ts": 0, "args": {"name": name}}


def _marks(marks: Iterable[Mark], tracks: _Tracks, origin_s: float) -> Iterator[TraceEvent]:
    for mark in marks:
        # A row for each part: parts of different kinds may overlap, which one row cannot show.
        track = _STEPS_TRACK if mark.name == STEP else _PHASES_TRACK if mark.name in PHASES else mark.name
        details = {"step": mark.step, "micro_step": mark.micro_step}
        yield _complete(mark.name, tracks, track, mark.start_s - origin_s, mark.length_s, details)


def _look_events(look: CloseLook | None, tracks: _Tracks, origin_s: float) -> Iterator[TraceEvent]:
    for event in look.events if look is not None else ():
        details = {} if event.moved_bytes is None else {"bytes": event.moved_bytes}
        track = f"{event.track} (under the profiler)"
        start_s = event.start_s - origin_s
        yield _complete(event.name, tracks, track, start_s, event.end_s - event.start_s, details)


def _complete(
    name: str, tracks: _Tracks, track: str, start_s: float, length_s: float, details: dict[str, Any]
) -> TraceEvent:
    return {
        "ph": "X",
        "name": name,
        "pid": tracks.process,
        "tid": tracks.number(track),
        "ts": _micro(start_s),
        "dur": _micro(length_s),
        "args": details,
    }


def _counters(series: Series, process: int, origin_s: float) -> Iterator[TraceEvent]:
    """A level holds from its sample on; a rate or a share is told for the time before it, so begins there."""
    name, factor = _unit(series.key)
    moments = series.times_s if series.key in LEVELS else [start for start, _ in series.spans()]
    for moment, value in zip(moments, series.values, strict=True):
        yield {
            "ph": "C",
            "name": name,
            "pid": process,
            "tid": 0,
            "ts": _micro(moment - origin_s),
            "args": {"value": round(value * factor, 6)},
        }


def _unit(key: str) -> tuple[str, float]:
    """What a counter is called, with its unit, and the factor to that unit."""
    if key in LEVELS:
        return f"{key.removesuffix('_bytes')} GiB", 1 / _GIB
    if key in RATES:
        return f"{key.removesuffix('_bytes_per_s')} GiB/s", 1 / _GIB
    return f"{key.removesuffix('_share')} %", 100.0


def _micro(seconds: float) -> float:
    """Microseconds to the nanosecond; the first span of a rate may begin before the recording."""
    return round(max(0.0, seconds) * _MICROSECONDS, 3)
