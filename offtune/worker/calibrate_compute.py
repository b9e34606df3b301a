"""Measures what the device computes: matrix products, attention, its memory, launching, its context.

Covered: the rates of one rank, with the threads it has in trials. Not covered: copies to and from the device
(`calibrate_links.py`).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import torch

from offtune import hardware
from offtune.calibration import BYTES, FLOPS, RATE, SECONDS, Figure, Task
from offtune.worker.stopwatch import absent, timed, timing

_DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}
# Large enough that launching is nothing; a product of this width takes some milliseconds on either.
_WIDTH = {"cuda": 8192, "cpu": 1024}
_SEQUENCE = {"cuda": 4096, "cpu": 512}
_HEADS, _HEAD_WIDTH = 16, 128
_CAUSAL = 0.5  # share of the scores that a causal kernel computes
_STREAM_BYTES = {"cuda": 2**30, "cpu": 2**27}  # several times the caches
_LAUNCHES = 100  # fewer than CUDA's queue holds, so that issuing never waits for the device


def synchroniser(task: Task) -> Callable[[], object]:
    """What waits until the device has done all it was given."""
    return torch.cuda.synchronize if task.device == "cuda" else lambda: None


def supports(precision: str) -> bool:
    """Whether DeepSpeed's accelerator trains in it."""
    from deepspeed.accelerator import get_accelerator

    accelerator = get_accelerator()
    answers = {"bf16": accelerator.is_bf16_supported, "fp16": accelerator.is_fp16_supported}
    return precision == "fp32" or bool(answers[precision]())


def matrix(task: Task) -> Iterator[Figure]:
    """Square matrix products by precision."""
    torch.set_num_threads(task.threads)
    wait, width = synchroniser(task), _WIDTH[task.device]
    for precision, dtype in _DTYPES.items():
        key = f"matrix.{precision}"
        if not supports(precision):
            yield absent(key, FLOPS, f"DeepSpeed's {task.device} accelerator does not train in {precision}")
            continue
        left = torch.randn(width, width, dtype=dtype, device=task.device)
        right, out = torch.randn_like(left), torch.empty_like(left)

        def product(left=left, right=right, out=out) -> None:  # type: ignore[no-untyped-def]
            torch.matmul(left, right, out=out)
            wait()

        detail = f"products of {width} x {width}{_threads(task)}{_tf32(task, precision)}"
        yield timed(product, task.budget_s).rate(key, 2.0 * width**3, FLOPS, detail)


def _threads(task: Task) -> str:
    plural = "" if task.threads == 1 else "s"
    return "" if task.device == "cuda" else f" on {task.threads} thread{plural}"


def _tf32(task: Task, precision: str) -> str:
    """Torch multiplies fp32 exactly unless told otherwise, several times slower than with TF32."""
    if task.device != "cuda" or precision != "fp32":
        return ""
    return ", TF32 on" if torch.backends.cuda.matmul.allow_tf32 else ", TF32 off, as torch has it"


def attention(task: Task) -> Iterator[Figure]:
    """Causal attention by torch's own kernel, forward."""
    torch.set_num_threads(task.threads)
    precision = "bf16" if supports("bf16") else "fp32"
    wait, length = synchroniser(task), _SEQUENCE[task.device]
    shape = (1, _HEADS, length, _HEAD_WIDTH)
    queries = torch.randn(*shape, dtype=_DTYPES[precision], device=task.device)
    keys, values = torch.randn_like(queries), torch.randn_like(queries)

    def attend() -> None:
        torch.nn.functional.scaled_dot_product_attention(queries, keys, values, is_causal=True)
        wait()

    flops = _CAUSAL * 4.0 * _HEADS * length**2 * _HEAD_WIDTH
    detail = f"{precision}, {_HEADS} heads of {_HEAD_WIDTH}, {length} tokens, causal half counted"
    yield timed(attend, task.budget_s).rate(f"attention.{precision}", flops, FLOPS, detail + _threads(task))


def device_memory(task: Task) -> Iterator[Figure]:
    """Copying within the device's memory, reads and writes counted."""
    torch.set_num_threads(task.threads)
    wait, size = synchroniser(task), _STREAM_BYTES[task.device]
    source = torch.ones(size // 4, dtype=torch.float32, device=task.device)
    target = torch.empty_like(source)

    def copy() -> None:
        target.copy_(source)
        wait()

    detail = f"copies of {size // 2**20} MiB within device memory, read and written{_threads(task)}"
    yield timed(copy, task.budget_s).rate("device.stream", 2.0 * size, RATE, detail)


def launch(task: Task) -> Iterator[Figure]:
    """Processor time to issue one small operation from Python."""
    wait = synchroniser(task)
    tensor = torch.zeros(16, device=task.device)
    seconds: list[float] = []

    def issue() -> None:
        start = time.thread_time()  # others' work on the machine is no cost of launching
        for _ in range(_LAUNCHES):
            tensor.add_(1.0)
        seconds.append((time.thread_time() - start) / _LAUNCHES)
        wait()

    timed(issue, task.budget_s / 2)
    found = timing(seconds[1:])  # without the wait, and without the first
    yield Figure(
        key="launch.operation", value=found.median_s, unit=SECONDS, spread=found.spread, count=found.count,
        detail=f"processor time of one in-place addition of 16 numbers, {_LAUNCHES} in a row",
    )  # fmt: skip


def context(task: Task) -> Iterator[Figure]:
    """Device memory that a process holds before its first tensor; the first section, as it starts CUDA."""
    if task.device != "cuda" or task.gpu is None:
        yield absent("context", BYTES, "there is no device")
        return
    before = hardware.device_used_bytes(task.gpu)
    torch.cuda.init()
    torch.cuda.synchronize()
    after = hardware.device_used_bytes(task.gpu)
    if before is None or after is None or after <= before:
        yield absent("context", BYTES, "the driver does not say")
        return
    yield Figure(
        key="context", value=float(after - before), unit=BYTES, count=1,
        detail="device memory in use after CUDA started, less before",
    )  # fmt: skip
