"""A runner survives whatever a rank does, says what happened, and leaves nothing behind."""

import os
import signal
from pathlib import Path

import psutil
import pytest
from clock import Clock
from conftest import workload
from processes import is_running

from offtune import hardware, log_tail, runner, scratch
from offtune.runner import run_trial
from offtune.trial import Status, TrialResult, load


@pytest.fixture
def run(make_spec, fake_launch):
    def run(what, **changes):
        spec = make_spec({"fake": what}, **changes)
        return spec, run_trial(spec, fake_launch, "cold")

    return run


@pytest.fixture
def late_when_there(tmp_path, monkeypatch):
    """Let a trial's deadline pass as soon as its rank has left a file, however long that takes it."""

    def late(name: str) -> None:
        monkeypatch.setattr(runner, "time", Clock(lambda: any(tmp_path.rglob(name))))

    return late


def test_a_trial_that_fits_is_ok_with_the_median_of_the_slowest_rank(run):
    _, result = run("fits", workload=workload(world_size=2))
    assert result.status is Status.OK
    assert result.step_s == (0.5, 0.7, 0.6)
    assert result.samples_per_s == pytest.approx(4 / 0.6)
    assert result.tokens_per_s == pytest.approx(64 * 4 / 0.6)
    assert result.memory.used_device_bytes == 10**8
    assert result.memory.used_host_bytes == 4 * 10**8
    assert result.exit_codes == (0, 0)
    assert result.first_step_s is not None and 0 < result.first_step_s < result.seconds


def test_the_result_is_left_in_the_trial_directory_for_a_resume(run):
    spec, result = run("fits")
    assert load(TrialResult, (Path(spec.trial_dir) / "result.json").read_bytes()) == result


def test_a_hanging_trial_ends_at_its_deadline(run):
    spec, result = run("hang", deadline_s=1.5)
    assert result.status is Status.TIMEOUT
    assert not _alive_under(spec.trial_dir), "a rank hangs for five minutes"


def test_ignoring_sigterm_does_not_help_a_trial(run, late_when_there):
    late_when_there("ignoring")
    spec, result = run("ignore_sigterm")
    assert result.status is Status.TIMEOUT
    assert not _alive_under(spec.trial_dir)


def test_eating_memory_ends_at_the_host_budget_before_the_kernel_steps_in(run):
    _, result = run("eat_memory", host_limit_bytes=400 * 10**6)
    assert result.status is Status.OOM_HOST
    assert "host budget" in result.reason
    assert result.memory.used_host_bytes is not None and result.memory.used_host_bytes > 400 * 10**6


def test_half_a_result_is_no_result(run):
    _, result = run("half_result")
    assert result.status is Status.CRASHED
    assert "readable result" in result.reason


def test_megabytes_of_output_stay_bounded_and_the_end_is_kept(run):
    _, result = run("megabytes")
    assert result.status is Status.CRASHED
    assert result.log_tail.rstrip().endswith("the last words")
    assert len(result.log_tail) <= log_tail.TAIL_BYTES
    assert "exit code 3" in result.reason


@pytest.mark.parametrize("number", [signal.SIGSEGV, signal.SIGABRT, signal.SIGBUS, signal.SIGILL])
def test_death_by_signal_is_a_crash_explained_in_plain_words(run, number):
    _, result = run(f"signal {int(number)}")
    assert result.status is Status.CRASHED
    assert result.exit_codes == (-number,)
    assert signal.Signals(number).name in result.reason


def test_signal_9_without_evidence_is_not_called_out_of_memory(run):
    _, result = run("signal 9")
    assert result.status is Status.CRASHED
    assert "no out-of-memory kill" in result.reason


def test_signal_9_with_the_kernels_evidence_is_out_of_host_memory(run, monkeypatch):
    counts = iter([4, 5])
    monkeypatch.setattr(hardware, "oom_kills", lambda: next(counts))
    _, result = run("signal 9")
    assert result.status is Status.OOM_HOST


def test_one_dead_rank_ends_the_whole_trial(run, monkeypatch):
    monkeypatch.setattr(runner, "_PARTNER_GRACE_S", 0.3)
    spec, result = run("one_dies", workload=workload(world_size=2))
    assert result.status is Status.CRASHED
    assert "Rank 1" in result.reason
    assert not _alive_under(spec.trial_dir)


@pytest.mark.parametrize("outcome", ["oom_gpu", "oom_host", "invalid", "diverged", "crashed"])
def test_what_a_rank_reports_becomes_the_status(run, outcome):
    _, result = run(outcome)
    assert result.status == outcome
    assert "told to" in result.reason


def test_over_the_budget_is_never_ok(run):
    _, result = run("over")
    assert result.status is Status.OVER_BUDGET
    assert "1.00 GB over" in result.reason


def test_an_orphan_in_its_own_session_is_killed_too(run, late_when_there):
    late_when_there("orphan.pid")
    spec, _ = run("orphan")
    pid = int((Path(spec.trial_dir).parent / "orphan.pid").read_text())
    assert not is_running(pid)


def test_swap_files_and_shared_buffers_are_removed(run, tmp_path):
    swap = scratch.make_swap_dir(str(tmp_path), "test", 0)
    spec, result = run("shm", swap_dir=str(swap))
    assert result.status is Status.OK
    assert not swap.exists()
    assert scratch.shm_files(spec.token) == []


def _alive_under(trial_dir: str) -> list[int]:
    found = []
    for process in psutil.process_iter(["pid", "cmdline"]):
        if process.pid != os.getpid() and any(trial_dir in part for part in process.info["cmdline"] or []):
            found.append(process.pid)
    return found


def test_a_growing_log_gives_its_disk_space_back_and_loses_no_last_word(tmp_path):
    path = tmp_path / "rank0.log"
    with path.open("a") as log:
        for number in range(100):
            log.write("x" * 100_000 + f" line {number}\n")
            log.flush()
            log_tail.bound(path)
            assert path.stat().st_blocks * 512 < 5_000_000
    assert log_tail.read_tail(path).endswith("line 99\n")


def test_what_was_measured_stands_when_a_rank_dies_in_the_close_look(run):
    _, lost = run("dies_in_close_look")
    assert lost.status is Status.CRASHED
    spec, kept = run("dies_in_close_look", close_steps=1)
    assert kept.status is Status.OK and kept.samples_per_s == pytest.approx(4 / 0.5)
    (report,) = runner.read_reports(spec)
    assert report is not None and report.close_error == "told to"
