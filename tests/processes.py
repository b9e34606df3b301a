"""Processes in tests: waited for as long as a slow machine takes, stopped at a moment that is looked for."""

from __future__ import annotations

import signal
import subprocess
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any, TypeVar

import psutil

Found = TypeVar("Found")

# What takes seconds here may take minutes on a loaded machine; only what never happens takes this long.
PATIENCE_S = 300.0


def wait_for(condition: Callable[[], Found], timeout_s: float = PATIENCE_S) -> Found:
    """What a condition says once it is so; a failure of the test where that never happens."""
    give_up = time.monotonic() + timeout_s
    while time.monotonic() < give_up:
        if found := condition():
            return found
        time.sleep(0.05)
    raise AssertionError("it did not happen in time")


def stop_when(process: subprocess.Popen[Any], is_so: Callable[[], Found]) -> Found:
    """Stop a process (SIGSTOP) at a moment when something is so, which stays so until it goes on.

    Between a look and a blow the moment could pass otherwise: a trial may end in between.
    """

    def look() -> Any:
        if not is_so():
            return None
        process.send_signal(signal.SIGSTOP)
        wait_for(lambda: not is_busy(process.pid))
        if found := is_so():
            return found
        process.send_signal(signal.SIGCONT)
        return None

    found: Found = wait_for(look)
    return found


def is_busy(pid: int) -> bool:
    """Whether a process is neither stopped nor ended."""
    return is_running(pid) and psutil.Process(pid).status() != psutil.STATUS_STOPPED


def is_running(pid: int) -> bool:
    """Whether a process lives; one that was killed but not yet collected by its new parent does not."""
    try:
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def kill_all(processes: Iterable[psutil.Process]) -> None:
    """Kill what is still there of these."""
    for process in processes:
        with suppress(psutil.NoSuchProcess):
            process.kill()
