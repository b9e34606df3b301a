"""One study in a list of them: counts and the best run, without reading every run.

Covered: what a line of `offtune list` says. Not covered: a study in full (`report.summary`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from offtune.finals_notes import kept
from offtune.records import Run, StudyRecord
from offtune.repeats import Outcome
from offtune.report.miss import study_limits
from offtune.store import Store
from offtune.store_standings import best_of, kinds
from offtune.winner import winner_of


class Standing(Protocol):
    """How a study stands: an Overview, or a whole Summary."""

    @property
    def study(self) -> StudyRecord: ...

    @property
    def best(self) -> Run | None: ...

    @property
    def measured(self) -> int: ...

    @property
    def reused(self) -> int: ...

    @property
    def running(self) -> int: ...

    @property
    def counts(self) -> dict[str, int]: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Overview:
    """A study, how many runs it has of which kind, and its winner within its own limits."""

    study: StudyRecord
    best: Run | None
    measured: int
    reused: int
    running: int
    counts: dict[str, int]


def overviews(store: Store) -> list[Overview]:
    """All studies of a database, the newest first."""
    return [_overview(store, record) for record in store.studies()]


def _overview(store: Store, record: StudyRecord) -> Overview:
    found = kinds(store, record.name)
    limits = study_limits(record)
    fastest, outcome = best_of(store, record.name, limits), kept(store, record.name, Outcome)
    contenders = outcome.plan.contenders if outcome and fastest else ()
    known = [*([fastest] if fastest else []), *(store.run(record.name, number) for number in contenders)]
    return Overview(
        study=record,
        best=winner_of(known, limits, outcome),
        measured=found.measured,
        reused=found.reused,
        running=found.running,
        counts=found.counts,
    )
