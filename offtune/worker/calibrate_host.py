"""Measures what the host does: memory bandwidth and DeepSpeed's CPU Adam, by threads.

Covered: OpenMP pools of torch and of DeepSpeed's op alike. Not covered: binding to NUMA nodes.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from pathlib import Path

import torch

from offtune.calibration import ELEMENTS, RATE, Figure, Task
from offtune.worker.stopwatch import timed

_ARRAY_BYTES = 2**27  # 128 MiB, several times the caches
_ADAM_ELEMENTS = 2**24  # 268 MB of parameter, gradient and moments
_OPENMP = ("libgomp", "libomp", "libiomp")


def set_threads(count: int) -> None:
    """Let every OpenMP library of this process use `count` threads from now on.

    An op compiled here may be linked with another one than torch's own, which torch.set_num_threads does not
    reach; where there is only one (torch 2.13 from pip), this is the same.
    """
    torch.set_num_threads(count)
    for line in Path("/proc/self/maps").read_text().splitlines():
        path = line.split(maxsplit=5)[-1]
        if path.rpartition("/")[2].startswith(_OPENMP):
            ctypes.CDLL(path).omp_set_num_threads(count)


def thread_counts(cores: int) -> tuple[int, ...]:
    """One, then doubled, and all cores."""
    doubled = [2**power for power in range(cores.bit_length()) if 2**power < cores]
    return (*doubled, cores)


def memory(task: Task) -> Iterator[Figure]:
    """Host memory: copying as one rank does, and by threads the triad of STREAM."""
    left = torch.ones(_ARRAY_BYTES // 4, dtype=torch.float32)
    right, out = torch.ones_like(left), torch.empty_like(left)
    size = _ARRAY_BYTES // 2**20
    for count in sorted({1, task.threads}):
        set_threads(count)
        detail = f"bytes written by copying {size} MiB"
        yield timed(lambda: out.copy_(left), task.budget_s / 2).rate(
            f"host.copy.threads_{count}", _ARRAY_BYTES, RATE, detail
        )
    for count in thread_counts(task.cores):
        set_threads(count)
        detail = f"two arrays of {size} MiB read, a third written (the triad of STREAM)"
        yield timed(lambda: torch.add(left, right, alpha=3.0, out=out), task.budget_s / 2).rate(
            f"host.stream.threads_{count}", 3.0 * _ARRAY_BYTES, RATE, detail
        )


def adam(task: Task) -> Iterator[Figure]:
    """DeepSpeed's own CPUAdam, fp32 as ZeRO-Offload calls it, by threads."""
    from deepspeed.ops.adam import DeepSpeedCPUAdam

    parameter = torch.nn.Parameter(torch.zeros(_ADAM_ELEMENTS))
    parameter.grad = torch.full_like(parameter, 1e-3)
    optimizer = DeepSpeedCPUAdam([parameter])
    optimizer.step()  # makes the moments
    detail = f"{_ADAM_ELEMENTS / 1e6:.1f} M elements, fp32, DeepSpeedCPUAdam"
    for count in thread_counts(task.cores):
        set_threads(count)
        yield timed(optimizer.step, task.budget_s).rate(
            f"adam.threads_{count}", _ADAM_ELEMENTS, ELEMENTS, detail
        )
