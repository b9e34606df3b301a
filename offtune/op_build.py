"""One run of the child that compiles ops: its lines, its progress, its end.

Covered: heartbeat, deadline, garbage on its output, killing it with its compilers. Not covered: whether it
should run (`ops.py`).
"""

from __future__ import annotations

import json
import os
import selectors
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import IO, Literal

from offtune import hardware, host, op_cache, toolchain
from offtune.units import format_seconds

Say = Callable[[str], None]
_HEARTBEAT_S = 15.0
_POLL_S = 0.5
_LINE_BYTES = 2**20  # more than this without a line's end is not from our child
_TAIL_BYTES = 500
_END_S = 5.0  # from closing its output to its end
# Cold builds of DeepSpeed 0.19.8 on two loaded cores, in seconds; they tell a person how long to wait.
_USUAL_S = {
    "async_io": 550.0, "cpu_adagrad": 105.0, "cpu_adam": 110.0, "cpu_lion": 160.0, "deepspeed_shm_comm": 50.0,
    "fused_adam": 80.0, "fused_lion": 80.0, "pin_memory": 60.0,
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class OpState:
    """One op: ready to be loaded, failed to compile, or not to be had here, and what to do about it.

    `seconds` is what building took, None when nothing was built.
    """

    op: str
    state: Literal["ready", "failed", "unavailable"]
    seconds: float | None = None
    error: str = ""
    remedy: str = ""


def build(ops: Sequence[str], command: Sequence[str], say: Say, give_up: float) -> dict[str, OpState]:
    """Run `command` over `ops` until it ends or the monotonic clock passes `give_up`.

    At least the first op has a state afterwards; ops after one that killed the child have none.
    """
    states: dict[str, OpState] = {}
    with tempfile.TemporaryFile() as log:
        child = subprocess.Popen(
            [*command, *ops], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=log,
            env=child_environment(), start_new_session=True,
        )  # fmt: skip
        try:
            for outcome in _outcomes(child, ops, say, give_up):
                states[outcome.op] = outcome
            with suppress(subprocess.TimeoutExpired):  # its own exit code says more than that of our kill
                child.wait(max(0.0, min(_END_S, give_up - time.monotonic())))
        finally:
            _kill(child)
        unfinished = [op for op in ops if op not in states]
        if unfinished and time.monotonic() >= give_up:
            _clear_own_locks(unfinished)
            return states | {op: _late(op) for op in unfinished}
        if unfinished:
            states[unfinished[0]] = _crashed(unfinished[0], child.returncode, _tail(log))
    return states


def child_environment() -> dict[str, str]:
    """The environment of a child that compiles or loads ops."""
    # ninja counts the machine's cores, not a container's, and each compiler takes about a gigabyte.
    jobs = os.environ.get("MAX_JOBS") or str(host.usable_cores())
    architectures = hardware.cuda_build_environment()
    return {**os.environ, **toolchain.child_paths(), **architectures, "MAX_JOBS": jobs}


def _outcomes(
    child: subprocess.Popen[bytes], ops: Sequence[str], say: Say, give_up: float
) -> Iterator[OpState]:
    """States as the child reports them, with talk in between; ends with the child or at the deadline."""
    waiting = list(ops)
    started = spoken = time.monotonic()
    say(_announcement(waiting[0]))
    for line in _lines(child, give_up):
        outcome = _read(line, waiting)
        if outcome is not None:
            waiting.remove(outcome.op)
            started = spoken = time.monotonic()
            yield outcome
            if waiting:
                say(_announcement(waiting[0]))
        elif waiting and time.monotonic() - spoken >= _HEARTBEAT_S:
            spoken = time.monotonic()
            say(_progress(waiting[0], spoken - started, child.pid))


def _announcement(op: str) -> str:
    return f"building {op}: {usual_time(op)}, once per machine"


def usual_time(op: str) -> str:
    """How long an op takes to compile, in words."""
    return f"about {format_seconds(_USUAL_S.get(op))}"


def _progress(op: str, seconds: float, group: int) -> str:
    """How long it has taken, and who is in the way if somebody is; a lock nobody holds is taken away."""
    _clear_own_locks([op])
    holders = [op_cache.holder(lock) for lock in op_cache.locks(op)]
    others = [str(holder) for holder in holders if holder is not None and not _in_group(holder.pid, group)]
    wait = f", waiting for {others[0]}, which is building it" if others else ""
    return f"building {op}: {format_seconds(seconds)} so far{wait}"


def _in_group(pid: int | None, group: int) -> bool:
    try:
        return pid is not None and os.getpgid(pid) == group
    except ProcessLookupError:
        return True  # it has just ended; nobody is in the way


def _clear_own_locks(ops: Sequence[str]) -> None:
    """Remove locks that nobody holds; one that cannot be removed is for the next run to explain."""
    for op in ops:
        for lock in op_cache.stale_locks(op_cache.locks(op)):
            with suppress(OSError):
                lock.unlink()


def _lines(child: subprocess.Popen[bytes], give_up: float) -> Iterator[bytes]:
    """Lines of the child, and an empty one whenever none came for a moment; ends with it or at `give_up`."""
    assert child.stdout is not None
    buffer = b""
    with selectors.DefaultSelector() as selector:
        selector.register(child.stdout, selectors.EVENT_READ)
        while time.monotonic() < give_up:
            if not selector.select(_POLL_S):
                yield b""
                continue
            chunk = os.read(child.stdout.fileno(), 65536)
            if not chunk:
                return
            *lines, buffer = (buffer + chunk).split(b"\n")
            yield from lines
            buffer = buffer if len(buffer) <= _LINE_BYTES else b""


def _read(line: bytes, waiting: Sequence[str]) -> OpState | None:
    """The state in a line of the child; None for anything that is not about an op we wait for."""
    try:
        fields = json.loads(line)
        op, state, seconds = fields["op"], fields["state"], float(fields["seconds"])
        error, cause = str(fields["error"]), str(fields["cause"])
    except (ValueError, KeyError, TypeError):
        return None
    if op not in waiting or state not in ("ready", "failed", "unavailable"):
        return None
    reason, remedy = _explained(op, error, cause)
    return OpState(op=op, state=state, seconds=seconds, error=reason, remedy=remedy)


def _explained(op: str, error: str, cause: str) -> tuple[str, str]:
    """Reason and remedy in plain words; DeepSpeed's own where nothing better is known."""
    if cause == "incompatible" and op == "async_io":
        if toolchain.libaio_header() is None:
            return toolchain.NO_LIBAIO.what, toolchain.NO_LIBAIO.remedy
        return "a test program that uses libaio does not compile or link", "offtune doctor"
    if cause == "no_cuda_toolkit":
        return toolchain.NO_CUDA_TOOLKIT.what, toolchain.NO_CUDA_TOOLKIT.remedy
    if cause == "cuda_mismatch":
        return error, toolchain.NO_CUDA_TOOLKIT.remedy
    return error, "offtune doctor" if cause in ("incompatible", "compile") else ""


def _late(op: str) -> OpState:
    error = "not built before the deadline; what is compiled so far is kept"
    return OpState(op=op, state="failed", error=error, remedy="offtune doctor, then the same command again")


def _crashed(op: str, code: int | None, tail: str) -> OpState:
    error = f"the build process ended with code {code}" + (f": {tail}" if tail else "")
    return OpState(op=op, state="failed", error=error, remedy="offtune doctor")


def _tail(log: IO[bytes]) -> str:
    """The end of the child's talk; ninja and compilers can print megabytes."""
    log.seek(max(0, log.seek(0, os.SEEK_END) - _TAIL_BYTES))
    return log.read().decode("utf-8", errors="replace").strip()


def _kill(child: subprocess.Popen[bytes]) -> None:
    """End the child's whole group: ninja and the compilers would outlive a killed Python."""
    with suppress(ProcessLookupError):
        os.killpg(child.pid, signal.SIGKILL)
    child.wait()
    if child.stdout is not None:
        child.stdout.close()
