"""Troubles with a database, in plain words, and which of them pass by waiting.

Covered: SQLite's errors, the file system's, and those of database servers in their own words. Not covered:
databases that are sound but not ours (`migrate.py`).
"""

from __future__ import annotations

import errno
import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from sqlalchemy.exc import DBAPIError

from offtune.errors import StoreError

RETRY_PAUSES_S = (1.0, 4.0)  # on top of the busy timeout, which SQLite skips where waiting could deadlock
T = TypeVar("T")


class StoreLocked(StoreError):
    """Another connection holds the database; trying again may help."""


@contextmanager
def trouble(text: str, *wrappers: type[Exception]) -> Iterator[None]:
    """Turn the database's and the file system's errors inside the block into a StoreError about `text`.

    `wrappers` are errors that may have one of these behind them; without one they pass unchanged.
    """
    kinds: tuple[type[Exception], ...] = (DBAPIError, sqlite3.Error, OSError, *wrappers)
    try:
        yield
    except kinds as error:
        if root_cause(error) is None:
            raise
        raise explain(error, text) from error


def retrying(action: Callable[[], T]) -> T:
    """Do `action`, again after a pause while the database is locked. Raises what the last attempt raised."""
    for pause_s in RETRY_PAUSES_S:
        try:
            return action()
        except StoreLocked:
            time.sleep(pause_s)
    return action()


# sqlite3 has error codes only since Python 3.11; these are SQLite's fixed texts (sqlite3ErrStr in main.c).
_TROUBLES: tuple[tuple[str, str, str], ...] = (
    (
        "unable to open database file",
        "cannot be opened: you may not read it, or SQLite may not write beside it.",
        "Check the permissions; copy it, with its -wal file if it has one, to a folder you may write to.",
    ),
    (
        "readonly database",
        "cannot be written: the file or its folder is read-only.",
        "Copy it to a folder you can write to, and name the copy with --storage.",
    ),
    (
        "disk is full",
        "cannot grow: the disk is full. Every trial already stored is kept.",
        "Free some space, then run: offtune resume",
    ),
    (
        "disk image is malformed",
        "is damaged: it is not a complete SQLite database.",
        "Take a copy from before, or save what can be read: sqlite3 OLD .recover | sqlite3 NEW",
    ),
    (
        # Also where a full disk has no room for the -shm file (SQLite 3.40, tmpfs).
        "disk I/O error",
        "could not be read or written: the disk has an error, or is full.",
        "Check the disk and its free space. Every trial already stored is kept.",
    ),
)
_BY_ERRNO = {
    errno.EACCES: "unable to open database file",
    errno.EPERM: "unable to open database file",
    errno.EROFS: "readonly database",
    errno.ENOSPC: "disk is full",
    errno.EDQUOT: "disk is full",
}


def explain(error: BaseException, text: str) -> StoreError:
    """The StoreError a person can act on; `text` names the database."""
    cause = root_cause(error) or error
    detail = str(cause)
    if isinstance(cause, OSError):
        detail = _BY_ERRNO.get(cause.errno or 0, str(cause.strerror))
    if "is locked" in detail:
        return StoreLocked(
            f"{text} is locked by another program.",
            "Close what has it open (a database browser, a dashboard, a backup), then run the command again.",
        )
    if "not a database" in detail:
        return not_a_database(text)
    for words, meaning, hint in _TROUBLES:
        if words in detail:
            return StoreError(f"{text} {meaning}", hint)
    first_line = (detail or repr(cause)).splitlines()[0]
    return StoreError(f"{text} cannot be used: {first_line}", "Check --storage.")


def not_a_database(text: str) -> StoreError:
    return StoreError(f"{text} is not a SQLite database.", "Name another file: --storage studies.db")


def root_cause(error: BaseException | None) -> BaseException | None:
    """The database driver's own error behind `error`; None where there is none."""
    found: BaseException | None = None
    while error is not None:
        if isinstance(error, DBAPIError):
            found = error.orig
        elif isinstance(error, sqlite3.Error | OSError):
            found = error
        error = error.__cause__ or error.__context__
    return found
