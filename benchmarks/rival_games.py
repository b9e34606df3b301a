"""Games that were played, kept in a file: one JSON line each, written when it ends.

Covered: reading and adding. Not covered: playing (`rivals`), and whether a rival still is what
it was when it played.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rival_players import Played, Record


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """One game: landscape and rival by name, seed."""

    landscape: str
    rival: str
    seed: int


class GameFile:
    """A file of games; one that is not there holds none."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def read(self) -> dict[Task, Record]:
        """The games in the file, without what an interruption left half written."""
        lines = self._path.read_text().splitlines() if self._path.exists() else []
        return dict(game for line in lines if (game := _game(line)) is not None)

    def add(self, task: Task, record: Record) -> None:
        """One more game."""
        with self._path.open("a") as file:
            file.write(json.dumps({"task": asdict(task), "record": asdict(record)}) + "\n")


def _game(text: str) -> tuple[Task, Record] | None:
    try:
        line: dict[str, Any] = json.loads(text)
    except json.JSONDecodeError:
        return None
    record = line["record"]
    played = tuple(Played(**one) for one in record["played"])
    return Task(**line["task"]), Record(trials=record["trials"], played=played, stopped=record["stopped"])
