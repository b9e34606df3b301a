"""The table of repeats: what the finals of a study measured, written before and after each of them.

Covered: rows and their order. Not covered: transactions (`store.py`, which lends its two ways to the
database), plan and outcome of the finals, which are notes of the study.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sqlalchemy import Connection, Select, select

from offtune import rows, schema
from offtune.records import utc_now
from offtune.repeats import Repeat
from offtune.trial import TrialResult, dump


class Repeats:
    """`read` gives the rows of a query, `change` makes its action one transaction."""

    def __init__(
        self,
        read: Callable[[Select[Any]], list[dict[str, Any]]],
        change: Callable[[Callable[[Connection], object]], None],
    ) -> None:
        self._read, self._change = read, change

    def of(self, study: str) -> list[Repeat]:
        """All repeats of the study, by number."""
        table = schema.repeats
        query = select(table).where(table.c.study == study).order_by(table.c.number)
        return [rows.repeat_from(row) for row in self._read(query)]

    def add(self, repeat: Repeat) -> None:
        """Write a repeat that is about to start."""
        row = {**rows.repeat_row(repeat), "started_at": utc_now()}
        self._change(lambda connection: connection.execute(schema.repeats.insert().values(row)))

    def finish(self, study: str, number: int, result: TrialResult) -> None:
        """Write how a repeat ended; one that has ended stays as it is."""
        columns = schema.repeats.c
        ended = schema.repeats.update().where(
            columns.study == study, columns.number == number, columns.status.is_(None)
        )
        values = {"status": str(result.status), "result": dump(result), "finished_at": utc_now()}
        self._change(lambda connection: connection.execute(ended.values(values)))
