"""Ranks behind launchers: hostfiles, commands, who a rank is; real launchers with two "nodes" here."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest
from conftest import workload
from processes import PATIENCE_S, wait_for
from ssh_server import ssh_server

from offtune import ds_config, multinode, ops
from offtune.errors import OfftuneError, UsageError
from offtune.multinode import LauncherRanks, Nodes, command, greet, launch_on, read_hostfile, resolve_nodes
from offtune.rank_report import RankReport
from offtune.runner import run_trial
from offtune.trial import Facts, MemoryPeaks, Status, TrialSpec
from offtune.verdict import Ending, verdict
from offtune.worker.node import Pulse, place_from
from offtune.worker.rank import Place, environment

__all__ = ["ssh_server"]
TWO = "127.0.0.1 slots=1\n127.0.0.2 slots=1\n"
# Launchers, keepers and ranks all import torch, on whatever cores there are: half a minute here.
DEADLINE_S = 2 * PATIENCE_S


@pytest.fixture
def hostfile(tmp_path: Path) -> Path:
    path = tmp_path / "hostfile"
    path.write_text(TWO)
    return path


def nodes_of(hostfile: Path, launcher: str = "pdsh") -> Nodes:
    nodes = resolve_nodes(str(hostfile), launcher, str(hostfile.parent))
    assert nodes is not None
    return nodes


def test_a_hostfile_is_read_as_deepspeed_reads_it(tmp_path: Path):
    path = tmp_path / "h"
    path.write_text("# two nodes\n\nworker-1 slots=4\nworker-2   slots=2  # half\n")
    assert read_hostfile(path) == {"worker-1": 4, "worker-2": 2}


@pytest.mark.parametrize(
    "line", ["worker-1", "worker-1 slots=", "worker-1 slots=0", "a b slots=1", "a slots=x"]
)
def test_a_bad_line_of_a_hostfile_is_named(tmp_path: Path, line: str):
    path = tmp_path / "h"
    path.write_text(f"good slots=1\n{line}\n")
    with pytest.raises(UsageError, match="line 2"):
        read_hostfile(path)


def test_a_host_named_twice_an_empty_file_and_none_are_refused(tmp_path: Path):
    path = tmp_path / "h"
    for text in ("a slots=1\na slots=1\n", "# nothing\n"):
        path.write_text(text)
        with pytest.raises(UsageError, match="--hostfile"):
            read_hostfile(path)
    with pytest.raises(UsageError, match="cannot read"):
        read_hostfile(tmp_path / "none")


def test_options_become_nodes(hostfile: Path, monkeypatch: pytest.MonkeyPatch):
    assert resolve_nodes(None, None, None) is None
    nodes = resolve_nodes(str(hostfile), None, str(hostfile.parent))
    assert nodes == Nodes(launcher="pdsh", hostfile=str(hostfile), world_size=2, ranks_per_node=1,
                          shared_dir=str(hostfile.parent))  # fmt: skip
    monkeypatch.setenv("SLURM_NTASKS", "8")
    monkeypatch.setenv("SLURM_NNODES", "2")
    inside = resolve_nodes(None, "srun", None)
    assert inside is not None
    assert (inside.world_size, inside.ranks_per_node) == (8, 4)


@pytest.mark.parametrize(
    ("hosts", "launcher", "words"),
    [
        (False, "pdsh", "needs a --hostfile"),
        (True, "srun", "takes no --hostfile"),
        (True, "nosuch", "there is no 'nosuch'"),
        (False, "srun", "not a SLURM allocation"),
    ],
)
def test_options_that_do_not_go_together_are_refused(
    hostfile: Path, hosts: bool, launcher: str, words: str, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.delenv("SLURM_NTASKS", raising=False)
    with pytest.raises(UsageError, match=words):
        resolve_nodes(str(hostfile) if hosts else None, launcher, None)


def test_ranks_are_counted_by_the_launcher_and_commands_have_their_own(hostfile: Path):
    with pytest.raises(UsageError, match="--gpus"):
        resolve_nodes(str(hostfile), None, None, gpus=2)
    with pytest.raises(UsageError, match="for built-in models"):
        resolve_nodes(str(hostfile), None, None, command=("python", "train.py"))


def test_the_launchers_are_handed_everything(hostfile: Path):
    words = command(nodes_of(hostfile, "openmpi"), ["/shared/spec.json"])
    assert words[1:3] == ["-m", "deepspeed.launcher.runner"]
    assert words[words.index("--launcher") + 1] == "openmpi"
    assert words[words.index("--hostfile") + 1] == str(hostfile)
    assert words[-3:] == ["--module", "offtune.worker.node", "/shared/spec.json"]
    inside = Nodes(launcher="srun", hostfile=None, world_size=8, ranks_per_node=4, shared_dir="/shared")
    assert command(inside, ["x"]) == [
        "srun", "--ntasks=8", "--kill-on-bad-exit=1", "--export=ALL",
        sys.executable, "-m", "offtune.worker.node", "x",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("variables", "rank", "place"),
    [
        ({"RANK": "3", "LOCAL_RANK": "1", "LOCAL_SIZE": "2", "CUDA_VISIBLE_DEVICES": "4,5"}, 3, (1, 2, 5)),
        ({"SLURM_PROCID": "5", "SLURM_LOCALID": "1"}, 5, (1, 0, 1)),
        ({"SLURM_PROCID": "5", "SLURM_LOCALID": "1", "CUDA_VISIBLE_DEVICES": "6"}, 5, (1, 0, 6)),
        ({"OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_LOCAL_RANK": "0",
          "OMPI_COMM_WORLD_LOCAL_SIZE": "1"}, 0, (0, 1, 0)),
    ],
)  # fmt: skip
def test_a_rank_learns_who_it_is_from_its_launcher(variables: dict[str, str], rank: int, place: Any):
    local_rank, local_size, gpu = place
    assert place_from(variables, "cuda") == (
        rank, Place(local_rank=local_rank, local_size=local_size, gpu=gpu),
    )  # fmt: skip


def test_without_a_launcher_there_is_no_rank():
    with pytest.raises(SystemExit, match="No launcher told"):
        place_from({}, "cpu")


def test_a_rank_of_another_node_sees_its_own_card_and_the_size_of_its_node(make_spec):
    spec = make_spec({}, device="cuda", workload=workload(world_size=4), gpus=(0, 1))
    variables = environment(spec, 3, Place(local_rank=1, local_size=2, gpu=5))
    assert (variables["RANK"], variables["WORLD_SIZE"], variables["LOCAL_SIZE"]) == ("3", "4", "2")
    assert (variables["LOCAL_RANK"], variables["CUDA_VISIBLE_DEVICES"]) == ("0", "5")


def test_host_memory_is_that_of_the_fullest_node_device_memory_of_the_fullest_rank(make_spec):
    def report(rank: int, host: str, device: int, used: int) -> RankReport:
        peaks = MemoryPeaks(used_device_bytes=device, used_host_bytes=used, pinned_bytes=used // 10)
        return RankReport(rank=rank, host=host, outcome="done", step_s=(1.0,), memory=peaks)

    reports = [report(0, "a", 5, 100), report(1, "a", 7, 100), report(2, "b", 9, 150), report(3, "b", 6, 20)]
    ending = Ending(cause="ended", codes=(0,) * 4, oom_kills=0, host_peak_bytes=0, seconds=1)
    result = verdict(make_spec({}, workload=workload(world_size=4)), reports, ending)
    assert (result.memory.used_device_bytes, result.memory.used_host_bytes) == (9, 200)
    assert result.memory.pinned_bytes == 20


def test_a_keeper_stops_at_a_word_or_after_silence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    path = tmp_path / "pulse"
    path.write_text("1")
    pulse = Pulse(path)
    assert not pulse.stopped()
    now = time.monotonic()
    monkeypatch.setattr(time, "monotonic", lambda: now + 50)
    path.write_text("2")
    assert not pulse.stopped()
    monkeypatch.setattr(time, "monotonic", lambda: now + 100)
    assert not pulse.stopped()
    path.unlink()
    monkeypatch.setattr(time, "monotonic", lambda: now + 111)
    assert pulse.stopped(), "nothing was heard for a minute"
    path.write_text("stop")
    assert Pulse(path).stopped()


def test_a_launcher_that_fails_is_a_crashed_trial_with_its_words(make_spec, monkeypatch):
    monkeypatch.setattr(multinode, "_LATE_FILES_S", 0.2)
    words = [sys.executable, "-c", "import sys; print('no route to host'); sys.exit(5)"]
    spec = make_spec({}, workload=workload(world_size=2))
    result = run_trial(spec, lambda spec, _: LauncherRanks(spec, [words]), "cold")
    assert result.status is Status.CRASHED
    assert result.exit_codes == (5, 5)
    assert "no route to host" in result.log_tail


def test_a_launcher_that_is_not_installed_is_said_before_the_first_trial(tmp_path: Path, monkeypatch):
    monkeypatch.setattr(multinode, "_LATE_FILES_S", 0.1)
    nodes = Nodes(launcher="srun", hostfile=None, world_size=2, ranks_per_node=1, shared_dir=str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(OfftuneError, match="0 of 2 ranks answered through srun: srun is not installed"):
        greet(nodes, "cpu")


def test_nodes_with_different_versions_are_refused():
    with pytest.raises(OfftuneError, match=r"different torch: 2\.1 on b, 2\.2 on a"):
        multinode._refuse_mixed([{"host": "a", "torch": "2.2"}, {"host": "b", "torch": "2.1"}])


@pytest.fixture
def make_trial(make_spec) -> Callable[..., TrialSpec]:
    """A spec of two ranks that trains for real."""
    names = ops.needed_ops("cpu", "adamw", ("zero2",), nvme=False)
    states = ops.prepare(names, "cpu", print)
    assert all(state.state == "ready" for state in states.values()), states
    work = workload(world_size=2)
    facts = Facts(workload=work, device="cpu", parameter_numels=(4096 * 256,) * 2, nvme_dir=None,
                  ops=frozenset(names), deepspeed_version="0.19.8")  # fmt: skip
    config = ds_config.build({}, {"placement": "zero2", "micro_batch": 1}, facts, None)
    return lambda **changes: make_spec(config, workload=work, ops=names, deadline_s=DEADLINE_S, **changes)


def no_ssh_commands(hostfile: Path, spec_path: Path) -> list[list[str]]:
    """DeepSpeed's way for nodes without ssh: a launcher on each, told which node it is."""
    return [
        [sys.executable, "-m", "deepspeed.launcher.runner", "--hostfile", str(hostfile), "--no_ssh",
         "--node_rank", str(number), "--master_addr", "127.0.0.1", "--no_local_rank",
         "--module", "offtune.worker.node", str(spec_path)]
        for number in range(2)
    ]  # fmt: skip


def family(word: str) -> list[psutil.Process]:
    """Every process that has the word in its command line."""
    found = []
    for process in psutil.process_iter(["cmdline", "pid"]):
        if process.pid != os.getpid() and any(word in part for part in process.info["cmdline"] or ()):
            found.append(process)
    return found


def assert_two_ranks_trained(spec: TrialSpec, result: Any) -> None:
    assert result.status is Status.OK, (result.reason, result.log_tail)
    assert result.exit_codes == (0, 0)
    assert len(result.losses) == len(result.step_s) == 3
    reports = [json.loads((Path(spec.trial_dir) / f"rank{rank}.json").read_text()) for rank in (0, 1)]
    used = [report["memory"]["used_device_bytes"] for report in reports]
    assert result.memory.used_device_bytes == max(used)
    wait_for(lambda: not family(spec.trial_dir))


@pytest.mark.train
def test_one_launcher_a_node_without_ssh_trains_two_ranks(make_trial, hostfile: Path):
    spec = make_trial()
    result = run_trial(spec, lambda s, path: LauncherRanks(s, no_ssh_commands(hostfile, path)), "cold")
    assert_two_ranks_trained(spec, result)


@pytest.mark.train
@pytest.mark.usefixtures("ssh_server")
def test_deepspeeds_launcher_trains_over_ssh_on_two_addresses(make_trial, hostfile: Path):
    if not shutil.which("pdsh"):
        pytest.skip("pdsh is not installed")
    nodes = nodes_of(hostfile)
    hellos = greet(nodes, "cpu")
    assert len(hellos) == 2 and {"host", "python", "torch", "deepspeed"} <= set(hellos[0])
    spec = make_trial()
    assert_two_ranks_trained(spec, run_trial(spec, launch_on(nodes), "cold"))


@pytest.mark.train
@pytest.mark.usefixtures("ssh_server")
def test_a_search_over_two_nodes_and_its_resume(hostfile: Path):
    if not shutil.which("pdsh"):
        pytest.skip("pdsh is not installed")
    options = ("--budget", "2GB", "--space", "ladder", "--steps", "2", "--warmup-steps", "1",
               "--seq-len", "64", "--global-batch", "4", "--trials", "1", "--hostfile", str(hostfile),
               "--json", "--no-finals")  # fmt: skip
    for arguments, measured in ((("search", *options), 1), (("resume", "--trials", "2", "--json"), 2)):
        done = subprocess.run(
            [sys.executable, "-m", "offtune", *arguments], cwd=hostfile.parent, capture_output=True,
            text=True, timeout=900, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        assert "2 ranks answered from 1 hosts through pdsh" in done.stderr
        document = json.loads(done.stdout)
        assert document["measured"] == measured
        assert {trial["status"] for trial in document["trials"]} == {"ok"}
    assert list(hostfile.parent.glob("offtune-*/*")) == [], "trial folders are left"


def test_a_hostfile_that_changed_is_refused_on_resume(hostfile: Path):
    nodes = nodes_of(hostfile)
    hostfile.write_text(TWO + "127.0.0.3 slots=1\n")
    with pytest.raises(UsageError, match="has 3 ranks, the study 2"):
        greet(nodes, "cpu")


@pytest.mark.train
@pytest.mark.usefixtures("ssh_server")
@pytest.mark.parametrize("victim", ["rank", "keeper"])
def test_one_dead_rank_ends_the_trial_on_all_nodes(make_trial, hostfile: Path, victim: str):
    if not shutil.which("pdsh"):
        pytest.skip("pdsh is not installed")
    spec = make_trial(steps=100_000)
    killer = subprocess.Popen(
        [sys.executable, Path(__file__).with_name("kill_rank.py"), spec.trial_dir, victim]
    )
    result = run_trial(spec, launch_on(nodes_of(hostfile)), "cold")
    assert killer.wait() == 0
    assert result.status is Status.CRASHED, result.reason  # at its deadline it would be too slow
    if victim == "rank":
        assert result.exit_codes[1] == -signal.SIGKILL
    wait_for(lambda: not family(spec.trial_dir))
