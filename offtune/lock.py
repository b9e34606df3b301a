"""Who works on a study: the owner of a run, and the exclusive lock on a study.

Covered: processes of one machine, and of several where the file system carries flock. Not covered: the lock
of a database server (`database.py`).
"""

from __future__ import annotations

import errno
import fcntl
import os
import platform
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path

from offtune.errors import StoreError
from offtune.trial import dump, load

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
# psutil adds boot time and jiffies since boot, and the boot time moves with the clock (psutil 7, Linux).
_START_TOLERANCE_S = 2.0
_POLL_S = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class Owner:
    """One process, told apart from a later one with the same pid by boot and start time (Unix seconds).

    `devices` are the names of what its trial runs on, by which two trials are kept apart (`devices.py`).
    """

    pid: int
    hostname: str
    boot_id: str
    start_time: float
    devices: tuple[str, ...] = ()


def current_owner() -> Owner:
    """This process."""
    import psutil  # a fiftieth of a second, and who only looks at a study asks for no process

    boot_id = _BOOT_ID.read_text().strip() if _BOOT_ID.exists() else ""
    return Owner(
        pid=os.getpid(), hostname=platform.node(), boot_id=boot_id, start_time=psutil.Process().create_time()
    )


def is_same_machine(owner: Owner) -> bool:
    """Whether `owner` is, or was, a process of this machine since it was started."""
    here = current_owner()
    return (owner.hostname, owner.boot_id) == (here.hostname, here.boot_id)


def is_other_alive(owner: Owner) -> bool:
    """Whether `owner` is another process, running on this machine now; False where that cannot be known."""
    import psutil

    if not is_same_machine(owner) or owner.pid == os.getpid():
        return False
    try:
        started = psutil.Process(owner.pid).create_time()
    except psutil.NoSuchProcess:
        return False
    return bool(abs(started - owner.start_time) <= _START_TOLERANCE_S)


def refusal(what: str, owner: Owner | None) -> StoreError:
    """The error for `what` ("Study 'x'") when somebody else works on it."""
    who = "another process"
    if owner is not None:
        started = datetime.fromtimestamp(owner.start_time, timezone.utc).strftime("%Y-%m-%d %H:%M:%S UTC")
        who = f"process {owner.pid} on host {owner.hostname}, started {started}"
    hint = "Wait for it to finish, or use --study with another name."
    return StoreError(f"{what} is being worked on by {who}.", hint)


@contextmanager
def hold(path: Path, what: str, *, wait_s: float = 0.0) -> Iterator[None]:
    """Hold the lock file `path` of `what` ("Study 'x'") while the block runs.

    The lock belongs to the open file, so it goes with the process however that ends; the file itself only
    names the holder and may stay behind. Raises StoreError naming the holder after `wait_s` seconds.
    """
    descriptor = _acquire(path, what, time.monotonic() + wait_s)
    try:
        with suppress(OSError):  # on a full disk the lock holds all the same, without a name
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, dump(current_owner()).encode(), 0)
        yield
    finally:
        # While it is still locked, so that whoever opened the same file sees it gone and opens anew.
        with suppress(FileNotFoundError):
            path.unlink()
        os.close(descriptor)


def _acquire(path: Path, what: str, deadline: float) -> int:
    """A descriptor of `path` with an exclusive flock on it."""
    while True:
        descriptor = _open(path)
        if _try_lock(descriptor, path) and _is_current(descriptor, path):
            return descriptor
        owner = _read_owner(descriptor)
        os.close(descriptor)
        if time.monotonic() >= deadline and path.exists():
            raise refusal(what, owner)
        time.sleep(_POLL_S)


def _open(path: Path) -> int:
    # Python opens with O_CLOEXEC: a trial's process that outlives us does not keep the study locked.
    try:
        return os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    except OSError as error:
        raise _cannot_lock(path, error) from error


def _try_lock(descriptor: int, path: Path) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in (errno.EWOULDBLOCK, errno.EINTR):
            return False
        os.close(descriptor)
        raise _cannot_lock(path, error) from error
    return True


def _is_current(descriptor: int, path: Path) -> bool:
    """Whether `path` still is the file that was opened; its last holder may have removed it meanwhile."""
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except FileNotFoundError:
        return False


def _read_owner(descriptor: int) -> Owner | None:
    try:
        return load(Owner, os.pread(descriptor, 4096, 0))
    except ValueError:
        return None  # the holder has not written its name yet


def _cannot_lock(path: Path, error: OSError) -> StoreError:
    return StoreError(
        f"Cannot lock {path}: {error.strerror}.",
        "Put the studies on a local disk and into a folder you may write to: --storage /path/to/studies.db",
    )
