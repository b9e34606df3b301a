"""Ranks on several nodes, started by the launcher a cluster has: DeepSpeed's with a hostfile, or srun.

Covered: the launcher's command, its life, and what the ranks leave in a folder that all nodes share. Not
covered: reaching the nodes (ssh, pdsh, MPI, SLURM: all the launcher's), the keeper of each rank on its node
(`worker/node.py`), watching host memory while a trial runs.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from offtune import launch, scratch
from offtune.errors import OfftuneError, UsageError
from offtune.trial import DeviceKind, TrialSpec

SRUN = "srun"
# The names DeepSpeed 0.19.8 knows (deepspeed/launcher/constants.py), and SLURM's own.
LAUNCHERS = ("pdsh", "openmpi", "mpich", "impi", "mvapich", "slurm", SRUN)
# In the trial's folder: what the keepers look at to see that we live, and what each leaves at its end.
PULSE_FILE = "pulse"
STOP = "stop"
_PULSE_S = 2.0
# Files of other nodes need a moment to be seen here (NFS keeps attributes for 3 s at least).
_LATE_FILES_S = 10.0
# A launcher looks for dead processes once a second; tens of nodes take a while to say goodbye.
_LEAVE_S = 20.0
_HELLO_S = 180.0
# Variables of the person's shell that ranks on other nodes must have too.
_PASSED_ON = ("NCCL_", "GLOO_", "TORCH_", "HF_", "PYTORCH_")


@dataclass(frozen=True, slots=True, kw_only=True)
class Nodes:
    """Where ranks run when it is not only here. `shared_dir` is a folder that all nodes see under this name.

    `ranks_per_node` is the largest number of ranks on one node.
    """

    launcher: str
    hostfile: str | None
    world_size: int
    ranks_per_node: int
    shared_dir: str


def resolve_nodes(
    hostfile: str | None,
    launcher: str | None,
    shared_dir: str | None,
    gpus: int | None = None,
    command: Sequence[str] | None = None,
) -> Nodes | None:
    """The nodes a person asked for; None is "this one". Raises UsageError naming the option."""
    if hostfile is None and launcher is None:
        return None
    if command is not None:
        raise UsageError(
            "--hostfile and --launcher are for built-in models.",
            "Write the launcher into the command: offtune search -- deepspeed --hostfile F train.py",
        )
    if gpus is not None:
        raise UsageError("--gpus: the launcher says how many ranks there are.", "Leave --gpus out.")
    name = launcher or LAUNCHERS[0]
    if name not in LAUNCHERS:
        raise UsageError(f"--launcher: there is no '{name}'.", f"One of: {', '.join(LAUNCHERS)}.")
    if (hostfile is None) != (name == SRUN):
        raise UsageError(
            f"--launcher {name} {'takes no' if name == SRUN else 'needs a'} --hostfile.",
            "A hostfile has lines like: worker-1 slots=8. Inside a SLURM allocation use --launcher srun.",
        )
    folder = Path(shared_dir or ".").resolve()
    if not folder.is_dir():
        raise UsageError(f"--shared-dir: there is no folder '{folder}'.", f"Make it: mkdir -p {folder}")
    per_node = _slurm_tasks() if hostfile is None else list(read_hostfile(Path(hostfile)).values())
    return Nodes(
        launcher=name,
        hostfile=None if hostfile is None else str(Path(hostfile).resolve()),
        world_size=sum(per_node),
        ranks_per_node=max(per_node),
        shared_dir=str(folder),
    )


def _slurm_tasks() -> list[int]:
    """Ranks by node in this SLURM allocation."""
    try:
        tasks, nodes = int(os.environ["SLURM_NTASKS"]), int(os.environ["SLURM_NNODES"])
    except (KeyError, ValueError):
        raise UsageError(
            "--launcher srun: this is not a SLURM allocation with a number of tasks.",
            "Start one first, for example: salloc --nodes=2 --ntasks-per-node=8 --gpus-per-node=8",
        ) from None
    if tasks % nodes:
        raise UsageError(
            f"--launcher srun: {tasks} tasks on {nodes} nodes.", "Use --ntasks-per-node: as many on each."
        )
    return [tasks // nodes] * nodes


def read_hostfile(path: Path) -> dict[str, int]:
    """Slots by host, as DeepSpeed reads a hostfile ("host slots=4"). Raises UsageError with the line."""
    slots: dict[str, int] = {}
    try:
        lines = path.read_text().splitlines()
    except OSError as error:
        raise UsageError(f"--hostfile: cannot read '{path}' ({error.strerror}).", "Name a file.") from error
    for number, line in enumerate(lines, start=1):
        words = line.split("#")[0].split()
        if not words:
            continue
        name, _, count = words[-1].partition("=")
        if len(words) != 2 or name != "slots" or not count.isdigit() or int(count) < 1 or words[0] in slots:
            raise UsageError(
                f"--hostfile: line {number} of '{path}' is '{line.strip()}'.",
                "Each host once, like: worker-1 slots=8",
            )
        slots[words[0]] = int(count)
    if not slots:
        raise UsageError(f"--hostfile: '{path}' names no host.", "One a line, like: worker-1 slots=8")
    return slots


def command(nodes: Nodes, arguments: Sequence[str]) -> list[str]:
    """The launcher's command line that starts one keeper (`worker/node.py`) a rank."""
    if nodes.launcher == SRUN:
        keeper = [sys.executable, "-m", "offtune.worker.node", *arguments]
        return [SRUN, f"--ntasks={nodes.world_size}", "--kill-on-bad-exit=1", "--export=ALL", *keeper]
    assert nodes.hostfile is not None
    first_host = next(iter(read_hostfile(Path(nodes.hostfile))))
    return [
        sys.executable, "-m", "deepspeed.launcher.runner", "--hostfile", nodes.hostfile, "--force_multi",
        "--launcher", nodes.launcher, "--master_addr", first_host, "--no_local_rank",
        "--module", "offtune.worker.node", *arguments,
    ]  # fmt: skip


class LauncherRanks:
    """The ranks of one trial behind launchers; their ends come as files in the trial's folder.

    `commands` is one launcher's command, or one a node where each node has a launcher of its own.
    """

    def __init__(self, spec: TrialSpec, commands: Sequence[Sequence[str]]) -> None:
        self._folder = Path(spec.trial_dir)
        self._world = spec.workload.world_size
        # One a rank; most are on other nodes, where a number would mean nothing here.
        self.pids = [0] * self._world
        self._beats = 0
        self._next_beat = 0.0
        self._gone_at: float | None = None
        self._forget()
        environment = launch.child_environment(spec.device, spec.threads_per_rank)
        # Launchers pass few variables on: the keepers read the rest.
        changed = {
            key: value
            for key, value in environment.items()
            if os.environ.get(key) != value or key.startswith(_PASSED_ON)
        }
        (self._folder / "environment.json").write_text(json.dumps(changed))
        self._pulse()
        self._launchers = [self._start(words, environment) for words in commands]

    def _forget(self) -> None:
        for rank in range(self._world):
            self._exit_file(rank).unlink(missing_ok=True)

    def _start(self, words: Sequence[str], environment: dict[str, str]) -> subprocess.Popen[bytes]:
        with (self._folder / "launcher.log").open("ab") as log:
            return subprocess.Popen(
                words, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environment,
                start_new_session=True,
            )  # fmt: skip

    def poll(self) -> dict[int, int]:
        """Exit codes by rank; when the launcher is gone, ranks that left no word have its code, or 1."""
        self._pulse()
        codes = {rank: code for rank in range(self._world) if (code := self._exit_code(rank)) is not None}
        ended = [process.poll() for process in self._launchers]
        if None in ended or len(codes) == self._world:
            return codes
        self._gone_at = self._gone_at or time.monotonic()
        if time.monotonic() - self._gone_at < _LATE_FILES_S:
            return codes
        self._keep_launcher_log()
        code = max((abs(code) for code in ended if code), default=1)
        return {rank: codes.get(rank, code) for rank in range(self._world)}

    def host_bytes(self) -> int:
        """0: what ranks on other nodes hold is judged from their reports."""
        return 0

    def kill(self) -> None:
        """Have every keeper end its rank, and the launcher with them."""
        self._write_pulse(STOP)
        give_up = time.monotonic() + _LEAVE_S
        while time.monotonic() < give_up and any(process.poll() is None for process in self._launchers):
            time.sleep(0.05)
        launch.kill_trees([process.pid for process in self._launchers])
        for process in self._launchers:
            process.wait()

    def _pulse(self) -> None:
        if time.monotonic() >= self._next_beat:
            self._beats += 1
            self._next_beat = time.monotonic() + _PULSE_S
            self._write_pulse(str(self._beats))

    def _write_pulse(self, text: str) -> None:
        draft = self._folder / f"{PULSE_FILE}.tmp"
        draft.write_text(text)
        draft.rename(self._folder / PULSE_FILE)

    def _exit_code(self, rank: int) -> int | None:
        try:
            return int(self._exit_file(rank).read_text())
        except (FileNotFoundError, ValueError):
            return None

    def _exit_file(self, rank: int) -> Path:
        return self._folder / f"rank{rank}.exit"

    def _keep_launcher_log(self) -> None:
        """What the launcher said is what there is to read when no rank came to life."""
        source, target = self._folder / "launcher.log", self._folder / "rank0.log"
        if source.exists() and not target.exists():
            target.write_bytes(source.read_bytes())


def launch_on(nodes: Nodes) -> Callable[[TrialSpec, Path], LauncherRanks]:
    """The launch function of `runner.run_trial` for these nodes."""

    def start(spec: TrialSpec, spec_path: Path) -> LauncherRanks:
        return LauncherRanks(spec, [command(nodes, [str(spec_path)])])

    return start


def greet(nodes: Nodes, device: DeviceKind) -> list[dict[str, str]]:
    """Start a process a rank that only says where it is and with which versions; checks what trials need.

    Raises OfftuneError where the launcher fails, the folder is not shared, or the nodes differ.
    """
    _refuse_other_size(nodes)
    folder = scratch.make_trial_dir("hello", 0, nodes.shared_dir)
    try:
        done = subprocess.run(
            command(nodes, ["--hello", str(folder)]), stdin=subprocess.DEVNULL,
            capture_output=True, text=True,
            env=launch.child_environment(device, 1), timeout=_HELLO_S, check=False,
        )  # fmt: skip
        said = f"{done.stdout}\n{done.stderr}".strip()
    except subprocess.TimeoutExpired:
        said = "it did not end"
    except FileNotFoundError as error:
        said = f"{error.filename} is not installed"
    hellos = _hellos(folder, nodes.world_size)
    scratch.remove_trial(str(folder), None, "")
    if len(hellos) < nodes.world_size:
        raise OfftuneError(
            f"{len(hellos)} of {nodes.world_size} ranks answered through {nodes.launcher}: {said[-800:]}",
            f"All nodes must see {nodes.shared_dir} under this name (--shared-dir) and have the same Python.",
        )
    _refuse_mixed(hellos)
    return hellos


def _refuse_other_size(nodes: Nodes) -> None:
    ranks = nodes.world_size if nodes.hostfile is None else sum(read_hostfile(Path(nodes.hostfile)).values())
    if ranks != nodes.world_size:
        raise UsageError(
            f"--hostfile: '{nodes.hostfile}' has {ranks} ranks, the study {nodes.world_size}.",
            "Restore it, or start a new study for another number of ranks.",
        )


def _hellos(folder: Path, world_size: int) -> list[dict[str, str]]:
    files = [folder / f"hello{rank}.json" for rank in range(world_size)]
    give_up = time.monotonic() + _LATE_FILES_S
    while not all(file.exists() for file in files) and time.monotonic() < give_up:
        time.sleep(0.1)
    return [json.loads(file.read_text()) for file in files if file.exists()]


def _refuse_mixed(hellos: list[dict[str, str]]) -> None:
    for name in sorted(set(hellos[0]) - {"host"}):
        if len({hello[name] for hello in hellos}) > 1:
            found = ", ".join(sorted({f"{hello[name]} on {hello['host']}" for hello in hellos}))
            raise OfftuneError(f"The nodes have different {name}: {found}.", "Use nodes of one kind.")
