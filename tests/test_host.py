"""Host: fake kernel trees for both control group versions."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from offtune import host

GIB = 2**30
MEMINFO = f"MemTotal:       {16 * 2**20} kB\nMemFree:        1 kB\nMemAvailable:   {10 * 2**20} kB\n"


def plant(root: Path, files: dict[str, str]) -> Path:
    """A kernel tree below `root` with these files."""
    for name, text in files.items():
        file = root / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    return root


def version_2(root: Path, **extra: str) -> Path:
    """A v2 machine: job `a/b` in group `a`, limits on both."""
    group = "sys/fs/cgroup"
    return plant(
        root,
        {
            "proc/meminfo": MEMINFO,
            "proc/vmstat": "pgfault 5\noom_kill 2\n",
            "proc/self/cgroup": "0::/a/b\n",
            f"{group}/cgroup.controllers": "cpu memory\n",
            f"{group}/a/memory.max": f"{8 * GIB}\n",
            f"{group}/a/memory.current": f"{5 * GIB}\n",
            f"{group}/a/memory.stat": f"anon 1\ninactive_file {2 * GIB}\n",
            f"{group}/a/memory.events": "oom 9\noom_kill 3\n",
            f"{group}/a/cpu.max": "150000 100000\n",
            f"{group}/a/b/memory.max": "max\n",
            f"{group}/a/b/memory.events": "oom_kill 1\n",
            f"{group}/a/b/cpu.max": "max 100000\n",
            **extra,
        },
    )


def version_1(root: Path, path: str = "/job") -> Path:
    """A v1 machine with hybrid mounts, as systemd of 2019 left them."""
    group = "sys/fs/cgroup"
    return plant(
        root,
        {
            "proc/meminfo": MEMINFO,
            "proc/vmstat": "oom_kill 2\n",
            "proc/self/cgroup": f"5:memory:{path}\n4:cpu,cpuacct:{path}\n1:name=systemd:/\n0::/\n",
            f"{group}/memory/memory.limit_in_bytes": "9223372036854771712\n",
            f"{group}/memory/job/memory.limit_in_bytes": f"{6 * GIB}\n",
            f"{group}/memory/job/memory.usage_in_bytes": f"{4 * GIB}\n",
            f"{group}/memory/job/memory.stat": f"inactive_file 7\ntotal_inactive_file {1 * GIB}\n",
            f"{group}/memory/job/memory.oom_control": "oom_kill_disable 0\nunder_oom 0\noom_kill 4\n",
            f"{group}/cpu/job/cpu.cfs_quota_us": "-1\n",
            f"{group}/cpu/job/cpu.cfs_period_us": "100000\n",
        },
    )


def test_without_control_groups_the_machine_itself_is_the_limit(tmp_path: Path) -> None:
    root = plant(tmp_path, {"proc/meminfo": MEMINFO, "proc/vmstat": "oom_kill 2\n"})
    assert host.memory_bytes(root) == 16 * GIB
    assert host.available_host_bytes(root) == 10 * GIB
    assert host.oom_kills(root) == 2


def test_an_ancestors_limit_counts_and_its_droppable_cache_is_available(tmp_path: Path) -> None:
    root = version_2(tmp_path)
    assert host.memory_bytes(root) == 8 * GIB
    assert host.available_host_bytes(root) == (8 - (5 - 2)) * GIB


def test_the_throttling_mark_of_version_2_is_a_limit_too(tmp_path: Path) -> None:
    root = version_2(tmp_path, **{"sys/fs/cgroup/a/b/memory.high": f"{3 * GIB}\n"})
    assert host.memory_bytes(root) == 3 * GIB


def test_the_machines_own_memory_may_be_what_runs_out_first(tmp_path: Path) -> None:
    root = version_2(tmp_path, **{"sys/fs/cgroup/a/memory.max": f"{64 * GIB}\n"})
    assert host.memory_bytes(root) == 16 * GIB
    assert host.available_host_bytes(root) == 10 * GIB


def test_a_full_group_has_nothing_available(tmp_path: Path) -> None:
    root = version_2(tmp_path, **{"sys/fs/cgroup/a/memory.current": f"{30 * GIB}\n"})
    assert host.available_host_bytes(root) == 0


def test_version_1_reads_the_same_facts_from_its_own_names(tmp_path: Path) -> None:
    root = version_1(tmp_path)
    assert host.memory_bytes(root) == 6 * GIB
    assert host.available_host_bytes(root) == (6 - (4 - 1)) * GIB
    assert host.oom_kills(root) == 2 + 4


def test_in_a_container_the_mount_is_our_group(tmp_path: Path) -> None:
    root = version_1(tmp_path, path="/docker/not-visible-here")
    plant(root, {"sys/fs/cgroup/memory/memory.limit_in_bytes": f"{2 * GIB}\n"})
    assert host.memory_bytes(root) == 2 * GIB


def test_a_kill_anywhere_above_us_raises_the_count(tmp_path: Path) -> None:
    root = version_2(tmp_path)
    before = host.oom_kills(root)
    plant(root, {"sys/fs/cgroup/a/memory.events": "oom_kill 4\n"})
    assert host.oom_kills(root) == before + 1 == 2 + 3 + 1 + 1


@pytest.mark.parametrize(("affinity", "cores"), [(8, 1), (1, 1)])
def test_a_quota_of_one_and_a_half_cores_is_one_core(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, affinity: int, cores: int
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(affinity)))
    assert host.usable_cores(version_2(tmp_path)) == cores


def test_no_quota_leaves_the_affinity(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 1, 2})
    assert host.usable_cores(version_1(tmp_path)) == 3


def test_the_processor_has_its_name_or_its_architecture(tmp_path: Path) -> None:
    named = plant(tmp_path / "named", {"proc/cpuinfo": "model : 17\nmodel name\t: AMD  EPYC 9654\n"})
    assert host.cpu_model(named) == "AMD EPYC 9654"
    assert host.cpu_model(tmp_path / "nothing") != ""


def test_the_load_is_told_per_core(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: 4)
    plant(tmp_path, {"proc/loadavg": "6.00 1.00 0.50 2/345 6789\n"})
    assert host.load_per_core(tmp_path) == 1.5


def test_locked_memory_is_unlimited_for_a_process_with_the_capability(tmp_path: Path) -> None:
    plant(tmp_path, {"proc/self/status": f"Name:\tx\nCapEff:\t{1 << 14:016x}\n"})
    assert host.memlock_bytes(tmp_path) is None
