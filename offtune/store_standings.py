"""Questions about all runs of a study at once, answered without reading every whole result.

Covered: the best run, runs in brief, counts by kind, runs not yet seen, labelled runs. At 10,000 runs the
whole results are some 50 MB of JSON, the answers here are a few indexed rows or the short form of each
result (`brief_runs`). Not covered: single runs and writing (`store.py`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Set
from dataclasses import dataclass

from sqlalchemy import func, select

from offtune import schema
from offtune.brief_runs import BriefResult, BriefRun
from offtune.records import WITH_THROUGHPUT, Limits, Run
from offtune.store import Store
from offtune.trial import Status

_AT_ONCE = 500  # numbers in one condition; SQLite takes 999 variables in old builds
# Runs that end when so many later ones have been seen are not looked for any more.
_LATE = 200
_LATEST = 20  # the machine may have changed since earlier ones
# The columns of `outcomes` that a result in brief is made of, beside the run's status.
_FIGURES = ("samples_per_s", "used_device_bytes", "used_host_bytes", "unsafe", "brief")


@dataclass(frozen=True, slots=True, kw_only=True)
class Kinds:
    """How many runs a study has: measured by itself, reused, running, and by status without the reused."""

    measured: int
    reused: int
    running: int
    counts: dict[str, int]


def best_of(store: Store, study: str, limits: Limits, *, without: Collection[int] = ()) -> Run | None:
    """The fastest measured run within `limits`, whole, as `records.best_run` has it; but for some numbers."""
    columns = schema.outcomes.c
    conditions = [
        columns.study == study,
        columns.measured.is_(True),
        columns.samples_per_s.is_not(None),
        columns.status.in_([str(status) for status in WITH_THROUGHPUT]),
        columns.used_device_bytes <= limits.device_bytes,
        columns.number.not_in(without),
    ]
    if limits.host_bytes is not None:
        conditions.append(columns.used_host_bytes.is_(None) | (columns.used_host_bytes <= limits.host_bytes))
    order = (columns.samples_per_s.desc(), columns.number)
    best = select(columns.number).where(*conditions).order_by(*order).limit(1)
    # Asked apart, so that the index by speed serves both.
    found = store.read(best.where(columns.unsafe.is_not(True))) or store.read(best)
    return store.run(study, found[0]["number"]) if found else None


def briefs(store: Store, study: str) -> list[Run]:
    """All runs of the study by number, each with its result in brief and without its ds_config."""
    runs, outcomes = schema.runs, schema.outcomes
    columns = [column for column in runs.columns if column.name not in ("result", "ds_config")]
    figures = [getattr(outcomes.c, name) for name in _FIGURES]
    same = (outcomes.c.study == runs.c.study) & (outcomes.c.number == runs.c.number)
    query = select(*columns, *figures).select_from(runs.outerjoin(outcomes, same))
    found = store.read(query.where(runs.c.study == study).order_by(runs.c.number))
    return [BriefRun.of(row) for row in found]


def kinds(store: Store, study: str) -> Kinds:
    """The study's runs counted by the database."""
    columns = schema.runs.c
    kind = (columns.status, columns.reuse_of.is_not(None).label("reused"))
    query = select(*kind, func.count().label("n")).where(columns.study == study).group_by(*kind)
    found = store.read(query)
    by_status = Counter({row["status"]: row["n"] for row in found if not row["reused"]})
    return Kinds(
        measured=store.measured_count(study),
        reused=sum(row["n"] for row in found if row["reused"]),
        running=sum(row["n"] for row in found if row["status"] is None),
        counts={str(status): by_status[str(status)] for status in Status if by_status[str(status)]},
    )


def unseen(store: Store, study: str, seen: Set[int]) -> Iterator[Run]:
    """The measured runs whose number is not in `seen`, by number, but for those that are far behind it.

    Not all at once: of a long study whole runs would fill the memory.
    """
    columns, first = schema.outcomes.c, max(seen, default=0) - _LATE
    query = select(columns.number).where(
        columns.study == study, columns.measured.is_(True), columns.number >= first
    )
    numbers = sorted({row["number"] for row in store.read(query)} - seen)
    chunks = [numbers[start : start + _AT_ONCE] for start in range(0, len(numbers), _AT_ONCE)]
    for chunk in chunks:
        yield from store.runs_where(schema.runs.c.study == study, schema.runs.c.number.in_(chunk))


def latest_steps(store: Store, study: str) -> list[tuple[float, ...]]:
    """The measured step times, in seconds, of the study's latest measured runs, the newest first."""
    columns = schema.outcomes.c
    query = select(*(getattr(columns, name) for name in (*_FIGURES, "status")))
    query = query.where(columns.study == study, columns.measured.is_(True))
    found = store.read(query.order_by(columns.number.desc()).limit(_LATEST))
    return [BriefResult.of(row).step_s for row in found]


def labelled(store: Store, study: str) -> list[Run]:
    """The runs with a label, by number: the baselines and a few more."""
    return store.runs_where(schema.runs.c.study == study, schema.runs.c.label != "")
