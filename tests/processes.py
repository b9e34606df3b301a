"""Processes in tests: one that ends by itself between two looks at it is no failure of a test."""

from collections.abc import Iterable
from contextlib import suppress

import psutil


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
