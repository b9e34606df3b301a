"""Whether a person's command can start from the warm server: a Python script whose interpreter is ours.

Covered: reading the command's words, the interpreter behind the first of them, the switch. Not covered:
starting it (`command_ranks.py`, `worker/script.py`). Launchers start ranks of their own and stay cold, and so
does an interpreter with options of its own.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

from offtune import toolchain
from offtune.command import is_plain_python
from offtune.script_start import Program

# Set to anything but "" or 0, it makes every trial of a command start cold.
SWITCH = "OFFTUNE_COLD"


def warm_program(words: Sequence[str], cwd: str) -> Program | None:
    """What the warm server would run for these words; None where they have to be started as they are."""
    if os.environ.get(SWITCH, "0") not in ("", "0") or not is_plain_python(words):
        return None
    if not is_our_interpreter(words[0], cwd):
        return None
    rest = words[1:]
    if rest[:1] == ["-u"]:  # offtune's children never buffer
        rest = rest[1:]
    if rest[:1] == ["-m"] and len(rest) > 1:
        return Program(kind="module", name=rest[1], arguments=tuple(rest[2:]))
    if not rest or rest[0].startswith("-") or not (Path(cwd) / rest[0]).is_file():
        return None
    return Program(kind="script", name=rest[0], arguments=tuple(rest[1:]))


def is_our_interpreter(word: str, cwd: str) -> bool:
    """Whether `word` starts the interpreter that runs offtune, in the same environment."""
    found = word if "/" in word else shutil.which(word, path=toolchain.search_path())
    executable = Path(cwd) / (found or "")
    if not executable.is_file() or not executable.samefile(sys.executable):
        return False
    return _prefix(executable) == Path(sys.prefix).resolve()


def _prefix(executable: Path) -> Path:
    """The environment an interpreter belongs to: a virtual one is marked beside its folder (PEP 405)."""
    folder = executable.parent
    for place in (folder, folder.parent):
        if (place / "pyvenv.cfg").is_file():
            return place.resolve()
    return executable.resolve().parent.parent
