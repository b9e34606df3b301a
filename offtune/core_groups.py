"""The cores of this machine in groups, and how long each group was busy, by the kernel's own count.

Covered: NUMA nodes, each parted into the cores this process may run on and the others; everybody's time on
them. Not covered: this process's own processor time, which is the rank's and needs no groups. `root` is where
/proc and /sys hang; tests give a tree of their own.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Set
from dataclasses import dataclass
from pathlib import Path

_ROOT = Path("/")
_TICK_S = 1.0 / os.sysconf("SC_CLK_TCK")  # the unit of /proc/stat, in seconds
# Columns of a core's line (proc(5)): user, nice, system, irq, softirq. Not among them: idle, iowait, what the
# hypervisor took, and guests, which user time has already.
_BUSY = (1, 2, 3, 6, 7)
# A machine parted finer than this is told as two: a table of sixteen rows would hide what matters.
MOST_GROUPS = 8
_STAT_BYTES = 65_536  # of /proc/stat: five hundred cores; only their lines, the first, are looked at


@dataclass(frozen=True, slots=True, kw_only=True)
class CoreGroup:
    """Cores that are told together.

    `name` is "node0" for those of NUMA node 0 that this process may run on, "node0-others" for the rest of
    it; "machine" in place of the node where the kernel tells of none, or of too many.
    """

    name: str
    cores: frozenset[int]


class CoreTimes:
    """How long each group of cores was busy so far. Raises OSError where /proc/stat cannot be read.

    Without groups the kernel counts no time of single cores, as in some sandboxes.
    """

    def __init__(self, root: Path = _ROOT) -> None:
        self._descriptor = os.open(root / "proc/stat", os.O_RDONLY | os.O_CLOEXEC)
        counted = self._busy_s()
        groups = core_groups(counted.keys(), root) if any(counted.values()) else ()
        self.groups: tuple[CoreGroup, ...] = groups

    def read(self) -> Iterator[tuple[CoreGroup, float]]:
        """Each group with the seconds its cores were busy, all together; grows by at most a second a core."""
        busy_s = self._busy_s()
        for group in self.groups:
            yield group, sum(busy_s.get(core, 0.0) for core in group.cores)

    def close(self) -> None:
        os.close(self._descriptor)

    def _busy_s(self) -> Mapping[int, float]:
        text = os.pread(self._descriptor, _STAT_BYTES, 0)
        return dict(_core_lines(text))


def _core_lines(text: bytes) -> Iterator[tuple[int, float]]:
    """(core, seconds it was busy) of each line about a single core."""
    for line in text.split(b"\nintr", 1)[0].splitlines():
        words = line.split()
        if words and words[0].startswith(b"cpu") and words[0] != b"cpu":
            yield int(words[0][3:]), _TICK_S * sum(int(words[column]) for column in _BUSY)


def core_groups(counted: Set[int], root: Path = _ROOT) -> tuple[CoreGroup, ...]:
    """The groups of the cores in `counted`, by node."""
    allowed = os.sched_getaffinity(0)
    nodes = {name: cores & counted for name, cores in _nodes(root)}
    left = counted - frozenset().union(*nodes.values())
    if left or len(nodes) > MOST_GROUPS // 2:
        nodes = {"machine": frozenset(counted)}
    parted = [
        CoreGroup(name=name + ending, cores=part)
        for name, cores in nodes.items()
        for ending, part in (("", cores & allowed), ("-others", cores - allowed))
    ]
    return tuple(group for group in parted if group.cores)


def _nodes(root: Path) -> Iterator[tuple[str, frozenset[int]]]:
    """(name, cores) of the NUMA nodes in order; none where the kernel has no NUMA."""
    places = (root / "sys/devices/system/node").glob("node[0-9]*/cpulist")
    for place in sorted(places, key=lambda path: int(path.parent.name[4:])):
        yield place.parent.name, cores_of(place.read_text())


def cores_of(text: str) -> frozenset[int]:
    """The cores of a list as the kernel writes it: "0-3,8" is five of them."""
    found: set[int] = set()
    for part in text.strip().split(","):
        if part:
            first, _, last = part.partition("-")
            found.update(range(int(first), int(last or first) + 1))
    return frozenset(found)
