"""Where torch keeps compiled ops, and the locks it leaves there.

Covered: which ops are compiled, who is compiling, locks left behind by a killed build. Not covered: compiling
(`ops.py`).
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import psutil

from offtune import installed, toolchain

# DeepSpeed's async_io is linked against symbols of pin_memory, which it loads first (op_builder/async_io.py).
_ALSO = {"async_io": ("pin_memory",)}


_NINJA_ANSWER_S = 20.0  # it looks at some thousand headers: 0.1 s on a local disk


@dataclass(frozen=True, slots=True, kw_only=True)
class Holder:
    """The living process that holds an op's lock, as far as we may see it."""

    pid: int | None
    name: str

    def __str__(self) -> str:
        return f"{self.name} (process {self.pid})" if self.pid is not None else self.name


def root() -> Path:
    """The folder of compiled ops, by the rule of torch/utils/cpp_extension.py (2.13)."""
    given = os.environ.get("TORCH_EXTENSIONS_DIR")
    if given is not None:
        return Path(given)
    cache = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(cache).expanduser().resolve() / "torch_extensions" / _tag()


def _tag() -> str:
    build = installed.torch_build()
    kind = "cpu"
    if build is not None and build.hip:
        kind = f"rocm{build.hip.replace('.', '')}"
    elif build is not None and build.cuda:
        kind = f"cu{build.cuda.replace('.', '')}"
    return f"py{sys.version_info.major}{sys.version_info.minor}{getattr(sys, 'abiflags', '')}_{kind}"


def folders(op: str) -> tuple[Path, ...]:
    """The build folders of an op: its own and those of ops it is linked against."""
    return tuple(root() / name for name in (op, *_ALSO.get(op, ())))


def built(op: str) -> bool:
    """Whether loading the op here and now compiles nothing."""
    return _preinstalled(op) or all(_current(place) for place in folders(op))


def _current(place: Path) -> bool:
    """Compiled for this environment's torch, DeepSpeed and compiler, with nothing left to do for its ninja.

    The cache is shared by all environments of a user with the same Python and CUDA versions, and each
    recompiles what another made: the include paths differ, and ninja 1.11 and 1.13 hash commands differently
    (seen with two environments: two minutes for two ops, in silence).
    """
    recipe, program = place / "build.ninja", toolchain.ninja()
    if program is None or not recipe.exists() or not (place / f"{place.name}.so").exists():
        return False
    text = recipe.read_text(encoding="utf-8", errors="replace")
    homes = (installed.folder("torch"), installed.folder("deepspeed"))
    marks = [f"cxx = {os.environ.get('CXX', 'c++')}\n", *(f"{home}/" for home in homes)]
    return all(mark in text for mark in marks) and _nothing_to_do(program, place)


def _nothing_to_do(ninja: str, place: Path) -> bool:
    try:
        answer = subprocess.run(
            [ninja, "-C", place, "-n"], capture_output=True, text=True, timeout=_NINJA_ANSWER_S, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return False
    return "no work to do" in answer.stdout


def _preinstalled(op: str) -> bool:
    """Compiled when DeepSpeed was installed (DS_BUILD_OPS=1), as deepspeed/ops/<family>/<op>_op.*.so."""
    home = installed.folder("deepspeed")
    return home is not None and any((home / "ops").glob(f"*/{op}_op*.so"))


def locks(op: str) -> tuple[Path, ...]:
    """Lock files that would make loading this op wait."""
    return tuple(place / "lock" for place in folders(op) if (place / "lock").exists())


def all_locks() -> tuple[Path, ...]:
    """Lock files of every op in the cache."""
    return tuple(sorted(root().glob("*/lock")))


def holder(lock: Path) -> Holder | None:
    """Who holds a lock: a living process that has it open, or a ninja in its folder; None if nobody does.

    torch's FileBaton (2.13) keeps the file open while it compiles, and ninja outlives a Python killed alone.
    A file of another user is taken as held, since we may not look into their processes.
    """
    try:
        owner = lock.stat().st_uid
    except FileNotFoundError:
        return None
    for process in psutil.process_iter():
        if process.pid != os.getpid() and _works_on(process, lock.resolve()):
            return Holder(pid=process.pid, name=process.name())
    return None if owner == os.getuid() else Holder(pid=None, name=f"user {owner}")


def _works_on(process: psutil.Process, lock: Path) -> bool:
    try:
        if process.status() == psutil.STATUS_ZOMBIE:
            return False
        return process.cwd() == str(lock.parent) or any(
            file.path == str(lock) for file in process.open_files()
        )
    except psutil.Error:
        return False


def locks_outlive_builders() -> bool:
    """Whether a killed build blocks later ones: torch's FileBaton does (2.13), the later FileLock not.

    The kernel releases a FileLock with the process that held it, so a file without a holder is harmless then.
    """
    home = installed.folder("torch")
    source = home / "utils" / "cpp_extension.py" if home is not None else None
    return source is not None and source.exists() and "FileBaton(" in source.read_text(encoding="utf-8")


def stale_locks(paths: Iterable[Path]) -> tuple[Path, ...]:
    """Those of `paths` that nobody holds and that block every later load all the same."""
    if not locks_outlive_builders():
        return ()
    return tuple(path for path in paths if path.exists() and holder(path) is None)
