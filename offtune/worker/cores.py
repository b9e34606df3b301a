"""How busy the host's cores are while a rank trains, group by group, everybody's work counted.

Covered: reading at a pace that costs nothing, by one rank of a host, in a thread that is awake anyway. Not
covered: what the groups are (`core_groups.py`) and this rank's own processor time, which `recorder.py` reads
at each edge.
"""

from __future__ import annotations

import math
import os
import threading
import time
from collections.abc import Callable

from offtune.core_groups import CoreGroup, CoreTimes

# The kernel counts in ticks of 10 ms: nearer readings would tell of ticks and not of cores. And with cold
# caches a reading takes 0.1 ms on two cores: twice as often, it would be half of what recording costs.
_INTERVAL_S = 0.1
# Of the time of one core: reading grows with the machine, 11 µs on two cores and about 1 ms on hundreds.
_MOST_SHARE = 0.005

Tell = Callable[[CoreGroup, float, float], object]


class CoreWatch:
    """Tells (group, moment, seconds its cores were busy so far) of each group, from its creation on.

    `reason` says why there is nothing to tell, "" where there is. Time is that of `time.perf_counter`.
    """

    def __init__(self, tell: Tell) -> None:
        self._tell = tell
        self._times: CoreTimes | None = None
        self._interval_s = self._next_s = math.inf
        self._lock = threading.Lock()  # whoever stops it closes the file that another thread may be reading
        self.reason = ""
        try:
            times = CoreTimes()
        except OSError as error:
            self.reason = f"{error.filename or '/proc/stat'} cannot be read: {error.strerror}"
            return
        self._times = times
        if not times.groups:
            self.reason = "the kernel counts no time of single cores here"
            return
        start = time.perf_counter()
        self._read(start)
        self._interval_s = max(_INTERVAL_S, (time.perf_counter() - start) / _MOST_SHARE)
        self._next_s = start + self._interval_s

    @property
    def sizes(self) -> dict[str, int]:
        """How many cores each group has."""
        return {group.name: len(group.cores) for group in self._times.groups} if self._times else {}

    def look(self, now: float) -> None:
        """Read, if it is time to."""
        if now < self._next_s:
            return
        with self._lock:
            if now >= self._next_s:  # it may have been stopped meanwhile
                self._next_s = now + self._interval_s
                self._read(now)

    def _read(self, now: float) -> None:
        assert self._times is not None
        for group, busy_s in self._times.read():
            self._tell(group, now, busy_s)

    def stop(self) -> None:
        """Read a last time, and no more."""
        with self._lock:
            if self._next_s < math.inf:
                self._read(time.perf_counter())
                self._next_s = math.inf
            if self._times is not None:
                self._times.close()


def is_first_here() -> bool:
    """Whether this rank is the first of its host, as offtune (`rank.py`) or somebody's launcher says."""
    return os.environ.get("OFFTUNE_LOCAL_RANK", os.environ.get("LOCAL_RANK", "0")) == "0"
