"""DeepSpeed's own tuner classes on a landscape: GridSearchTuner, RandomTuner, ModelBasedTuner, as installed.

Covered: the experiments they choose from, and a resource manager that looks trials up. Not covered:
DeepSpeed's autotuner as a whole (`deepspeed_autotuner.py`). They want a finite list: all points of a small
space; of a large one every placement, micro-batch and residency with the other knobs at their defaults, and
some at random, which is a favour. They know no constraints: a trial that does not fit has failed.
"""

from __future__ import annotations

import json
import random
import tempfile
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
from deepspeed.autotuning.tuner import GridSearchTuner, ModelBasedTuner, RandomTuner
from rival_players import Game

from offtune.knobs import Knob, parse_placement
from offtune.pool import starting_points
from offtune.space import Space
from offtune.trial import Point

_METRIC = "throughput"


class _Manager:
    """What a tuner takes for its cluster: experiments are run by looking them up."""

    def __init__(self, game: Game, points: list[Point], folder: Path) -> None:
        self.exps_dir = str(folder)
        self.finished_experiments: dict[int, tuple[dict[str, Any], str | None]] = {}
        self._game, self._points, self._folder = game, points, folder
        self._scheduled: list[dict[str, Any]] = []

    def schedule_experiments(self, paths: list[str]) -> None:
        self._scheduled = [json.loads(Path(path).read_text()) for path in paths]

    def run(self) -> None:
        for experiment in self._scheduled:
            number = int(experiment["name"])
            seen = self._game.measure(self._points[number]) if not self._game.over else None
            fits = seen is not None and seen.feasible
            if fits:
                path = self._folder / f"{number}.metrics.json"
                path.write_text(json.dumps({_METRIC: seen.samples_per_s}))
                experiment["ds_config"]["autotuning"] = {"metric_path": str(path)}
            self.finished_experiments[number] = (experiment, None if fits else "out of memory")

    def parse_results(self, metric: str) -> tuple[dict[str, Any] | None, float | None]:
        best: tuple[dict[str, Any] | None, float | None] = (None, None)
        for experiment, error in self.finished_experiments.values():
            if error is None:
                text = Path(experiment["ds_config"]["autotuning"]["metric_path"]).read_text()
                value = float(json.loads(text)[metric])
                if best[1] is None or value > best[1]:
                    best = (experiment, value)
        return best

    def clear(self) -> None:
        self.finished_experiments = {}
        self._scheduled = []


def play(kind: str, game: Game, seed: int) -> None:
    """One game of the tuner of that name. Raises AssertionError where its cost model is not installed."""
    random.seed(seed)
    np.random.seed(seed)
    space = game.landscape.space
    points = [point for point in starting_points(space, Random(seed)) if game.landscape.guess(point)]
    with tempfile.TemporaryDirectory() as folder:
        experiments = [_experiment(space, number, point, folder) for number, point in enumerate(points)]
        manager = _Manager(game, points, Path(folder))
        if kind == "model":
            values = {knob.name: list(knob.values) for knob in space.knobs}
            tuner = ModelBasedTuner(experiments, manager, _METRIC, values)
        else:
            tuner = {"grid": GridSearchTuner, "random": RandomTuner}[kind](experiments, manager, _METRIC)
        wanted = min(game.trials, len(points))
        # `tune` swallows what goes wrong in it: without this a rival would stop early and look bad.
        if tuner.tune(sample_size=1, n_trials=wanted, early_stopping=None) < wanted and tuner.has_next():
            raise RuntimeError(f"DeepSpeed's {kind} tuner stopped after {len(game.played)} trials")


def _experiment(space: Space, number: int, point: Point, folder: str) -> dict[str, Any]:
    """An experiment as the autotuner writes it: numbers alone, as many for every point."""
    where = parse_placement(point["placement"])
    devices = ("none", "cpu", "nvme")
    config = {knob.name: _number(knob, point) for knob in space.knobs if knob.name != "placement"}
    config |= {
        "stage": where.stage,
        "optimizer": devices.index(where.optimizer),
        "param": devices.index(where.param),
    }
    return {"name": str(number), "ds_config": config, "result_dir": folder}


def _number(knob: Knob, point: Point) -> float:
    """The place of a knob's value among its values; one that does not act here has none of them."""
    return float(knob.values.index(point[knob.name])) if knob.name in point else -1.0
