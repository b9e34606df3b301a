"""Loads what trials need and says how it went: `python -m offtune.worker.check_imports`.

Covered: importing, the accelerator DeepSpeed chooses, GPUs torch sees. Not covered: training. Prints one JSON
line: {"seconds", "accelerator", "cuda_devices"} or {"error"}.
"""

from __future__ import annotations

import json
import os
import sys
import time
from typing import Any


def environment() -> dict[str, Any]:
    """What importing the training environment shows. Raises what its packages raise."""
    start = time.monotonic()
    import torch
    import transformers  # noqa: F401
    from deepspeed.accelerator import get_accelerator

    accelerator = get_accelerator()._name
    return {
        "seconds": time.monotonic() - start,
        "accelerator": accelerator,
        "cuda_devices": torch.cuda.device_count() if torch.version.cuda else 0,
    }


def main() -> int:
    """Print what was seen; returns 0 unless a package does not load."""
    output = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # deepspeed logs to standard output while it is imported
    try:
        seen = environment()
    except (ImportError, OSError, RuntimeError, AttributeError, ValueError, TypeError) as error:
        seen = {"error": f"{type(error).__name__}: {error}".splitlines()[0]}
    output.write(json.dumps(seen) + "\n")
    output.flush()
    return 1 if "error" in seen else 0


if __name__ == "__main__":
    sys.exit(main())
