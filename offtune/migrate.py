"""Bringing a database up to this version of offtune, and telling ours from other people's.

Covered: the version counter, who owns the database, backup and migration. A fresh file and an old one take
the same path: every migration not yet applied, in order, in one transaction. Not covered: the tables
themselves (`schema.py`), Optuna's upgrades.
"""

from __future__ import annotations

import re

from sqlalchemy import Connection, Engine, inspect, text

from offtune import schema
from offtune.database import Place, back_up, copy_in_memory, immediate, use_wal
from offtune.errors import StoreError, UsageError

_VERSION_TABLE = "offtune_version"
_OPTUNA_TABLES = frozenset({"studies", "version_info"})
# Optuna names its revisions after its releases: v3.2.0.a (optuna/storages/_rdb/alembic/versions, 5.0.0).
_OPTUNA_REVISION = re.compile(r"v\d+\.\d+\.\d+\.\w+")


def prepare_to_read(engine: Engine, place: Place, busy_timeout_s: float) -> Engine:
    """Check that it is ours; changes nothing. Returns the engine to read from. Raises StoreError, UsageError.

    A file of an older offtune is read from a copy in memory that is brought up to date there.
    """
    with engine.connect() as connection:
        version = check(connection, place.text)
    if version == 0:
        raise UsageError(f"There is no study in {place.text} yet.", "Start one with: offtune search")
    if version == len(schema.MIGRATIONS):
        return engine
    if place.path is None:
        raise StoreError(
            f"{place.text} was written by an older offtune (schema {version}, now {len(schema.MIGRATIONS)}).",
            "The next 'offtune resume' brings it up to date.",
        )
    engine.dispose()
    copy = copy_in_memory(place.path, busy_timeout_s)
    with copy.begin() as connection:
        upgrade(connection)
    return copy


def prepare_to_write(engine: Engine, place: Place) -> None:
    """Check the database, copy an older file, then make or migrate our tables."""
    with engine.connect() as connection:
        version = check(connection, place.text)
        if place.path is not None:
            _check_whole(connection, place.text)
    if place.path is not None:
        if version < len(schema.MIGRATIONS) and place.path.stat().st_size > 0:
            back_up(place.path, version)
        use_wal(engine)
    with immediate(engine).begin() as connection:
        upgrade(connection)


def _check_whole(connection: Connection, text_: str) -> None:
    answer = connection.exec_driver_sql("PRAGMA quick_check(1)").scalar_one()
    if answer != "ok":
        raise StoreError(
            f"{text_} is damaged: {answer}.",
            "Take a copy from before, or: sqlite3 OLD .recover | sqlite3 NEW",
        )


def read_version(connection: Connection) -> int:
    """How many of our migrations this database has had; 0 where none of our tables are."""
    if connection.dialect.name == "sqlite":
        return int(connection.exec_driver_sql("PRAGMA user_version").scalar_one())
    if _VERSION_TABLE not in _table_names(connection):
        return 0
    return int(connection.execute(text(f"SELECT version FROM {_VERSION_TABLE}")).scalar_one())


def upgrade(connection: Connection) -> None:
    """Apply every migration that is still to come; the caller's transaction makes it all or nothing."""
    version = read_version(connection)
    for migration in schema.MIGRATIONS[version:]:
        migration(connection)
    if version < len(schema.MIGRATIONS):
        _write_version(connection, len(schema.MIGRATIONS))


def _write_version(connection: Connection, version: int) -> None:
    if connection.dialect.name == "sqlite":
        connection.exec_driver_sql(f"PRAGMA user_version = {version:d}")
        return
    connection.execute(text(f"CREATE TABLE IF NOT EXISTS {_VERSION_TABLE} (version INTEGER NOT NULL)"))
    connection.execute(text(f"DELETE FROM {_VERSION_TABLE}"))
    connection.execute(text(f"INSERT INTO {_VERSION_TABLE} VALUES (:version)"), {"version": version})


def check(connection: Connection, location: str) -> int:
    """The schema version. Raises StoreError for a database of another application or of a newer offtune."""
    names = _table_names(connection)
    version = read_version(connection)
    if _is_foreign(connection, names, version):
        raise StoreError(
            f"{location} belongs to another application: its tables are not those of offtune or Optuna.",
            "Name another file: --storage studies.db",
        )
    if version > len(schema.MIGRATIONS):
        known = len(schema.MIGRATIONS)
        raise StoreError(
            f"{location} was written by a newer offtune (schema {version}; this one knows {known}).",
            "Update offtune: pip install --upgrade offtune",
        )
    return version


def _is_foreign(connection: Connection, names: set[str], version: int) -> bool:
    if _has_foreign_revision(connection, names):
        return True
    if schema.studies.name in names:
        return False
    if version > 0 or not names.isdisjoint(each.name for each in schema.OUR_TABLES):
        return True
    # A server's database may well be shared; a file with other tables is somebody else's.
    return connection.dialect.name == "sqlite" and bool(names) and not names >= _OPTUNA_TABLES


def _has_foreign_revision(connection: Connection, names: set[str]) -> bool:
    """Whether another application keeps its Alembic revision where Optuna wants its own (optuna#4375)."""
    if "alembic_version" not in names:
        return False
    revisions = connection.execute(text("SELECT version_num FROM alembic_version")).scalars()
    return any(not _OPTUNA_REVISION.fullmatch(str(revision)) for revision in revisions)


def _table_names(connection: Connection) -> set[str]:
    return set(inspect(connection).get_table_names())
