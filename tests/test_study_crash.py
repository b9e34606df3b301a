"""kill -9 at every moment of a trial, by a real process; then another opens the study and goes on."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import optuna
import psutil
import pytest
from study_samples import LIMITS, measure, result, run, small_space, study_record
from timeline_fakes import make_timeline

from offtune.errors import StoreError
from offtune.lock import Owner, current_owner
from offtune.recording import write_timeline
from offtune.records import Run
from offtune.sampling import Sampling
from offtune.store import Store
from offtune.study import RESULT_FILE, Proposal, Repair, Study
from offtune.trial import Status, dump


def die(*arguments: object, **options: object) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def live_until(moment: str, path: Path, origin: str) -> None:
    """One whole trial, then one that ends in the middle."""
    with reopened(path) as (store, study):
        store.add_study(study_record())
        queue_baselines(study, origin)
        finish_next(store, study)
        trial_dir = path.with_name("trial")
        trial_dir.mkdir()
        proposal = study.ask()
        die_at("asked", moment)
        store.add_run(begun(proposal, trial_dir=str(trial_dir), swap_dir="/swap", token="77"))
        die_at("started", moment)
        came = measure(proposal.point)
        write_timeline(trial_dir, make_timeline(steps=1))
        if moment in ("half a result", "result left"):
            text = dump(came)
            (trial_dir / RESULT_FILE).write_text(text if moment == "result left" else text[:-20])
            die()
        if moment in ("stopping", "stopped"):
            setattr(Sampling, "queue_again" if moment == "stopping" else "fail", die)
            study.abandon(proposal.number)
        store.finish_run("study-1", proposal.number, came)
        die_at("finished", moment)
        study.keep_recording(store.run("study-1", proposal.number), came)
        if moment == "telling":
            optuna.trial.Trial.set_constraint = die  # type: ignore[assignment]
        study.tell(proposal.number, came)
        die()


def die_at(this: str, moment: str) -> None:
    if this == moment:
        die()


def begun(proposal: Proposal, **more: Any) -> Run:
    return run(proposal.number, origin=proposal.origin, label=proposal.label, point=proposal.point, **more)


def queue_baselines(study: Study, origin: str) -> None:
    study.enqueue({"placement": "zero2"}, "baseline", "stage 2")
    if origin == "baseline":
        study.enqueue({"placement": "zero3"}, "baseline", "stage 3")


MOMENTS = {
    "asked": "dropped",
    "started": "interrupted",
    "half a result": "interrupted",
    "result left": "recovered",
    "stopping": "interrupted",
    "stopped": "interrupted",
    "finished": "told",
    "telling": "told",
    "told": None,
}


@contextmanager
def reopened(path: Path) -> Iterator[tuple[Store, Study]]:
    with Store.open(str(path), write=True) as store, store.lock("study-1"):
        yield store, Study(store, "study-1", small_space(), limits=LIMITS, seed=7)


def kill_at(path: Path, moment: str, origin: str) -> None:
    """Let a process of its own run until the moment, where it is killed."""
    pid = os.fork()
    if pid == 0:
        try:
            live_until(moment, path, origin)
        finally:
            os._exit(1)
    assert os.WTERMSIG(os.waitpid(pid, 0)[1]) == signal.SIGKILL


def finish_next(store: Store, study: Study) -> str:
    proposal = study.ask()
    came = measure(proposal.point)
    store.add_run(begun(proposal))
    store.finish_run("study-1", proposal.number, came)
    study.tell(proposal.number, came)
    return str(proposal.point)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[str]]:
    """The points of the same study when nobody is killed, by the origin of its second trial."""
    points = {}
    for origin in ("baseline", "search"):
        with reopened(tmp_path_factory.mktemp(origin) / "studies.db") as (store, study):
            store.add_study(study_record())
            queue_baselines(study, origin)
            points[origin] = [finish_next(store, study) for _ in range(4)]
    return points


@pytest.mark.parametrize("origin", ["baseline", "search"])
@pytest.mark.parametrize(("moment", "action"), MOMENTS.items())
def test_a_killed_study_goes_on_as_if_nothing_had_happened(
    tmp_path: Path, whole: dict[str, list[str]], moment: str, action: str | None, origin: str
) -> None:
    path = tmp_path / "studies.db"
    kill_at(path, moment, origin)
    with reopened(path) as (store, study):
        repairs = study.reconcile()
        assert [repair.action for repair in repairs] == ([action] if action else [])
        assert store.run("study-1", 0).result == measure(store.run("study-1", 0).point)  # untouched
        for repair in repairs:
            check_leftovers(repair, moment)
        check_recording(store, action)
        assert study.reconcile() == []
        while study.measured_count() < 4:
            finish_next(store, study)
        measured = [each for each in store.runs("study-1") if each.status is not Status.INTERRUPTED]
    assert [str(each.point) for each in measured] == whole[origin]
    assert [each.label for each in measured[:2]] == ["stage 2", "stage 3" if origin == "baseline" else ""]


def check_leftovers(repair: Repair, moment: str) -> None:
    if moment == "asked":
        assert repair.run is None
        return
    assert repair.run is not None
    assert (repair.run.swap_dir, repair.run.token) == ("/swap", "77")
    assert repair.again == (repair.action == "interrupted")


def check_recording(store: Store, action: str | None) -> None:
    """Of the second trial, the one that was killed: kept once where its result is."""
    kept = action in ("recovered", "told", None)
    assert store.timelines("study-1", 1) == ([make_timeline(steps=1)] if kept else [])


def test_every_trial_of_a_killed_study_has_an_end_for_optuna(tmp_path: Path) -> None:
    path = tmp_path / "studies.db"
    kill_at(path, "started", "search")
    with reopened(path) as (_, study):
        study.reconcile()
    states = [
        each.state.name
        for each in optuna.load_study(study_name="study-1", storage=f"sqlite:///{path}").trials
    ]
    assert states == ["COMPLETE", "FAIL", "WAITING"]


def test_a_point_that_brings_the_process_down_twice_is_given_up(tmp_path: Path) -> None:
    path = tmp_path / "studies.db"
    kill_at(path, "started", "search")
    with reopened(path) as (store, study):
        assert [repair.again for repair in study.reconcile()] == [True]
        bad = study.ask()
        assert bad.origin == "retry"
        store.add_run(run(bad.number, origin=bad.origin, point=bad.point))
    with reopened(path) as (store, study):
        assert [repair.again for repair in study.reconcile()] == [False]
        after = study.ask()
        assert after.origin == "search"
        assert after.point != bad.point


def test_a_study_whose_owner_lives_is_not_repaired(tmp_path: Path) -> None:
    path = tmp_path / "studies.db"
    sleeper = subprocess.Popen(["sleep", "60"])
    with reopened(path) as (store, study), sleeper:
        try:
            store.add_run(run(0))
            owner = owner_of(sleeper.pid)
            with store._engine.begin() as connection:
                connection.exec_driver_sql("UPDATE runs SET owner = ?", (dump(owner),))
            with pytest.raises(StoreError, match=f"worked on by process {sleeper.pid}"):
                study.reconcile()
            assert store.run("study-1", 0).status is None
        finally:
            sleeper.kill()


def owner_of(pid: int) -> Owner:
    return replace(current_owner(), pid=pid, start_time=psutil.Process(pid).create_time())


def test_a_left_result_that_was_interrupted_is_no_result(tmp_path: Path) -> None:
    path = tmp_path / "studies.db"
    (tmp_path / RESULT_FILE).write_text(dump(result(speed=None, status=Status.INTERRUPTED)))
    with reopened(path) as (store, study):
        proposal = study.ask()
        store.add_run(run(proposal.number, trial_dir=str(tmp_path)))
        assert [(repair.action, repair.again) for repair in study.reconcile()] == [("interrupted", True)]
