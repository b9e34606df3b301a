"""A clock for a module under test, in place of its `time`: a deadline passes when something is so.

A short deadline is a race between the test and a machine that may be slow; this one is none.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

_AHEAD_S = 1e6


class Clock:
    """`time`, but far ahead from the moment on at which `is_late` is first true."""

    def __init__(self, is_late: Callable[[], object]) -> None:
        self._is_late = is_late
        self._ahead_s = 0.0

    def monotonic(self) -> float:
        if self._is_late():
            self._ahead_s = _AHEAD_S
        return time.monotonic() + self._ahead_s

    def __getattr__(self, name: str) -> Any:
        return getattr(time, name)
