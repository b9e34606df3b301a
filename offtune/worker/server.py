"""The warm server: imports everything once, touches no device, and forks each rank of each trial.

It reads one JSON request a line on standard input and answers one JSON event a line on its original standard
output. Covered: preloading, forking, reaping. Not covered: deadlines and status, which are the parent's.
When its input ends (the parent is gone, however it went) it kills what runs and leaves.

    {"cmd": "run", "spec": PATH}       -> {"event": "started", "pids": [...], "group": N}, then one
                                          {"event": "exit", "rank": R, "code": C} a rank (C < 0: signal)
    {"cmd": "inspect", "config": PATH, "out": PATH}   -> the same for a single process
    {"cmd": "script", "spec": PATH, "start": PATH}    -> the same for a person's script
"""

from __future__ import annotations

import functools
import json
import os
import select
import signal
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from offtune import scratch
from offtune.script_start import ScriptStart
from offtune.trial import TrialSpec, dump, load
from offtune.worker import rank as rank_process
from offtune.worker.own_pages import take_own_pages
from offtune.worker.preload import preload

EX_SOFTWARE = 70  # sysexits.h: a child's body raised or returned instead of ending its process


class Server:
    """Forks processes and reports their ends. Must stay single-threaded: a fork copies one thread only."""

    def __init__(self, requests: int, events: int) -> None:
        self._requests, self._events = requests, events
        self._running: dict[int, int] = {}  # pid -> rank
        self._buffer = b""
        self._spec: TrialSpec | None = None
        self._wakeup, self._wakeup_write = os.pipe()
        for end in (self._wakeup, self._wakeup_write):
            os.set_blocking(end, False)
            os.set_inheritable(end, False)
        signal.set_wakeup_fd(self._wakeup_write, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)

    def say(self, **event: Any) -> None:
        os.write(self._events, (json.dumps(event) + "\n").encode())

    def serve(self) -> None:
        while True:
            ready, _, _ = select.select([self._requests, self._wakeup], [], [])
            if self._wakeup in ready:
                os.read(self._wakeup, 4096)
                self._reap()
            if self._requests in ready and not self._read_requests():
                return

    def _read_requests(self) -> bool:
        """Answer the complete lines; False when the parent is gone."""
        chunk = os.read(self._requests, 65536)
        *lines, self._buffer = (self._buffer + chunk).split(b"\n")
        for line in lines:
            self._answer(json.loads(line))
        return bool(chunk)

    def _answer(self, request: dict[str, Any]) -> None:
        if request["cmd"] == "run":
            self._spec = spec = load(TrialSpec, Path(request["spec"]).read_bytes())
            self._fork_all([functools.partial(_be_rank, spec, r) for r in range(spec.workload.world_size)])
        elif request["cmd"] == "script":
            self._spec = spec = load(TrialSpec, Path(request["spec"]).read_bytes())
            self._fork_all([functools.partial(_be_script, spec, request["start"])])
        elif request["cmd"] == "inspect":
            self._fork_all([functools.partial(_inspect, request["config"], request["out"])])

    def _fork_all(self, bodies: list[Callable[[], None]]) -> None:
        group, pids = 0, []
        for rank, body in enumerate(bodies):
            pid = os.fork()
            if pid == 0:
                self._become_child(group, body)
            group = group or pid
            _join_group(pid, group)
            self._running[pid] = rank
            pids.append(pid)
        self.say(event="started", pids=pids, group=group)

    def _become_child(self, group: int, body: Callable[[], None]) -> None:
        """In the forked child: leave the server's affairs behind, do the work, never return."""
        rank_process.die_with_parent()
        _join_group(0, group)
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        for descriptor in (self._requests, self._events, self._wakeup, self._wakeup_write):
            os.close(descriptor)
        nothing = os.open(os.devnull, os.O_RDONLY)
        os.dup2(nothing, 0)  # else a rank that reads its input takes the server's requests
        os.close(nothing)
        try:
            body()
        except BaseException:  # noqa: BLE001 nothing may escape into a second copy of the server's loop
            traceback.print_exc()
        os._exit(EX_SOFTWARE)

    def _reap(self) -> None:
        while (ended := _next_ended()) is not None:
            pid, wait_status = ended
            rank = self._running.pop(pid, None)
            if rank is not None:
                self.say(event="exit", rank=rank, code=os.waitstatus_to_exitcode(wait_status))

    def leave(self) -> None:
        """The parent is gone: end what runs, and remove what it would have removed."""
        for pid in self._running:
            os.kill(pid, signal.SIGKILL)
        for pid in self._running:
            os.waitpid(pid, 0)  # until it is gone it may still be making files
        if self._running and self._spec is not None:
            scratch.remove_swap_and_shm(self._spec.swap_dir, self._spec.token)


def _next_ended() -> tuple[int, int] | None:
    """(pid, wait status) of a child that ended; also of grandchildren, which the server adopts."""
    try:
        pid, wait_status = os.waitpid(-1, os.WNOHANG)
    except ChildProcessError:
        return None
    return (pid, wait_status) if pid else None


def _join_group(pid: int, group: int) -> None:
    # Both sides call it, so that the group exists whoever runs first; the later call may find it done.
    try:
        os.setpgid(pid, group)
    except (PermissionError, ProcessLookupError):
        return


def _be_rank(spec: TrialSpec, rank: int) -> None:
    rank_process.redirect_output(spec, rank)
    take_own_pages()
    rank_process.be(spec, rank, forked=True)


def _be_script(spec: TrialSpec, start_path: str) -> None:
    from offtune.worker import script  # loads torch: not before `preload`, which does it faster

    rank_process.redirect_output(spec, 0)
    take_own_pages()
    script.be(spec, load(ScriptStart, Path(start_path).read_bytes()))


def _inspect(config_path: str, out: str) -> None:
    from offtune.worker.inspect_model import profile

    answer = dump(profile(json.loads(Path(config_path).read_text())))
    draft = Path(out + ".tmp")
    draft.write_text(answer)
    draft.rename(out)
    os._exit(0)


def main(arguments: list[str]) -> None:
    rank_process.adopt_orphans()
    requests, events = os.dup(0), os.dup(1)
    os.dup2(2, 1)  # whatever a library prints must not reach the parent as an event
    settings = json.loads(arguments[0])
    server = Server(requests, events)
    model_type = settings["model_type"]  # of a script nobody knows it
    seconds = preload(settings["ops"], [model_type] if model_type else [], for_scripts=not model_type)
    server.say(
        event="ready", pid=os.getpid(), threads=len(list(Path("/proc/self/task").iterdir())), seconds=seconds
    )
    server.serve()
    server.leave()


if __name__ == "__main__":
    main(sys.argv[1:])
