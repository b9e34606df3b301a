"""What is read of this process at each edge of a phase and each tick of the sampler: noted now, told later.

Covered: processor time, resident memory, bytes read and written, as cheaply as can be. Not covered: when to
look (`recorder.py`) and what the readings become (`readings.py`).
"""

from __future__ import annotations

import time
from typing import NamedTuple

from offtune.worker.memory import ProcFile, ResidentMemory, io_bytes_of
from offtune.worker.readings import Readings

_MOST = 20_000  # some three minutes of them; then they are taken apart on the way
# Bytes moved are read at each edge anyway, and with cold caches each reading costs tens of microseconds.
_IO_EVERY = 4


class _Look(NamedTuple):
    """Seconds of processor time, bytes of resident memory, bytes (read, written) so far."""

    at_s: float
    cpu_s: float
    resident_bytes: float
    io_bytes: tuple[int, int] | None


class Looks:
    """Edges in the training thread, ticks in the sampling one; appending to a list needs no lock.

    `with_io`: by the kernel's accounting of this process, O_DIRECT and page cache alike, of any block device.
    """

    def __init__(self, resident: ResidentMemory, *, with_io: bool) -> None:
        self._resident = resident
        self._io = ProcFile("io") if with_io else None
        self._ticks = 0
        self._looks: list[_Look] = []
        self._edges: list[tuple[float, float, bytes, bytes | None]] = []  # as the kernel told them

    def edge(self, now: float) -> None:
        """Beside a phase, where caches are cold and each line costs microseconds: what can wait does."""
        io = self._io.read() if self._io is not None else None
        self._edges.append((now, time.process_time(), self._resident.look(), io))

    def read_edges(self) -> None:
        """Read what was noted at edges; between two steps."""
        for at_s, cpu_s, statm, io in self._edges:
            moved = io_bytes_of(io) if io is not None else None
            self._looks.append(_Look(at_s, cpu_s, self._resident.looked(statm), moved))
        self._edges.clear()

    def tick(self, now: float, resident_bytes: float) -> None:
        """The sampler has read the memory; bytes moved are read at one tick of four."""
        self._ticks += 1
        io = self._io if self._ticks % _IO_EVERY == 0 else None
        moved = io_bytes_of(io.read()) if io is not None else None
        self._looks.append(_Look(now, time.process_time(), resident_bytes, moved))

    @property
    def are_many(self) -> bool:
        """Whether it is time to take them apart, training or not."""
        return len(self._looks) > _MOST

    def take_apart(self, readings: Readings, threads: int, level_bytes: int | None) -> None:
        """Make readings of them; with a level, memory above it is that of the device."""
        looks, self._looks = self._looks, []
        for look in looks:
            readings.counter("cpu_busy_share", look.at_s, look.cpu_s, threads)
            readings.value("host_resident_bytes", look.at_s, look.resident_bytes)
            if level_bytes is not None:
                readings.value("device_used_bytes", look.at_s, max(0.0, look.resident_bytes - level_bytes))
            if look.io_bytes is not None:
                readings.counter("nvme_read_bytes_per_s", look.at_s, look.io_bytes[0])
                readings.counter("nvme_write_bytes_per_s", look.at_s, look.io_bytes[1])
