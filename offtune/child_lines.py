"""A child process that reports JSON lines: its events, its deadline, its end with all it started.

Covered: garbage on its output, silence, a crash, children of the child. Not covered: what the events mean.
"""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from types import TracebackType
from typing import Any

import psutil

_LINE_BYTES = 2**20  # more than this without a line's end is not from our child
_TAIL_BYTES = 500
_END_S = 5.0  # from closing its output to its end
_KILL_WAIT_S = 20.0  # SIGKILL is obeyed at once, unless the kernel is busy giving back pinned memory


class ReportingChild:
    """A context manager: on leaving, the child and everything it started are dead."""

    def __init__(self, command: Sequence[str], environment: Mapping[str, str]) -> None:
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 closed on leaving
        self._process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=self._log,
            env=dict(environment), start_new_session=True,
        )  # fmt: skip
        self.late = False

    def __enter__(self) -> ReportingChild:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._kill()
        self._process.wait()
        assert self._process.stdout is not None
        self._process.stdout.close()
        self._log.close()

    def events(self, deadline_s: float) -> Iterator[dict[str, Any]]:
        """JSON objects as they come, until the child's output ends or, after `deadline_s`, it is `late`."""
        give_up = time.monotonic() + deadline_s
        for line in self._lines(give_up):
            with contextlib.suppress(ValueError):
                event = json.loads(line)
                if isinstance(event, dict):
                    yield event
        self.late = time.monotonic() >= give_up

    def _lines(self, give_up: float) -> Iterator[bytes]:
        output, buffer = self._process.stdout, b""
        assert output is not None
        with selectors.DefaultSelector() as selector:
            selector.register(output, selectors.EVENT_READ)
            while (left := give_up - time.monotonic()) > 0 and selector.select(left):
                chunk = os.read(output.fileno(), 65536)
                if not chunk:
                    return
                *lines, buffer = (buffer + chunk).split(b"\n")
                yield from lines
                buffer = buffer if len(buffer) <= _LINE_BYTES else b""

    def ending(self) -> str:
        """How it ended, in words, with the end of what it said on standard error."""
        if self.late:
            return "the time for measuring was up"
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(_END_S)
        self._log.seek(max(0, self._log.seek(0, os.SEEK_END) - _TAIL_BYTES))
        tail = self._log.read().decode("utf-8", errors="replace").strip()
        said = f": {tail.splitlines()[-1]}" if tail else ""
        return f"{_code_text(self._process.poll())}{said}"

    def _kill(self) -> None:
        """The group, and descendants that left it."""
        descendants: list[psutil.Process] = []
        with contextlib.suppress(psutil.NoSuchProcess):
            descendants = psutil.Process(self._process.pid).children(recursive=True)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        for process in descendants:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        psutil.wait_procs(descendants, timeout=_KILL_WAIT_S)


def _code_text(code: int | None) -> str:
    if code is None:
        return "the measuring process closed its output and went on"
    if code < 0:
        return f"the measuring process was ended by signal {-code}"
    return f"the measuring process ended with code {code}"
