"""Start the ranks of a trial, warm or cold, and end them; both ways look the same from outside.

Covered: the warm server's life, its requests and events, cold processes, killing. Not covered: deadlines and
what an ending means (`runner.py`).
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import psutil

from offtune import hardware, toolchain
from offtune.errors import OfftuneError
from offtune.trial import DeviceKind, TrialSpec

# Importing torch, DeepSpeed and transformers took 12 to 22 s on two loaded cores; ten times that is a hang.
_SERVER_START_S = 240.0
_SERVER_ANSWER_S = 60.0


class Ranks(Protocol):
    """The running processes of one trial."""

    @property
    def pids(self) -> Sequence[int]: ...

    def poll(self) -> dict[int, int]:
        """Exit codes so far, by rank; negative is a signal."""

    def host_bytes(self) -> int:
        """Host memory held by the processes that are still alive."""

    def kill(self) -> None:
        """Kill every process of the trial, also those it started; returns when they are gone."""


def child_environment(device: DeviceKind, threads_per_rank: int) -> dict[str, str]:
    """The environment of every process under trial.

    Threads are fixed before anything is imported: OpenMP reads its settings when it is loaded, and its busy
    waiting makes steps up to 40 times slower when ranks share cores (measured on two cores). PATH
    begins with the interpreter's folder, where torch finds ninja also when no environment is activated.
    """
    count = str(threads_per_rank)
    return {
        **os.environ,
        **toolchain.child_paths(),
        **hardware.cuda_build_environment(),
        "OMP_NUM_THREADS": count,
        "MKL_NUM_THREADS": count,
        "OPENBLAS_NUM_THREADS": count,
        "OMP_WAIT_POLICY": "passive",
        "TOKENIZERS_PARALLELISM": "false",
        "HF_HUB_DISABLE_TELEMETRY": "1",
        "PYTHONUNBUFFERED": "1",
        # Lets torch ask NVML instead of initialising CUDA, which must not happen before the fork.
        "PYTORCH_NVML_BASED_CUDA_CHECK": "1",
        "DS_ACCELERATOR": device,
    }


class WarmServer:
    """One pre-loaded process that forks the ranks of each trial. Start it once, use it for every trial."""

    def __init__(self, device: DeviceKind, threads_per_rank: int, ops: Sequence[str], model_type: str,
                 log: Path) -> None:  # fmt: skip
        settings = {"ops": list(ops), "model_type": model_type}
        self._log = log
        with log.open("ab") as output:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "offtune.worker.server", json.dumps(settings)],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=output,
                env=child_environment(device, threads_per_rank), start_new_session=True,
            )  # fmt: skip
        self._events = _Lines(self._process.stdout)
        self.ready: dict[str, Any] = {}

    def wait_ready(self, timeout_s: float = _SERVER_START_S) -> dict[str, Any]:
        """What the server said when it was ready. Raises OfftuneError when it never is."""
        if not self.ready:
            event = self._events.next(timeout_s)
            if event is None:
                tail = self._log.read_text(errors="replace")[-800:] if self._log.exists() else ""
                self.close()
                raise OfftuneError(
                    f"The training environment could not be loaded: {tail.strip()}", "Run: offtune doctor"
                )
            self.ready = event
        return self.ready

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    def start(self, spec_path: Path) -> WarmRanks:
        """Fork the ranks of the trial described in `spec_path`."""
        return self._fork({"cmd": "run", "spec": str(spec_path)})

    def inspect(self, config_path: Path, out: Path) -> WarmRanks:
        """Fork a process that writes the model's profile to `out`."""
        return self._fork({"cmd": "inspect", "config": str(config_path), "out": str(out)})

    def script(self, spec_path: Path, start_path: Path) -> WarmRanks:
        """Fork a process that becomes the person's script, as `start_path` says."""
        return self._fork({"cmd": "script", "spec": str(spec_path), "start": str(start_path)})

    def _fork(self, request: Mapping[str, str]) -> WarmRanks:
        self.wait_ready()
        assert self._process.stdin is not None
        try:
            self._process.stdin.write((json.dumps(request) + "\n").encode())
            self._process.stdin.flush()
        except BrokenPipeError:
            raise ServerGone from None
        event = self._events.next(_SERVER_ANSWER_S)
        if event is None or event["event"] != "started":
            raise ServerGone
        return WarmRanks(self, event["pids"], event["group"])

    def exits(self) -> list[dict[str, Any]]:
        """The exit events that have come in since the last call. Raises ServerGone when the server died."""
        events = []
        while (event := self._events.next(0.0)) is not None:
            events.append(event)
        if not events and self._events.closed:
            raise ServerGone
        return events

    def kill_children(self, group: int) -> None:
        """Kill a process group and all that descends from the server, which adopts what ranks leave."""
        _kill_group(group)
        with contextlib.suppress(psutil.NoSuchProcess):
            kill_processes(psutil.Process(self._process.pid).children(recursive=True))

    def close(self) -> None:
        """End the server and whatever it still runs."""
        if self.alive:
            self.kill_children(self._process.pid)
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                with contextlib.suppress(BrokenPipeError):
                    pipe.close()


class ServerGone(Exception):
    """The warm server died; the caller starts another."""


class _Lines:
    """JSON lines from a pipe, with a timeout."""

    def __init__(self, pipe: Any) -> None:
        self._descriptor = pipe.fileno()
        self._buffer = b""
        self.closed = False

    def next(self, timeout_s: float) -> dict[str, Any] | None:
        """The next event; None when none came in time or the pipe is at its end."""
        give_up = time.monotonic() + timeout_s
        while b"\n" not in self._buffer:
            left = max(0.0, give_up - time.monotonic())
            if self.closed or not select.select([self._descriptor], [], [], left)[0]:
                return None
            chunk = os.read(self._descriptor, 65536)
            self.closed = not chunk
            self._buffer += chunk
        line, self._buffer = self._buffer.split(b"\n", 1)
        event: dict[str, Any] = json.loads(line)
        return event


class WarmRanks:
    """Ranks forked by the server: their ends come as events."""

    def __init__(self, server: WarmServer, pids: list[int], group: int) -> None:
        self._server, self.pids, self._group = server, pids, group
        self._codes: dict[int, int] = {}

    def poll(self) -> dict[int, int]:
        for event in self._server.exits():
            self._codes[event["rank"]] = event["code"]
        return self._codes

    def host_bytes(self) -> int:
        return _resident_bytes(self.pids, self._codes)

    def kill(self) -> None:
        self._server.kill_children(self._group)
        give_up = time.monotonic() + _KILL_WAIT_S
        # The server's last words about these ranks must not be taken for news of the next trial.
        while len(self.poll()) < len(self.pids) and time.monotonic() < give_up:
            time.sleep(0.005)


_COLD_PROGRAM = (sys.executable, "-m", "offtune.worker.rank")


def _ranks(spec: TrialSpec) -> range:
    return range(spec.workload.world_size)


class ColdRanks:
    """Ranks started as processes of their own, each importing everything itself.

    `program` is what is run for each rank, with the spec's path and the rank as further arguments.
    """

    def __init__(self, spec: TrialSpec, spec_path: Path, program: Sequence[str] = _COLD_PROGRAM) -> None:
        self._processes = [
            self._start(spec, [*program, str(spec_path), str(rank)], rank) for rank in _ranks(spec)
        ]
        self.pids = [process.pid for process in self._processes]

    @staticmethod
    def _start(spec: TrialSpec, command: Sequence[str], rank: int) -> subprocess.Popen[bytes]:
        with (Path(spec.trial_dir) / f"rank{rank}.log").open("ab") as log:
            return subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                env=child_environment(spec.device, spec.threads_per_rank), start_new_session=True,
            )  # fmt: skip

    def poll(self) -> dict[int, int]:
        codes = {rank: process.poll() for rank, process in enumerate(self._processes)}
        return {rank: code for rank, code in codes.items() if code is not None}

    def host_bytes(self) -> int:
        return _resident_bytes(self.pids, self.poll())

    def kill(self) -> None:
        kill_trees(self.pids)
        for process in self._processes:
            process.wait()


def _resident_bytes(pids: Sequence[int], codes: Mapping[int, int]) -> int:
    """Private resident memory of the ranks that have no exit code yet."""
    return sum(_private_bytes(pid) for rank, pid in enumerate(pids) if rank not in codes)


def _private_bytes(pid: int) -> int:
    """Resident memory of a process less its file pages; 0 when it has just ended."""
    try:
        _, resident, file_backed = Path(f"/proc/{pid}/statm").read_text().split()[:3]
    except (FileNotFoundError, ProcessLookupError):
        return 0
    return (int(resident) - int(file_backed)) * os.sysconf("SC_PAGE_SIZE")


def kill_trees(leaders: Sequence[int]) -> None:
    """Kill the group of each leader and every descendant, also one that left its group."""
    processes = []
    for pid in leaders:
        with contextlib.suppress(psutil.NoSuchProcess):
            processes += psutil.Process(pid).children(recursive=True)
        _kill_group(pid)
    kill_processes(processes)


def _kill_group(group: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(group, signal.SIGKILL)


def kill_processes(processes: list[psutil.Process]) -> None:
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
    psutil.wait_procs(processes, timeout=_KILL_WAIT_S)


# SIGKILL is obeyed at once, unless the kernel is busy giving back pinned memory.
_KILL_WAIT_S = 20.0
