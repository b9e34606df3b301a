"""Several workers on one study of a real PostgreSQL server; trainings are made up, processes are not."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import optuna
import pytest
from postgres_server import PostgresServer
from processes import PATIENCE_S, wait_for

from offtune.records import Run, is_measured
from offtune.store import Store
from offtune.trial import Status, TrialResult

HERE = Path(__file__).parent
Span = tuple[float, float]
Start = Callable[..., "subprocess.Popen[str]"]
Together = Callable[..., "list[subprocess.Popen[str]]"]


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "trials.jsonl"


@pytest.fixture
def start(postgres: str, log: Path) -> Iterator[Start]:
    """Starts a worker on the study; a host name of its own makes it a machine of its own."""
    started: list[subprocess.Popen[str]] = []

    def go(host: str, *, target: int = 12, trial_s: float = 0.2, **more: Any) -> subprocess.Popen[str]:
        release = str(log.with_name("release"))
        settings = {"host": host, "target": target, "trial_s": trial_s, "log": str(log), "release": release}
        settings |= more
        paths = os.pathsep.join([str(HERE.parent), str(HERE), os.environ.get("PYTHONPATH", "")])
        process = subprocess.Popen(
            [sys.executable, str(HERE / "study_worker.py"), postgres, json.dumps(settings)],
            env={**os.environ, "PYTHONPATH": paths},
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        started.append(process)
        return process

    yield go
    for process in started:
        process.kill()
        process.communicate()


@pytest.fixture
def together(tmp_path: Path, start: Start) -> Together:
    """Starts workers on several hosts that begin at the same moment, however long each took to load."""
    gate = tmp_path / "gate"
    gate.mkdir()

    def go(*hosts: str, **more: Any) -> list[subprocess.Popen[str]]:
        return [start(host, gate=str(gate), party=len(hosts), **more) for host in hosts]

    return go


def finish(*workers: subprocess.Popen[str], timeout_s: float = PATIENCE_S) -> list[str]:
    """Wait for the workers; what each said last."""
    said = []
    for worker in workers:
        output, errors = worker.communicate(timeout=timeout_s)
        assert worker.returncode == 0, errors
        said.append(output.strip())
    return said


def trained(log: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in log.read_text().splitlines()] if log.exists() else []


def runs_of(url: str) -> list[Run]:
    with Store.open(url, write=False) as store:
        return store.runs("study-1")


def assert_nothing_left(url: str) -> None:
    assert all(run.status is not None for run in runs_of(url))
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    study = optuna.load_study(study_name="study-1", storage=url)
    states = {trial.state.name for trial in study.trials}
    assert "RUNNING" not in states, states


def intervals(log: Path) -> list[Span]:
    """Start and end of every trial that ended, in seconds."""
    times: dict[tuple[int, int], dict[str, float]] = {}
    for line in trained(log):
        times.setdefault((line["pid"], line["number"]), {})[line["event"]] = line["at"]
    return sorted((each["start"], each["end"]) for each in times.values() if "end" in each)


def test_two_machines_reach_one_target_and_no_trial_is_run_twice(
    postgres: str, log: Path, together: Together
):
    said = finish(*together("one", "two"))
    assert said == ["12 trials measured, as asked."] * 2
    starts = [line for line in trained(log) if line["event"] == "start"]
    numbers = [line["number"] for line in starts]
    assert len(numbers) == len(set(numbers)) == 12
    assert {line["host"] for line in starts} == {"one", "two"}
    runs = runs_of(postgres)
    measured = [run for run in runs if is_measured(run)]
    assert sorted(run.number for run in measured) == sorted(numbers)
    assert len({run.fingerprint for run in measured}) == len(measured), "a configuration was measured twice"
    baselines = [run for run in runs if run.origin == "baseline"]
    assert sorted(run.label for run in baselines) == ["stage 2", "stage 3"]
    assert_nothing_left(postgres)


def test_machines_of_their_own_train_side_by_side(log: Path, start: Start):
    workers = start("one", target=2, hold=1), start("two", target=2, hold=1)
    wait_for(lambda: len(trained(log)) == 2)
    assert intervals(log) == [], "both train, and neither has ended"
    log.with_name("release").touch()
    finish(*workers)


def test_workers_on_the_processors_of_one_host_take_turns(log: Path, together: Together):
    finish(*together("same", "same", target=8))
    spans = intervals(log)
    assert len(spans) == 8
    assert all(later[0] >= earlier[1] for earlier, later in pairwise(spans))
    assert len({line["pid"] for line in trained(log)}) == 2, "one of them never got a turn"


def test_the_trial_of_a_killed_worker_is_taken_over(postgres: str, log: Path, start: Start):
    victim = start("real", hold=1, pretend=False)
    wait_for(lambda: trained(log))
    survivor = start("real", target=4, pretend=False)
    victim.kill()
    victim.wait()
    assert finish(survivor) == ["4 trials measured, as asked."]
    runs = runs_of(postgres)
    assert runs[0].status is Status.INTERRUPTED
    retries = [run for run in runs if run.point == runs[0].point and is_measured(run)]
    assert [(run.origin, run.label) for run in retries] == [("retry", "stage 2")]
    assert sum(is_measured(run) for run in runs) == 4
    assert_nothing_left(postgres)


def test_a_result_that_was_taken_over_is_not_kept_and_the_worker_goes_on(
    postgres: str, log: Path, start: Start
):
    worker = start("one", target=2, hold=1)
    (first,) = wait_for(lambda: trained(log))
    lost = TrialResult(status=Status.INTERRUPTED, reason="taken over by a test")
    with Store.open(postgres, write=True) as store:
        store.finish_run("study-1", first["number"], lost)
    log.with_name("release").touch()
    assert finish(worker) == ["2 trials measured, as asked."]
    runs = runs_of(postgres)
    assert runs[0].result == lost
    assert sum(is_measured(run) for run in runs) == 2
    assert_nothing_left(postgres)


def test_a_restart_of_the_server_costs_no_trial(
    postgres_server: PostgresServer, postgres: str, log: Path, start: Start
):
    if postgres_server.folder is None:
        pytest.skip("the server of OFFTUNE_TEST_POSTGRES is not ours to restart")
    workers = start("one", target=4, hold=1), start("two", target=4, hold=1)
    wait_for(lambda: len(trained(log)) == 2)
    postgres_server.stop()
    time.sleep(1)
    postgres_server.start()
    log.with_name("release").touch()
    assert finish(*workers) == ["4 trials measured, as asked."] * 2
    assert len([run for run in runs_of(postgres) if run.status is Status.INTERRUPTED]) == 0
    assert_nothing_left(postgres)


def test_the_last_trial_is_waited_for_and_taken_over(
    postgres: str, log: Path, start: Start, together: Together
):
    victim = start("real", target=2, hold=2, pretend=False)
    wait_for(lambda: len(trained(log)) == 3)  # the second trial, which is the last, has begun
    (waiting,) = together("other", target=2)
    wait_for(lambda: list(log.with_name("gate").iterdir()))
    survivor = start("real", target=2, pretend=False)
    victim.kill()
    victim.wait()
    assert finish(survivor, waiting) == ["2 trials measured, as asked."] * 2
    assert sum(is_measured(run) for run in runs_of(postgres)) == 2
    assert_nothing_left(postgres)
