"""The keeper of one rank on its node: `python -m offtune.worker.node SPEC`, started by a launcher.

It learns its rank from the launcher's environment, starts the rank in a process of its own, ends it when the
search says stop or is not heard of any more, and leaves `rank<r>.exit` in the trial's folder. It imports
nothing heavy. `--hello FOLDER` instead of SPEC only says who is here.
"""

from __future__ import annotations

import json
import os
import platform
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

from offtune import hardware, installed, scratch
from offtune.trial import TrialSpec, load
from offtune.worker.rank import Place, die_with_parent

# By which names launchers tell a process who it is: DeepSpeed and torchrun, SLURM, Open MPI, MPICH.
_RANK = ("RANK", "SLURM_PROCID", "OMPI_COMM_WORLD_RANK", "PMI_RANK")
_LOCAL_RANK = ("LOCAL_RANK", "SLURM_LOCALID", "OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID")
_LOCAL_SIZE = ("LOCAL_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS")
_PULSE_FILE, _STOP = "pulse", "stop"  # written by offtune/multinode.py
_LOOK_S = 0.2
# The search beats every 2 s; this long without is a dead search, or a file system that is.
_SILENCE_S = 60.0
_COMPARED = ("torch", "deepspeed", "transformers", "offtune")


@dataclass(slots=True)
class Pulse:
    """The sign of life of the search, judged by this node's own clock."""

    path: Path
    last: str = ""
    changed: float = 0.0

    def stopped(self) -> bool:
        try:
            text = self.path.read_text()
        except OSError:  # removed with the trial's folder, or the file system is gone
            text = self.last
        now = time.monotonic()
        if text != self.last or not self.changed:
            self.last, self.changed = text, now
        return text == _STOP or now - self.changed > _SILENCE_S


def place_from(environment: Mapping[str, str], device: str) -> tuple[int, Place]:
    """(rank, place) as the launcher tells it. Raises SystemExit where it does not."""
    rank = _first(environment, _RANK)
    local_rank = _first(environment, _LOCAL_RANK)
    if rank is None or local_rank is None:
        sys.exit(f"No launcher told this process its rank: none of {', '.join(_RANK)} is set.")
    # 0 is "not all ranks are on one node", by which DeepSpeed decides on its shared-memory reduction.
    local_size = _first(environment, _LOCAL_SIZE) or 0
    gpu = _gpu(environment.get("CUDA_VISIBLE_DEVICES"), local_rank) if device == "cuda" else 0
    return rank, Place(local_rank=local_rank, local_size=local_size, gpu=gpu)


def _first(environment: Mapping[str, str], names: tuple[str, ...]) -> int | None:
    return next((int(environment[name]) for name in names if name in environment), None)


def _gpu(visible: str | None, local_rank: int) -> int:
    """NVML index of this rank's card: one is given per task, or the list is shared by the node's ranks."""
    entries = [entry.strip() for entry in (visible or "").split(",") if entry.strip()]
    if not entries:
        return local_rank
    entry = entries[local_rank] if local_rank < len(entries) else entries[0]
    if entry.isdigit():
        return int(entry)
    return next(gpu.index for gpu in hardware.detect().gpus if gpu.uuid.startswith(entry))


def keep(spec_path: Path) -> int:
    """Run the rank to its end; returns the exit code for the launcher."""
    spec = load(TrialSpec, spec_path.read_bytes())
    rank, place = place_from(os.environ, spec.device)
    folder = Path(spec.trial_dir)
    extra = json.loads((folder / "environment.json").read_text())
    if spec.swap_dir is not None:
        Path(spec.swap_dir).mkdir(exist_ok=True)
    words = [str(spec_path), str(rank), str(place.local_rank), str(place.local_size), str(place.gpu)]
    with (folder / f"rank{rank}.log").open("ab") as log:
        child = subprocess.Popen(
            [sys.executable, "-m", "offtune.worker.rank", *words], stdin=subprocess.DEVNULL,
            stdout=log, stderr=log, env={**os.environ, **extra}, start_new_session=True,
        )  # fmt: skip
    pulse = Pulse(folder / _PULSE_FILE)
    code = _watch(child, pulse)
    _leave(folder / f"rank{rank}.exit", str(code))
    if spec.swap_dir is not None:  # shared with the other ranks of this node, which may still use it
        while not pulse.stopped():
            time.sleep(_LOOK_S)
    scratch.remove_swap_and_shm(spec.swap_dir, spec.token)
    return 0 if code == 0 else 1


def _watch(child: subprocess.Popen[bytes], pulse: Pulse) -> int:
    def end(*_: int | FrameType | None) -> None:
        child.kill()

    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, end)
    while child.poll() is None:
        if pulse.stopped():
            _kill_group(child.pid)
        time.sleep(_LOOK_S)
    _kill_group(child.pid)  # what it may have started and left
    return child.returncode


def _kill_group(pid: int) -> None:
    try:
        os.killpg(pid, signal.SIGKILL)
    except ProcessLookupError:
        return


def _leave(path: Path, text: str) -> None:
    draft = path.with_suffix(".tmp-exit")
    draft.write_text(text)
    draft.rename(path)


def hello(folder: Path) -> None:
    """Say which rank is here, on which host, and with which versions."""
    rank, _ = place_from(os.environ, "cpu")
    facts = {"host": platform.node(), "python": platform.python_version(), **installed.versions(*_COMPARED)}
    _leave(folder / f"hello{rank}.json", json.dumps(facts))


def main(arguments: list[str]) -> None:
    die_with_parent()
    if arguments[0] == "--hello":
        hello(Path(arguments[1]))
        return
    sys.exit(keep(Path(arguments[0])))


if __name__ == "__main__":
    main(sys.argv[1:])
