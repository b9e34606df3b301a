"""What the trials of other workers leave for this one to do."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from study_samples import result, run, study_record

from offtune import hardware
from offtune.config import Options, resolve
from offtune.crew import Alone
from offtune.devices import device_names
from offtune.hardware import Machine
from offtune.lock import Owner, current_owner
from offtune.outlook import Outlook, look
from offtune.store import Store

ELSEWHERE = Owner(pid=7, hostname="elsewhere", boot_id="b", start_time=1.0)


class Crowd(Alone):
    """A crew that may have others, all of whom live but the named ones."""

    shared = True

    def __init__(self, *dead: Owner) -> None:
        super().__init__()
        self.dead = dead

    def is_alive(self, owner: Owner) -> bool:
        return owner not in self.dead


@pytest.fixture
def machine() -> Machine:
    return hardware.detect()


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store.open(str(tmp_path / "studies.db"), write=True) as store:
        store.add_study(study_record())
        yield store


def seen(store: Store, machine: Machine, *dead: Owner, trials: int = 5) -> Outlook:
    config = resolve(Options(budget="2GB", device="cpu", trials=trials), machine)
    return look(store, Crowd(*dead), "study-1", config, machine)


def begin(store: Store, number: int, owner: Owner, **more: Any) -> None:
    store.add_run(run(number, owner=owner, **more))


def end(store: Store, number: int) -> None:
    store.finish_run("study-1", number, result())


def test_trials_elsewhere_do_not_hold_anybody_up(store: Store, machine: Machine):
    begin(store, 0, ELSEWHERE)
    view = seen(store, machine)
    assert (view.wait, view.note) == (False, "")
    assert [view.twin("study-1", "f0"), view.twin("study-1", "f9"), view.twin("other", "f0")] == [
        0,
        None,
        None,
    ]


def test_the_last_trials_of_others_are_waited_for(store: Store, machine: Machine):
    for number in range(2):
        begin(store, number, ELSEWHERE)
    assert not seen(store, machine, trials=3).wait
    view = seen(store, machine, trials=2)
    assert view.wait and "last trials" in view.note


def test_a_target_reached_while_waiting_for_the_turn_starts_nothing(store: Store, machine: Machine):
    begin(store, 0, ELSEWHERE)
    end(store, 0)
    view = seen(store, machine, trials=1)
    assert (view.wait, view.note) == (True, "")


def test_a_trial_of_any_study_that_has_the_device_is_waited_for(store: Store, machine: Machine):
    here = replace(current_owner(), devices=device_names(machine, "cpu", ()))
    store.add_study(study_record("study-2"))
    begin(store, 0, here, study="study-2")
    view = seen(store, machine)
    assert view.wait and "take turns" in view.note
    assert not seen(store, machine, here).wait, "its worker is dead"


def test_a_trial_beside_ours_is_said(store: Store, machine: Machine):
    begin(store, 0, replace(current_owner(), devices=("GPU-1",)))
    view = seen(store, machine)
    assert not view.wait and "runs on this host" in view.note


def test_a_worker_alone_looks_at_nobody(store: Store, machine: Machine):
    begin(store, 0, ELSEWHERE)
    config = resolve(Options(budget="2GB", device="cpu", trials=1), machine)
    assert look(store, Alone(), "study-1", config, machine) == Outlook()
