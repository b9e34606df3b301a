"""Groups of cores: NUMA nodes parted by what this process may run on; their time as the kernel counts it."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from offtune.core_groups import CoreTimes, core_groups, cores_of
from offtune.trial import TrialSpec
from offtune.worker import cores
from offtune.worker.cores import CoreWatch, is_first_here
from offtune.worker.rank import Place, environment

TICK_S = 1 / os.sysconf("SC_CLK_TCK")
IDLE = "0 0 0 1000 0 0 0 0 0 0"


def machine(root: Path, lines: list[str], nodes: dict[str, str]) -> Path:
    """A /proc/stat of these lines, one a core, and nodes with the lists of their cores."""
    (root / "proc").mkdir(exist_ok=True)
    cores = "".join(f"cpu{number} {line}\n" for number, line in enumerate(lines))
    (root / "proc/stat").write_text(f"cpu  9 9 9 9 9 9 9 9 9 9\n{cores}intr 77 0 0\ncpu_like 1\n")
    for name, listed in nodes.items():
        place = root / "sys/devices/system/node" / name
        place.mkdir(parents=True)
        (place / "cpulist").write_text(listed + "\n")
    return root


@pytest.fixture
def bound(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that may run on cores 0 and 1 only."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1})


def test_the_kernels_lists_of_cores_are_read() -> None:
    assert cores_of("0-3,8,10-11\n") == {0, 1, 2, 3, 8, 10, 11}
    assert cores_of("\n") == frozenset()


@pytest.mark.usefixtures("bound")
def test_each_node_is_parted_into_the_cores_of_this_process_and_the_others(tmp_path: Path) -> None:
    root = machine(tmp_path, [IDLE] * 8, {"node0": "0-3", "node1": "4-7", "node2": ""})
    groups = {group.name: set(group.cores) for group in core_groups(frozenset(range(8)), root)}
    assert groups == {"node0": {0, 1}, "node0-others": {2, 3}, "node1-others": {4, 5, 6, 7}}


@pytest.mark.usefixtures("bound")
def test_without_nodes_or_with_too_many_the_machine_is_one(tmp_path: Path) -> None:
    whole = [("machine", {0, 1}), ("machine-others", {2, 3, 4, 5})]
    assert [(one.name, one.cores) for one in core_groups(frozenset(range(6)), tmp_path)] == whole
    machine(tmp_path, [], {f"node{n}": str(n) for n in range(6)})
    assert [(one.name, one.cores) for one in core_groups(frozenset(range(6)), tmp_path)] == whole


@pytest.mark.usefixtures("bound")
def test_busy_is_what_the_kernel_counts_less_idle_waiting_and_stolen_time(tmp_path: Path) -> None:
    lines = ["100 20 30 5000 700 4 6 900 50 0", "1 0 0 9 0 0 0 0 0 0", IDLE]
    times = CoreTimes(machine(tmp_path, lines, {"node0": "0-2"}))
    found = {group.name: busy_s for group, busy_s in times.read()}
    times.close()
    assert found == pytest.approx({"node0": (160 + 1) * TICK_S, "node0-others": 0.0})


def test_a_kernel_that_counts_no_cores_has_no_groups(tmp_path: Path) -> None:
    times = CoreTimes(machine(tmp_path, ["0 0 0 0 0 0 0 0 0 0"] * 2, {"node0": "0-1"}))
    assert times.groups == ()
    times.close()


def test_where_nothing_can_be_read_there_is_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse() -> CoreTimes:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(cores, "CoreTimes", refuse)
    watch = CoreWatch(lambda *_: pytest.fail("nothing can be told"))
    assert watch.reason == "/proc/stat cannot be read: Permission denied"
    assert watch.sizes == {}
    watch.stop()


def test_the_cores_are_read_when_it_is_time_and_a_last_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    times = CoreTimes(machine(tmp_path, ["100 0 0 0 0 0 0 0 0 0", IDLE], {"node0": "0-1"}))
    monkeypatch.setattr(cores, "CoreTimes", lambda: times)
    told: list[str] = []
    watch = CoreWatch(lambda group, at_s, busy_s: told.append(group.name))
    every = len(times.groups)
    assert len(told) == every
    watch.look(0.0)
    assert len(told) == every
    watch.look(time.perf_counter() + 3600)
    assert len(told) == 2 * every
    watch.stop()
    watch.look(time.perf_counter() + 7200)
    assert len(told) == 3 * every


def test_only_the_first_rank_of_a_host_reads(
    monkeypatch: pytest.MonkeyPatch, make_spec: Callable[..., TrialSpec]
) -> None:
    for name in ("OFFTUNE_LOCAL_RANK", "LOCAL_RANK"):
        monkeypatch.delenv(name, raising=False)
    assert is_first_here()
    monkeypatch.setenv("LOCAL_RANK", "1")
    assert not is_first_here()
    # Ranks that each see a card of their own all have the local rank 0 for torch.
    told = environment(make_spec({}, device="cuda"), 3, Place(local_rank=1, local_size=2, gpu=1))
    assert told["LOCAL_RANK"] == "0"
    for name in ("LOCAL_RANK", "OFFTUNE_LOCAL_RANK"):
        monkeypatch.setenv(name, told[name])
    assert not is_first_here()
