"""The studies database: settings, runs and their figures, in one file with Optuna's tables.

A run is known by its study and its number, which is also Optuna's trial number. `add_run` writes it before
the trial starts, `finish_run` when it ended; what is finished is never changed again. Each call is one
transaction; a power cut can take the last ones away, never a part of one. One process writes a study, or
several in turn (`lock`); any number read it. Not covered: sampling (`study.py`), which run is best
(`records.py`), all runs at once (`store_standings.py`).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import replace
from difflib import get_close_matches
from pathlib import Path
from types import TracebackType
from typing import Any
from urllib.parse import quote

from sqlalchemy import ColumnElement, Connection, Engine, Select, select

from offtune import database, migrate, rows, schema
from offtune.calibration import Calibration
from offtune.crew import Alone, Crew, ServerCrew
from offtune.errors import StoreError, UsageError
from offtune.lock import current_owner, hold
from offtune.records import Run, StudyRecord, check_study_name, new_study_name, utc_now
from offtune.store_queries import count_measured, insert_figures, is_run, is_under_way, same_training
from offtune.store_repeats import Repeats
from offtune.timeline import Timeline
from offtune.trial import TrialResult, dump
from offtune.trouble import retrying, trouble

__all__ = ["Run", "Store", "StudyRecord", "new_study_name"]


class Store:
    """An open studies database; a context manager. `location` is for people, it holds no password."""

    def __init__(self, engine: Engine, place: database.Place, *, write: bool, busy_timeout_s: float) -> None:
        self._engine = engine
        self._place = place
        self._write = write
        self._busy_timeout_s = busy_timeout_s
        self.location = place.text
        self._kept = ExitStack()

    @classmethod
    def open(cls, location: str, *, write: bool, busy_timeout_s: float = database.BUSY_TIMEOUT_S) -> Store:
        """Open the database at a path or URL; only with `write` is it made or brought up to date.

        Raises UsageError where there is none, StoreError where it cannot be used; both say what to do.
        """
        place = database.locate(location)
        if place.path is not None:
            database.check_file(place.path, write=write)
        engine = database.connect(place, write=write, busy_timeout_s=busy_timeout_s)
        store = cls(engine, place, write=write, busy_timeout_s=busy_timeout_s)
        with ExitStack() as on_error:
            on_error.callback(lambda: store._engine.dispose())
            store._prepare()
            on_error.pop_all()
        return store

    def _prepare(self) -> None:
        with trouble(self.location):
            if not self._write:
                self._engine = migrate.prepare_to_read(self._engine, self._place, self._busy_timeout_s)
                return
            with self.lock_tables():
                migrate.prepare_to_write(self._engine, self._place)

    def close(self) -> None:
        """Leave the database; the last writer to leave a file also leaves it fit for copying."""
        self._kept.close()
        self._engine.dispose()
        if self._write and self._place.path is not None:
            database.settle(self._place.path)

    def __enter__(self) -> Store:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @contextmanager
    def lock(self, study: str) -> Iterator[Crew]:
        """Hold the study for this process alone, or take a place among its workers where there can be some.

        Raises StoreError naming the process that has it alone.
        """
        if self._engine.dialect.name == "postgresql":
            with ServerCrew(self._engine) as crew:
                yield crew
            return
        lock = database.server_lock(self._engine, study, f"Study '{study}'")
        if self._place.path is not None:
            lock = hold(self._lock_path(f".{quote(study, safe='')}"), f"Study '{study}'")
        with lock:
            yield Alone()

    def lock_tables(self) -> AbstractContextManager[None]:
        """Hold off other processes while tables are made: Optuna cannot do that in two places at once."""
        if self._place.path is None:
            return database.server_lock(self._engine, "tables", self.location, wait_s=self._busy_timeout_s)
        return hold(self._lock_path(""), self.location, wait_s=self._busy_timeout_s)

    def _lock_path(self, ending: str) -> Path:
        assert self._place.path is not None
        return self._place.path.with_name(f".{self._place.path.name}{ending}.lock")

    def optuna_arguments(self) -> dict[str, Any]:
        """`url` and `engine_kwargs` for Optuna's storage on the same database."""
        return database.optuna_arguments(self._place, self._busy_timeout_s, self._kept)

    def studies(self) -> list[StudyRecord]:
        """All studies, the newest first."""
        columns = schema.studies.c
        query = select(schema.studies).order_by(columns.created_at.desc(), columns.name.desc())
        return [rows.study_from(row) for row in self.read(query)]

    def study(self, name: str | None = None) -> StudyRecord:
        """The study of that name, or the newest. Raises UsageError with the nearest names."""
        known = self.studies()
        if not known:
            raise UsageError(f"There is no study in {self.location} yet.", "Start one with: offtune search")
        if name is None:
            return known[0]
        for record in known:
            if record.name == name:
                return record
        names = [record.name for record in known]
        near = get_close_matches(name, names) or names[:3]
        raise UsageError(
            f"There is no study '{name}' in {self.location}.",
            f"Did you mean {' or '.join(near)}? See: offtune list",
        )

    def add_study(self, record: StudyRecord) -> None:
        """Add a new study. Raises UsageError where the name is taken or cannot be one."""
        check_study_name(record.name)

        def insert(connection: Connection) -> None:
            taken = select(schema.studies.c.name).where(schema.studies.c.name == record.name)
            if connection.execute(taken).first() is not None:
                raise UsageError(
                    f"A study '{record.name}' exists already in {self.location}.",
                    f"Continue it with: offtune resume {record.name}; or name another with --study.",
                )
            connection.execute(schema.studies.insert().values(rows.study_row(record)))

        self._change(insert)

    def note(self, study: str, key: str, value: object) -> None:
        """Keep a small JSON value with the study, instead of an earlier one of the same key."""
        table = schema.notes

        def insert(connection: Connection) -> None:
            connection.execute(table.delete().where(table.c.study == study, table.c.key == key))
            connection.execute(table.insert().values(study=study, key=key, value=json.dumps(value)))

        self._change(insert)

    def notes(self, study: str) -> dict[str, Any]:
        """All values kept with the study."""
        query = select(schema.notes).where(schema.notes.c.study == study)
        return {row["key"]: json.loads(row["value"]) for row in self.read(query)}

    def add_run(self, run: Run) -> Run:
        """Write a run about to start or, with a result, one that needs no trial; returns it as written."""
        now = utc_now()
        run = replace(run, started_at=now, owner=run.owner or current_owner())
        if run.result is not None:
            run = replace(run, status=run.result.status, finished_at=now)

        def insert(connection: Connection) -> None:
            connection.execute(schema.runs.insert().values(rows.run_row(run)))
            insert_figures(connection, run, run.result)

        self._change(insert)
        return run

    def finish_run(self, study: str, number: int, result: TrialResult) -> None:
        """Write how a run ended. Raises StoreError when it is not there or already finished otherwise.

        May be called again after an error: nothing is written twice.
        """

        def update(connection: Connection) -> None:
            columns = schema.runs.c
            found = connection.execute(select(schema.runs).where(*is_run(study, number))).first()
            if found is not None and found.result == dump(result):
                return
            ended = schema.runs.update().where(*is_run(study, number), columns.status.is_(None))
            values = {"status": str(result.status), "result": dump(result), "finished_at": utc_now()}
            if found is None or connection.execute(ended.values(values)).rowcount != 1:
                raise StoreError(
                    f"Trial {number} of study '{study}' is not running: it cannot end.",
                    f"See: offtune show {study}",
                )
            insert_figures(connection, rows.run_from(found._asdict()), result)

        self._change(update)

    def add_timeline(self, study: str, number: int, timeline: Timeline) -> None:
        """Keep what was sampled of one rank of a run; once for each rank."""
        row = rows.timeline_row(study, number, timeline)
        self._change(lambda connection: connection.execute(schema.series.insert(), row))

    def timelines(self, study: str, number: int) -> list[Timeline]:
        """What was sampled of a run, by rank; empty where nothing was."""
        series = schema.series
        return rows.timelines_from(
            self.read(select(series).where(series.c.study == study, series.c.number == number))
        )

    def runs(self, study: str) -> list[Run]:
        """All runs of the study by number."""
        return self.runs_where(schema.runs.c.study == study)

    def running(self, study: str) -> list[Run]:
        """The runs that have no end yet, by number."""
        return self.runs_where(schema.runs.c.study == study, schema.runs.c.status.is_(None))

    def under_way(self) -> list[Run]:
        """The trials of all studies that run or whose process died, without those waiting for a twin."""
        return self.runs_where(*is_under_way())

    def run(self, study: str, number: int) -> Run:
        """One run. Raises UsageError where there is none of that number."""
        run = self.find_run(study, number)
        if run is None:
            raise UsageError(
                f"Study '{study}' has no trial {number}.", f"See its trials: offtune show {study}"
            )
        return run

    def find_run(self, study: str, number: int) -> Run | None:
        """One run, or None."""
        return next(iter(self.runs_where(*is_run(study, number))), None)

    def find_measured(self, study: str, fingerprint: str) -> Run | None:
        """The first measured run with the same effective ds_config."""
        found = min(self.read(same_training(study, fingerprint)), key=lambda row: row["number"], default=None)
        return rows.run_from(found) if found else None

    def measured_count(self, study: str) -> int:
        """How many runs count against the study's trial target."""
        return int(self.read(count_measured(study))[0]["n"])

    @property
    def repeats(self) -> Repeats:
        """What the finals of the studies measured."""
        return Repeats(self.read, self._change)

    def add_calibration(self, fingerprint: Mapping[str, str], calibration: Calibration) -> None:
        """Keep what was measured on a machine, instead of what was measured there before."""
        table, new = schema.calibrations, rows.calibration_rows(fingerprint, calibration)

        def insert(connection: Connection) -> None:
            connection.execute(table.delete().where(table.c.machine == rows.machine_key(fingerprint)))
            connection.execute(table.insert(), new)

        self._change(insert)

    def calibration(self, fingerprint: Mapping[str, str]) -> Calibration | None:
        """What was last measured on the machine of this fingerprint; None when nothing was."""
        table = schema.calibrations
        found = self.read(select(table).where(table.c.machine == rows.machine_key(fingerprint)))
        return rows.calibration_from(found) if found else None

    def _change(self, action: Callable[[Connection], object]) -> None:
        """Do `action` in one transaction, again after a pause while the database is locked."""
        if not self._write:
            raise StoreError(
                f"{self.location} was opened for reading only.", "This is an error in offtune: report it."
            )

        def attempt() -> None:
            with trouble(self.location), database.immediate(self._engine).begin() as connection:
                action(connection)

        retrying(attempt)

    def read(self, query: Select[Any]) -> list[dict[str, Any]]:
        """The rows a query finds."""
        with trouble(self.location), self._engine.connect() as connection:
            found = connection.execute(query)
            names = list(found.keys())
            return [dict(zip(names, row, strict=True)) for row in found]

    def runs_where(self, *conditions: ColumnElement[bool]) -> list[Run]:
        """The runs of which all conditions hold, by number."""
        query = select(schema.runs).where(*conditions).order_by(schema.runs.c.number)
        return [rows.run_from(row) for row in self.read(query)]
