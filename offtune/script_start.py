"""What a person's Python script is started with, as the warm server is told.

Covered: the record. Not covered: whether a command can start so (`warm_command.py`), starting it
(`worker/script.py`).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

# In the trial's `seen` folder: why a script has to be started cold.
REFUSAL_FILE = "not-warm.txt"


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """A script file or a module (`-m`), and its arguments."""

    kind: Literal["script", "module"]
    name: str
    arguments: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ScriptStart:
    """A program with its working directory and its whole environment."""

    program: Program
    cwd: str
    environment: dict[str, str] = field(default_factory=dict)
