"""The store: what goes in comes out, what is finished stays, and who reads along."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import event
from study_samples import result, run, start_python, study_record
from timeline_fakes import make_timeline

from offtune import rows, schema
from offtune.errors import StoreError, UsageError
from offtune.lock import current_owner
from offtune.phase_analysis import StepAnalysis
from offtune.store import Store, new_study_name
from offtune.trial import PhaseTimes, Status, Traffic, TrialResult, dump


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store.open(str(tmp_path / "studies.db"), write=True) as store:
        store.add_study(study_record())
        yield store


def query(path: Path, sql: str) -> list[tuple[Any, ...]]:
    with closing(sqlite3.connect(path)) as connection:
        return connection.execute(sql).fetchall()


def test_a_study_comes_back_as_it_went_in(store: Store) -> None:
    assert store.study("study-1") == study_record()


def test_the_newest_study_comes_first_and_is_the_default(store: Store) -> None:
    store.add_study(study_record("older", "2026-07-01T10:00:00.000000+00:00"))
    store.add_study(study_record("newer", "2026-08-02T10:00:00.000000+00:00"))
    assert [record.name for record in store.studies()] == ["newer", "study-1", "older"]
    assert store.study().name == "newer"


def test_an_unknown_study_is_answered_with_near_names(store: Store) -> None:
    with pytest.raises(UsageError) as caught:
        store.study("stduy-1")
    assert "Did you mean study-1?" in caught.value.hint


def test_an_empty_store_says_how_to_start(tmp_path: Path) -> None:
    with Store.open(str(tmp_path / "s.db"), write=True) as store, pytest.raises(UsageError) as caught:
        store.study()
    assert "offtune search" in caught.value.hint


def test_a_name_is_taken_once(store: Store) -> None:
    with pytest.raises(UsageError, match="exists already") as caught:
        store.add_study(study_record())
    assert "offtune resume study-1" in caught.value.hint


@pytest.mark.parametrize("name", ["", "  ", "a\nb", "x" * 101])
def test_some_names_cannot_be(store: Store, name: str) -> None:
    with pytest.raises(UsageError, match="--study"):
        store.add_study(study_record(name))


def test_a_name_with_a_slash_can_be_locked(store: Store) -> None:
    store.add_study(study_record("../a b/c"))
    with store.lock("../a b/c"):
        pass


def test_the_next_free_name_follows_the_highest() -> None:
    assert new_study_name([]) == "study-1"
    assert new_study_name(["study-2", "mine", "study-10"]) == "study-11"


def test_a_note_replaces_the_earlier_one_of_its_key_only(store: Store) -> None:
    store.note("study-1", "ended", "target")
    store.note("study-1", "ended", {"reason": "time"})
    store.note("study-1", "seed", 3)
    store.note("other", "seed", 4)
    assert store.notes("study-1") == {"ended": {"reason": "time"}, "seed": 3}


def test_a_running_run_has_owner_and_start_but_no_end(store: Store) -> None:
    written = store.add_run(
        run(0, trial_dir="/t", swap_dir="/s", token="7", label="stage 2", origin="baseline")
    )
    assert written == store.run("study-1", 0)
    assert written.owner == current_owner()
    assert (written.started_at[:2], written.finished_at, written.status) == ("20", None, None)
    assert [each.number for each in store.running("study-1")] == [0]


def test_a_finished_run_comes_back_with_its_whole_result(store: Store) -> None:
    full = result(
        step_s=(0.1, 0.2),
        losses=(1.5, None),
        phases=PhaseTimes(forward_s=0.05),
        traffic=Traffic(pcie_reason="no GPU"),
        exit_codes=(0, -9, None),
        versions={"torch": "2.13"},
        log_tail="ü" * 1000,
        start="warm",
    )
    store.add_run(run(0))
    store.finish_run("study-1", 0, full)
    finished = store.run("study-1", 0)
    assert finished.result == full
    assert finished.status is Status.OK
    assert finished.finished_at is not None
    assert store.running("study-1") == []


def test_a_run_told_infeasible_needs_no_trial_and_does_not_count(store: Store) -> None:
    verdict = result(speed=None, used=None, status=Status.INVALID)
    store.add_run(run(0, ran=False, result=verdict))
    told = store.run("study-1", 0)
    assert (told.status, told.ran, told.finished_at is None) == (Status.INVALID, False, False)
    assert store.measured_count("study-1") == 0


def test_finishing_twice_alike_is_harmless(store: Store) -> None:
    store.add_run(run(0))
    store.finish_run("study-1", 0, result(step_s=(0.5,)))
    before = store.run("study-1", 0)
    store.finish_run("study-1", 0, result(step_s=(0.5,)))
    assert store.run("study-1", 0) == before


def test_what_is_finished_is_never_changed(store: Store) -> None:
    store.add_run(run(0))
    store.finish_run("study-1", 0, result())
    with pytest.raises(StoreError, match="not running"):
        store.finish_run("study-1", 0, result(speed=99.0))
    assert store.run("study-1", 0).result == result()


def test_a_run_that_never_started_cannot_end(store: Store) -> None:
    with pytest.raises(StoreError, match="not running"):
        store.finish_run("study-1", 5, result())


def test_an_unknown_trial_is_a_usage_error(store: Store) -> None:
    with pytest.raises(UsageError, match="no trial 3"):
        store.run("study-1", 3)


def test_only_trials_run_to_an_end_count(store: Store) -> None:
    store.add_run(run(0))
    for number, status in enumerate(Status, start=1):
        store.add_run(run(number))
        store.finish_run("study-1", number, result(status=status))
    store.add_run(run(20, result=result(), reuse_of=1))
    store.add_run(run(21, result=result(), ran=False))
    assert store.measured_count("study-1") == len(Status) - 1


def test_the_same_configuration_is_found_only_where_it_was_measured(store: Store) -> None:
    store.add_run(run(0, fingerprint="same"))
    assert store.find_measured("study-1", "same") is None
    store.finish_run("study-1", 0, result(speed=None, status=Status.INTERRUPTED))
    assert store.find_measured("study-1", "same") is None
    store.add_run(run(1, fingerprint="same"))
    store.finish_run("study-1", 1, result(speed=None, status=Status.OOM_GPU))
    found = store.find_measured("study-1", "same")
    assert found is not None
    assert found.number == 1
    assert store.find_measured("study-2", "same") is None


def test_figures_can_be_read_with_sql_and_carry_their_units(store: Store, tmp_path: Path) -> None:
    store.add_run(run(0))
    store.finish_run(
        "study-1", 0, result(step_s=(0.1, 0.3), losses=(2.0, None), traffic=Traffic(h2d_bytes_per_s=1e9))
    )
    path = tmp_path / "studies.db"
    figures = {
        key: (value, unit) for key, value, unit in query(path, "SELECT key, value, unit FROM measurements")
    }
    assert figures["samples_per_s"] == (10.0, "samples/s")
    assert figures["used_device_bytes"] == (900.0, "B")
    assert figures["h2d_bytes_per_s"] == (1e9, "B/s")
    assert figures["seconds"] == (0.0, "s")
    assert "d2h_bytes_per_s" not in figures  # unknown is absent, never 0
    series = {
        key: (json.loads(points), unit)
        for key, points, unit in query(path, "SELECT key, points, unit FROM series")
    }
    assert series == {"step_s": ([0.1, 0.3], "s"), "losses": ([2.0, None], "nat")}


def test_a_figure_that_is_no_number_is_left_out(store: Store, tmp_path: Path) -> None:
    store.add_run(run(0))
    store.finish_run("study-1", 0, result(speed=float("nan")))
    assert query(tmp_path / "studies.db", "SELECT 1 FROM measurements WHERE key = 'samples_per_s'") == []
    came = store.run("study-1", 0).result
    assert came is not None
    assert came.samples_per_s is None


def test_closing_does_not_bring_back_a_removed_file(tmp_path: Path) -> None:
    path = tmp_path / "studies.db"
    with Store.open(str(path), write=True):
        for each in tmp_path.iterdir():
            each.unlink()
    assert list(tmp_path.iterdir()) == []


def test_series_are_capped_and_keep_their_shape() -> None:
    points = rows.thin(range(1_000_000))
    assert len(points) == rows.SERIES_POINTS
    assert points[0] == 0
    assert points == sorted(points)
    assert points[-1] > 999_000


def test_every_figure_of_a_result_has_the_unit_its_name_says() -> None:
    assert rows.unit_of("nvme_read_bytes") == "B"
    assert rows.unit_of("tokens_per_s") == "tokens/s"
    assert rows.unit_of("forward_s") == "s"
    assert rows.unit_of("effective_ratio") == "1"


def test_a_run_survives_its_row_whatever_it_holds() -> None:
    full = run(3, status=Status.OK, result=result(), owner=current_owner(), reuse_of=1, ran=False)
    assert rows.run_from(rows.run_row(full)) == full


def test_reading_needs_no_right_to_write(store: Store, tmp_path: Path) -> None:
    store.add_run(run(0))
    with Store.open(str(tmp_path / "studies.db"), write=False) as reader:
        assert [each.number for each in reader.runs("study-1")] == [0]
        with pytest.raises(StoreError, match="for reading only"):
            reader.add_run(run(1))


def test_a_reader_sees_what_the_writer_adds(store: Store, tmp_path: Path) -> None:
    with Store.open(str(tmp_path / "studies.db"), write=False) as reader:
        store.add_run(run(0))
        assert len(reader.runs("study-1")) == 1


def test_the_last_writer_leaves_one_plain_file(tmp_path: Path) -> None:
    path = tmp_path / "studies.db"
    with Store.open(str(path), write=True) as first:
        first.add_study(study_record())
        with Store.open(str(path), write=True) as second:
            second.add_run(run(0))
        assert query(path, "PRAGMA journal_mode") == [("wal",)]
    assert query(path, "PRAGMA journal_mode") == [("delete",)]
    assert [each.name for each in tmp_path.iterdir()] == ["studies.db"]


def test_writing_uses_wal_and_normal_sync(store: Store) -> None:
    with store._engine.connect() as connection:
        assert connection.exec_driver_sql("PRAGMA journal_mode").scalar_one() == "wal"
        assert connection.exec_driver_sql("PRAGMA synchronous").scalar_one() == 1
        assert connection.exec_driver_sql("PRAGMA busy_timeout").scalar_one() == 30_000


def test_paths_and_urls_with_odd_characters_name_the_same_file(tmp_path: Path) -> None:
    path = tmp_path / "a b?#%7E{x}.db"
    with Store.open(str(path), write=True) as store:
        store.add_study(study_record())
    assert path.exists()
    plain = tmp_path / "plain.db"
    with Store.open(f"sqlite:///{plain}", write=True) as store:
        store.add_study(study_record())
    with Store.open(str(plain), write=False) as store:
        assert store.study().name == "study-1"


WRITER = """
import sys
from study_samples import result, run, study_record
from offtune.store import Store
location, study = sys.argv[1:]
with Store.open(location, write=True) as store, store.lock(study):
    store.add_study(study_record(study))
    for number in range(25):
        store.add_run(run(number, study))
        store.finish_run(study, number, result())
"""


def test_two_processes_write_two_studies_of_one_fresh_file_at_once(tmp_path: Path) -> None:
    path = tmp_path / "studies.db"
    writers = [start_python(WRITER, str(path), name) for name in ("a", "b")]
    for writer in writers:
        with writer:
            assert writer.wait(timeout=300) == 0
    with Store.open(str(path), write=False) as store:
        assert (store.measured_count("a"), store.measured_count("b")) == (25, 25)


def test_a_second_process_on_the_same_study_is_refused(store: Store, tmp_path: Path) -> None:
    with store.lock("study-1"), Store.open(str(tmp_path / "studies.db"), write=True) as second:
        with pytest.raises(StoreError, match="is being worked on by process"), second.lock("study-1"):
            pass
        with second.lock("study-2"):
            pass


def test_lookups_use_an_index(store: Store) -> None:
    for condition in ("fingerprint = 'f'", "status IS NULL", "number = 1"):
        with store._engine.connect() as connection:
            plan = connection.exec_driver_sql(
                f"EXPLAIN QUERY PLAN SELECT * FROM runs WHERE study = 's' AND {condition}"
            ).all()
        assert "SEARCH runs USING INDEX" in str(plan)


def test_a_thousand_runs_are_listed_in_as_few_queries_as_one(store: Store) -> None:
    """None for each of them; what that takes is measured in benchmarks/, on a machine that is quiet."""
    template = rows.run_row(replace(run(0), result=TrialResult(status=Status.OK), status=Status.OK))
    with store._engine.begin() as connection:
        columns = ", ".join(template)
        holes = ", ".join("?" * len(template))
        many = [tuple({**template, "number": number}.values()) for number in range(1000)]
        connection.exec_driver_sql(f"INSERT INTO runs ({columns}) VALUES ({holes})", many)
    asked: list[str] = []
    event.listen(store._engine, "before_cursor_execute", lambda *about: asked.append(about[2]))
    assert len(store.runs("study-1")) == 1000
    assert 0 < len(asked) < 10, asked


def test_an_analysis_does_not_mix_its_figures_with_those_of_the_trial(store: Store) -> None:
    analysed = result(step_s=(1.0, 2.0), analysis=StepAnalysis(steps=2, step_s=4.0, phases=()))
    store.add_run(run(0, result=analysed))
    [steps] = [row for row in rows.series_rows("study-1", 0, analysed) if row["key"] == "step_s"]
    assert json.loads(steps["points"]) == [1.0, 2.0]
    assert not any(row["key"] == "step_s" for row in rows.measurement_rows("study-1", 0, analysed))


def test_a_timeline_is_kept_packed_and_one_of_plain_json_is_still_read(store: Store) -> None:
    whole = make_timeline(steps=8)
    store.add_run(run(0))
    store.add_timeline("study-1", 0, whole)
    row = rows.timeline_row("study-1", 0, replace(whole, rank=1))
    assert len(row["points"]) < len(dump(whole)) / 4
    plain = {**row, "points": dump(replace(whole, rank=1)), "unit": "JSON"}
    with store._engine.begin() as connection:
        connection.execute(schema.series.insert(), plain)
    assert store.timelines("study-1", 0) == [whole, replace(whole, rank=1)]
