"""Some steps under torch's profiler: every copy between host and device by phase, host operations, events.

Covered: plain records that a rank leaves in its trial's directory. Not covered: taking them
(`worker/close_look.py`) and timing: a profiler slows what it watches, so its steps are not measured.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

Direction = Literal["h2d", "d2h"]
HostMemory = Literal["pinned", "pageable", "unknown"]

_FILE = "close-look{rank}.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Copies:
    """All copies of one kind within one phase, per optimizer step.

    `memory` is what the host's side of them is. `copy_s` is how long the device's copy engines took,
    `exposed_s` the part of it in which no kernel ran.
    """

    phase: str
    direction: Direction
    memory: HostMemory
    streams: tuple[int, ...]
    count: float
    moved_bytes: float
    copy_s: float
    exposed_s: float

    @property
    def bytes_per_s(self) -> float | None:
        """The rate while copying; None where no time was seen."""
        return self.moved_bytes / self.copy_s if self.copy_s > 0 else None


@dataclass(frozen=True, slots=True, kw_only=True)
class HostOp:
    """One operation of the host within one phase, per optimizer step; `own_s` is without what it called."""

    phase: str
    name: str
    calls: float
    own_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """One kernel, copy or host operation. `track` is what it ran on ("stream 7", "host thread 1")."""

    track: str
    name: str
    start_s: float
    end_s: float
    moved_bytes: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CloseLook:
    """What one rank's profiler saw; seconds of events count from the zero of the rank's timeline.

    `step_s` and `phase_s` are means of the profiled steps. `copies` is None, with `copies_reason`, where
    there is no device to copy to. `events_dropped` is how many were not kept.
    """

    rank: int
    steps: int
    step_s: float
    phase_s: dict[str, float] = field(default_factory=dict)
    copies: tuple[Copies, ...] | None = None
    copies_reason: str = ""
    ops: tuple[HostOp, ...] = ()
    events: tuple[Event, ...] = ()
    events_dropped: int = 0

    def moved_bytes(self, phase: str, direction: Direction) -> float | None:
        """Bytes per step; None where copies are unknown."""
        if self.copies is None:
            return None
        return sum(one.moved_bytes for one in self.copies if (one.phase, one.direction) == (phase, direction))


def look_path(trial_dir: str | Path, rank: int) -> Path:
    """Where the close look of a rank is."""
    return Path(trial_dir) / _FILE.format(rank=rank)
