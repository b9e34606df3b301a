"""Measures storage as DeepSpeed swaps to it: through its own aio handle, with direct I/O.

Covered: reads and writes of whole tensors with the settings that trials start from. Not covered: the best
settings (the space `nvme` searches them), GPUDirect Storage.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from offtune import host
from offtune.calibration import RATE, Figure, Task
from offtune.worker.stopwatch import absent, timed

BLOCK_BYTES = 2**20
QUEUE_DEPTH = 8
PARALLEL = 1
BUFFER_BYTES = 2**26  # 64 MiB at a time
_FILES = 4  # taken in turn, so that a small cache in the device does not answer
_LEAST_BUFFER_BYTES = 2**22


def nvme(task: Task) -> Iterator[Figure]:
    """Effective rate of writing and reading one tensor after the other."""
    if task.nvme_dir is None:
        yield from _neither("no folder on NVMe was named: --nvme-path")
        return
    size = _buffer_bytes()
    if size is None:
        yield from _neither("the limit of locked memory leaves no room for a buffer: ulimit -l")
        return
    # bytes of a handle: block, depth, single submit, overlap, parallel: those of ds_keys.AIO_DEFAULTS
    from deepspeed.ops.op_builder import AsyncIOBuilder

    handle = AsyncIOBuilder().load().aio_handle(BLOCK_BYTES, QUEUE_DEPTH, False, True, PARALLEL)
    buffer = handle.new_cpu_locked_tensor(size, torch.empty(0, dtype=torch.uint8))
    buffer.random_()  # zeros and repeats are written faster by devices that compress
    try:
        yield from _rates(task, handle, buffer, size)
    finally:
        handle.free_cpu_locked_tensor(buffer)


def _rates(task: Task, handle: Any, buffer: torch.Tensor, size: int) -> Iterator[Figure]:
    """Writes first: they make the files that are read."""
    assert task.nvme_dir is not None
    files = [Path(task.nvme_dir) / f"tensor-{number}.swp" for number in range(_FILES)]
    detail = (
        f"DeepSpeed's aio handle, {size // 2**20} MiB at a time, blocks of {BLOCK_BYTES // 2**20} MiB, "
        f"depth {QUEUE_DEPTH}, direct I/O"
    )
    try:
        for file in files:  # the first time, blocks are allocated
            handle.sync_pwrite(buffer, str(file), 0)
        for key, act in (("nvme.write", handle.sync_pwrite), ("nvme.read", handle.sync_pread)):
            turns = itertools.cycle(files)
            found = timed(lambda act=act, turns=turns: act(buffer, str(next(turns)), 0), 2 * task.budget_s)  # type: ignore[misc]
            yield found.rate(key, size, RATE, detail)
    finally:
        for file in files:
            file.unlink(missing_ok=True)


def _neither(reason: str) -> Iterator[Figure]:
    yield absent("nvme.read", RATE, reason)
    yield absent("nvme.write", RATE, reason)


def _buffer_bytes() -> int | None:
    """What one buffer may hold; a handle whose buffer cannot be locked ends the process with signal 6."""
    limit = host.memlock_bytes()
    size = BUFFER_BYTES if limit is None else min(BUFFER_BYTES, limit // 2 // BLOCK_BYTES * BLOCK_BYTES)
    return size if size >= _LEAST_BUFFER_BYTES else None
