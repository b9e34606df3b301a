"""One study in a list of them: counts and the best run, without reading every run.

Covered: what a line of `offtune list` says. Not covered: a study in full (`report.summary`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from offtune.ending import State, state_of
from offtune.finals_notes import kept
from offtune.records import Limits, Run, StudyRecord
from offtune.repeats import Outcome
from offtune.report.miss import study_limits
from offtune.store import Store
from offtune.store_standings import best_of, briefs, kinds
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

    @property
    def state(self) -> State | None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Overview:
    """A study, how many runs it has of which kind, and its winner within its own limits."""

    study: StudyRecord
    best: Run | None
    measured: int
    reused: int
    running: int
    counts: dict[str, int]
    state: State | None


def overviews(store: Store) -> list[Overview]:
    """All studies of a database, the newest first."""
    return [_overview(store, record) for record in store.studies()]


def _overview(store: Store, record: StudyRecord) -> Overview:
    found = kinds(store, record.name)
    limits = study_limits(record)
    outcome = kept(store, record.name, Outcome)
    return Overview(
        study=record,
        best=winner_of(_in_question(store, record.name, limits, outcome), limits, outcome),
        measured=found.measured,
        reused=found.reused,
        running=found.running,
        counts=found.counts,
        state=state_of(store, record),
    )


def _in_question(store: Store, study: str, limits: Limits, outcome: Outcome | None) -> list[Run]:
    """The runs that can be the winner; all of them where no contender of the finals held."""
    if outcome is not None and outcome.winner is None:
        return briefs(store, study)
    fastest = best_of(store, study, limits)
    contenders = outcome.plan.contenders if outcome and fastest else ()
    return [*([fastest] if fastest else []), *(store.run(study, number) for number in contenders)]
