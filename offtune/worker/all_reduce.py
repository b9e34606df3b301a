"""One rank of an all-reduce measurement: `python -m offtune.worker.all_reduce TASK MEETING RANK`.

Covered: gloo on the CPU, NCCL on GPUs, ranks that meet through a file. Rank 0 writes the figures beside it.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import torch
import torch.distributed as distributed

from offtune.calibration import RATE, Figure, Task
from offtune.trial import as_dict, load
from offtune.worker.calibrate_links import ALL_REDUCE_MIB
from offtune.worker.rank import die_with_parent
from offtune.worker.stopwatch import timing

_REPEATS = 12  # the same on every rank: a clock of its own would let one rank leave early


def bus_rate(task: Task, mib: int) -> Figure:
    """Each of n ranks sends and receives 2 (n-1)/n of the tensor."""
    tensor = torch.ones(mib * 2**18, dtype=torch.float32, device=task.device)  # 4 bytes an element
    seconds = []
    for _ in range(_REPEATS + 1):
        distributed.barrier()
        start = time.perf_counter()
        distributed.all_reduce(tensor)
        if task.device == "cuda":
            torch.cuda.synchronize()
        seconds.append(time.perf_counter() - start)
    moved = 2.0 * (task.ranks - 1) / task.ranks * mib * 2**20
    backend = "NCCL" if task.device == "cuda" else "gloo"
    detail = f"all-reduce of {mib} MiB by {backend}, {task.ranks} ranks, bus rate"
    return timing(seconds[1:]).rate(f"collective.{mib}MiB", moved, RATE, detail)


def main(arguments: list[str]) -> None:
    """Meet the others, measure, leave; rank 0 writes."""
    die_with_parent()
    task, meeting, rank = load(Task, arguments[0]), Path(arguments[1]), int(arguments[2])
    if task.device == "cuda":
        torch.cuda.set_device(rank)
    torch.set_num_threads(task.threads)
    backend = "nccl" if task.device == "cuda" else "gloo"
    distributed.init_process_group(backend, init_method=f"file://{meeting}", rank=rank, world_size=task.ranks)
    figures = [as_dict(bus_rate(task, mib)) for mib in ALL_REDUCE_MIB]
    if rank == 0:
        meeting.with_name("rank0.json").write_text(json.dumps(figures))
    distributed.barrier()
    distributed.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1:])
