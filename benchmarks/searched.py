"""Whole searches for `search_speed.py`: one run as a person runs it, and its findings measured again.

Covered: a search in a process of its own, what the person would have held in hand at each moment of it, and
runs of several searches trained again in turn. Not covered: what is compared (`search_speed.py`).
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from pathlib import Path
from statistics import geometric_mean

from offtune import prepare, scratch
from offtune.errors import EXIT_NOTHING_FITS, OfftuneError
from offtune.records import Run, is_measured
from offtune.repeats import Repeat
from offtune.report.study_report import read_summary
from offtune.store import Store
from offtune.trial import Status
from offtune.trial_length import CONFIRMATION_STEPS, confirmation_rule
from offtune.trial_spec import Before, trial_spec
from offtune.winner import rotated

COLD = "--cold-process"
ROUNDS = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Searched:
    """One search: wall seconds from command to end, those of its finals among them, and its winner.

    `ended` are its measured runs, each with the second at which it had ended.
    """

    seconds: float
    finals_s: float
    winner: Run | None
    ended: tuple[tuple[float, Run], ...]

    def incumbents(self) -> list[tuple[float, Run]]:
        """The runs that were the fastest that fit when they ended: what a person would have taken then."""
        found: list[tuple[float, Run]] = []
        for second, run in sorted(self.ended, key=lambda one: one[0]):
            if run.status is Status.OK and (not found or speed(run) > speed(found[-1][1])):
                found.append((second, run))
        return found


def search(program: Sequence[str], options: Sequence[str]) -> Searched:
    """One search in a process of its own; its study is read afterwards. Raises OfftuneError if it failed."""
    with tempfile.TemporaryDirectory() as folder:
        storage = str(Path(folder) / "studies.db")
        begun, started = datetime.now(timezone.utc), time.monotonic()
        command = [sys.executable, *program, "search", *options, "--storage", storage]
        done = subprocess.run(command, stdout=subprocess.DEVNULL)
        seconds = time.monotonic() - started
        if done.returncode not in (0, EXIT_NOTHING_FITS):
            raise OfftuneError(f"The search ended with code {done.returncode}.", "See its words above.")
        with Store.open(storage, write=False) as store:
            record = store.study(None)
            runs = [run for run in store.runs(record.name) if is_measured(run)]
            # As the person is told: what did not hold in the finals is not the winner.
            best = read_summary(store, record).best
            finals_s = _finals_s(store.repeats.of(record.name))
    ended = tuple((_since(begun, run.finished_at), run) for run in runs)
    return Searched(seconds=seconds, finals_s=finals_s, winner=best, ended=ended)


def _finals_s(repeats: Sequence[Repeat]) -> float:
    """From the first repeat's start to the last one's end."""
    if not repeats:
        return 0.0
    begun = min(datetime.fromisoformat(each.started_at) for each in repeats)
    return max(_since(begun, each.finished_at) for each in repeats)


def _since(begun: datetime, moment: str | None) -> float:
    assert moment is not None
    return (datetime.fromisoformat(moment) - begun).total_seconds()


def speed(run: Run) -> float:
    """Samples per second of the run's own trial; 0 where it has none."""
    return (run.result.samples_per_s if run.result else None) or 0.0


def measure_again(ready: prepare.Prepared, runs: Sequence[Run]) -> list[float | None]:
    """Samples per second of each, trained again in turn, as a winner is confirmed; None: one did not hold.

    What a single trial says is up to a tenth too much for the luckiest of many, and what fitted in a few
    steps may not in twenty.
    """
    speeds: dict[int, list[float]] = {name: [] for name in range(len(runs))}
    for number in range(1, ROUNDS + 1):
        for name in rotated(tuple(speeds), number) if speeds else ():
            found = _confirmed(ready, runs[name])
            if found is None:
                del speeds[name]
            else:
                speeds[name].append(found)
    return _means(speeds, len(runs))


def _means(speeds: Mapping[int, Sequence[float]], count: int) -> list[float | None]:
    return [geometric_mean(speeds[name]) if name in speeds else None for name in range(count)]


def _confirmed(ready: prepare.Prepared, run: Run) -> float | None:
    before = Before(best=None, steps_s=())
    spec = trial_spec(run, ready.config, ready.facts, ready.ops, ready.config.gpus, before)
    spec = replace(spec, steps=CONFIRMATION_STEPS, stop=confirmation_rule(spec.steps))
    result = ready.runner(spec)
    scratch.remove_trial(spec.trial_dir, spec.swap_dir, spec.token)
    return result.samples_per_s if result.status is Status.OK and not result.unsafe else None
