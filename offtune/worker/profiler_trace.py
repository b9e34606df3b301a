"""Reads what torch's profiler exports: copies by phase, host operations, the events worth keeping.

Covered: the Chrome trace of kineto (torch 2.4 to 2.13), as plain JSON. Not covered: taking it
(`close_look.py`). A copy belongs to the phase in which it began: phases end with a synchronised device.
"""

from __future__ import annotations

import bisect
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from offtune.close_look import CloseLook, Copies, Direction, Event, HostMemory, HostOp
from offtune.phase_analysis import Stretch, joined
from offtune.timeline import OTHER

PREFIX = "offtune."  # of the stretches that we name ourselves
ZERO = f"{PREFIX}zero"
MAX_EVENTS = 20_000  # in a trace; Perfetto draws them at once, and the file stays under 5 MB
OPS_KEPT = 8  # of a phase, the longest first
OUTSIDE_TORCH = "outside torch's operators, waiting included"

_MICRO = 1e-6
_COPY = re.compile(r"Memcpy (HtoD|DtoH) \((\w+) -> (\w+)\)")
_DIRECTIONS: dict[str, Direction] = {"HtoD": "h2d", "DtoH": "d2h"}
_MEMORY: dict[str, HostMemory] = {"pinned": "pinned", "pageable": "pageable"}
_ON_DEVICE = ("kernel", "gpu_memcpy", "gpu_memset")

_Raw = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Taken:
    """What is known of the profiled steps beside the trace.

    `zero_s` is the time, on the rank's timeline, at which the stretch named ZERO began. `has_device` says
    whether there is a device to copy to.
    """

    rank: int
    step_s: tuple[float, ...]
    zero_s: float
    has_device: bool


NO_DEVICE = "CPU accelerator: host and device are one memory, nothing is copied between them"


def read_profile(trace: _Raw, taken: Taken) -> CloseLook:
    """The close look of one rank, from the exported trace. Raises ValueError without our own stretches."""
    events = [event for event in trace["traceEvents"] if event.get("ph") == "X"]
    named = [event for event in events if event.get("cat") == "user_annotation"]
    zeros = [event["ts"] for event in named if event["name"] == ZERO]
    if not zeros:
        raise ValueError(f"torch's profiler exported no stretch named {ZERO}")
    phases = _Phases(named)
    steps = len(taken.step_s)
    kept, dropped = _kept_events(events, zeros[0], taken.zero_s)
    return CloseLook(
        rank=taken.rank,
        steps=steps,
        step_s=sum(taken.step_s) / steps,
        phase_s={name: seconds / steps for name, seconds in phases.seconds().items()},
        copies=_copies(events, phases, steps) if taken.has_device else None,
        copies_reason="" if taken.has_device else NO_DEVICE,
        ops=_ops(events, phases, steps),
        events=kept,
        events_dropped=dropped,
    )


class _Phases:
    """The stretches of our phases; microseconds of the trace."""

    def __init__(self, named: Iterable[_Raw]) -> None:
        found = [event for event in named if event["name"].startswith(PREFIX) and event["name"] != ZERO]
        self._stretches = sorted(
            (event["ts"], event["ts"] + event["dur"], event["name"].removeprefix(PREFIX)) for event in found
        )
        self._starts = [start for start, *_ in self._stretches]

    def at(self, moment: float) -> str:
        """The phase at a time of the trace, or "other"."""
        index = bisect.bisect_right(self._starts, moment) - 1
        if index >= 0 and moment < self._stretches[index][1]:
            return str(self._stretches[index][2])
        return OTHER

    def seconds(self) -> dict[str, float]:
        """Seconds of each phase in all."""
        sums: dict[str, float] = defaultdict(float)
        for start, end, name in self._stretches:
            sums[name] += (end - start) * _MICRO
        return dict(sums)


def _copies(events: Iterable[_Raw], phases: _Phases, steps: int) -> tuple[Copies, ...]:
    events = list(events)
    busy = joined((e["ts"], e["ts"] + e["dur"]) for e in events if e.get("cat") == "kernel")
    groups: dict[tuple[str, Direction, HostMemory], list[_Raw]] = defaultdict(list)
    for event in events:
        kind = copy_kind(event["name"]) if event.get("cat") == "gpu_memcpy" else None
        if kind is not None:
            groups[(phases.at(event["ts"]), kind[0], kind[1])].append(event)
    return tuple(
        Copies(
            phase=phase,
            direction=direction,
            memory=memory,
            streams=tuple(sorted({int(event["args"].get("stream", 0)) for event in group})),
            count=len(group) / steps,
            moved_bytes=sum(int(event["args"].get("bytes", 0)) for event in group) / steps,
            copy_s=sum(event["dur"] for event in group) * _MICRO / steps,
            exposed_s=sum(_exposed(event, busy) for event in group) * _MICRO / steps,
        )
        for (phase, direction, memory), group in sorted(groups.items())
    )


def copy_kind(name: str) -> tuple[Direction, HostMemory] | None:
    """Direction and host memory of "Memcpy HtoD (Pinned -> Device)"; None for what stays on a device."""
    found = _COPY.match(name)
    if found is None:
        return None
    way, source, target = found.groups()
    host = source if way == "HtoD" else target
    return _DIRECTIONS[way], _MEMORY.get(host.lower(), "unknown")


def _exposed(event: _Raw, busy: Sequence[Stretch]) -> float:
    """How much of a copy no kernel covers, in the trace's microseconds."""
    start, end = event["ts"], event["ts"] + event["dur"]
    index = max(0, bisect.bisect_right(busy, (start, start)) - 1)
    covered = 0.0
    while index < len(busy) and busy[index][0] < end:
        covered += max(0.0, min(end, busy[index][1]) - max(start, busy[index][0]))
        index += 1
    return float(end - start - covered)


def _ops(events: Iterable[_Raw], phases: _Phases, steps: int) -> tuple[HostOp, ...]:
    """The longest operations of each phase, and what lies outside of them.

    With a device the backward's run on autograd's thread, while the thread that trains waits.
    """
    sums: dict[tuple[str, str], list[float]] = defaultdict(lambda: [0.0, 0.0])
    for event, own_us in (timed for ops in _by_thread(events).values() for timed in _own_times(ops)):
        entry = sums[(phases.at(event["ts"]), event["name"])]
        entry[0] += 1
        entry[1] += own_us * _MICRO
    total = phases.seconds()
    found = []
    for phase, seconds in total.items():
        inside = {name: entry for (where, name), entry in sums.items() if where == phase}
        longest = sorted(inside.items(), key=lambda item: -item[1][1])[:OPS_KEPT]
        found += [
            HostOp(phase=phase, name=name, calls=calls / steps, own_s=own_s / steps)
            for name, (calls, own_s) in longest
        ]
        rest_s = max(0.0, seconds - sum(entry[1] for entry in inside.values()))
        found.append(HostOp(phase=phase, name=OUTSIDE_TORCH, calls=0.0, own_s=rest_s / steps))
    return tuple(found)


def _by_thread(events: Iterable[_Raw]) -> dict[Any, list[_Raw]]:
    """The host's operations by their thread."""
    threads: dict[Any, list[_Raw]] = defaultdict(list)
    for event in events:
        if event.get("cat") == "cpu_op":
            threads[event["tid"]].append(event)
    return threads


def _own_times(ops: Iterable[_Raw]) -> Iterator[tuple[_Raw, float]]:
    """Each operation of one thread with its time less that of the operations it called."""
    open_ops: list[tuple[_Raw, list[float]]] = []
    for event in sorted(ops, key=lambda one: (one["ts"], -one["dur"])):
        while open_ops and event["ts"] >= open_ops[-1][0]["ts"] + open_ops[-1][0]["dur"]:
            done, called = open_ops.pop()
            yield done, done["dur"] - sum(called)
        if open_ops:
            open_ops[-1][1].append(event["dur"])
        open_ops.append((event, []))
    while open_ops:
        done, called = open_ops.pop()
        yield done, done["dur"] - sum(called)


def _kept_events(events: Iterable[_Raw], zero_us: float, zero_s: float) -> tuple[tuple[Event, ...], int]:
    """What ran on the device and the outermost operations of the host; the shortest go where it is much."""
    device = [event for event in events if event.get("cat") in _ON_DEVICE]
    threads = _by_thread(events)
    host = [event for ops in threads.values() for event in _outermost(ops)]
    names = {thread: f"host thread {number}" for number, thread in enumerate(threads, start=1)}
    wanted = sorted([*device, *host], key=lambda one: -one["dur"])
    kept = sorted(wanted[:MAX_EVENTS], key=lambda one: one["ts"])
    found = tuple(
        Event(
            track=names[one["tid"]] if one["cat"] == "cpu_op" else f"stream {one['args'].get('stream', 0)}",
            name=one["name"],
            start_s=zero_s + (one["ts"] - zero_us) * _MICRO,
            end_s=zero_s + (one["ts"] + one["dur"] - zero_us) * _MICRO,
            moved_bytes=one["args"].get("bytes") if one["cat"] == "gpu_memcpy" else None,
        )
        for one in kept
    )
    return found, len(wanted) - len(kept)


def _outermost(ops: Iterable[_Raw]) -> Iterator[_Raw]:
    """The operations of one thread that no other one called."""
    end = float("-inf")
    for event in sorted(ops, key=lambda one: (one["ts"], -one["dur"])):
        if event["ts"] >= end:
            end = event["ts"] + event["dur"]
            yield event
