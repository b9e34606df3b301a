"""The loss check in real searches: trainings that DeepSpeed carries out without complaint, and wrongly."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from offtune import session
from offtune.config import Options
from offtune.records import Limits, Run, StudyRecord
from offtune.report.summary import Summary
from offtune.runner import TrialRunner
from offtune.store import Store
from offtune.trial import DsConfig, Status, TrialResult, TrialSpec

pytestmark = pytest.mark.train


class Silent:
    """A progress nobody watches; keeps the notes."""

    def __init__(self) -> None:
        self.notes: list[str] = []

    def start(self, study: StudyRecord, limits: Limits, *, notes: Iterable[str] = (), **_: Any) -> None:
        self.notes += notes

    def begin(self, run: Run) -> None: ...

    def trial(self, run: Run, best: Run | None, **_: Any) -> None: ...

    def note(self, text: str) -> None: ...


@pytest.fixture
def search(tmp_path: Path) -> Callable[..., Summary]:
    def run(progress: Silent, **changes: Any) -> Summary:
        few = Options(
            budget="2GB",
            device="cpu",
            space="ladder",
            seq_len=64,
            global_batch=4,
            steps=5,
            trials=5,
            finals=False,
        )
        return session.start(replace(few, **changes), str(tmp_path / "studies.db"), "study-1", progress)

    return run


@pytest.fixture
def break_trials(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[int, DsConfig], None]], None]:
    """Have every trial's ds_config changed behind the search's back, by the trial's number."""
    honest = TrialRunner.__call__

    def install(change: Callable[[int, DsConfig], None]) -> None:
        def run(self: TrialRunner, spec: TrialSpec) -> TrialResult:
            change(spec.number, spec.ds_config)
            return honest(self, spec)

        monkeypatch.setattr(TrialRunner, "__call__", run)

    return install


def no_updates(ds_config: DsConfig) -> None:
    ds_config["optimizer"]["params"]["lr"] = 0.0


def slow_updates(ds_config: DsConfig) -> None:
    ds_config["optimizer"]["params"]["lr"] *= 0.9


def rounded_updates(ds_config: DsConfig) -> None:
    """Master weights in bf16: updates smaller than half a unit in the last place are lost."""
    ds_config["bf16"]["bf16_master_weights_and_grads"] = True


BROKEN = {1: no_updates, 3: rounded_updates, 4: slow_updates}


def test_a_search_never_returns_a_training_that_departs_from_the_baseline(
    search, break_trials, tmp_path
) -> None:
    break_trials(lambda number, ds_config: BROKEN.get(number, lambda _: None)(ds_config))
    summary = search(Silent())
    runs = {run.number: run for run in summary.runs}
    assert [run.label for run in summary.runs][3:] == ["stage 3 + optimizer offload", "stage 3 + both"]
    assert {number: run.status for number, run in runs.items()} == {
        number: Status.DIVERGED if number in BROKEN else Status.OK for number in range(5)
    }, [(run.number, run.result and run.result.reason) for run in summary.runs]
    assert summary.best is not None and summary.best.number in (0, 2)
    for number in BROKEN:
        check = runs[number].result.loss_check
        assert "that of trial 0" in runs[number].result.reason
        assert 2 <= check.departure_step <= 4
        assert abs(check.departure_nat) > check.tolerance_nat
    both = curves(tmp_path / "studies.db", number=1)
    assert both["reference_losses"][0] == pytest.approx(both["warmup_losses"][0], abs=1e-3)
    assert both["losses"][-1] - both["reference_losses"][-1] > 0.1


def curves(path: Path, number: int) -> dict[str, list[float]]:
    with sqlite3.connect(path) as connection:
        rows = connection.execute("SELECT key, points FROM series WHERE number = ?", (number,)).fetchall()
    connection.close()
    return {key: json.loads(points) for key, points in rows}


def test_a_space_that_changes_training_is_noted_and_not_judged(search, break_trials, tmp_path) -> None:
    break_trials(lambda number, ds_config: rounded_updates(ds_config) if number == 1 else None)
    progress = Silent()
    summary = search(progress, space="changes-training", trials=2)
    assert [run.status for run in summary.runs] == [Status.OK, Status.OK]
    check = summary.runs[1].result.loss_check
    assert check.verdict == "noted"
    assert "by design" in check.reason
    assert any("not judged" in note for note in progress.notes)


def test_the_check_can_be_switched_off(search, break_trials) -> None:
    break_trials(lambda number, ds_config: no_updates(ds_config) if number == 1 else None)
    progress = Silent()
    summary = search(progress, trials=2, loss_check=False)
    assert [run.status for run in summary.runs] == [Status.OK, Status.OK]
    assert any("--no-loss-check" in note for note in progress.notes)


def test_the_synthetic_data_can_be_learned_from_the_first_steps(search, tmp_path) -> None:
    """What makes the check see anything: a loss that moves by far more than it may."""
    search(Silent(), trials=1)
    with Store.open(str(tmp_path / "studies.db"), write=False) as store:
        result = store.run("study-1", 0).result
    curve = (*result.warmup_losses, *result.losses)
    assert len(curve) == 7
    assert curve[0] - curve[-1] > 0.2
