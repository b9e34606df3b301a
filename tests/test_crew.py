"""Who lives and whose turn it is: locks of a real PostgreSQL server; and how others' trials are taken."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from postgres_server import PostgresServer
from processes import wait_for
from sqlalchemy import Engine, create_engine
from study_samples import LIMITS, result, run, small_space, study_record

from offtune import database
from offtune.crew import Alone, ServerCrew
from offtune.errors import StoreError
from offtune.lock import Owner, current_owner
from offtune.store import Store
from offtune.study import Study
from offtune.trial import Status


@pytest.fixture
def engine(postgres: str) -> Iterator[Engine]:
    engine = create_engine(postgres, pool_pre_ping=True)
    yield engine
    engine.dispose()


def stranger(host: str = "elsewhere") -> Owner:
    return Owner(pid=77, hostname=host, boot_id="b", start_time=12.345678)


def crew_of(engine: Engine, owner: Owner, **more: float) -> ServerCrew:
    """A crew that believes to be another process."""
    crew = ServerCrew(engine, **more)
    crew.owner = owner
    crew._key = ServerCrew.key_of(owner)
    return crew


def test_a_worker_is_alive_while_its_connection_stands(engine: Engine):
    with ServerCrew(engine, grace_s=0) as crew:
        with crew_of(engine, stranger()) as other:
            assert crew.is_alive(stranger())
            assert other.is_alive(crew.owner)
            assert crew.is_alive(replace(stranger(), devices=("GPU-1",)))
            assert crew.others() == other.others() == 1
        assert not crew.is_alive(stranger())
        assert crew.others() == 0
        assert crew.is_alive(crew.owner)


def test_a_lost_worker_of_another_host_has_some_time_to_come_back(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
):
    clock = SimpleNamespace(now_s=0.0)
    monkeypatch.setattr("offtune.crew.time", SimpleNamespace(monotonic=lambda: clock.now_s))
    with ServerCrew(engine, grace_s=30) as crew:
        assert crew.is_alive(stranger())
        clock.now_s = 29.0
        assert crew.is_alive(stranger())
        clock.now_s = 31.0
        assert not crew.is_alive(stranger())
        with crew_of(engine, stranger()):
            assert crew.is_alive(stranger())
        assert crew.is_alive(stranger()), "its time starts anew"


def test_a_dead_process_of_this_machine_needs_no_waiting(engine: Engine):
    gone = replace(current_owner(), pid=2**22 + 1)
    with ServerCrew(engine, grace_s=1000) as crew:
        assert not crew.is_alive(gone)


def test_a_worker_is_back_after_the_server_was_restarted(postgres_server: PostgresServer, engine: Engine):
    if postgres_server.folder is None:
        pytest.skip("the server of OFFTUNE_TEST_POSTGRES is not ours to restart")
    with ServerCrew(engine, grace_s=0) as crew, crew_of(engine, stranger(), ping_s=0.05) as other:
        postgres_server.stop()
        postgres_server.start()
        wait_for(lambda: crew.is_alive(other.owner))
        with crew.turn():
            pass


def test_a_turn_is_one_workers_alone(engine: Engine):
    inside, overlaps = [], []

    def work() -> None:
        for _ in range(10):
            with ServerCrew(engine).turn():
                overlaps.extend(inside)
                inside.append(1)
                time.sleep(0.002)
                inside.clear()

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert overlaps == []


def test_a_lock_somebody_else_has_is_refused_after_the_wait(engine: Engine):
    with database.server_lock(engine, "x", "Study 'x'"):
        started = time.monotonic()
        with pytest.raises(StoreError, match="Study 'x' is being worked on"), ExitStack() as stack:
            stack.enter_context(database.server_lock(engine, "x", "Study 'x'", wait_s=0.2))
        assert time.monotonic() - started >= 0.2
    with database.server_lock(engine, "x", "Study 'x'"):
        pass


def test_a_server_that_is_away_is_waited_for_then_named_without_password(tmp_path: Path):
    away = create_engine(f"postgresql+psycopg://me:secret@/x?host={tmp_path}")
    started = time.monotonic()
    with pytest.raises(StoreError) as refusal, database.server_lock(away, "x", "Study 'x'", wait_s=1.5):
        pass
    assert time.monotonic() - started >= 1.5
    assert "secret" not in refusal.value.message


class Others(Alone):
    """A crew in which whoever is named lives."""

    shared = True

    def __init__(self, *living: Owner) -> None:
        super().__init__()
        self.living = living

    def is_alive(self, owner: Owner) -> bool:
        return owner in self.living


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store.open(str(tmp_path / "studies.db"), write=True) as store:
        store.add_study(study_record())
        yield store


@pytest.fixture
def study(store: Store) -> Study:
    return Study(store, "study-1", small_space(), limits=LIMITS, seed=7)


def begin(store: Store, study: Study, owner: Owner, **more: object) -> int:
    proposal = study.ask()
    fields = {"point": proposal.point, "origin": proposal.origin, "label": proposal.label}
    store.add_run(run(proposal.number, owner=owner, **{**fields, **more}))
    return proposal.number


def test_trials_of_the_living_are_left_alone_and_those_of_the_dead_tried_again(store: Store, study: Study):
    living, dead = stranger("living"), stranger("dead")
    first, second = begin(store, study, living), begin(store, study, dead)
    repairs = study.reconcile(Others(living))
    assert [(repair.number, repair.action, repair.again) for repair in repairs] == [
        (second, "interrupted", True)
    ]
    assert store.run("study-1", first).status is None
    assert study.reconcile(Others(living)) == []


def test_a_point_asked_for_by_a_dead_worker_is_dropped_whoever_else_lives(store: Store, study: Study):
    living = stranger("living")
    begin(store, study, living)
    asked = study.ask().number
    assert [(repair.number, repair.action) for repair in study.reconcile(Others(living))] == [
        (asked, "dropped")
    ]


def test_two_workers_are_never_given_the_same_random_point(store: Store, study: Study):
    numbers = [begin(store, study, stranger(str(index))) for index in range(8)]
    points = [str(store.run("study-1", number).point) for number in numbers]
    assert len(set(points)) > 6  # the space is small; with one seed for all there would be a single point


def twins(store: Store, study: Study, owner: Owner) -> tuple[int, int]:
    """A running trial, and a point with the same effective ds_config that waits for it."""
    study.enqueue({"placement": "zero2"}, "baseline", "first")
    study.enqueue({"placement": "zero3"}, "baseline", "second")
    first = begin(store, study, owner)
    proposal = study.ask()
    fields = {"point": proposal.point, "origin": proposal.origin, "label": proposal.label}
    study.wait_for_twin(run(proposal.number, reuse_of=first, **fields))
    return first, proposal.number


def test_a_twin_waits_for_the_result_and_takes_it(store: Store, study: Study):
    living = stranger()
    first, waiting = twins(store, study, living)
    assert study.reconcile(Others(living)) == []
    assert store.run("study-1", waiting).status is None
    store.finish_run("study-1", first, result(speed=5))
    study.tell(first, result(speed=5))
    assert study.reconcile(Others(living)) == []
    twin = store.run("study-1", waiting)
    assert (twin.status, twin.reuse_of, twin.label) == (Status.OK, first, "second")
    assert study.measured_count() == 1
    assert study.reconcile(Others(living)) == []


def test_a_twin_is_tried_again_when_the_trial_it_waits_for_dies(store: Store, study: Study):
    first, waiting = twins(store, study, stranger())
    repairs = study.reconcile(Others())
    assert [(repair.number, repair.again) for repair in repairs] == [(first, True), (waiting, True)]
    labels = [study.ask().label, study.ask().label]
    assert labels == ["first", "second"]


def test_a_study_in_a_file_still_has_one_worker(store: Store, tmp_path: Path):
    with (
        store.lock("study-1") as crew,
        closing(Store.open(str(tmp_path / "studies.db"), write=True)) as second,
    ):
        assert not crew.shared
        with pytest.raises(StoreError, match="is being worked on by process"), second.lock("study-1"):
            pass
