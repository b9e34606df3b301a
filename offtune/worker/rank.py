"""The life of one rank's process, warm (forked) or cold (started): environment, log, report, end.

`python -m offtune.worker.rank SPEC RANK` is the cold path, through a launcher with LOCAL_RANK LOCAL_SIZE GPU
behind it (`node.py`); the server calls `be` in the forked child. All leave exactly one file, `rank<r>.json`,
in the trial's directory.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import traceback
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from offtune.rank_report import RankReport
from offtune.trial import TrialSpec, dump, load
from offtune.worker.preload import preload

_PR_SET_PDEATHSIG = 1  # linux/prctl.h
_PR_SET_CHILD_SUBREAPER = 36


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where on its node a rank is: `gpu` is the NVML index there; `local_size` 0 is "not known"."""

    local_rank: int
    local_size: int
    gpu: int


def place_here(spec: TrialSpec, rank: int) -> Place:
    """The place of a rank when all ranks are on one node."""
    gpu = spec.gpus[rank] if spec.gpus else 0
    return Place(local_rank=rank, local_size=spec.workload.world_size, gpu=gpu)


def be(spec: TrialSpec, rank: int, *, forked: bool, place: Place | None = None) -> None:
    """Be this rank: train, report, and end the process without running anybody's exit handlers."""
    place = place or place_here(spec, rank)
    os.environ.update(environment(spec, rank, place))
    report = _bad_fork(rank) if forked and _cuda_is_lost(spec) else _train(spec, rank, place.gpu)
    write(spec, report)
    sys.stdout.flush()
    sys.stderr.flush()
    # Exit handlers of gloo, NCCL and aio can hang; everything worth keeping is on disk.
    os._exit(0 if report.outcome == "done" else 1)


def environment(spec: TrialSpec, rank: int, place: Place) -> dict[str, str]:
    """What a launcher would set. MASTER_PORT is only a name here (DeepSpeed's /dev/shm files carry it)."""
    variables = {
        "RANK": str(rank),
        "LOCAL_RANK": "0" if spec.device == "cuda" else str(place.local_rank),
        "WORLD_SIZE": str(spec.workload.world_size),
        "LOCAL_SIZE": str(place.local_size),
        "OFFTUNE_LOCAL_RANK": str(place.local_rank),  # LOCAL_RANK counts cards, of which each rank sees one
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": spec.token,
    }
    if spec.device == "cuda":
        # Each rank sees its own card only: no stray context of another rank counts against a budget.
        # NVML counts cards in PCI order, CUDA by default in order of speed.
        variables["CUDA_DEVICE_ORDER"] = "PCI_BUS_ID"
        variables["CUDA_VISIBLE_DEVICES"] = str(place.gpu)
    return variables


def _train(spec: TrialSpec, rank: int, gpu: int) -> RankReport:
    from offtune.worker.train import Rank

    return Rank(spec, rank, gpu).run(partial(write, spec))


def _cuda_is_lost(spec: TrialSpec) -> bool:
    """Whether a forked rank cannot use CUDA, be it torch or another library that initialised it too early."""
    if spec.device != "cuda":
        return False
    import torch

    if torch.cuda._is_in_bad_fork():
        return True
    try:
        torch.cuda.init()
    except RuntimeError:
        traceback.print_exc()
        return True
    return False


def _bad_fork(rank: int) -> RankReport:
    return RankReport(
        rank=rank, outcome="bad_fork", error="The warm server had touched CUDA before the fork."
    )


def write(spec: TrialSpec, report: RankReport) -> None:
    """Write the report under a temporary name, then rename it: a reader sees all of it or nothing."""
    final = Path(spec.trial_dir) / f"rank{report.rank}.json"
    draft = final.with_suffix(".tmp")
    draft.write_text(dump(report))
    draft.rename(final)


def redirect_output(spec: TrialSpec, rank: int) -> None:
    """Everything the rank prints goes to its log; appending, so that the parent may cut the log short."""
    log = os.open(Path(spec.trial_dir) / f"rank{rank}.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.close(log)


def die_with_parent() -> None:
    """Ask the kernel to kill this process when its parent dies, however it dies."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def adopt_orphans() -> None:
    """Become the parent of descendants whose own parent dies, so that none can slip away."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1)


def main(arguments: list[str]) -> None:
    spec = load(TrialSpec, Path(arguments[0]).read_bytes())
    die_with_parent()
    preload(spec.ops, [spec.workload.model_config["model_type"]])
    rank, *place = (int(argument) for argument in arguments[1:])
    names = ("local_rank", "local_size", "gpu")
    be(spec, rank, forked=False, place=Place(**dict(zip(names, place, strict=True))) if place else None)


if __name__ == "__main__":
    main(sys.argv[1:])
