"""numpy with one thread for its linear algebra.

The strategy's matrices have 80 rows: threads that wait for each other doubled the time of a proposal on two
cores (`benchmarks/scale.py`), and take the processor from trials of other workers. Not covered: anything that
a trial runs.
"""

from __future__ import annotations

import importlib
import os

# What the libraries that numpy may have been built with read when they are loaded.
_NAMES = ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS")


def load_numpy() -> None:
    """Load numpy so, unless it is loaded already; the environment stays as it is, since trials inherit it."""
    before = {name: os.environ.get(name) for name in _NAMES}
    os.environ.update(dict.fromkeys(_NAMES, "1"))
    try:
        importlib.import_module("numpy")
    finally:
        for name, value in before.items():
            os.environ.pop(name)
            if value is not None:
                os.environ[name] = value
