"""Everything a rank needs before it trains, loaded in one place for warm and cold ranks alike.

Both must start from the same level of memory: what is imported after the level was taken counts as used.
Covered: imports, CPU features, ops. Not covered: anything that touches a device. No thread is left running.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import importlib
import os
import threading
import time
from collections.abc import Sequence


def preload(
    ops: Sequence[str], model_types: Sequence[str], *, for_scripts: bool = False, hurried: bool = True
) -> dict[str, float]:
    """Import what every rank needs, load the built ops, freeze it all; returns the seconds of each part.

    Unless `hurried` it goes as in any script: one thing after the other, collecting garbage among imports.
    """
    seconds = {}
    features = _ask_cpu_features()
    if hurried:
        gc.disable()  # what is imported stays: looking for garbage in it takes a fifth of the time
        features.start()
    for name, part in (
        ("imports", _import_everything),
        ("models", functools.partial(_import_models, model_types)),
        ("for scripts", _import_for_scripts if for_scripts else _nothing),
        ("cpu features", features.join if hurried else features.run),
        ("ops", functools.partial(_load_ops, ops)),
    ):
        start = time.perf_counter()
        part()
        seconds[name] = time.perf_counter() - start
    gc.enable()
    gc.collect()
    gc.freeze()  # a collection in a forked child would touch, and so copy, every page of the heap
    return seconds


# deepspeed.initialize imports these on first use; Muon pulls the compiler stack in (5.7 s when cold).
_IMPORTED_ON_FIRST_USE = (
    "deepspeed.runtime.zero.muon.muon_optimizer",
    "deepspeed.runtime.zero.stage3",
    "deepspeed.runtime.zero.stage_1_and_2",
)


def _import_everything() -> None:
    import torch.distributed  # noqa: F401
    import transformers  # noqa: F401

    from offtune.worker import inspect_model, train  # noqa: F401

    for name in _IMPORTED_ON_FIRST_USE:
        with contextlib.suppress(ModuleNotFoundError):  # moved or absent in another DeepSpeed version
            importlib.import_module(name)


def _ask_cpu_features() -> threading.Thread:
    """Asks and keeps the answer: the same each time, at one to four seconds of subprocesses a question."""
    import cpuinfo

    cpuinfo.get_cpu_info = functools.lru_cache(maxsize=1)(cpuinfo.get_cpu_info)
    return threading.Thread(target=cpuinfo.get_cpu_info)


def _import_models(model_types: Sequence[str]) -> None:
    for model_type in model_types:
        name = model_type.replace("-", "_")
        importlib.import_module(f"transformers.models.{name}.modeling_{name}")


# What training scripts import beside torch, DeepSpeed and transformers; each is there or is not.
_OF_SCRIPTS = ("accelerate", "transformers.trainer", "offtune.worker.hook", "offtune.worker.script")


def _import_for_scripts() -> None:
    for name in _OF_SCRIPTS:
        with contextlib.suppress(ImportError):
            importlib.import_module(name)


def _nothing() -> None:
    return


def _load_ops(ops: Sequence[str]) -> None:
    from offtune.worker.build_ops import builder

    for op in ops:
        make = builder(op)
        if make is not None:
            make.load(verbose=False)
    if os.environ.get("DS_ACCELERATOR") == "cpu":  # elsewhere it asks the GPUs
        _ask_compatible_ops()


def _ask_compatible_ops() -> None:
    """DeepSpeed asks as it joins a process group, runs a compiler for it, and keeps the answer."""
    import deepspeed.ops

    getattr(deepspeed.ops, "__compatible_ops__", None)
