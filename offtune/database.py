"""The database file or server: where it is, how it is opened and how it is left.

Covered: locations, SQLite's pragmas, read-only opening, backup. Not covered: what is in the database
(`schema.py`, `store.py`), what its errors mean (`trouble.py`).
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass
from hashlib import sha256
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from urllib.parse import quote

from sqlalchemy import URL, Connection, Engine, QueuePool, StaticPool, create_engine, event, make_url
from sqlalchemy.exc import ArgumentError, DBAPIError, NoSuchModuleError, SQLAlchemyError

from offtune.errors import StoreError, UsageError
from offtune.lock import refusal
from offtune.trouble import not_a_database, trouble

BUSY_TIMEOUT_S = 30.0  # Optuna's default of 5 s fails with slow disks (optuna#820)

_SQLITE_HEADER = b"SQLite format 3\0"
_PACKAGES = {"psycopg": "'offtune[postgres]'", "psycopg2": "psycopg2-binary", "MySQLdb": "mysqlclient"}
_URL_HINT = "Write a path such as studies.db, or a URL such as postgresql://user@host/name."
_SERVERS = ("postgresql", "mysql", "mariadb")
_IMMEDIATE = "offtune_immediate"
_LOCK_POLL_S = 0.02
_SERVER_POLL_S = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where a database is: `text` is for people (no password), `path` is None for a server."""

    text: str
    url: URL
    path: Path | None


def locate(location: str) -> Place:
    """The place a path or SQLAlchemy URL names. Raises UsageError."""
    if "://" not in location:
        return _file(Path(location))
    try:
        url = make_url(location)
    except ArgumentError as error:
        raise UsageError(f"--storage: '{location}' is not a database URL.", _URL_HINT) from error
    if url.get_backend_name() not in ("sqlite", *_SERVERS):
        raise UsageError(f"--storage: offtune has no use for '{url.drivername}'.", _URL_HINT)
    if url.drivername == "postgresql" and find_spec("psycopg"):
        url = url.set(drivername="postgresql+psycopg")  # SQLAlchemy 2.0 takes psycopg2, 2.1 this one
    if url.get_backend_name() != "sqlite":
        return Place(text=url.render_as_string(hide_password=True), url=url, path=None)
    if url.database in (None, "", ":memory:"):
        raise UsageError("--storage: a study in memory would be lost at the end.", _URL_HINT)
    return _file(Path(str(url.database)))


def _file(path: Path) -> Place:
    path = path.expanduser().absolute()
    return Place(text=str(path), url=URL.create("sqlite", database=str(path)), path=path)


def check_file(path: Path, *, write: bool) -> None:
    """Raise UsageError or StoreError where there cannot be a database; opens nothing for writing."""
    with trouble(str(path)):
        _check_kind(path, write=write)
        header = _SQLITE_HEADER if not path.exists() else _read_header(path)
    if header not in (b"", _SQLITE_HEADER):
        raise not_a_database(str(path))


def _check_kind(path: Path, *, write: bool) -> None:
    if path.is_dir():
        raise StoreError(
            f"{path} is a folder, not a database.", f"Name a file in it: --storage {path}/studies.db"
        )
    if not path.parent.is_dir():
        raise StoreError(f"There is no folder {path.parent}.", f"Make it first: mkdir -p {path.parent}")
    if not path.exists() and not write:
        raise UsageError(f"There is no {path.name} in {path.parent}.", "Start a study with: offtune search")


def _read_header(path: Path) -> bytes:
    with path.open("rb") as file:
        return file.read(len(_SQLITE_HEADER))


def connect(place: Place, *, write: bool, busy_timeout_s: float) -> Engine:
    """An engine for the place; `immediate(engine)` gives the one for writing. Connects to nothing yet."""
    options: dict[str, Any] = {"pool_pre_ping": True}
    if place.path is not None:
        options = {"creator": sqlite_opener(place.path, write=write, busy_timeout_s=busy_timeout_s)}
    try:
        engine = create_engine(place.url, **options)
    except NoSuchModuleError as error:
        raise UsageError(f"--storage: no database is called '{place.url.drivername}'.", _URL_HINT) from error
    except ModuleNotFoundError as error:
        raise StoreError(
            f"{place.text} needs the Python package {error.name}, which is not installed.",
            f"Install it: pip install {_PACKAGES.get(str(error.name), error.name)}",
        ) from error
    if place.path is not None:
        event.listen(engine, "connect", _own_transactions)
        event.listen(engine, "begin", _begin)
    return engine


def copy_in_memory(path: Path, busy_timeout_s: float) -> Engine:
    """An engine on a copy of the file in memory, which is gone when the engine is disposed of."""
    target = sqlite3.connect(":memory:", check_same_thread=False)
    with closing(sqlite_opener(path, write=False, busy_timeout_s=busy_timeout_s)()) as source:
        source.backup(target)
    engine = create_engine("sqlite://", creator=lambda: target, poolclass=StaticPool)
    event.listen(engine, "connect", _own_transactions)
    event.listen(engine, "begin", _begin)
    return engine


def immediate(engine: Engine) -> Engine:
    """The same engine, whose transactions take SQLite's write lock at their start: no deadlock on the way."""
    return engine.execution_options(**{_IMMEDIATE: True})


def _own_transactions(connection: sqlite3.Connection, _: object) -> None:
    # The driver begins transactions by itself, but not before DDL; then a migration could be half applied.
    connection.isolation_level = None


def _begin(connection: Connection) -> None:
    option = connection.get_execution_options().get(_IMMEDIATE)
    connection.exec_driver_sql("BEGIN IMMEDIATE" if option else "BEGIN")


def optuna_arguments(place: Place, busy_timeout_s: float, kept: ExitStack) -> dict[str, Any]:
    """`url` and `engine_kwargs` with which Optuna's storage opens the same database in the same way.

    Closing `kept` closes its connections to a file, so that none keeps the file from being settled.
    """
    if place.path is None:
        url = place.url.render_as_string(hide_password=False)
        return {"url": url, "engine_kwargs": {"pool_pre_ping": True}}
    opener = sqlite_opener(place.path, write=True, busy_timeout_s=busy_timeout_s)

    def creator() -> sqlite3.Connection:
        return kept.enter_context(closing(opener()))

    # No path in the URL, since Optuna takes braces in it for its own placeholders. One connection is kept:
    # some forty transactions a trial, each with a connection of its own, took ten milliseconds more.
    pool = {"poolclass": QueuePool, "pool_size": 1}
    return {"url": "sqlite://", "engine_kwargs": {"creator": creator, **pool}}


def sqlite_opener(path: Path, *, write: bool, busy_timeout_s: float) -> Callable[[], sqlite3.Connection]:
    """A function that opens the file, read-only unless `write`."""

    def opener() -> sqlite3.Connection:
        if write:
            return _opened(path, "mode=rwc", busy_timeout_s)
        try:
            return _opened(path, "mode=ro", busy_timeout_s)
        except sqlite3.OperationalError as error:
            if "is locked" in str(error) or not _is_left_whole(path):
                raise
            # A file in WAL mode in a read-only folder: SQLite wants to make its -shm file and cannot.
            return _opened(path, "mode=ro&immutable=1", busy_timeout_s)

    return opener


def _is_left_whole(path: Path) -> bool:
    """Whether the last writer moved everything into the file itself."""
    wal = path.with_name(path.name + "-wal")
    return path.exists() and not (wal.exists() and wal.stat().st_size > 0)


def _opened(path: Path, query: str, busy_timeout_s: float) -> sqlite3.Connection:
    uri = f"file:{quote(str(path))}?{query}"
    connection = sqlite3.connect(uri, uri=True, timeout=busy_timeout_s, check_same_thread=False)
    try:
        (mode,) = connection.execute("PRAGMA journal_mode").fetchone()
        connection.execute("SELECT count(*) FROM sqlite_master")  # SQLite opens the file at the first use
        if mode == "wal":  # without WAL a power cut could damage the file at this level
            connection.execute("PRAGMA synchronous = NORMAL")
    except sqlite3.Error:
        connection.close()
        raise
    return connection


@contextmanager
def server_lock(engine: Engine, name: str, what: str, *, wait_s: float = 0.0) -> Iterator[None]:
    """Hold a lock of a database server that ends with our connection, however that ends.

    Raises StoreError about `what` ("Study 'x'") when somebody else has it for longer than `wait_s`.
    """
    with trouble(name_of(engine)):
        connection = _locked(engine, name, time.monotonic() + wait_s)
    if connection is None:
        raise refusal(what, None)
    try:
        yield
    finally:
        give_back(connection)


def give_back(connection: Connection) -> None:
    """Close a connection for good, and with it give back its locks; also one that is broken."""
    with suppress(SQLAlchemyError):
        if connection.dialect.name == "postgresql":  # else they are free only a moment later
            connection.exec_driver_sql("SELECT pg_advisory_unlock_all()")
    with suppress(SQLAlchemyError):
        connection.invalidate()
        connection.close()


def _locked(engine: Engine, name: str, deadline: float) -> Connection | None:
    """A connection of its own that holds the lock; a server that is being restarted is waited for too."""
    while True:
        try:
            connection = engine.connect().execution_options(isolation_level="AUTOCOMMIT")
            if _wait_for_lock(connection, name, deadline):
                return connection
            connection.close()
            return None
        except DBAPIError:
            if time.monotonic() >= deadline:
                raise
            time.sleep(_SERVER_POLL_S)


def _wait_for_lock(connection: Connection, name: str, deadline: float) -> bool:
    key = int.from_bytes(sha256(name.encode()).digest()[:4], "big")
    question = f"SELECT GET_LOCK('offtune-{key}', 0)"
    if connection.dialect.name == "postgresql":
        question = f"SELECT pg_try_advisory_lock({key})"
    # Asked again and again, since a wait inside the driver does not end with Ctrl-C.
    while not (granted := connection.exec_driver_sql(question).scalar_one()):
        if time.monotonic() >= deadline:
            break
        time.sleep(_LOCK_POLL_S)
    return bool(granted)


def name_of(engine: Engine) -> str:
    """The database's URL without its password."""
    return engine.url.render_as_string()


def use_wal(engine: Engine) -> None:
    """Switch the file to write-ahead logging, by which readers and a writer do not stop each other."""
    with closing(engine.raw_connection()) as connection:
        cursor = connection.cursor()
        cursor.execute("PRAGMA journal_mode = WAL")
        if cursor.fetchone() == ("wal",):  # some network file systems cannot
            cursor.execute("PRAGMA synchronous = NORMAL")


def settle(path: Path) -> None:
    """Move everything into the file itself and leave WAL mode, so that the file can be copied or published.

    Does nothing while another connection uses the file (the last one settles it), or where it cannot be done.
    """
    uri = f"file:{quote(str(path))}?mode=rw"  # never makes a file that was removed meanwhile
    with suppress(sqlite3.Error), closing(sqlite3.connect(uri, uri=True, timeout=0)) as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        connection.execute("PRAGMA journal_mode = DELETE")


def back_up(path: Path, version: int) -> Path:
    """A copy of the database under the first free name `<file>.bak-v<version>`; uses SQLite's own backup."""
    copy = path.with_name(f"{path.name}.bak-v{version}")
    number = 1
    while copy.exists():
        number += 1
        copy = path.with_name(f"{path.name}.bak-v{version}.{number}")
    part = copy.with_name(f"{copy.name}.part")
    with closing(sqlite3.connect(path)) as source, closing(sqlite3.connect(part)) as target:
        source.backup(target)
    return part.rename(copy)
