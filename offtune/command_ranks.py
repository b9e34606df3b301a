"""Start the person's command for one trial, see how its ranks fare, and end the whole tree of its processes.

Covered: its environment, the files it gets, its memory. Not covered: deadlines (`runner.py`) and what an
ending without reports means (`command_verdict.py`).
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import time
from pathlib import Path
from typing import Protocol

import psutil

from offtune.command import absolute_paths, fill, is_plain_python
from offtune.launch import WarmServer, child_environment, kill_processes, kill_trees
from offtune.script_start import ScriptStart
from offtune.trial import Command, TrialSpec, dump
from offtune.warm_command import warm_program

_INJECT = str(Path(__file__).parent / "worker" / "inject")
# Ranks write their reports together; when one alone has written, the others are stuck or dead.
_REPORT_GRACE_S = 10.0
# Shared pages are divided up by the kernel (PSS), at a price: a twentieth of the time at most goes into it.
_MEMORY_INTERVAL_S = 0.25
_MEMORY_SHARE = 20
_DS_CONFIG_FILE = "ds_config.json"
_START_FILE = "start.json"


class Leader(Protocol):
    """The process a command begins with."""

    @property
    def pid(self) -> int: ...

    def poll(self) -> int | None:
        """Its exit code, None while it runs."""

    def end(self) -> None:
        """Kill it and all that descends from it; returns when they are gone."""


class CommandRanks:
    """The processes of a command. Its leader is the only process with an exit code; ranks leave files.

    With a `server` the command is a Python script that is forked from it (`warm_command.py`).
    """

    def __init__(self, spec: TrialSpec, spec_path: Path, server: WarmServer | None = None) -> None:
        command = spec.workload.command
        assert command is not None
        self._spec, self._spec_path = spec, spec_path
        self._first_report_at: float | None = None
        self._memory_bytes, self._memory_due_at = 0, 0.0
        folder = Path(spec.trial_dir)
        (folder / "seen").mkdir(exist_ok=True)
        (folder / _DS_CONFIG_FILE).write_text(json.dumps(spec.ds_config, indent=2))
        words = _words(command, spec)
        cwd = command.cwd if command.trial_cwd == "here" else str(_scratch_cwd(folder))
        program = warm_program(words, cwd) if server is not None else None
        self._server_pids: list[int] = []
        if server is None or program is None:
            self._leader: Leader = _Started(words, cwd, environment(spec, spec_path), folder / "rank0.log")
        else:
            start = ScriptStart(program=program, cwd=cwd, environment=environment(spec, spec_path))
            self._leader = _Forked(server, spec_path, start)
            self._server_pids = [server.pid]
        self.pids = [self._leader.pid]

    def poll(self) -> dict[int, int]:
        """The leader's exit code; 0 as soon as every rank has reported, for nothing of interest follows."""
        code = self._leader.poll()
        if self._spec.probe:
            return {} if code is None else {0: code}
        missing = [r for r in range(self._spec.workload.world_size) if not self._reported(r)]
        if not missing:
            return {0: 0}
        if code is None and len(missing) < self._spec.workload.world_size and self._waited_enough():
            code = 1
        return {} if code is None else {0: code}

    def _reported(self, rank: int) -> bool:
        return (Path(self._spec.trial_dir) / f"rank{rank}.json").exists()

    def _waited_enough(self) -> bool:
        self._first_report_at = self._first_report_at or time.monotonic()
        return time.monotonic() - self._first_report_at > _REPORT_GRACE_S

    def host_bytes(self) -> int:
        """Memory of the leader and all that descends from it; pages that processes share count once.

        The warm server, with which a forked script shares what was loaded, is one of them.
        """
        now = time.monotonic()
        if now >= self._memory_due_at:
            self._memory_bytes = sum(_proportional_bytes(pid) for pid in self._family())
            took = time.monotonic() - now
            self._memory_due_at = now + max(_MEMORY_INTERVAL_S, _MEMORY_SHARE * took)
        return self._memory_bytes

    def _family(self) -> list[int]:
        with contextlib.suppress(psutil.NoSuchProcess):
            leader = psutil.Process(self._leader.pid)
            return [*self._server_pids, leader.pid, *(child.pid for child in leader.children(recursive=True))]
        return []

    def kill(self) -> None:
        self._leader.end()
        # Whoever left the tree still carries the environment of this trial.
        kill_processes(_marked(f"OFFTUNE_SPEC={self._spec_path.resolve()}"))
        _remove_shared_buffers(Path(self._spec.trial_dir))


class _Started:
    """A command in a process of its own."""

    def __init__(self, words: list[str], cwd: str, environment: dict[str, str], log_path: Path) -> None:
        with log_path.open("ab") as log:
            self._process = subprocess.Popen(
                words, cwd=cwd, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environment,
                start_new_session=True,
            )  # fmt: skip
        self.pid = self._process.pid

    def poll(self) -> int | None:
        return self._process.poll()

    def end(self) -> None:
        kill_trees([self.pid])
        self._process.wait()


class _Forked:
    """A Python script in a process forked from the warm server. Raises ServerGone when that has died."""

    def __init__(self, server: WarmServer, spec_path: Path, start: ScriptStart) -> None:
        start_path = spec_path.with_name(_START_FILE)
        start_path.write_text(dump(start))
        self._ranks = server.script(spec_path, start_path)
        (self.pid,) = self._ranks.pids

    def poll(self) -> int | None:
        return self._ranks.poll().get(0)

    def end(self) -> None:
        self._ranks.kill()


def environment(spec: TrialSpec, spec_path: Path) -> dict[str, str]:
    """What a command finds in its environment beside what the person's shell holds."""
    folder, command = Path(spec.trial_dir), spec.workload.command
    assert command is not None
    base = child_environment(spec.device, spec.threads_per_rank)
    added = {
        "PYTHONPATH": os.pathsep.join([_INJECT, base["PYTHONPATH"]]),
        "OFFTUNE_SPEC": str(spec_path.resolve()),
        "OFFTUNE_PID": str(os.getpid()),
        "OFFTUNE_TRIAL_DIR": str(folder),
        "OFFTUNE_DS_CONFIG": str(folder / _DS_CONFIG_FILE),
        "OFFTUNE_MICRO_BATCH": str(spec.ds_config["train_micro_batch_size_per_gpu"]),
        "OFFTUNE_GRAD_ACCUM": str(spec.ds_config["gradient_accumulation_steps"]),
        # A short trial is no run to be kept by an experiment tracker.
        "WANDB_MODE": base.get("WANDB_MODE", "disabled"),
    }
    if spec.device == "cuda":
        added["CUDA_DEVICE_ORDER"] = "PCI_BUS_ID"
        added["CUDA_VISIBLE_DEVICES"] = ",".join(str(gpu) for gpu in spec.gpus)
    alone = is_plain_python(command.arguments) and not {"RANK", "WORLD_SIZE"} & base.keys()
    return {**base, **added, **(_one_process() if alone else {})}


def _one_process() -> dict[str, str]:
    """What a launcher would set for one process: without it DeepSpeed looks for MPI."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    return {
        "RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "LOCAL_WORLD_SIZE": "1",
        "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port),
    }  # fmt: skip


def _words(command: Command, spec: TrialSpec) -> list[str]:
    values = {
        "ds_config": Path(spec.trial_dir) / _DS_CONFIG_FILE,
        "micro_batch": spec.ds_config["train_micro_batch_size_per_gpu"],
        "grad_accum": spec.ds_config["gradient_accumulation_steps"],
        "trial_dir": spec.trial_dir,
    }
    words = fill(command.arguments, values)
    return words if command.trial_cwd == "here" else absolute_paths(words, command.cwd)


def _scratch_cwd(folder: Path) -> Path:
    path = folder / "cwd"
    path.mkdir(exist_ok=True)
    return path


def _marked(variable: str) -> list[psutil.Process]:
    """The processes of this user that were started with `variable` in their environment."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(OSError, psutil.NoSuchProcess):
            if variable.encode() in Path(f"/proc/{process.pid}/environ").read_bytes().split(b"\0"):
                found.append(process)
    return found


def _proportional_bytes(pid: int) -> int:
    """Resident memory less file pages, shared pages divided among their users; 0 when it has just ended."""
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()[1:]
    except OSError:
        return 0
    fields = {name: int(rest.split()[0]) * 1024 for name, _, rest in (line.partition(":") for line in lines)}
    return fields.get("Pss_Anon", fields.get("Pss", 0)) + fields.get("Pss_Shmem", 0)


def _remove_shared_buffers(folder: Path) -> None:
    """DeepSpeed's buffers in /dev/shm, named after the launcher's port (csrc/cpu/comm/shm.cpp, 0.19.8)."""
    for mark in folder.glob("seen/port-*"):
        port = mark.name.removeprefix("port-")
        for path in (
            Path("/dev/shm").glob(f"deepspeed_allreduce_buffer_{os.getuid()}_*_{port}_*") if port else ()
        ):
            path.unlink(missing_ok=True)
