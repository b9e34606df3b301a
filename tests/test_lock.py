"""The lock on a study and the question whether its owner lives."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import psutil
import pytest
from study_samples import start_python

from offtune.errors import StoreError
from offtune.lock import Owner, current_owner, hold, is_other_alive

HOLDER = """
import subprocess, sys, time
from pathlib import Path
from offtune.lock import hold
with hold(Path(sys.argv[1]), "it"):
    child = subprocess.Popen(["sleep", "60"])
    print(child.pid, flush=True)
    time.sleep(60)
"""


@contextmanager
def holder(path: Path) -> Iterator[tuple[int, int]]:
    """Another process that holds the lock, and its child: their pids."""
    process = start_python(HOLDER, str(path))
    assert process.stdout is not None
    child = int(process.stdout.readline())
    try:
        yield process.pid, child
    finally:
        process.kill()
        process.wait()
        process.stdout.close()
        os.kill(child, signal.SIGKILL)


def test_the_refusal_names_the_process_that_holds_the_study(tmp_path: Path) -> None:
    path = tmp_path / ".studies.db.study-1.lock"
    with holder(path) as (pid, _), pytest.raises(StoreError) as caught, hold(path, "Study '1'"):
        pass
    assert (
        f"Study '1' is being worked on by process {pid} on host {os.uname().nodename}, started 20"
        in caught.value.message
    )
    assert "--study" in caught.value.hint


def test_a_killed_holder_leaves_a_file_that_stops_nobody_even_while_its_child_lives(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    with holder(path) as (pid, child):
        os.kill(pid, signal.SIGKILL)
        os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
        assert path.exists()
        os.kill(child, 0)  # raises where it is gone
        with hold(path, "Study '1'"):
            assert f'"pid":{os.getpid()}' in path.read_text()


def test_the_lock_file_goes_with_the_lock(tmp_path: Path) -> None:
    with hold(tmp_path / "lock", "Study '1'"):
        assert (tmp_path / "lock").exists()
    assert list(tmp_path.iterdir()) == []


def test_two_studies_are_held_at_once(tmp_path: Path) -> None:
    with hold(tmp_path / "a", "a"), hold(tmp_path / "b", "b"):
        pass


def test_the_lock_is_free_again_after_an_error_inside(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError), hold(tmp_path / "lock", "Study '1'"):
        raise ZeroDivisionError
    with hold(tmp_path / "lock", "Study '1'"):
        pass


def test_never_two_inside_although_each_holder_removes_the_file(tmp_path: Path) -> None:
    inside: list[int] = []
    most = []

    def work() -> None:
        for _ in range(20):
            with hold(tmp_path / "lock", "Study '1'", wait_s=60):
                inside.append(1)
                most.append(len(inside))
                time.sleep(0.0005)
                inside.pop()

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert most == [1] * 80


def test_a_folder_that_is_not_there_is_said(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="No such file"), hold(tmp_path / "none" / "lock", "Study '1'"):
        pass


@pytest.fixture
def sleeper() -> Iterator[Owner]:
    """Another process of this machine that runs."""
    with subprocess.Popen(["sleep", "60"]) as process:
        start_time = psutil.Process(process.pid).create_time()
        yield replace(current_owner(), pid=process.pid, start_time=start_time)
        process.kill()


def test_another_process_that_runs_is_alive(sleeper: Owner) -> None:
    assert is_other_alive(sleeper)


def test_this_process_is_not_another() -> None:
    assert not is_other_alive(current_owner())


def test_a_process_that_ended_is_not_alive(sleeper: Owner) -> None:
    os.kill(sleeper.pid, signal.SIGKILL)
    os.waitid(os.P_PID, sleeper.pid, os.WEXITED)
    assert not is_other_alive(sleeper)


def test_a_later_process_with_the_same_pid_is_not_the_owner(sleeper: Owner) -> None:
    assert not is_other_alive(replace(sleeper, start_time=sleeper.start_time - 60))


def test_a_process_from_before_the_reboot_is_not_alive(sleeper: Owner) -> None:
    assert not is_other_alive(replace(sleeper, boot_id="another"))


def test_of_a_process_on_another_machine_nothing_is_known(sleeper: Owner) -> None:
    assert not is_other_alive(replace(sleeper, hostname="elsewhere"))
