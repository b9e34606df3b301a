"""How busy the host's cores are while a rank trains, group by group, everybody's work counted.

Covered: reading at a pace that costs nothing, by one rank of a host. Not covered: what the groups are
(`core_groups.py`) and this rank's own processor time, which `recorder.py` reads at each edge.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable

from offtune.core_groups import CoreGroup, CoreTimes
from offtune.worker.memory import Sampler

# The kernel counts in ticks of 10 ms: nearer readings would tell of ticks and not of cores.
_INTERVAL_S = 0.05
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
        self._sampler: Sampler | None = None
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
        self._sampler = Sampler(self._read, max(_INTERVAL_S, self._cost_s() / _MOST_SHARE))
        self._sampler.start()

    @property
    def sizes(self) -> dict[str, int]:
        """How many cores each group has."""
        return {group.name: len(group.cores) for group in self._times.groups} if self._times else {}

    def _cost_s(self) -> float:
        start = time.perf_counter()
        self._read()
        return time.perf_counter() - start

    def _read(self) -> None:
        assert self._times is not None
        now = time.perf_counter()
        for group, busy_s in self._times.read():
            self._tell(group, now, busy_s)

    def stop(self) -> None:
        """Read a last time, and no more."""
        if self._sampler is not None:
            self._sampler.stop()
            self._read()
        if self._times is not None:
            self._times.close()


def is_first_here() -> bool:
    """Whether this rank is the first of its host, as offtune (`rank.py`) or somebody's launcher says."""
    return os.environ.get("OFFTUNE_LOCAL_RANK", os.environ.get("LOCAL_RANK", "0")) == "0"
