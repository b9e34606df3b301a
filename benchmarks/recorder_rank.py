"""One rank that trains on and on and switches its recorder from block to block: started by the benchmark.

    python benchmarks/recorder_rank.py SECONDS SPEC RANK

Everything that recording adds to a trial is there in one kind of block and gone in the other: readings at
edges and by the clock, parts of phases, marks, the reading of the host's cores. `blocks.json` in the trial's
folder has what the first rank saw.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from recorder_blocks import ORDER, Block, Blocks, enough

from offtune.trial import TrialSpec, dump, load
from offtune.worker.parts import PartClock
from offtune.worker.preload import preload
from offtune.worker.rank import die_with_parent, environment, place_here
from offtune.worker.recorder import Recorder
from offtune.worker.train import Rank

RESULT = "blocks.json"


# Where the recorder is entered: at the edges of phases, in a part, between two steps, from the samplers.
_ENTRIES = {
    Recorder: ("_edge", "_on_resident", "_on_driver", "_on_link", "_on_cores", "begin_step", "end_step"),
    PartClock: ("enter", "leave"),
}


class OwnTime:
    """Seconds spent in the recorder's own code, by the calls that enter it; spoilt caches are not in it."""

    def __init__(self) -> None:
        self._spent: list[float] = []  # appending is atomic, and samplers have threads of their own
        self._inside = threading.local()
        for owner, names in _ENTRIES.items():
            for name in names:
                setattr(owner, name, self._timed(getattr(owner, name)))

    def take(self) -> float:
        """What was spent since it was taken last."""
        spent, self._spent = self._spent, []
        return sum(spent)

    def _timed(self, method: Callable[..., Any]) -> Callable[..., Any]:
        inside = self._inside

        @wraps(method)
        def timed(*args: Any) -> Any:
            if getattr(inside, "is_set", False):  # within a call that counts already
                return method(*args)
            inside.is_set = True
            start = time.perf_counter()
            try:
                return method(*args)
            finally:
                self._spent.append(time.perf_counter() - start)
                inside.is_set = False

        return timed


class SwitchedRank(Rank):
    """A rank whose recorder goes on and off; `steps` of the spec are those of a block."""

    own = OwnTime()

    def blocks(self, seconds: float) -> Blocks:
        """Train for `seconds` after the warm-up, or until enough is known."""
        engine = self._start()
        for _ in range(self.spec.warmup_steps):
            self._train(engine)
        for on in ORDER:  # what is allocated, compiled or imported at the first use of each
            self._block(engine, on)
        end = time.perf_counter() + seconds
        found: list[Block] = []
        while True:
            found += [self._block(engine, on) for on in ORDER]
            measured = Blocks(steps=self.spec.steps, blocks=tuple(found))
            if self._agreed(time.perf_counter() > end or enough(measured), engine):
                return measured

    def _block(self, engine: Any, on: bool) -> Block:
        record = self.record
        if on:
            record.start_recording(engine)
        self.own.take()
        turns = [self._turn(engine) for _ in range(self.spec.steps)]
        own_s = self.own.take() / len(turns)
        record.stop_recording()
        turn_s, step_s, cpu_s = (sum(column) / len(turns) for column in zip(*turns, strict=True))
        return Block(on=on, turn_s=turn_s, step_s=step_s, cpu_s=cpu_s, own_s=own_s)

    def _turn(self, engine: Any) -> tuple[float, float, float]:
        """One turn of the training loop: seconds of all of it, of the step, of processor time."""
        start, used = time.perf_counter(), time.process_time()
        self._train(engine)
        return time.perf_counter() - start, self.record.step_s[-1], time.process_time() - used

    def _train(self, engine: Any) -> None:
        self.record.begin_step(engine)
        self._one_step(engine, self.record.steps_done)

    def _agreed(self, over: bool, engine: Any) -> bool:
        """What the first rank thinks; all ranks must stop at the same step."""
        if self.spec.workload.world_size > 1:
            word = torch.tensor([int(over)], device=engine.device)
            dist.broadcast(word, src=0)
            over = bool(int(word))
        return over


def main(seconds: str, spec_path: str, number: str) -> None:
    """Be that rank."""
    spec, rank = load(TrialSpec, Path(spec_path).read_bytes()), int(number)
    die_with_parent()
    preload(spec.ops, [spec.workload.model_config["model_type"]])
    place = place_here(spec, rank)
    os.environ.update(environment(spec, rank, place))
    found = SwitchedRank(spec, rank, place.gpu).blocks(float(seconds))
    if rank == 0:
        (Path(spec.trial_dir) / RESULT).write_text(dump(found))
    os._exit(0)  # as a trial's rank ends: exit handlers of gloo and NCCL can hang


if __name__ == "__main__":
    main(*sys.argv[1:])
