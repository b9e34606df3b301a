"""Questions about all runs at once have the same answers as reading every whole run, also in an old file."""

import random
import sqlite3
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
from study_samples import result, run, study_record

from offtune import rows
from offtune.records import Limits, best_run
from offtune.report.overview import overviews
from offtune.report.study_report import keep_effects, read_report, read_summary
from offtune.report.summary import summarise
from offtune.store import Store
from offtune.store_standings import best_of, briefs, kinds, labelled, unseen
from offtune.trial import Forecast, LossCheck, PhaseTimes, Status

LIMITS = [
    Limits(device_bytes=1000),
    Limits(device_bytes=500),
    Limits(device_bytes=1000, host_bytes=60),
    Limits(device_bytes=1),
]


def fill(store: Store, count: int = 60) -> None:
    """Runs of every kind: fast and slow, too large, failed, not run, reused, running."""
    draw = random.Random(1)
    store.add_study(study_record())
    for number in range(count):
        status = draw.choice(list(Status))
        speed = draw.choice([None, 1.0, 2.0, draw.random() * 9])
        ended = result(
            speed, draw.choice([None, *range(100, 2000, 300)]), status, draw.choice([None, 50, 100])
        )
        ended = replace(
            ended, step_s=(0.1, 0.2), losses=(8.0, 7.0), log_tail="end", versions={"torch": "2"},
            phases=PhaseTimes(forward_s=0.1), reason="Because." if status is Status.CRASHED else "",
            forecast=Forecast(used_device_bytes=9, used_host_bytes=9, step_s=None, samples_per_s=1.0,
                              device_error_share=0.1, step_error_share=0.1),
            loss_check=LossCheck(verdict="agrees", reference_losses=(8.0, 7.0)),
        )  # fmt: skip
        label = "stage 2" if number < 3 else ""
        kind = draw.random()
        if kind < 0.1:
            store.add_run(run(number, label=label, result=ended, ran=False))
        elif kind < 0.2 and number:
            store.add_run(run(number, label=label, result=ended, reuse_of=0))
        else:
            store.add_run(run(number, label=label))
            if kind < 0.95:
                store.finish_run("study-1", number, ended)


@pytest.fixture
def store(tmp_path: Path):
    with Store.open(str(tmp_path / "studies.db"), write=True) as opened:
        fill(opened)
        yield opened


@pytest.mark.parametrize("limits", LIMITS)
def test_the_best_run_is_the_one_found_among_all(store: Store, limits: Limits) -> None:
    assert best_of(store, "study-1", limits) == best_run(store.runs("study-1"), limits)
    assert best_of(store, "study-2", limits) is None


def test_runs_in_brief_are_the_runs_without_what_only_one_trials_page_shows(store: Store) -> None:
    whole = store.runs("study-1")
    short = [replace(one, ds_config={}, result=one.result and rows.brief(one.result)) for one in whole]
    ended = [replace(one, owner=one.owner if one.status is None else None) for one in short]
    assert briefs(store, "study-1") == ended
    assert any(one.result and one.result.losses for one in whole)
    assert not any(one.result and (one.result.losses or one.result.log_tail) for one in ended)


def test_counts_by_the_database_are_those_of_a_summary(store: Store) -> None:
    summary = summarise(study_record(), store.runs("study-1"))
    found = kinds(store, "study-1")
    assert (found.measured, found.reused, found.running, found.counts) == (
        summary.measured, summary.reused, summary.running, summary.counts,
    )  # fmt: skip
    (overview,) = overviews(store)
    assert overview.best == summary.best
    assert overview.counts == summary.counts


def test_a_summary_from_briefs_says_what_one_from_whole_runs_says(store: Store) -> None:
    whole = summarise(study_record(), store.runs("study-1"))
    found = read_summary(store, study_record())
    assert found.best == whole.best
    assert [one.number for one in found.ranking] == [one.number for one in whole.ranking]
    assert (found.gains, found.counts, found.forecasts) == (whole.gains, whole.counts, whole.forecasts)
    assert found.nearest_miss == whole.nearest_miss
    assert found.advice == whole.advice


def test_only_what_has_not_been_seen_is_read(store: Store) -> None:
    measured = {one.number for one in unseen(store, "study-1", set())}
    assert len(measured) == store.measured_count("study-1")
    some = set(sorted(measured)[:5])
    assert {one.number for one in unseen(store, "study-1", some)} == measured - some
    assert [one.label for one in labelled(store, "study-1")] == ["stage 2"] * 3


def test_a_file_of_schema_1_answers_alike_read_or_migrated(tmp_path: Path) -> None:
    path = tmp_path / "studies.db"
    with Store.open(str(path), write=True) as opened:
        fill(opened)
        before = briefs(opened, "study-1")
    with closing(sqlite3.connect(path)) as connection:
        connection.executescript("DROP TABLE outcomes; DROP INDEX runs_by_kind; PRAGMA user_version = 1")
    content = path.read_bytes()
    for write in (False, True):
        with Store.open(str(path), write=write) as opened:
            assert briefs(opened, "study-1") == before
            assert best_of(opened, "study-1", LIMITS[0]) == best_run(opened.runs("study-1"), LIMITS[0])
        assert (path.read_bytes() == content) is not write


def test_noted_knob_effects_are_shown_until_another_trial_has_been_measured(tmp_path: Path) -> None:
    location = str(tmp_path / "studies.db")
    with Store.open(location, write=True) as opened:
        opened.add_study(study_record())
        for number in range(12):
            opened.add_run(run(number, point={"micro_batch": 2 ** (number % 3)}))
            opened.finish_run("study-1", number, result(1.0 + number % 3))
        keep_effects(opened, read_summary(opened, study_record()))
        opened.note("study-1", "knob_effects", {**opened.notes("study-1")["knob_effects"], "effects": []})
        assert read_report(location, "study-1").effects == ()
        opened.add_run(run(12, point={"micro_batch": 2}))
        opened.finish_run("study-1", 12, result(2.0))
        assert [one.name for one in read_report(location, "study-1").effects] == ["micro_batch"]
