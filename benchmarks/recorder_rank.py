"""One rank that trains on and on and switches its recorder from step to step: started by the benchmark.

    python benchmarks/recorder_rank.py SECONDS SPEC RANK

Everything that recording adds to a trial is there in one step of a pair and gone in the other: readings at
edges and by the clock, parts of phases, marks, the reading of the host's cores. `pairs.json` in the trial's
folder has what the first rank saw.
"""

from __future__ import annotations

import os
import random
import sys
import threading
import time
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from recorder_pairs import Pair, Pairs, Turn, enough

from offtune.trial import TrialSpec, dump, load
from offtune.worker.parts import PartClock
from offtune.worker.preload import preload
from offtune.worker.rank import die_with_parent, environment, place_here
from offtune.worker.recorder import CLOSE_EVERY, Recorder
from offtune.worker.train import Rank

RESULT = "pairs.json"
_SEED = 1  # of the lot: each rank must draw the same
_HALF = 0.5

# Where the recorder is entered: at the edges of phases, in a part, between two steps, from the samplers.
_ENTRIES = {
    Recorder: ("_edge", "_on_resident", "_on_driver", "_on_link", "_on_cores", "begin_step", "end_step"),
    PartClock: ("note",),
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
    """A rank whose recorder goes on and off."""

    own = OwnTime()
    _recorder: Recorder | None = None

    def pairs(self, seconds: float) -> Pairs:
        """Train for `seconds` after the warm-up, or until enough is known."""
        engine = self._start()
        for _ in range(self.spec.warmup_steps):
            self._train(engine)
        lot = random.Random(_SEED)
        self._pair(engine, on_first=True, closely=True)  # what is allocated or imported at the first use
        end = time.perf_counter() + seconds
        found: list[Pair] = []
        while True:
            found += self._round(engine, lot)
            measured = Pairs(close_every=CLOSE_EVERY, pairs=tuple(found))
            if self._agreed(time.perf_counter() > end or enough(measured), engine):
                return measured

    def _round(self, engine: Any, lot: random.Random) -> list[Pair]:
        """As many pairs as one recorder takes until the parts of a step are timed again."""
        self._recorder = None
        return [self._pair(engine, lot.random() < _HALF, number == 0) for number in range(CLOSE_EVERY)]

    def _pair(self, engine: Any, on_first: bool, closely: bool) -> Pair:
        turns = {on: self._turn(engine, on) for on in (on_first, not on_first)}
        return Pair(on=turns[True], off=turns[False], closely=closely)

    def _turn(self, engine: Any, on: bool) -> Turn:
        """One turn of the training loop; switching the recorder is no part of it."""
        if on:
            self._recorder = self.record.start_recording(engine, self._recorder)
        self.own.take()
        start, used = time.perf_counter(), time.process_time()
        self._train(engine)
        turn_s, cpu_s = time.perf_counter() - start, time.process_time() - used
        self.record.stop_recording()
        return Turn(turn_s=turn_s, step_s=self.record.step_s[-1], cpu_s=cpu_s, own_s=self.own.take())

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
    found = SwitchedRank(spec, rank, place.gpu).pairs(float(seconds))
    if rank == 0:
        (Path(spec.trial_dir) / RESULT).write_text(dump(found))
    os._exit(0)  # as a trial's rank ends: exit handlers of gloo and NCCL can hang


if __name__ == "__main__":
    main(*sys.argv[1:])
