"""Two `offtune resume` on one study of a PostgreSQL server, training for real; one of them is killed."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path

import psutil
import pytest
from processes import PATIENCE_S, stop_when, wait_for

from offtune import scratch
from offtune.errors import OfftuneError
from offtune.records import Run, is_measured
from offtune.store import Store
from offtune.trial import Status

pytestmark = pytest.mark.train

OFFTUNE = (sys.executable, "-m", "offtune")
QUICK = ("--no-finals", "--steps", "2", "--warmup-steps", "1", "--seq-len", "64", "--global-batch", "4")
TARGET = 7
Start = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def start(tmp_path: Path, postgres: str) -> Iterator[Start]:
    """Start offtune on the server's study; its talk goes to a file of its own, NAME.log."""
    started: list[subprocess.Popen[str]] = []

    def go(name: str, *arguments: str) -> subprocess.Popen[str]:
        with (tmp_path / f"{name}.log").open("w") as talk:
            process = subprocess.Popen(
                [*OFFTUNE, *arguments, "--storage", postgres],
                cwd=tmp_path, stderr=talk, stdout=subprocess.PIPE, text=True,
            )  # fmt: skip
        started.append(process)
        return process

    yield go
    for process in started:
        process.kill()
        process.communicate()


def runs_of(url: str) -> list[Run]:
    try:
        with Store.open(url, write=False) as store:
            return store.runs("study-1")
    except OfftuneError:  # the database is being made
        return []


def under_way(url: str, pid: int) -> list[Run]:
    """The trial this process runs now; beyond its turn, for which the others would wait."""
    own = [run for run in runs_of(url) if run.status is None and run.owner and run.owner.pid == pid]
    return [run for run in own if run.trial_dir and is_training(Path(run.trial_dir))]


def is_training(trial_dir: Path) -> bool:
    return (trial_dir / "spec.json").exists() and not (trial_dir / "result.json").exists()


def test_two_resumes_share_a_study_and_one_of_them_is_killed(postgres: str, start: Start, tmp_path: Path):
    search = start("search", "search", "--budget", "2GB", "--trials", "1", *QUICK)
    assert search.wait(timeout=900) == 0, (tmp_path / "search.log").read_text()
    resume = ("resume", "study-1", "--trials", str(TARGET), "--json")
    second = start("second", *resume)
    stop_when(second, lambda: under_way(postgres, second.pid))  # or it had done all before the other began
    first = start("first", *resume)
    wait_for(lambda: "Other workers in this database: 1" in (tmp_path / "first.log").read_text())
    second.send_signal(signal.SIGCONT)
    (lost,) = stop_when(first, lambda: under_way(postgres, first.pid))
    family = psutil.Process(first.pid).children(recursive=True)
    first.kill()
    first.wait()
    _, alive = psutil.wait_procs(family, timeout=PATIENCE_S)
    assert alive == [], "a killed worker's trial must not outlive it"
    third = start("third", *resume)
    for name, worker in (("second", second), ("third", third)):
        output, _ = worker.communicate(timeout=900)
        talk = (tmp_path / f"{name}.log").read_text()
        assert worker.returncode == 0, talk
        assert json.loads(output)["measured"] == TARGET, talk
    check_runs(runs_of(postgres), lost)
    assert [file for run in runs_of(postgres) for file in scratch.shm_files(run.token)] == []
    assert [run.number for run in runs_of(postgres) if run.trial_dir and Path(run.trial_dir).exists()] == []


def check_runs(runs: list[Run], lost: Run) -> None:
    by_number = {run.number: run for run in runs}
    assert all(run.status is not None for run in runs)
    assert by_number[lost.number].status is Status.INTERRUPTED
    measured = [run for run in runs if is_measured(run)]
    assert len(measured) == TARGET
    assert {run.status for run in measured} == {Status.OK}
    fingerprints = [run.fingerprint for run in measured]
    assert len(set(fingerprints)) == TARGET, "a configuration was measured twice"
    assert lost.fingerprint in fingerprints, "the killed worker's trial was not taken over"
    spans = sorted((run.started_at, run.finished_at or "") for run in measured)
    for (_, end), (begin, _) in pairwise(spans):
        assert begin >= end, "two trials ran on the same processors at once"


def test_a_worker_on_a_machine_of_another_kind_is_refused(postgres: str, start: Start, tmp_path: Path):
    first = start("first", "search", "--budget", "2GB", "--trials", "1", "--space", "ladder", *QUICK)
    assert first.wait(timeout=900) == 0, (tmp_path / "first.log").read_text()
    with Store.open(postgres, write=True) as store, store._engine.begin() as connection:
        settings = json.loads(connection.exec_driver_sql("SELECT settings FROM offtune_studies").scalar_one())
        settings["machine"]["cores"] = "1000"
        connection.exec_driver_sql("UPDATE offtune_studies SET settings = %s", (json.dumps(settings),))
    other = start("other", "resume", "study-1", "--trials", "2")
    assert other.wait(timeout=PATIENCE_S) == 2
    assert "cores: 1000 then" in (tmp_path / "other.log").read_text()
