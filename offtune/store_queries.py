"""Conditions and inserts that several questions to the studies database share.

Covered: which rows are meant. Not covered: transactions (`store.py`).
"""

from __future__ import annotations

from sqlalchemy import ColumnElement, Connection

from offtune import rows, schema
from offtune.trial import Status, TrialResult


def is_run(study: str, number: int) -> tuple[ColumnElement[bool], ...]:
    """The run of that number."""
    return (schema.runs.c.study == study, schema.runs.c.number == number)


def is_under_way() -> tuple[ColumnElement[bool], ...]:
    """Runs without an end that wait for no other."""
    return (schema.runs.c.status.is_(None), schema.runs.c.reuse_of.is_(None))


def is_measured(study: str) -> tuple[ColumnElement[bool], ...]:
    """`records.is_measured` in SQL."""
    columns = schema.runs.c
    ended = columns.status.is_not(None) & (columns.status != str(Status.INTERRUPTED))
    return (columns.study == study, columns.ran.is_(True), columns.reuse_of.is_(None), ended)


def insert_figures(connection: Connection, study: str, number: int, result: TrialResult | None) -> None:
    """Repeat the figures of a result in the tables for people who read with SQL."""
    if result is None:
        return
    for table, new in (
        (schema.measurements, rows.measurement_rows(study, number, result)),
        (schema.series, rows.series_rows(study, number, result)),
    ):
        if new:
            connection.execute(table.insert(), new)
