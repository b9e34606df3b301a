"""DeepSpeed's compiled ops: which a study needs, and compiling them once, before its first trial.

Covered: progress, a deadline, locks left by others, remedies. Not covered: compiling itself, which the child
does (`worker/build_ops.py`).
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Sequence
from pathlib import Path

from offtune import op_build, op_cache, toolchain
from offtune.errors import OfftuneError
from offtune.knobs import DEVICE_OPTIMIZER_OP, OFFLOADED_OPTIMIZER_OP
from offtune.op_build import OpState, Say
from offtune.trial import DeviceKind

__all__ = ["OpState", "Say", "needed_ops", "prepare"]

BUILD_DEADLINE_S = 1800.0  # everything, async_io included, took 17 minutes on two loaded cores
_POLL_S = 0.5


def needed_ops(device: DeviceKind, optimizer: str, placements: Iterable[str], nvme: bool) -> tuple[str, ...]:
    """The ops that configurations of these placements load, in the order they should be built.

    Source: _configure_basic_optimizer in deepspeed/runtime/engine.py, 0.19.8, where Adagrad on the device is
    torch's own.
    """
    offloads = {" opt=" in placement for placement in placements}
    wanted = [
        "deepspeed_shm_comm" if device == "cpu" else None,  # compiled by init_distributed, even for one rank
        OFFLOADED_OPTIMIZER_OP.get(optimizer) if True in offloads else None,
        DEVICE_OPTIMIZER_OP.get(optimizer) if False in offloads else None,
        "async_io" if nvme else None,
    ]
    return tuple(op for op in wanted if op is not None)


def prepare(
    ops: Sequence[str],
    device: DeviceKind,
    say: Say,
    deadline_s: float = BUILD_DEADLINE_S,
    command: Sequence[str] = (sys.executable, "-m", "offtune.worker.build_ops"),
) -> dict[str, OpState]:
    """Make the ops ready, building what is not; silent when everything is there.

    `command` is the child, which gets `--device` and the ops as arguments. Raises OfftuneError when somebody
    else's build holds an op beyond the deadline, or a lock cannot be removed.
    """
    give_up = time.monotonic() + deadline_s
    for op in ops:
        _free(op, say, give_up)
    states = {op: OpState(op=op, state="ready") for op in ops if op_cache.built(op)}
    missing = tuple(op for op in ops if op not in states)
    states |= _without_tools(missing)
    queue = [op for op in missing if op not in states]
    while queue:
        states |= op_build.build(queue, [*command, "--device", device], say, give_up)
        queue = [op for op in queue if op not in states]
    return {op: states[op] for op in ops}


def _without_tools(ops: Sequence[str]) -> dict[str, OpState]:
    """Ops that need compiling on a machine that cannot compile."""
    lacks = toolchain.lacks() if ops else ()
    if not lacks:
        return {}
    error = "; ".join(f"{lack.what} on this machine" for lack in lacks)
    remedy = "; ".join(lack.remedy for lack in lacks)
    return {op: OpState(op=op, state="unavailable", error=error, remedy=remedy) for op in ops}


def _free(op: str, say: Say, give_up: float) -> None:
    """Wait until nobody holds the op's locks, and remove those that would block us although nobody does."""
    for lock in op_cache.locks(op):
        said = ""
        while (holder := op_cache.holder(lock)) is not None:
            if time.monotonic() > give_up:
                raise _held(op, str(holder), lock)
            if str(holder) != said:
                said = str(holder)
                say(f"{op} is being built by {said}; waiting for it")
            time.sleep(_POLL_S)
        for stale in op_cache.stale_locks([lock]):
            _remove(stale, op)
            say(f"{op}: removed a lock that a killed build had left")


def _held(op: str, holder: str, lock: Path) -> OfftuneError:
    return OfftuneError(
        f"{op} is being built by {holder}, which has not finished.",
        f"Wait for it or end it, then run again. If it is long gone: rm {lock}",
    )


def _remove(lock: Path, op: str) -> None:
    try:
        lock.unlink(missing_ok=True)
    except OSError as error:
        raise OfftuneError(
            f"A killed build of {op} left a lock that blocks every later one, and it cannot be removed: "
            f"{error.strerror}.",
            f"Run: rm {lock}",
        ) from error
