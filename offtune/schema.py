"""Our tables beside Optuna's, and the migrations that make them.

Covered: table names, columns, the ordered list of migrations. Not covered: Optuna's own tables, which Optuna
makes and upgrades; applying the migrations (`migrate.py`).
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    Connection,
    Float,
    Index,
    Integer,
    MetaData,
    String,
    Table,
    Text,
    column,
    select,
    table,
    text,
)

# For queries; types and keys are in the migrations, each of which stays as it was when it was released.
_STUDY_COLUMNS = ("name", "created_at", "settings", "target_trials", "model", "device", "budget_bytes")
_RUN_COLUMNS = (
    *(
        "study",
        "number",
        "origin",
        "label",
        "point",
        "ds_config",
        "fingerprint",
        "status",
        "result",
        "reuse_of",
    ),
    *("ran", "started_at", "finished_at", "owner", "trial_dir", "swap_dir", "token"),
)
studies = table("offtune_studies", *map(column, _STUDY_COLUMNS))
notes = table("offtune_notes", *map(column, ("study", "key", "value")))
runs = table("runs", *map(column, _RUN_COLUMNS))
outcomes = table(
    "outcomes",
    *map(column, ("study", "number", "measured", "status", "samples_per_s", "used_device_bytes")),
    *map(column, ("used_host_bytes", "brief", "unsafe")),
)
measurements = table("measurements", *map(column, ("study", "number", "key", "value", "unit")))
series = table("series", *map(column, ("study", "number", "key", "points", "unit")))
calibrations = table(
    "calibrations", *map(column, ("machine", "key", "value", "unit", "detail", "measured_at"))
)
_REPEAT_COLUMNS = (
    *("study", "number", "finals", "round", "run", "kind", "status", "result"),
    *("started_at", "finished_at", "owner", "trial_dir", "swap_dir", "token"),
)
repeats = table("repeats", *map(column, _REPEAT_COLUMNS))
OUR_TABLES = (studies, notes, runs, outcomes, measurements, series, calibrations, repeats)

# MySQL indexes at most 3,072 bytes, which are 768 characters of four bytes for all columns of a key.
_NAME = String(255)
_SHORT = String(40)  # a status, a unit, an ISO time
_DOUBLE = Float(53)  # bits of mantissa


def m001_first_tables(connection: Connection) -> None:
    """Studies, runs and their figures."""
    metadata = MetaData()
    Table(
        "offtune_studies", metadata, _key("name"), _required("created_at", _SHORT),
        _required("settings", _long_text()), Column("target_trials", Integer), _required("model", Text),
        _required("device", _SHORT), _required("budget_bytes", BigInteger),
    )  # fmt: skip
    Table("offtune_notes", metadata, _key("study"), _key("key"), _required("value", _long_text()))
    first_runs = Table(
        "runs", metadata, _key("study"), _key("number", Integer), _required("origin", _SHORT),
        _required("label", Text), _required("point", _long_text()), _required("ds_config", _long_text()),
        _required("fingerprint", _NAME), Column("status", _SHORT), Column("result", _long_text()),
        Column("reuse_of", Integer), _required("ran", Boolean), _required("started_at", _SHORT),
        Column("finished_at", _SHORT), Column("owner", Text), Column("trial_dir", Text),
        Column("swap_dir", Text), _required("token", _SHORT),
    )  # fmt: skip
    Index("runs_by_fingerprint", first_runs.c.study, first_runs.c.fingerprint)
    Index("runs_by_status", first_runs.c.study, first_runs.c.status)
    for name, figure in (
        ("measurements", _required("value", _DOUBLE)),
        ("series", _required("points", _long_text())),
    ):
        keys = (_key("study"), _key("number", Integer), _key("key"))
        Table(name, metadata, *keys, figure, _required("unit", _SHORT))
    Table(
        "calibrations", metadata, _key("machine"), _key("key"), Column("value", _DOUBLE),
        _required("unit", _SHORT), Column("detail", _long_text()), _required("measured_at", _SHORT),
    )  # fmt: skip
    metadata.create_all(connection)


def m002_outcomes(connection: Connection) -> None:
    """What is asked of all runs at once, beside their whole results: at 10,000 runs those take a second."""
    metadata = MetaData()
    made = Table(
        "outcomes", metadata, _key("study"), _key("number", Integer), _required("measured", Boolean),
        _required("status", _SHORT), Column("samples_per_s", _DOUBLE),
        Column("used_device_bytes", BigInteger), Column("used_host_bytes", BigInteger),
        _required("brief", _long_text()),
    )  # fmt: skip
    Index("outcomes_by_speed", made.c.study, made.c.measured, made.c.samples_per_s)
    metadata.create_all(connection)
    connection.execute(text("CREATE INDEX runs_by_kind ON runs (study, status, reuse_of, ran)"))
    names = ("study", "number", "status", "reuse_of", "ran", "result")
    known = table("runs", *map(column, names))
    for row in connection.execute(select(known)).all():
        if row.result is not None:
            connection.execute(made.insert().values(_outcome(row)))


def _outcome(row: Any) -> dict[str, Any]:
    """The outcome of a run as schema 1 has it."""
    result = json.loads(row.result)
    memory = result.get("memory") or {}
    left_out = ("losses", "warmup_losses", "traffic", "analysis", "versions", "log_tail")
    brief = {
        key: value for key, value in result.items() if key not in left_out and value not in (None, "", [])
    }
    return {
        "study": row.study,
        "number": row.number,
        "measured": bool(row.ran) and row.reuse_of is None and row.status != "interrupted",
        "status": row.status,
        "samples_per_s": result.get("samples_per_s"),
        "used_device_bytes": memory.get("used_device_bytes"),
        "used_host_bytes": memory.get("used_host_bytes"),
        "brief": json.dumps(brief),
    }


def m003_repeats(connection: Connection) -> None:
    """What the finals of a study measured, and which runs drifted; of older ones nobody knows."""
    connection.execute(text("ALTER TABLE outcomes ADD COLUMN unsafe BOOLEAN"))
    metadata = MetaData()
    Table(
        "repeats", metadata, _key("study"), _key("number", Integer), _required("finals", Integer),
        _required("round", Integer), _required("run", Integer), _required("kind", _SHORT),
        Column("status", _SHORT), Column("result", _long_text()), _required("started_at", _SHORT),
        Column("finished_at", _SHORT), Column("owner", Text), Column("trial_dir", Text),
        Column("swap_dir", Text), _required("token", _SHORT),
    )  # fmt: skip
    metadata.create_all(connection)


def _key(name: str, kind: Any = _NAME) -> Column[Any]:
    return Column(name, kind, primary_key=True, autoincrement=False)


def _long_text() -> Text:
    """MySQL's TEXT ends at 64 KiB; a result with its log tail may be longer."""
    from sqlalchemy.dialects.mysql import LONGTEXT  # all its drivers come along, and only migrations need it

    return Text().with_variant(LONGTEXT(), "mysql")


def _required(name: str, kind: Any) -> Column[Any]:
    return Column(name, kind, nullable=False)


MIGRATIONS: list[Callable[[Connection], None]] = [m001_first_tables, m002_outcomes, m003_repeats]
