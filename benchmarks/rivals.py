"""Trials that each way of searching needs: offtune, random, grid, Optuna's samplers, DeepSpeed's tuners.

    python benchmarks/rivals.py [--seeds N] [--quick] [--studies FILE] [--only TEXT] [--games FILE]
                                [--held-out] [-o docs/rivals.md]

Landscapes: real figures recorded on the CPU accelerator, two simulated machines, one published table, and a
third simulated machine that no constant of the strategy was chosen on (`landscapes/`). Counted are trials
and wall time until the first trial that fits and is within 5 % (2 %) of the best known, baselines included;
where a seed never gets there it counts as more than all. With --games the games already in that file are
not played again: an interrupted run goes on, and rivals that have not changed (take the lines of those that
have out of the file) need not wait for those that have. Exit 1 when a goal is missed.
"""

from __future__ import annotations

import argparse
import os
import sys

# Before numpy is loaded: one thread a process, or the processes fight for the cores.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import importlib.util
import logging
import multiprocessing
from collections.abc import Iterable, Mapping
from functools import partial
from pathlib import Path
from random import Random

from landscapes import held_out, published, recorded, simulated
from landscapes.landscape import Landscape
from rival_games import GameFile, Task
from rival_players import PLAYERS, SLOW_REPEATS, Game, Player, Record
from rival_report import OURS, Row, missed, search_seconds, sheet

ROOT = Path(__file__).parent.parent
_TRIALS = 100
# These take a third of a second a trial and more, and are asked only how they do in a default search.
_SLOW = {"GP": 40, "offtune": 40, "offtune, no predictions": 40}
_DEEPSPEED = {"DeepSpeed grid": "grid", "DeepSpeed random": "random", "DeepSpeed model-based": "model"}


_LANDSCAPES: dict[str, Landscape] = {}


def main() -> int:
    options = _options()
    for make in (
        partial(recorded.cpu, Path(options.studies)),
        simulated.a100,
        simulated.card24,
        published.twinflow,
        held_out.h100_pair,
        *((held_out.l4_quartet, held_out.small_card) if options.held_out else ()),
    ):
        landscape = make()
        _LANDSCAPES[landscape.name] = landscape
    tasks = [
        Task(landscape=name, rival=rival, seed=seed)
        for name in _LANDSCAPES
        for rival in _rivals(options.only)
        for seed in range(options.seeds)
    ]
    games = _games(tasks, options.jobs, GameFile(Path(options.games)) if options.games else None)
    rows = [row for name in _LANDSCAPES for row in _rows(name, _rivals(options.only), games)]
    text = sheet(rows, list(_LANDSCAPES.values()), options.seeds)
    print(text)
    if options.output:
        Path(options.output).write_text(text)
    failures = missed(rows)
    for failure in failures:
        print(f"MISSED: {failure}", file=sys.stderr)
    return 1 if failures else 0


def _rows(landscape: str, rivals: Iterable[str], games: Mapping[Task, Record]) -> list[Row]:
    """The rows of one landscape."""
    played = {
        rival: [games[task] for task in games if (task.landscape, task.rival) == (landscape, rival)]
        for rival in rivals
    }
    seconds = search_seconds(played.get(OURS, []))
    return [Row.of(_LANDSCAPES[landscape], rival, found, seconds) for rival, found in played.items()]


def _games(tasks: list[Task], jobs: int, file: GameFile | None) -> dict[Task, Record]:
    """What came of each game, those in `file` without playing."""
    known = file.read() if file else {}
    games = {task: known[task] for task in tasks if task in known}
    # Forked, so that landscapes and their best are worked out once.
    with multiprocessing.get_context("fork").Pool(jobs) as pool:
        for task, record in pool.imap_unordered(_play, [task for task in tasks if task not in games]):
            games[task] = record
            if file:
                file.add(task, record)
    return games


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--quick", action="store_true", help="Three seeds: a look, not a result.")
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    parser.add_argument("--studies", default=str(ROOT / "studies.db"), help="Where the recorded one is.")
    parser.add_argument("--only", default="", help="Only rivals whose name has this in it.")
    parser.add_argument("--games", help="A file of games, one a line: kept as they end, not played again.")
    parser.add_argument("--held-out", action="store_true", help="Also two more machines never tuned on.")
    parser.add_argument("-o", "--output", help="Also write the sheet there.")
    options = parser.parse_args()
    options.seeds = 3 if options.quick else options.seeds
    return options


def _rivals(only: str) -> dict[str, Player]:
    """The rivals that can play here, by name."""
    found = dict(PLAYERS)
    if importlib.util.find_spec("deepspeed"):
        found |= {name: partial(_deepspeed, kind) for name, kind in _DEEPSPEED.items()}
    if not importlib.util.find_spec("xgboost"):
        found.pop("DeepSpeed model-based", None)
    if not importlib.util.find_spec("scipy"):
        found.pop("GP")
    return {name: player for name, player in found.items() if only in name}


def _deepspeed(kind: str, game: Game, seed: int) -> None:
    logging.disable(logging.INFO)
    from deepspeed_tuners import play

    play(kind, game, seed)


def _play(task: Task) -> tuple[Task, Record]:
    game = Game(landscape=_LANDSCAPES[task.landscape], trials=_SLOW.get(task.rival, _TRIALS),
                draw=Random(task.seed))  # fmt: skip
    if task.rival in _SLOW:
        game.most_repeats = SLOW_REPEATS
    _rivals("")[task.rival](game, task.seed)
    return task, game.record()


if __name__ == "__main__":
    sys.exit(main())
