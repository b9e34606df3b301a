"""Compiles DeepSpeed's ops: `python -m offtune.worker.build_ops --device cpu|cuda NAME...`.

Covered: DeepSpeed's own builders, one after the other. Not covered: deadlines, locks and remedies
(`offtune/ops.py`). Prints one JSON line per op: {"op", "state", "seconds", "error", "cause"}.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from subprocess import SubprocessError
from typing import Any, TextIO

# Class names in deepspeed/ops/op_builder, 0.19.8; the keys are the names of the compiled libraries.
_BUILDERS = {
    "async_io": "AsyncIOBuilder",
    "cpu_adagrad": "CPUAdagradBuilder",
    "cpu_adam": "CPUAdamBuilder",
    "cpu_lion": "CPULionBuilder",
    "deepspeed_shm_comm": "ShareMemCommBuilder",
    "fused_adam": "FusedAdamBuilder",
    "fused_lion": "FusedLionBuilder",
    "pin_memory": "PinMemoryBuilder",
}
_ERROR_CHARACTERS = 2000  # the end of a compiler's complaint; the rest goes to standard error


def builder(op: str) -> Any:
    """DeepSpeed's builder for `op` on this accelerator; None if it has none."""
    from deepspeed.accelerator import get_accelerator

    found = get_accelerator().create_op_builder(_BUILDERS[op])
    # The CPU accelerator answers unknown names with a NotImplementedBuilder (cpu_accelerator.py, 0.19.8).
    return found if type(found).__name__ == _BUILDERS[op] else None


def build(op: str) -> dict[str, Any]:
    """Compile and load one op; what happened, as plain JSON values."""
    start = time.monotonic()
    state, error, cause = _attempt(op)
    return {"op": op, "state": state, "seconds": time.monotonic() - start, "error": error, "cause": cause}


def _attempt(op: str) -> tuple[str, str, str]:
    """State, error text and the kind of cause that the parent knows a remedy for."""
    from deepspeed.ops.op_builder.builder import CUDAMismatchException, MissingCUDAException

    make = builder(op) if op in _BUILDERS else None
    if make is None:
        return "unavailable", f"DeepSpeed has no {op} for this accelerator", "no_builder"
    try:
        if not make.is_compatible(verbose=True):
            return "unavailable", make.error_log or f"DeepSpeed finds {op} incompatible", "incompatible"
        make.load(
            verbose=False
        )  # verbose, torch prints the compiler's complaint and leaves it out of the error
    except MissingCUDAException as error:
        return "unavailable", _tail(error), "no_cuda_toolkit"
    except CUDAMismatchException as error:
        return "unavailable", _tail(error), "cuda_mismatch"
    except (RuntimeError, ImportError, OSError, ValueError, AssertionError, SubprocessError) as error:
        return "failed", _tail(error), "compile"
    return "ready", "", ""


def _tail(error: Exception) -> str:
    sys.stderr.write(f"{error}\n")
    return f"{type(error).__name__}: {error}"[-_ERROR_CHARACTERS:]


def own_stdout() -> TextIO:
    """A stream of our own on standard output, which from now on goes to standard error.

    Builders, ninja and compilers print there as they like; the parent reads nothing but our lines.
    """
    ours = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    return ours


def main() -> int:
    """Build the named ops in order; returns 0 if all are ready."""
    parser = argparse.ArgumentParser(prog="offtune.worker.build_ops")
    parser.add_argument("--device", choices=("cpu", "cuda"), required=True)
    parser.add_argument("ops", nargs="+")
    options = parser.parse_args()
    os.environ["DS_ACCELERATOR"] = options.device
    output = own_stdout()
    ready = True
    for op in options.ops:
        outcome = build(op)
        ready = ready and outcome["state"] == "ready"
        output.write(json.dumps(outcome) + "\n")
        output.flush()
    return 0 if ready else 1


if __name__ == "__main__":
    sys.exit(main())
