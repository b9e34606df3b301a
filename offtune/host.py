"""The host: memory, cores and out-of-memory kills, as the kernel and our control groups report them.

Covered: Linux with control groups v1, v2 or none, own group and ancestors. Not covered: GPUs (`hardware.py`).
`root` is where /proc and /sys hang; tests give a tree of their own.
"""

from __future__ import annotations

import os
import platform
import resource
from collections.abc import Iterator
from pathlib import Path

_ROOT = Path("/")
# cgroup v1 writes "no limit" as the largest whole number of pages below 2^63.
_UNLIMITED_BYTES = 2**62


def memory_bytes(root: Path = _ROOT) -> int:
    """Memory this process may use: what the machine has, or the smallest limit of our control groups."""
    limits = [_group_limit(group) for group in _groups("memory", root)]
    return min([_meminfo("MemTotal", root), *(limit for limit in limits if limit is not None)])


def available_host_bytes(root: Path = _ROOT) -> int:
    """Bytes that can still be used before somebody swaps or dies, in the machine and in each control group.

    File cache that the kernel would drop (the inactive part) counts as available, as in MemAvailable.
    """
    room = [_meminfo("MemAvailable", root)]
    for group in _groups("memory", root):
        limit = _group_limit(group)
        if limit is not None:
            room.append(limit - _group_used(group))
    return max(0, min(room))


def oom_kills(root: Path = _ROOT) -> int:
    """Out-of-memory kills counted so far by the kernel and our control groups.

    The sum counts one kill several times, so only a difference means something: more than before, or not.
    """
    kills = _field(_read(root / "proc/vmstat"), "oom_kill") or 0
    for group in _groups("memory", root):
        for counter in ("memory.events", "memory.oom_control"):
            kills += _field(_read(group / counter), "oom_kill") or 0
    return kills


def usable_cores(root: Path = _ROOT) -> int:
    """Cores this process may keep busy: its affinity, or less under a control group's quota; at least one."""
    quotas = [_group_cores(group) for group in _groups("cpu", root)]
    allowed = [float(len(os.sched_getaffinity(0))), *(quota for quota in quotas if quota is not None)]
    return max(1, int(min(allowed)))


def cpu_model(root: Path = _ROOT) -> str:
    """The processor's name, or its architecture where the kernel names none (as on many ARM machines)."""
    for line in _read(root / "proc/cpuinfo").splitlines():
        key, _, value = line.partition(":")
        if key.strip() == "model name" and value.strip():
            return " ".join(value.split())
    return platform.machine()


def boot_id(root: Path = _ROOT) -> str:
    """Changes with every start of the machine; tells a dead owner's process id from a living stranger's."""
    return _read(root / "proc/sys/kernel/random/boot_id").strip()


def _groups(controller: str, root: Path) -> Iterator[Path]:
    """Our control group's directory for `controller` and those of its ancestors, as far as visible.

    In a container the path in /proc/self/cgroup is the host's and may lead nowhere; the mount itself is then
    our group.
    """
    for line in _read(root / "proc/self/cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers and controller not in controllers.split(","):
            continue
        mount = root / "sys/fs/cgroup" / (controller if controllers else "")
        if controllers or (mount / "cgroup.controllers").exists():
            group = mount / path.strip("/")
            yield from (place for place in (group, *group.parents) if _inside(place, mount))


def _inside(place: Path, mount: Path) -> bool:
    return (place == mount or mount in place.parents) and place.is_dir()


def _group_limit(group: Path) -> int | None:
    """Bytes a group may hold; None for no limit. `memory.high` throttles to a halt, so it is one too."""
    limits = [_number(group / name) for name in ("memory.max", "memory.high", "memory.limit_in_bytes")]
    return min((limit for limit in limits if limit is not None and limit < _UNLIMITED_BYTES), default=None)


def _group_used(group: Path) -> int:
    """Bytes a group holds and could not give back by dropping inactive file cache."""
    used = _number(group / "memory.current") or _number(group / "memory.usage_in_bytes") or 0
    statistics = _read(group / "memory.stat")
    cache = _field(statistics, "total_inactive_file") or _field(statistics, "inactive_file") or 0
    return max(0, used - cache)


def _group_cores(group: Path) -> float | None:
    """The group's quota in cores; None for no quota."""
    quota, _, period = _read(group / "cpu.max").strip().partition(" ")
    if not quota:
        quota, period = (_read(group / f"cpu.cfs_{part}_us").strip() for part in ("quota", "period"))
    return int(quota) / int(period) if quota.isdigit() and period.isdigit() and int(period) > 0 else None


def _meminfo(key: str, root: Path) -> int:
    """One line of /proc/meminfo, in bytes (the file counts in KiB)."""
    return (_field(_read(root / "proc/meminfo").replace(":", ""), key) or 0) * 1024


def _field(text: str, key: str) -> int | None:
    """The number after `key` in lines of the form 'key number'; None if there is no such line."""
    for line in text.splitlines():
        words = line.split()
        if len(words) >= 2 and words[0] == key and words[1].isdigit():
            return int(words[1])
    return None


def _number(path: Path) -> int | None:
    text = _read(path).strip()
    return int(text) if text.isdigit() else None


def _read(path: Path) -> str:
    """The text of a kernel file; empty where this kernel has none or we may not look."""
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def load_per_core(root: Path = _ROOT) -> float:
    """Processes that wanted a core during the last minute, per core of the machine."""
    minute = float((root / "proc/loadavg").read_text().split()[0])
    return minute / (os.cpu_count() or 1)


def memlock_bytes(root: Path = _ROOT) -> int | None:
    """RLIMIT_MEMLOCK of this process; None when nothing limits it (unlimited, or CAP_IPC_LOCK)."""
    soft, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    if soft == resource.RLIM_INFINITY or _effective_capabilities(root) >> _CAP_IPC_LOCK & 1:
        return None
    return soft


_CAP_IPC_LOCK = 14  # linux/capability.h


def _effective_capabilities(root: Path) -> int:
    for line in (root / "proc/self/status").read_text().splitlines():
        if line.startswith("CapEff:"):
            return int(line.split()[1], 16)
    return 0
