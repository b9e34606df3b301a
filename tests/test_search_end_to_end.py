"""The command line as a person uses it: search, kill, resume, show, export; real trainings throughout."""

import json
import signal
import subprocess
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import psutil
import pytest
from processes import kill_all

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

    def run(*arguments: str, timeout: float = 280) -> subprocess.CompletedProcess[str]:
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


def wait_for(condition, timeout_s: float = 120) -> Any:
    give_up = time.monotonic() + timeout_s
    while time.monotonic() < give_up:
        if found := condition():
            return found
        time.sleep(0.1)
    raise AssertionError("it did not happen in time")


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
    assert best["samples_per_s"] == max(t["samples_per_s"] for t in document["trials"] if t["status"] == "ok")
    assert [baseline["label"] for baseline in document["baselines"]][:2] == [
        "stage 2",
        "stage 2 + optimizer offload",
    ]


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
    assert verification["throughput_ratio"] > 0.2
    again = offtune("export", "-o", "ds_config.json")
    assert again.returncode == 2
    assert "--force" in again.stderr
    assert offtune("export", "-o", "ds_config.json", "--force").returncode == 0


def check_other_budget(offtune, document: dict[str, Any]) -> None:
    """The best trial under half the winner's memory more is another, or the same; never one above it."""
    used = sorted(trial["used_device_bytes"] for trial in document["trials"] if trial["status"] == "ok")
    done = offtune("export", "--budget", f"{used[2]}B", "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["used_device_bytes"] <= used[2]
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
    wait_for(trial_under_way(tmp_path, at_least_finished=2))
    before = [run for run in runs_of(tmp_path) if run.status is not None]
    family = psutil.Process(search.pid).children(recursive=True)
    kill_all([*(family if victim == "all" else []), psutil.Process(search.pid)])
    search.wait()
    _, alive = psutil.wait_procs(family, timeout=60)
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
    wait_for(trial_under_way(tmp_path, at_least_finished=1))
    search.send_signal(signal.SIGINT)
    assert search.wait(timeout=120) == 130
    assert "offtune resume study-1" in (tmp_path / "stderr.log").read_text()
    assert "Traceback" not in (tmp_path / "stderr.log").read_text()
    assert all(run.status is not None for run in runs_of(tmp_path))
    busy = offtune("resume", "study-1", "--json")
    assert busy.returncode == 0, busy.stderr
    assert json.loads(busy.stdout)["measured"] == 4


def test_a_second_offtune_on_the_same_study_is_refused_by_name(offtune, start, tmp_path):
    search = start("search", "--budget", "2GB", "--trials", "4", "--space", "ladder", *QUICK)
    wait_for(trial_under_way(tmp_path, at_least_finished=1))
    search.send_signal(signal.SIGSTOP)  # or it may have ended before the second one looks
    second = offtune("resume", "study-1")
    search.send_signal(signal.SIGCONT)
    assert second.returncode == 1
    assert f"process {search.pid}" in second.stderr
    assert "Traceback" not in second.stderr
    assert search.wait(timeout=120) == 0


def test_time_is_up_after_the_trial_under_way(offtune):
    done = offtune("search", "--budget", "2GB", "--time", "0.1s", "--space", "ladder", "--json", *QUICK)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["measured"] == 1


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


def test_a_full_disk_is_one_message_and_no_finished_trial_is_lost(offtune, tmp_path):
    disk = tmp_path / "disk"
    disk.mkdir()
    if (
        subprocess.run(
            ["mount", "-t", "tmpfs", "-o", "size=1400k", "tmpfs", str(disk)], check=False
        ).returncode
        != 0
    ):
        pytest.skip("mounting a small disk needs root")
    try:
        done = offtune("search", "--budget", "2GB", "--trials", "40", "--space", "ladder",
                       "--storage", str(disk / "studies.db"), *QUICK)  # fmt: skip
        assert done.returncode == 1, done.stderr
        assert "Traceback" not in done.stderr
        assert "full" in done.stderr
        subprocess.run(["mount", "-o", "remount,size=50m", str(disk)], check=True)
        with Store.open(str(disk / "studies.db"), write=False) as store:
            finished = [run for run in store.runs("study-1") if run.status is not None]
        target = str(len(finished) + 2)
        again = offtune("resume", "--trials", target, "--storage", str(disk / "studies.db"), "--json")
        assert again.returncode == 0, again.stderr
        assert json.loads(again.stdout)["measured"] == int(target)
    finally:
        subprocess.run(["umount", str(disk)], check=True)
