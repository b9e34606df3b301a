"""What an exception in a rank means for its trial: the kind of failure and the beginning of its message.

Covered: telling memory, refusals of DeepSpeed and crashes apart. Not covered: deaths without an exception,
which the parent judges (`verdict.py`).
"""

from __future__ import annotations

import torch

INITIALIZE = "initialize DeepSpeed"
DIED_IN_CLOSE_LOOK = "the process ended during the steps under torch's profiler"


def outcome_of(error: BaseException, stage: str) -> str:
    """The kind of failure, from the exception's type and the stage; never from its wording."""
    if isinstance(error, torch.OutOfMemoryError):
        return "oom_gpu"
    if isinstance(error, MemoryError):
        return "oom_host"
    if getattr(error, "error_code", None) == _CUDA_ERROR_MEMORY_ALLOCATION:
        return "oom_gpu" if _device_is_full() else "oom_host"
    refused = (AssertionError, ValueError, TypeError, NotImplementedError, KeyError, IndexError)
    if stage == INITIALIZE and isinstance(error, (*refused, *_deepspeed_refusals())):
        return "invalid"
    return "crashed"


# cudaErrorMemoryAllocation; torch.AcceleratorError carries it also when pinned host memory ran out.
_CUDA_ERROR_MEMORY_ALLOCATION = 2
# Less than one large segment of torch's allocator (20 MiB, CUDACachingAllocator): the device is full.
_FULL_BELOW_BYTES = 20 * 2**20


def _device_is_full() -> bool:
    free, _ = torch.cuda.mem_get_info()
    return bool(free < _FULL_BELOW_BYTES)


def _deepspeed_refusals() -> tuple[type[Exception], ...]:
    from deepspeed.runtime.config import DeepSpeedConfigError
    from deepspeed.runtime.zero.utils import ZeRORuntimeException

    return (DeepSpeedConfigError, ZeRORuntimeException)


def _first_lines(error: BaseException) -> str:
    """The beginning of the message: pydantic and CUDA messages run over many lines."""
    limit = 600
    text = " ".join(str(error).split())
    return text if len(text) <= limit else text[:limit] + " ..."


def described(error: BaseException) -> str:
    """An exception's type and the beginning of its message."""
    return f"{type(error).__name__}: {_first_lines(error)}"
