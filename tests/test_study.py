"""A study as a conversation: proposals, what is told, reuse, and the same proposals after an interruption."""

from __future__ import annotations

import sqlite3
import warnings
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import optuna
import pytest
from study_samples import LIMITS, PLACEMENTS, measure, result, run, small_space, study_record

from offtune import database, sampling_by_name, trouble
from offtune.errors import SpaceError, StoreError, StudyMismatch, UsageError
from offtune.records import Limits, Run
from offtune.store import Store
from offtune.study import Proposal, Study
from offtune.trial import Status

SMALL = small_space()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "studies.db"


@pytest.fixture
def store(path: Path) -> Iterator[Store]:
    with Store.open(str(path), write=True) as store:
        store.add_study(study_record())
        yield store


@pytest.fixture
def study(store: Store) -> Study:
    return open_study(store)


def open_study(store: Store, **more: Any) -> Study:
    return Study(store, "study-1", SMALL, **{"limits": LIMITS, "seed": 7, **more})


def begin(store: Store, proposal: Proposal, **more: Any) -> Run:
    fields = {"origin": proposal.origin, "label": proposal.label, "point": proposal.point, **more}
    return store.add_run(run(proposal.number, **fields))


def do_trial(store: Store, study: Study) -> Proposal:
    proposal = study.ask()
    begin(store, proposal)
    came = measure(proposal.point)
    store.finish_run("study-1", proposal.number, came)
    study.tell(proposal.number, came)
    return proposal


def optuna_study(path: Path) -> optuna.Study:
    return optuna.load_study(study_name="study-1", storage=f"sqlite:///{path}")


def test_a_proposal_is_a_point_of_the_space(study: Study) -> None:
    proposal = study.ask()
    assert (proposal.number, proposal.origin, proposal.label) == (0, "search", "")
    assert SMALL.complete(proposal.point) == proposal.point


def test_queued_points_come_first_in_order_with_their_labels(study: Study) -> None:
    for label, placement in (("stage 2", "zero2"), ("stage 3", "zero3")):
        study.enqueue({"placement": placement, "micro_batch": 8}, "baseline", label)
    first, second, third = study.ask(), study.ask(), study.ask()
    assert first.point == {"placement": "zero2", "micro_batch": 8, "overlap_comm": True}
    assert (first.origin, first.label) == ("baseline", "stage 2")
    assert (second.point["placement"], second.label) == ("zero3", "stage 3")
    assert third.origin == "search"


def test_a_point_queued_again_after_a_resume_is_tried_once(store: Store, study: Study) -> None:
    study.enqueue({"placement": "zero2"}, "baseline", "stage 2")
    do_trial(store, study)
    again = open_study(store)
    again.enqueue({"placement": "zero2"}, "baseline", "stage 2")
    assert again.ask().origin == "search"


def test_a_queued_point_outside_the_space_is_refused(study: Study) -> None:
    with pytest.raises(SpaceError):
        study.enqueue({"micro_batch": 3}, "baseline", "odd")


def test_optuna_is_told_value_constraints_and_scalars_to_show(store: Store, study: Study, path: Path) -> None:
    for came in (result(), result(speed=None, used=None, status=Status.OOM_GPU)):
        number = study.ask().number
        store.add_run(run(number))
        store.finish_run("study-1", number, came)
        study.tell(number, came)
    told = optuna_study(path)
    assert told.metric_names == ["samples/s"]
    good, bad = told.trials
    assert [good.state.name, bad.state.name] == ["COMPLETE", "COMPLETE"]
    assert list(good.constraints) == list(bad.constraints) == ["device_memory", "failure", "host_memory"]
    assert bad.value == 0.0
    assert bad.user_attrs == {
        "status": "oom_gpu",
        "origin": "search",
        "label": "",
        "used_device_bytes": None,
        "samples_per_s": None,
        "noise_share": None,
        "feasible": False,
    }
    assert told.best_trial.number == 0


def test_telling_twice_is_harmless_and_changes_nothing(store: Store, study: Study, path: Path) -> None:
    proposal = do_trial(store, study)
    before = optuna_study(path).trials[0]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        study.tell(proposal.number, result(speed=1000.0))
    assert optuna_study(path).trials[0] == before


def test_a_tell_cut_short_is_completed_by_the_next(store: Store, study: Study, path: Path) -> None:
    proposal = study.ask()
    begin(store, proposal)
    trial_id = optuna_study(path).trials[0]._trial_id
    study._sampling._storage.set_trial_system_attr(trial_id, "constraints:device_memory", -0.5)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        study.tell(proposal.number, result())
    assert optuna_study(path).trials[0].state.name == "COMPLETE"


def test_an_interrupted_trial_is_failed_for_optuna_and_tried_again(
    store: Store, study: Study, path: Path
) -> None:
    proposal = study.ask()
    begin(store, proposal)
    study.abandon(proposal.number)
    assert store.run("study-1", proposal.number).status is Status.INTERRUPTED
    assert optuna_study(path).trials[0].state.name == "FAIL"
    again = study.ask()
    assert (again.point, again.origin, again.number) == (proposal.point, "retry", 1)
    assert study.measured_count() == 0


def test_telling_interrupted_is_abandoning(store: Store, study: Study) -> None:
    study.enqueue({"placement": "zero3"}, "baseline", "stage 3")
    proposal = study.ask()
    begin(store, proposal)
    stopped = result(speed=None, status=Status.INTERRUPTED)
    store.finish_run("study-1", proposal.number, stopped)
    study.tell(proposal.number, stopped)
    study.abandon(proposal.number)  # twice is as once
    again = study.ask()
    assert (again.point, again.origin, again.label) == (proposal.point, "retry", "stage 3")
    assert study.ask().origin == "search"


def test_a_trial_stopped_by_hand_is_tried_again_each_time(store: Store, study: Study) -> None:
    study.enqueue({"placement": "zero3"}, "baseline", "stage 3")
    for _ in range(4):
        proposal = study.ask()
        begin(store, proposal)
        study.abandon(proposal.number)
        assert proposal.label == "stage 3"


def test_a_reused_result_is_told_recorded_and_not_counted(store: Store, study: Study, path: Path) -> None:
    first = do_trial(store, study)
    proposal = study.ask()
    earlier = store.find_measured("study-1", f"f{first.number}")
    assert earlier is not None
    reused = study.reuse(proposal.number, earlier)
    assert reused == store.run("study-1", proposal.number)
    assert (reused.reuse_of, reused.point, reused.result) == (0, proposal.point, earlier.result)
    assert (reused.fingerprint, reused.ds_config) == (earlier.fingerprint, earlier.ds_config)
    assert study.measured_count() == 1
    told = optuna_study(path).trials
    assert told[0].value == told[1].value
    assert told[1].user_attrs["reuse_of"] == 0


def test_a_reused_baseline_keeps_its_label(store: Store, study: Study) -> None:
    do_trial(store, study)
    study.enqueue({"placement": "zero3", "micro_batch": 2}, "baseline", "stage 3")
    reused = study.reuse(study.ask().number, store.run("study-1", 0))
    assert (reused.origin, reused.label, reused.point["micro_batch"]) == ("baseline", "stage 3", 2)


def test_a_running_trial_cannot_be_reused(store: Store, study: Study) -> None:
    begin(store, study.ask())
    with pytest.raises(StoreError, match="has not ended"):
        study.reuse(study.ask().number, store.run("study-1", 0))


def test_the_best_run_follows_the_limits(store: Store, study: Study) -> None:
    for _ in range(15):
        do_trial(store, study)
    best, smaller = study.best(), study.best(Limits(device_bytes=600))
    assert best is not None
    assert smaller is not None
    assert best.result is not None
    assert smaller.result is not None
    fitting = [each.result.samples_per_s for each in store.runs("study-1") if each.result.status is Status.OK]
    assert best.result.samples_per_s == max(fitting)
    assert smaller.result.memory.used_device_bytes <= 600


@pytest.mark.parametrize("sampler", ["offtune", "tpe", "random"])
def test_an_interrupted_study_proposes_what_the_uninterrupted_one_would(tmp_path: Path, sampler: str) -> None:
    def points(name: str, stop_at: set[int]) -> list[dict[str, Any]]:
        kept = []
        with Store.open(str(tmp_path / name), write=True) as store:
            store.add_study(study_record())
            study = open_study(store, sampler=sampler)
            for label, placement in (("stage 2", "zero2"), ("stage 3", "zero3")):
                study.enqueue({"placement": placement}, "baseline", label)
            for step in range(28):
                if step in stop_at:
                    lost = study.ask()  # another process carries on, after a trial was lost
                    if step % 2:
                        begin(store, lost)
                    study = open_study(store, sampler=sampler)
                    study.reconcile()
                kept.append(do_trial(store, study).point)
        return kept

    whole = points("whole.db", set())
    assert points("broken.db", {4, 5, 13, 20, 27}) == whole
    assert len({str(point) for point in whole}) > 15


def test_another_seed_proposes_other_points(store: Store, tmp_path: Path) -> None:
    first = [do_trial(store, open_study(store)).point for _ in range(5)]
    with Store.open(str(tmp_path / "other.db"), write=True) as other:
        other.add_study(study_record())
        second = [do_trial(other, open_study(other, seed=8)).point for _ in range(5)]
    assert first != second


def test_tpe_learns_to_stay_within_the_budget(store: Store, study: Study) -> None:
    for _ in range(40):
        do_trial(store, study)
    late = [each.status for each in store.runs("study-1")[25:]]
    assert late.count(Status.OK) > len(late) / 2


@pytest.mark.parametrize("sampler", ["offtune", "tpe", "random", "gp", "qmc", "grid"])
def test_every_sampler_proposes_various_points_and_no_warnings(store: Store, sampler: str) -> None:
    if sampler in ("gp", "qmc"):
        pytest.importorskip("scipy", reason=f"{sampler} needs scipy")
    with warnings.catch_warnings():
        warnings.simplefilter("error", optuna.exceptions.ExperimentalWarning)
        study = open_study(store, sampler=sampler)
        points = [do_trial(store, study).point for _ in range(13)]
    assert len({str(point) for point in points}) > 5
    assert {point["placement"] for point in points} <= set(PLACEMENTS)


def test_an_unknown_sampler_is_answered_with_the_known_ones(store: Store) -> None:
    with pytest.raises(UsageError, match="no 'best'") as caught:
        open_study(store, sampler="best")
    assert "tpe, random" in caught.value.hint


def test_a_sampler_without_its_package_is_a_usage_error(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    def without_scipy(study_seed: int, draw_seed: int) -> optuna.samplers.BaseSampler:
        raise ImportError("No module named 'scipy'", name="scipy")

    monkeypatch.setitem(sampling_by_name.SAMPLERS, "gp", without_scipy)
    with pytest.raises(UsageError, match="scipy"):
        open_study(store, sampler="gp")


def test_an_optuna_study_of_somebody_else_is_left_alone(path: Path) -> None:
    theirs = optuna.create_study(study_name="study-1", storage=f"sqlite:///{path}", direction="maximize")
    theirs.tell(theirs.ask(), 1.0)
    with Store.open(str(path), write=True) as store:
        store.add_study(study_record())
        with pytest.raises(StudyMismatch, match="offtune did not make"):
            open_study(store)


def test_a_study_that_minimises_is_not_ours(path: Path) -> None:
    optuna.create_study(study_name="study-1", storage=f"sqlite:///{path}", direction="minimize")
    with Store.open(str(path), write=True) as store:
        store.add_study(study_record())
        with pytest.raises(StudyMismatch):
            open_study(store)


def test_optuna_tables_of_another_version_are_said(store: Store, study: Study, path: Path) -> None:
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("UPDATE alembic_version SET version_num = 'v9.0.0.a'")
        connection.commit()
    with pytest.raises(StoreError, match="no longer compatible"):
        open_study(store)


def test_optunas_tables_and_ours_leave_one_plain_file_behind(path: Path) -> None:
    with Store.open(str(path), write=True) as store:
        store.add_study(study_record())
        do_trial(store, open_study(store))
    assert [each.name for each in path.parent.iterdir()] == ["studies.db"]


def test_a_lock_while_telling_is_said_in_words_and_the_tell_can_be_repeated(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trouble.time, "sleep", lambda seconds: None)
    with Store.open(str(path), write=True, busy_timeout_s=0.05) as store:
        store.add_study(study_record())
        study = open_study(store)
        proposal = study.ask()
        begin(store, proposal)
        store.finish_run("study-1", proposal.number, result())
        with closing(sqlite3.connect(path, isolation_level=None)) as other:
            other.execute("BEGIN EXCLUSIVE")
            with pytest.raises(StoreError, match="is locked by another program"):
                study.tell(proposal.number, result())
            with pytest.raises(StoreError, match="is locked by another program"):
                study.ask()
        study.tell(proposal.number, result())
        assert [repair.action for repair in study.reconcile()] == []


def test_a_full_disk_while_telling_is_said_in_words_and_repaired_on_the_next_start(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened, proposals = database._opened, []

    def opened_on_a_full_disk(*arguments: Any) -> sqlite3.Connection:
        connection = opened(*arguments)
        connection.execute("PRAGMA max_page_count = 1")  # no more than there are
        return connection

    with Store.open(str(path), write=True) as store:
        store.add_study(study_record())
        do_trial(store, open_study(store))
    with monkeypatch.context() as full:
        full.setattr(database, "_opened", opened_on_a_full_disk)
        with Store.open(str(path), write=True) as store:
            study = open_study(store)
            with pytest.raises(StoreError, match="the disk is full"):
                proposals.extend(do_trial(store, study) for _ in range(200))
    with Store.open(str(path), write=True) as store:
        repaired = open_study(store)
        repaired.reconcile()
        assert repaired.measured_count() >= len(proposals) + 1
        do_trial(store, repaired)
