"""Conditions and inserts that several questions to the studies database share.

Covered: which rows are meant. Not covered: transactions (`store.py`), questions about all runs at once
(`store_standings.py`).
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import ColumnElement, Connection, Select, func, select

from offtune import rows, schema
from offtune.records import Run
from offtune.trial import Status, TrialResult


def is_run(study: str, number: int) -> tuple[ColumnElement[bool], ...]:
    """The run of that number."""
    return (schema.runs.c.study == study, schema.runs.c.number == number)


def is_under_way() -> tuple[ColumnElement[bool], ...]:
    """Runs without an end that wait for no other."""
    return (schema.runs.c.status.is_(None), schema.runs.c.reuse_of.is_(None))


def is_measured(study: str) -> tuple[ColumnElement[bool], ...]:
    """`records.is_measured` in SQL."""
    columns, interrupted = schema.runs.c, str(Status.INTERRUPTED)
    # Not as a range of the status, or SQLite would go through that instead of the index of fingerprints.
    ended = func.coalesce(columns.status, interrupted) != interrupted
    return (columns.study == study, columns.ran.is_(True), columns.reuse_of.is_(None), ended)


def same_training(study: str, fingerprint: str) -> Select[Any]:
    """The measured runs with that fingerprint.

    In no order: for one, SQLite would rather go through all runs.
    """
    return select(schema.runs).where(*is_measured(study), schema.runs.c.fingerprint == fingerprint)


def count_measured(study: str) -> Select[Any]:
    """How many runs are measured, as `n`."""
    columns = schema.outcomes.c
    return select(func.count().label("n")).where(columns.study == study, columns.measured.is_(True))


def insert_figures(connection: Connection, run: Run, result: TrialResult | None) -> None:
    """Keep what is asked of all runs at once, and the figures for people who read with SQL."""
    if result is None:
        return
    for table, new in (
        (schema.outcomes, [rows.outcome_row(run, result)]),
        (schema.measurements, rows.measurement_rows(run.study, run.number, result)),
        (schema.series, rows.series_rows(run.study, run.number, result)),
    ):
        if new:
            connection.execute(table.insert(), new)
