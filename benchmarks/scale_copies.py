"""Rows of a study copied under new numbers, so that a large study for `scale.py` is made in seconds.

Covered: offtune's tables and Optuna's, in an SQLite file nobody has open. Not covered: points: a copy has the
point and the figures of its original, and a fingerprint of its own, so that it counts as another trial.
"""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

# What becomes of a column in the copy, by table; other columns stay as they are.
_OURS = ("runs", "outcomes", "measurements", "series")
_OPTUNAS = ("trial_params", "trial_values", "trial_user_attributes", "trial_system_attributes")
_CHANGED = {
    "number": "number + :numbers",
    "reuse_of": "reuse_of + :numbers",
    "trial_id": "trial_id + :ids",
    "fingerprint": "fingerprint || ':' || :numbers",
}


def copy_up_to(path: Path, study: str, trials: int) -> None:
    """Add whole copies of the study's trials until it has measured at least so many."""
    with closing(sqlite3.connect(path)) as connection, connection:
        measured = _one(connection, "SELECT sum(measured) FROM outcomes WHERE study = :study", study)
        last = _one(connection, "SELECT max(number) FROM runs WHERE study = :study", study)
        last_id = _one(connection, "SELECT max(trial_id) FROM trials", study)
        for times in range(1, -(-trials // measured)):
            shift = {"study": study, "numbers": times * (last + 1), "ids": times * last_id, "last": last,
                     "last_id": last_id}  # fmt: skip
            for table in _OURS:
                _copy(connection, table, "study = :study AND number <= :last", shift, drop=False)
            _copy(connection, "trials", "trial_id <= :last_id", shift, drop=False)
            for table in _OPTUNAS:
                _copy(connection, table, "trial_id <= :last_id", shift, drop=True)


def _one(connection: sqlite3.Connection, query: str, study: str) -> int:
    return int(connection.execute(query, {"study": study}).fetchone()[0])


def _copy(
    connection: sqlite3.Connection, table: str, which: str, shift: dict[str, object], *, drop: bool
) -> None:
    """Copy rows of a table; with `drop` its first column is left out, a key that numbers itself."""
    names = [str(row[1]) for row in connection.execute(f"PRAGMA table_info({table})")][int(drop) :]
    values = ", ".join(_CHANGED.get(name, f'"{name}"') for name in names)
    columns = ", ".join(f'"{name}"' for name in names)
    connection.execute(f"INSERT INTO {table} ({columns}) SELECT {values} FROM {table} WHERE {which}", shift)
