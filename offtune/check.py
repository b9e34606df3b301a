"""One line of `doctor`: what was looked at, how it stands, and the command that mends it.

Covered: the record and its order of gravity. Not covered: the looking (`machine_checks.py`,
`software_checks.py`).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

State = Literal["ok", "unknown", "warning", "failed"]
_GRAVITY: tuple[State, ...] = ("ok", "unknown", "warning", "failed")


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """`failed` stops a search, `warning` spoils or narrows it, `unknown` was not looked at.

    `remedy` is a command, empty when all is well.
    """

    name: str
    state: State
    detail: str
    remedy: str = ""

    def __post_init__(self) -> None:
        if self.state in ("warning", "failed") and not self.remedy:
            raise ValueError(f"Check.remedy: '{self.name}' is {self.state} and says not what to do")


def worst(checks: Iterable[Check]) -> State:
    """The gravest state among the checks; `ok` when there are none."""
    return max((check.state for check in checks), key=_GRAVITY.index, default="ok")
