"""The command line as a person uses it: search, kill, resume, show, export; real trainings throughout."""

import json
import signal
import subprocess
import sys
from collections.abc import Iterable
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import Any

import psutil
import pytest
from processes import PATIENCE_S, kill_all, stop_when

from offtune import scratch
from offtune.store import Store

pytestmark = pytest.mark.train

OFFTUNE = (sys.executable, "-m", "offtune")
STATUSES = {
    "ok", "over_budget", "invalid", "oom_gpu", "oom_host", "timeout", "diverged", "crashed", "interrupted",
}  # fmt: skip
QUICK = ("--no-finals", "--steps", "2", "--warmup-steps", "1", "--seq-len", "64", "--global-batch", "4")


@pytest.fixture
def offtune(tmp_path):
    """Run offtune in a folder of its own; returns the finished process."""

    def run(*arguments: str, timeout: float = 900) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*OFFTUNE, *arguments], cwd=tmp_path, capture_output=True, text=True, timeout=timeout, check=False
        )

    return run


@pytest.fixture
def start(tmp_path):
    """Start offtune in the background, in a process group of its own."""
    started: list[subprocess.Popen[bytes]] = []

    def run(*arguments: str) -> subprocess.Popen[bytes]:
        with (tmp_path / "stderr.log").open("ab") as log:
            process = subprocess.Popen(
                [*OFFTUNE, *arguments],
                cwd=tmp_path,
                stderr=log,
                stdout=subprocess.PIPE,
                # A shell's background job ignores Ctrl-C, and so would all it starts: also in CI.
                preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
            )
        started.append(process)
        return process

    yield run
    for process in started:
        if process.poll() is None:
            process.kill()
        process.wait()


def runs_of(folder: Path, study: str = "study-1") -> list[Any]:
    with Store.open(str(folder / "studies.db"), write=False) as store:
        return store.runs(study)


def assert_no_leftovers(runs: Iterable[Any]) -> None:
    """Nothing of these trials is left in shared memory or in the temporary folder."""
    for run in runs:
        assert run.trial_dir is None or not Path(run.trial_dir).exists()
        assert not run.token or scratch.shm_files(run.token) == []


def trial_under_way(folder: Path, at_least_finished: int):
    """A condition: so many trials are finished and another one is running."""

    def look() -> Any:
        if not (folder / "studies.db").exists():
            return None
        try:
            runs = runs_of(folder)
        except Exception:  # noqa: BLE001 the database is being made
            return None
        finished = [run for run in runs if run.status is not None]
        running = [run for run in runs if run.status is None]
        return running if len(finished) >= at_least_finished and running else None

    return look


def test_search_show_list_and_export_from_end_to_end(offtune, tmp_path):
    done = offtune("search", "--budget", "2GB", "--trials", "12", "--json", "--seed", "3", "--no-finals")
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    check_document(document, trials=12)
    assert "CPU accelerator" in done.stderr
    check_listing(offtune, document)
    check_export(offtune, tmp_path, document)
    check_other_budget(offtune, document)


def check_document(document: dict[str, Any], trials: int) -> None:
    assert document["schema"] == "offtune.study/1"
    assert document["budget_bytes"] == 2 * 10**9
    best = document["best"]
    assert best["used_device_bytes"] <= document["budget_bytes"]
    assert best["ds_config"]["train_batch_size"] == 8
    assert {"trial", "samples_per_s", "tokens_per_s", "used_host_bytes"} <= set(best)
    assert document["measured"] == trials
    assert {trial["status"] for trial in document["trials"]} <= STATUSES
    for trial in document["trials"]:
        assert {"number", "samples_per_s", "point", "effective_ratio", "seconds"} <= set(trial)
        if trial["status"] == "ok":
            assert trial["used_device_bytes"] <= document["budget_bytes"]
    assert best["trial"] == fastest(document["trials"])
    assert [baseline["label"] for baseline in document["baselines"]][:2] == [
        "stage 2",
        "stage 2 + optimizer offload",
    ]


def fastest(trials: Iterable[dict[str, Any]]) -> int:
    """The number of the fastest; one whose steps drifted, as on a busy machine, only where all did."""
    trained = [trial for trial in trials if trial["status"] == "ok" and trial["reuse_of"] is None]
    steady = [trial for trial in trained if not trial["unsafe"]] or trained
    number: int = max(steady, key=lambda trial: trial["samples_per_s"])["number"]
    return number


def check_listing(offtune, document: dict[str, Any]) -> None:
    listed = json.loads(offtune("list", "--json").stdout)
    assert [study["study"] for study in listed["studies"]] == [document["study"]]
    shown = json.loads(offtune("show", "--json").stdout)
    assert shown["best"] == document["best"]
    assert shown["trials"] == document["trials"]
    page = offtune("show", document["study"], "--trial", str(document["best"]["trial"]))
    assert page.returncode == 0
    assert "zero_optimization" in page.stdout


def check_export(offtune, folder: Path, document: dict[str, Any]) -> None:
    done = offtune("export", "-o", "ds_config.json", "--verify", "--json")
    assert done.returncode == 0, done.stderr
    exported = json.loads((folder / "ds_config.json").read_text())
    assert "auto" not in json.dumps(exported)
    assert exported["zero_optimization"] == document["best"]["ds_config"]["zero_optimization"]
    verification = json.loads(done.stdout)["verification"]
    assert verification["status"] == "ok"
    assert verification["device_memory_ratio"] == pytest.approx(1.0, abs=0.3)
    # How fast it is now is the machine's affair; that the two are held against each other is ours.
    now, then = verification["samples_per_s"], document["best"]["samples_per_s"]
    assert verification["throughput_ratio"] == pytest.approx(now / then) and now > 0
    again = offtune("export", "-o", "ds_config.json")
    assert again.returncode == 2
    assert "--force" in again.stderr
    assert offtune("export", "-o", "ds_config.json", "--force").returncode == 0


def check_other_budget(offtune, document: dict[str, Any]) -> None:
    """Under what some of the trials used, the fastest of these is exported, whichever that is."""
    trained = [trial for trial in document["trials"] if trial["status"] == "ok"]
    budget = sorted(trial["used_device_bytes"] for trial in trained)[len(trained) // 2]
    done = offtune("export", "--budget", f"{budget}B", "--json")
    assert done.returncode == 0, done.stderr
    fitting = [trial for trial in trained if trial["used_device_bytes"] <= budget]
    assert json.loads(done.stdout)["trial"] == fastest(fitting)
    assert offtune("export", "--budget", "1MB").returncode == 3


def test_a_budget_nothing_fits_ends_with_3_the_nearest_miss_and_what_would_help(offtune):
    done = offtune("search", "--budget", "20MB", "--trials", "3", "--space", "ladder", "--json", *QUICK)
    assert done.returncode == 3, done.stderr
    document = json.loads(done.stdout)
    assert document["best"] is None
    assert {trial["status"] for trial in document["trials"]} == {"over_budget"}
    assert document["nearest_miss"]["device_over_bytes"] > 0
    assert "bytes) too much device memory" in done.stderr
    assert "--budget" in done.stderr


def test_two_ranks_with_nvme_search_the_ladder(offtune, tmp_path):
    swap = tmp_path / "nvme"
    swap.mkdir()
    done = offtune(
        "search", "--budget", "2GB", "--gpus", "2", "--nvme-path", str(swap), "--space", "nvme",
        "--trials", "8", "--sampler", "random", "--json", *QUICK,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    placements = {trial["point"]["placement"] for trial in document["trials"]}
    assert any("nvme" in placement for placement in placements), placements
    assert {trial["status"] for trial in document["trials"]} == {"ok"}, done.stderr
    assert list(swap.iterdir()) == []
    assert_no_leftovers(runs_of(tmp_path))


@pytest.mark.parametrize("victim", ["parent", "all"])
def test_kill_9_in_the_middle_of_a_trial_then_resume_finishes_the_same_study(
    offtune, start, tmp_path, victim
):
    search = start("search", "--budget", "2GB", "--trials", "5", "--space", "ladder", *QUICK)
    stop_when(search, trial_under_way(tmp_path, at_least_finished=2))
    before = [run for run in runs_of(tmp_path) if run.status is not None]
    family = psutil.Process(search.pid).children(recursive=True)
    kill_all([*(family if victim == "all" else []), psutil.Process(search.pid)])
    search.wait()
    _, alive = psutil.wait_procs(family, timeout=PATIENCE_S)
    assert alive == [], "the trial's processes must not outlive offtune"
    done = offtune("resume", "--json")
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert document["study"] == "study-1"
    assert document["measured"] == document["target_trials"] == 5
    after = {run.number: run for run in runs_of(tmp_path)}
    assert [after[run.number] for run in before] == before
    assert_no_leftovers(after.values())


def test_ctrl_c_keeps_the_study_prints_the_resume_command_and_ends_with_130(offtune, start, tmp_path):
    search = start("search", "--budget", "2GB", "--trials", "4", "--space", "ladder", *QUICK)
    stop_when(search, trial_under_way(tmp_path, at_least_finished=1))
    search.send_signal(signal.SIGINT)
    search.send_signal(signal.SIGCONT)
    assert search.wait(timeout=PATIENCE_S) == 130
    assert "offtune resume study-1" in (tmp_path / "stderr.log").read_text()
    assert "Traceback" not in (tmp_path / "stderr.log").read_text()
    assert all(run.status is not None for run in runs_of(tmp_path))
    busy = offtune("resume", "study-1", "--json")
    assert busy.returncode == 0, busy.stderr
    assert json.loads(busy.stdout)["measured"] == 4


def test_a_second_offtune_on_the_same_study_is_refused_by_name(offtune, start, tmp_path):
    search = start("search", "--budget", "2GB", "--trials", "4", "--space", "ladder", *QUICK)
    stop_when(search, trial_under_way(tmp_path, at_least_finished=1))
    second = offtune("resume", "study-1")
    search.send_signal(signal.SIGCONT)
    assert second.returncode == 1
    assert f"process {search.pid}" in second.stderr
    assert "Traceback" not in second.stderr
    assert search.wait(timeout=PATIENCE_S) == 0


def test_time_is_up_after_the_trial_under_way(offtune, tmp_path):
    """However many trials that are: the last began before the time was up, and came to its end."""
    limit_s = 4
    done = offtune(
        "search", "--budget", "2GB", "--time", f"{limit_s}s", "--space", "ladder", "--json", *QUICK
    )
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert document["ended"]["kind"] == "time"
    assert {trial["status"] for trial in document["trials"]} == {"ok"}
    began = [datetime.fromisoformat(run.started_at) for run in runs_of(tmp_path)]
    assert (began[-1] - began[0]).total_seconds() < limit_s


def test_a_trial_timeout_is_a_status_not_an_end(offtune):
    done = offtune(
        "search",
        "--budget",
        "2GB",
        "--trials",
        "1",
        "--trial-timeout",
        "0.2s",
        "--space",
        "ladder",
        "--json",
        *QUICK,
    )
    assert done.returncode == 3
    assert [trial["status"] for trial in json.loads(done.stdout)["trials"]] == ["timeout"]


def test_resume_refuses_another_budget_and_other_versions_and_says_which(offtune, tmp_path):
    done = offtune("search", "--budget", "2GB", "--trials", "1", "--space", "ladder", *QUICK)
    assert done.returncode == 0, done.stderr
    other = offtune("resume", "--budget", "1GB")
    assert other.returncode == 2
    assert "budget" in other.stderr
    _pretend_older_torch(tmp_path / "studies.db")
    older = offtune("resume")
    assert older.returncode == 2
    assert "version of torch: 1.0.0 then" in older.stderr
    assert offtune("resume", "--anyway", "--trials", "2").returncode == 0


def _pretend_older_torch(path: Path) -> None:
    import sqlite3

    with sqlite3.connect(path) as connection:
        (text,) = connection.execute("SELECT settings FROM offtune_studies").fetchone()
        settings = json.loads(text)
        settings["versions"]["torch"] = "1.0.0"
        connection.execute("UPDATE offtune_studies SET settings = ?", (json.dumps(settings),))
    connection.close()


def test_a_dry_run_resolves_everything_and_runs_nothing(offtune, tmp_path):
    done = offtune("search", "--budget", "2GB", "--dry-run", "--json")
    assert done.returncode == 0, done.stderr
    plan = json.loads(done.stdout)
    assert plan["settings"]["limit_bytes"] == 2 * 10**9
    assert plan["space"]["points"] > 1000
    assert not (tmp_path / "studies.db").exists()
    page = offtune("search", "--budget", "2GB", "--dry-run", "--headroom", "5%")
    assert "placement" in page.stdout


@pytest.fixture
def disk(tmp_path):
    """A file system of its own, small enough to be filled."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=50m", "tmpfs", str(folder)]
    if subprocess.run(mount, capture_output=True, check=False).returncode != 0:
        pytest.skip("mounting a small disk needs root")
    yield folder
    # Lazily: of a test that failed, the search may still be there.
    subprocess.run(["umount", "-l", str(folder)], check=True)


def test_a_full_disk_is_one_message_and_no_finished_trial_is_lost(offtune, start, disk, tmp_path):
    storage = ("--storage", str(disk / "studies.db"))
    search = start("search", "--budget", "2GB", "--trials", "40", "--space", "ladder", *storage, *QUICK)
    stop_when(search, trial_under_way(disk, at_least_finished=1))
    fill(disk / "ballast")
    search.send_signal(signal.SIGCONT)
    assert search.wait(timeout=900) == 1
    said = (tmp_path / "stderr.log").read_text()
    assert "Traceback" not in said
    assert "full" in said
    (disk / "ballast").unlink()
    finished = [run for run in runs_of(disk) if run.status is not None]
    assert finished
    target = str(len(finished) + 2)
    again = offtune("resume", "--trials", target, *storage, "--json")
    assert again.returncode == 0, again.stderr
    assert json.loads(again.stdout)["measured"] == int(target)
    after = {run.number: run for run in runs_of(disk)}
    assert [after[run.number].result for run in finished] == [run.result for run in finished]


def fill(path: Path) -> None:
    """Take all the room there is on the file system of this file."""
    with suppress(OSError), path.open("wb", buffering=0) as file:  # ENOSPC
        while True:
            file.write(bytes(4096))
