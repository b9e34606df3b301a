"""The log of a rank: its end is kept, its size on disk bounded, however much is printed.

Covered: logs that are being written while we look. Not covered: what they say; nothing is decided by that.
"""

from __future__ import annotations

import ctypes
import os
from pathlib import Path

# Enough of the end of a log to hold a Python traceback through DeepSpeed.
TAIL_BYTES = 8_000
_FREE_ABOVE_BYTES = 4_000_000
_BLOCK_BYTES = 512  # unit of st_blocks, stat(2)
_KEEP_SIZE_PUNCH_HOLE = 0x01 | 0x02  # linux/falloc.h


def read_tail(path: Path) -> str:
    """The end of the log; empty when there is none."""
    if not path.exists():
        return ""
    with path.open("rb") as log:
        log.seek(max(0, path.stat().st_size - TAIL_BYTES))
        return log.read(TAIL_BYTES).decode(errors="replace")


def bound(path: Path) -> None:
    """Give back the disk space of all but the end of a log that has grown large.

    The beginning becomes a hole in the file. Cutting the file instead would lose what is written meanwhile;
    it is what remains on a file system without holes.
    """
    if not path.exists() or path.stat().st_blocks * _BLOCK_BYTES < _FREE_ABOVE_BYTES:
        return
    with path.open("r+b") as log:
        if not _punch(log.fileno(), path.stat().st_size - TAIL_BYTES):
            os.truncate(log.fileno(), 0)


def _punch(descriptor: int, length: int) -> bool:
    fallocate = ctypes.CDLL(None, use_errno=True).fallocate
    fallocate.argtypes = (ctypes.c_int, ctypes.c_int, ctypes.c_longlong, ctypes.c_longlong)
    return bool(fallocate(descriptor, _KEEP_SIZE_PUNCH_HOLE, 0, length) == 0)
