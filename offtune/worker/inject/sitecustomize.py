"""Found by every Python process of a command under trial: its folder comes first in PYTHONPATH.

Covered: running the `sitecustomize` it hides, calling offtune when torch and deepspeed have been imported.
Nothing but the standard library is loaded here, and nothing of offtune before torch is. Not covered: what is
done then (`level.py`, `hook.py`).
"""

from __future__ import annotations

import contextlib
import importlib.abc
import importlib.machinery
import importlib.util
import os
import select
import signal
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

_HERE = str(Path(__file__).parent)


def _run_hidden() -> None:
    """Run the next `sitecustomize` on the path, as if this one were not there."""
    others = [entry for entry in sys.path if str(Path(entry or ".").resolve()) != str(Path(_HERE).resolve())]
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", others)
    if spec is not None and spec.loader is not None:
        module = importlib.util.module_from_spec(spec)
        sys.modules["sitecustomize"] = module
        spec.loader.exec_module(module)


class _AfterImport(importlib.abc.MetaPathFinder):
    """Calls back once each named package has been imported; finds nothing itself."""

    def __init__(self, callbacks: dict[str, Callable[[], None]]) -> None:
        self._callbacks = callbacks
        self._busy = False

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        if self._busy or name not in self._callbacks:
            return None
        self._busy = True
        try:
            spec = importlib.util.find_spec(name)
        finally:
            self._busy = False
        if spec is not None and spec.loader is not None and hasattr(spec.loader, "exec_module"):
            self._wrap(spec.loader, name)
        return spec

    def _wrap(self, loader: Any, name: str) -> None:
        original = loader.exec_module

        def exec_module(module: Any) -> None:
            original(module)
            # Only now: libraries ask for the spec of deepspeed long before anybody imports it.
            if (callback := self._callbacks.pop(name, None)) is not None:
                callback()

        loader.exec_module = exec_module


def _after_torch() -> None:
    from offtune.worker.level import watch_level

    watch_level()


def _after_deepspeed() -> None:
    from offtune.worker.hook import attach

    attach()


def _end_with(pid: int) -> None:
    """Kill this process when offtune (process `pid`) is gone, however it went."""
    try:
        descriptor = os.pidfd_open(pid)
    except OSError:  # gone already
        os.kill(os.getpid(), signal.SIGKILL)
    select.select([descriptor], [], [])
    os.kill(os.getpid(), signal.SIGKILL)


def _install() -> None:
    seen = Path(os.environ["OFFTUNE_TRIAL_DIR"]) / "seen"
    with contextlib.suppress(OSError):  # a process whose trial is over already
        (seen / f"loaded-{os.getpid()}").touch()
    threading.Thread(target=_end_with, args=(int(os.environ["OFFTUNE_PID"]),), daemon=True).start()
    sys.meta_path.insert(0, _AfterImport({"torch": _after_torch, "deepspeed": _after_deepspeed}))


_run_hidden()
if "OFFTUNE_SPEC" in os.environ:
    _install()
