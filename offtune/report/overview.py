"""One study in a list of them: counts and the best run, without reading every run.

Covered: what a line of `offtune list` says. Not covered: a study in full (`report.summary`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from offtune.records import Run, StudyRecord
from offtune.report.miss import study_limits
from offtune.store import Store
from offtune.store_standings import best_of, kinds


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
    """A study, how many runs it has of which kind, and the fastest that fits its own limits."""

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
    return Overview(
        study=record,
        best=best_of(store, record.name, study_limits(record)),
        measured=found.measured,
        reused=found.reused,
        running=found.running,
        counts=found.counts,
    )
