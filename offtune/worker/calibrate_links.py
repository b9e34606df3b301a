"""Measures what crosses links: copies between host and GPU, and collectives between ranks.

Covered: pinned and pageable copies by size, both directions at once, all-reduce by size. Not covered: several
GPUs copying at once, other nodes.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import torch

from offtune.calibration import RATE, SHARE, Figure, Task
from offtune.trial import dump
from offtune.worker.stopwatch import absent, timed

_COPY_MIB = (1, 16, 256)
_NO_LINK = "no CUDA: host and device are one memory, nothing crosses a link"
_ONE_RANK = "one rank: there is nobody to exchange with (--gpus 2 measures it)"
ALL_REDUCE_MIB = (1, 64)
_COPY_KEYS = ("h2d.pinned", "d2h.pinned", "h2d.pageable", "d2h.pageable")


def copies(task: Task) -> Iterator[Figure]:
    """Each direction by kind of host memory and size, then both at once."""
    if task.device != "cuda":
        for key in _COPY_KEYS:
            yield absent(f"{key}.{_COPY_MIB[-1]}MiB", RATE, _NO_LINK)
        yield absent("link.duplex", SHARE, _NO_LINK)
        return
    for mib in _COPY_MIB:
        for pinned in (True, False):
            yield from _one_way(task, mib, pinned)
    yield _both_ways(task)


def _one_way(task: Task, mib: int, pinned: bool) -> Iterator[Figure]:
    kind = "pinned" if pinned else "pageable"
    size = mib * 2**20
    near = torch.ones(size, dtype=torch.uint8, pin_memory=pinned)
    far = torch.ones(size, dtype=torch.uint8, device="cuda")
    for key, target, source in (("h2d", far, near), ("d2h", near, far)):

        def copy(target: torch.Tensor = target, source: torch.Tensor = source) -> None:
            target.copy_(source, non_blocking=pinned)
            torch.cuda.synchronize()

        found = timed(copy, task.budget_s / 3)
        yield found.rate(f"{key}.{kind}.{mib}MiB", size, RATE, f"one copy of {mib} MiB, {kind} host memory")


def _both_ways(task: Task) -> Figure:
    """What both directions reach at once, as a share of what they reach one after the other."""
    size = _COPY_MIB[-1] * 2**20
    hosts = [torch.ones(size, dtype=torch.uint8, pin_memory=True) for _ in range(2)]
    devices = [torch.ones(size, dtype=torch.uint8, device="cuda") for _ in range(2)]
    streams = [torch.cuda.Stream() for _ in range(2)]

    def up(stream: torch.cuda.Stream) -> None:
        with torch.cuda.stream(stream):
            devices[0].copy_(hosts[0], non_blocking=True)

    def down(stream: torch.cuda.Stream) -> None:
        with torch.cuda.stream(stream):
            hosts[1].copy_(devices[1], non_blocking=True)

    def together() -> None:
        up(streams[0])
        down(streams[1])
        torch.cuda.synchronize()

    def in_turn() -> None:
        up(streams[0])
        torch.cuda.synchronize()
        down(streams[0])
        torch.cuda.synchronize()

    both, apart = timed(together, task.budget_s / 2), timed(in_turn, task.budget_s / 2)
    # Perfect duplex takes half the time of one after the other.
    return Figure(
        key="link.duplex", value=min(1.0, apart.median_s / 2 / both.median_s), unit=SHARE,
        spread=max(both.spread, apart.spread), count=both.count,
        detail="both directions at once, pinned, as a share of what each reaches alone",
    )  # fmt: skip


def collectives(task: Task) -> Iterator[Figure]:
    """All-reduce over ranks in processes of their own; the bus rate as NCCL's tests define it."""
    if task.ranks == 1:
        yield absent(f"collective.{ALL_REDUCE_MIB[-1]}MiB", RATE, _ONE_RANK)
        return
    with tempfile.TemporaryDirectory(dir=task.scratch_dir or None) as folder:
        command = [sys.executable, "-m", "offtune.worker.all_reduce", dump(task), f"{folder}/meeting"]
        ranks = [_start([*command, str(rank)], Path(folder) / f"rank{rank}") for rank in range(task.ranks)]
        codes = [rank.wait() for rank in ranks]
        if any(codes):
            said = "; ".join((Path(folder) / f"rank{rank}").read_text()[-200:] for rank in range(task.ranks))
            reason = f"a rank ended with code {next(code for code in codes if code)}: {said.strip()}"
            yield absent(f"collective.{ALL_REDUCE_MIB[-1]}MiB", RATE, reason)
            return
        for fields in json.loads((Path(folder) / "rank0.json").read_text()):
            yield Figure(**fields)


def _start(command: list[str], log: Path) -> subprocess.Popen[bytes]:
    with log.open("wb") as output:
        return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=output, stderr=output)
