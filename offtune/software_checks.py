"""Software that a search needs: Python, packages, toolchain, compiled ops, and whether it all imports.

Covered: what is installed and whether the training environment loads, in one child. Not covered: the machine
(`machine_checks.py`).
"""

from __future__ import annotations

import json
import platform
import re
import subprocess
import sys
from collections.abc import Sequence
from typing import Any

from offtune import installed, op_build, op_cache, ops, toolchain
from offtune.check import Check
from offtune.trial import DeviceKind

# The lower bounds of pyproject.toml; a test keeps the two alike.
NEEDED = {"torch": "2.4", "deepspeed": "0.19.6", "transformers": "4.50", "optuna": "5.0"}
_PYTHON = "3.10"
# Configuration keys are known up to this version (ds_keys); a later one may have renamed some.
_DEEPSPEED_KNOWN = "0.19"
_PLACEMENTS = ("zero3", "zero3 opt=cpu")  # one without and one with optimizer offload need every optimizer op
# Importing took 12 to 22 s on two loaded cores; a cold network disk can take minutes.
_IMPORT_S = 180.0
PROBE = (sys.executable, "-m", "offtune.worker.check_imports")


def python() -> Check:
    """The interpreter's version."""
    running = platform.python_version()
    if _order(running) >= _order(_PYTHON):
        return Check(name="Python", state="ok", detail=running)
    remedy = f"install Python {_PYTHON} or later and make a new environment with it"
    return Check(name="Python", state="failed", detail=f"{running}, needs {_PYTHON} or later", remedy=remedy)


def packages() -> tuple[Check, ...]:
    """Installed versions against those that are needed."""
    return tuple(_package(name, needed) for name, needed in NEEDED.items())


def _package(name: str, needed: str) -> Check:
    found = installed.version(name)
    remedy = f"{sys.executable} -m pip install '{name}>={needed}'"
    if found is None:
        return Check(name=name, state="failed", detail="not installed", remedy=remedy)
    if _order(found) < _order(needed):
        return Check(name=name, state="failed", detail=f"{found}, needs {needed} or later", remedy=remedy)
    if name == "deepspeed" and _order(found)[:2] > _order(_DEEPSPEED_KNOWN):
        detail = f"{found}, newer than {_DEEPSPEED_KNOWN}: configuration keys may have changed"
        remedy = f"{sys.executable} -m pip install 'deepspeed~={needed}'  (or check exports with --verify)"
        return Check(name=name, state="warning", detail=detail, remedy=remedy)
    return Check(name=name, state="ok", detail=found)


def _order(version: str) -> tuple[int, ...]:
    """Leading numbers of a version, for comparison: '2.13.0+cpu' is (2, 13, 0)."""
    public = re.match(r"\d+(?:\.\d+)*", version)
    return tuple(int(part) for part in public.group().split(".")) if public else ()


def tools() -> tuple[Check, ...]:
    """What compiling ops needs, and torch even to load a compiled one: it asks the compiler its version."""
    found = {
        "C++ compiler": (toolchain.compiler(), toolchain.NO_COMPILER),
        "ninja": (toolchain.ninja(), toolchain.NO_NINJA),
        "Python headers": (toolchain.python_headers(), toolchain.NO_HEADERS),
    }
    return tuple(
        Check(name=name, state="failed", detail=lack.what, remedy=lack.remedy)
        if place is None
        else Check(name=name, state="ok", detail=str(place))
        for name, (place, lack) in found.items()
    )


def libaio() -> Check:
    """libaio's headers, which only offload to NVMe needs."""
    header = toolchain.libaio_header()
    if header is not None:
        return Check(name="libaio headers", state="ok", detail=str(header))
    lack = toolchain.NO_LIBAIO
    detail = f"{lack.what}: searches go without offload to NVMe"
    return Check(name="libaio headers", state="warning", detail=detail, remedy=lack.remedy)


def compiled_ops(device: DeviceKind, optimizer: str = "adamw") -> tuple[Check, ...]:
    """Each op of a search with this optimizer: compiled, compiled by the first search, or impossible."""
    return tuple(_compiled(op) for op in ops.needed_ops(device, optimizer, _PLACEMENTS, nvme=True))


def _compiled(op: str) -> Check:
    name = f"op {op}"
    if op_cache.built(op):
        return Check(name=name, state="ok", detail="compiled")
    if op == "async_io" and toolchain.libaio_header() is None:
        detail, remedy = f"cannot be compiled: {toolchain.NO_LIBAIO.what}", toolchain.NO_LIBAIO.remedy
        return Check(name=name, state="warning", detail=detail, remedy=remedy)
    lacks = toolchain.lacks()
    if lacks:
        detail = f"cannot be compiled: {', '.join(lack.what for lack in lacks)}"
        return Check(name=name, state="failed", detail=detail, remedy=lacks[0].remedy)
    return Check(
        name=name,
        state="ok",
        detail=f"not compiled yet; a search that needs it does: {op_build.usual_time(op)}",
    )


def stale_locks() -> Check:
    """Locks of killed builds, which make every later load wait for ever, in silence."""
    stale = op_cache.stale_locks(op_cache.all_locks())
    if not stale:
        return Check(name="op locks", state="ok", detail="none left behind")
    listed = " ".join(str(path) for path in stale)
    ended = ", ".join(path.parent.name for path in stale)
    return Check(
        name="op locks", state="warning", detail=f"left by a killed build: {ended}", remedy=f"rm {listed}"
    )


def imports(has_gpus: bool, quick: bool, command: Sequence[str] = PROBE) -> tuple[Check, ...]:
    """Whether the training environment loads, and whether torch reaches the GPUs, in one child process."""
    if quick:
        return (Check(name="training environment", state="unknown", detail="not loaded: --quick"),)
    seen = _probe(command)
    if isinstance(seen, str):
        remedy = f'{sys.executable} -c "import torch, deepspeed, transformers"  (shows the whole error)'
        return (Check(name="training environment", state="failed", detail=seen, remedy=remedy),)
    detail = f"loads in {seen['seconds']:.0f} s, DeepSpeed chooses {seen['accelerator']}"
    loaded = Check(name="training environment", state="ok", detail=detail)
    return (loaded, _reach(int(seen["cuda_devices"]))) if has_gpus else (loaded,)


def _probe(command: Sequence[str]) -> dict[str, Any] | str:
    """What the child saw, or why it saw nothing."""
    environment = op_build.child_environment()
    try:
        answer = subprocess.run(command, capture_output=True, text=True, timeout=_IMPORT_S, env=environment)
        seen = json.loads(answer.stdout.splitlines()[-1])
        return (
            str(seen["error"])
            if "error" in seen
            else {"seconds": 0.0, "accelerator": "?", "cuda_devices": 0} | seen
        )
    except subprocess.TimeoutExpired:
        return f"torch, deepspeed and transformers did not load within {_IMPORT_S:.0f} s"
    except (OSError, ValueError, IndexError, TypeError):
        return "torch, deepspeed or transformers ended the process that loaded them"


def _reach(cuda_devices: int) -> Check:
    if cuda_devices:
        return Check(name="torch and GPUs", state="ok", detail=f"torch sees {cuda_devices}")
    detail = "torch sees no GPU although the driver has some: trials would run on the CPU accelerator"
    remedy = (
        f"{sys.executable} -m pip install --force-reinstall torch  (a CUDA build no newer than the driver)"
    )
    return Check(name="torch and GPUs", state="failed", detail=detail, remedy=remedy)
