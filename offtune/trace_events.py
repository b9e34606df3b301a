"""A profile in Chrome's trace event format, which Perfetto and chrome://tracing draw.

Covered: steps, phases and parts as complete events, series as counters, kernels and copies of the steps under
the profiler, the predicted step as a process of its own. Not covered: flows between events.

Source: Trace Event Format (Google, 2016): "X" complete events, "C" counters, "M" names and order;
microseconds. Events of one row lie apart or inside each other: Perfetto before v57 drops what overlaps
otherwise (slice_drop_overlapping_complete_event), so that goes to a row beside it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from offtune.close_look import CloseLook
from offtune.timeline import LEVELS, PHASES, RATES, STEP, Mark, Series, Timeline

TraceEvent = dict[str, Any]
_NS_PER_S, _NS_PER_US = 1e9, 1e3
# Of a nanosecond, added to whole ones: a reader that multiplies by 1000 and cuts off (Perfetto's importer of
# JSON) gets them back, where 0.003 would become 2.
_GUARD_NS = 0.25
# Rows of a process; one trace has each number once, since a reader may look a row up by its number alone.
_ROWS = 1_000
_GIB = 2**30
_STEPS_TRACK, _PHASES_TRACK = "steps", "phases"


def trace_document(
    timelines: Sequence[Timeline], looks: Sequence[CloseLook], predicted: Timeline | None, about: str
) -> dict[str, Any]:
    """The whole trace: one process a rank, from 1 on (0 is the idle process), times from the first moment."""
    origin_s = min((_earliest(one) for one in timelines), default=0.0)
    events: list[TraceEvent] = []
    for timeline in timelines:
        look = next((one for one in looks if one.rank == timeline.rank), None)
        events += _process(timeline.rank + 1, f"rank {timeline.rank} (measured)", timeline, look, origin_s)
    if predicted is not None:
        number = max((one.rank for one in timelines), default=-1) + 2
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
    yield _about("process_name", number, tracks.first, {"name": name})
    yield _about("process_sort_index", number, tracks.first, {"sort_index": number})
    yield from tracks.names()
    yield from events
    for series in timeline.series:
        yield from _counters(series, tracks, origin_s)


class _Tracks:
    """The rows of one process, numbered as they come up."""

    def __init__(self, process: int) -> None:
        self.process = process
        self.first = process * _ROWS + 1
        self._numbers: dict[str, int] = {}
        self._open: dict[str, list[int]] = {}
        for track in (_STEPS_TRACK, _PHASES_TRACK):
            self.row(track)

    def row(self, track: str) -> int:
        """The number of a row."""
        return self._numbers.setdefault(track, self.first + len(self._numbers))

    def place(self, track: str, start_ns: int, end_ns: int) -> int:
        """The row of that name for an event, or the one beside it if it crosses one there.

        Events of a track come in the order of their starts, of two that start together the longer one first.
        """
        name, copy = track, 1
        while not self._takes(name, start_ns, end_ns):
            copy += 1
            name = f"{track} ({copy})"
        return self.row(name)

    def _takes(self, name: str, start_ns: int, end_ns: int) -> bool:
        """Whether a row has room for an event, inside what is open there or after it."""
        ends = self._open.setdefault(name, [])
        while ends and ends[-1] <= start_ns:
            ends.pop()
        if ends and ends[-1] < end_ns:
            return False
        ends.append(end_ns)
        return True

    def names(self) -> Iterator[TraceEvent]:
        for track, number in self._numbers.items():
            yield _about("thread_name", self.process, number, {"name": track})
            yield _about("thread_sort_index", self.process, number, {"sort_index": number})


def _about(kind: str, process: int, track: int, details: dict[str, Any]) -> TraceEvent:
    return {"ph": "M", "name": kind, "pid": process, "tid": track, "ts": 0, "args": details}


def _marks(marks: Iterable[Mark], tracks: _Tracks, origin_s: float) -> Iterator[TraceEvent]:
    for mark in sorted(marks, key=lambda mark: (mark.start_s, -mark.end_s)):
        # A row for each part: parts of different kinds may overlap, which one row cannot show.
        track = _STEPS_TRACK if mark.name == STEP else _PHASES_TRACK if mark.name in PHASES else mark.name
        details = {"step": mark.step, "micro_step": mark.micro_step}
        span_s = mark.start_s - origin_s, mark.end_s - origin_s
        yield _complete(mark.name, tracks, track, span_s, details)


def _look_events(look: CloseLook | None, tracks: _Tracks, origin_s: float) -> Iterator[TraceEvent]:
    events = () if look is None else look.events
    for event in sorted(events, key=lambda event: (event.start_s, -event.end_s)):
        details = {} if event.moved_bytes is None else {"bytes": event.moved_bytes}
        track = f"{event.track} (under the profiler)"
        yield _complete(
            event.name, tracks, track, (event.start_s - origin_s, event.end_s - origin_s), details
        )


def _complete(
    name: str, tracks: _Tracks, track: str, span_s: tuple[float, float], details: dict[str, Any]
) -> TraceEvent:
    # Both ends are rounded, not the length: what ends together goes on doing so.
    start_ns, end_ns = (_whole_ns(moment_s) for moment_s in span_s)
    return {
        "ph": "X",
        "name": name,
        "pid": tracks.process,
        "tid": tracks.place(track, start_ns, end_ns),
        "ts": _micro(start_ns),
        "dur": _micro(end_ns - start_ns),
        "args": {key: value for key, value in details.items() if value is not None},
    }


def _counters(series: Series, tracks: _Tracks, origin_s: float) -> Iterator[TraceEvent]:
    """A level holds from its sample on; a rate or a share is told for the time before it, so begins there."""
    name, factor = _unit(series.key)
    moments = series.times_s if series.key in LEVELS else [start for start, _ in series.spans()]
    for moment, value in zip(moments, series.values, strict=True):
        yield {
            "ph": "C",
            "name": name,
            "pid": tracks.process,
            "tid": tracks.first,
            "ts": _micro(_whole_ns(moment - origin_s)),
            "args": {"value": round(value * factor, 6)},
        }


def _unit(key: str) -> tuple[str, float]:
    """What a counter is called, with its unit, and the factor to that unit."""
    if key in LEVELS:
        return f"{key.removesuffix('_bytes')} GiB", 1 / _GIB
    if key in RATES:
        return f"{key.removesuffix('_bytes_per_s')} GiB/s", 1 / _GIB
    name, _, group = key.partition(".")
    return f"{name.removesuffix('_share')}{f' of {group}' if group else ''} %", 100.0


def _whole_ns(seconds: float) -> int:
    """Nanoseconds; the first span of a rate may begin before the recording."""
    return round(max(0.0, seconds) * _NS_PER_S)


def _micro(whole_ns: int) -> float:
    return round((whole_ns + _GUARD_NS) / _NS_PER_US, 5)
