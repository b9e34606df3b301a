"""The resident memory of a process just before the first parameter of a model is made.

It is the level above which the CPU accelerator's used memory counts. Covered: noticing that moment in a
script that knows nothing of us, by standing in front of `torch.nn.Module` until it has come. Imports
nothing heavy.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_level: dict[str, int] = {}
_waiting: list[Callable[[], None]] = []
_begun: list[bool] = []


def resident_now() -> int:
    """Resident bytes of this process without file pages (as in `memory.private_resident_bytes`)."""
    _, resident, file_backed = Path("/proc/self/statm").read_text().split()[:3]
    return (int(resident) - int(file_backed)) * _PAGE_BYTES


def level_bytes() -> int | None:
    """The level, or None while no module has been made."""
    return _level.get("bytes")


def when_model_begins(callback: Callable[[], None]) -> None:
    """Call `callback` at the first parameter of a model; at once where that moment is over."""
    if _begun:
        callback()
    else:
        _waiting.append(callback)


def add_to_level(extra_bytes: int) -> None:
    """Count what offtune itself loaded after the level was taken as part of it."""
    if "bytes" in _level:
        _level["bytes"] += max(0, extra_bytes)


def watch_level() -> None:
    """Take the level at each new module until one has got a parameter."""
    from torch.nn import Module

    init, register = Module.__init__, Module.register_parameter

    def watched_init(self: Any, *args: Any, **kwargs: Any) -> None:
        if Module.register_parameter is watched_register:
            _level["bytes"] = resident_now()
        init(self, *args, **kwargs)

    def watched_register(self: Any, name: str, param: Any) -> None:
        # Modules register None for what they lack (a bias); only a real parameter ends the watch.
        if param is not None:
            Module.__init__, Module.register_parameter = init, register
            _begun.append(True)
            for callback in _waiting:
                callback()
        register(self, name, param)

    Module.__init__, Module.register_parameter = watched_init, watched_register
