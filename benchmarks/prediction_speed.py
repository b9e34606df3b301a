"""Predictions per second on one core, and candidates ranked per second, for a model of 32 layers.

    python benchmarks/prediction_speed.py [--seconds S]

A prediction takes a ds_config and says memory, time and verdict. A ranked candidate starts from a point of
the default space: its ds_config is built, held against all rules, predicted, and sorted among the others;
points that DeepSpeed would refuse are looked at and not counted. The model is llama-7b (291 parameters) on
four A100-40GB, the points are random. Goals, in processor time: 500 predictions and 1,000 ranked candidates a
second, so that thousands can be ranked between two trials. Exits with 1 where one is missed.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial

from offtune.candidates import Candidate, candidate, ranked
from offtune.plan import facts_of
from offtune.plan_request import PlanOptions, resolve
from offtune.predict import Predictor
from offtune.space import Space, load_space
from offtune.trial import Point

_PREDICTIONS_GOAL_PER_S = 500
_RANKED_GOAL_PER_S = 1000
# Different points, some of which are looked at again when time is left.
_POINTS = 5000
_AT_ONCE = 250


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    options.add_argument("--seconds", type=float, default=3.0)
    seconds = float(options.parse_args().seconds)
    predictor, points = _question()
    ds_configs = [one.ds_config for one in _candidates(predictor, points[:_AT_ONCE])]
    rank = partial(_ranked, predictor, points)
    reached = (
        _rate(
            "predictions", lambda turn: _predicted(predictor, ds_configs), seconds, _PREDICTIONS_GOAL_PER_S
        ),
        _rate("ranked candidates", rank, seconds, _RANKED_GOAL_PER_S),
    )
    return 0 if all(reached) else 1


def _question() -> tuple[Predictor, list[Point]]:
    """What predicts, and the points to look at."""
    wanted = PlanOptions(
        model="llama-7b", hardware="a100-40gb", gpus=4, nvme=True, activation_checkpointing=True
    )
    request = resolve(wanted)
    facts = facts_of(request)
    predictor = Predictor(facts=facts, shape=request.shape, hardware=request.hardware, bounds=request.bounds)
    space = load_space("default").fit(facts)
    return predictor, _points(space)


def _points(space: Space) -> list[Point]:
    draw = random.Random(0)
    return [space.suggest(lambda knob: draw.choice(knob.values)) for _ in range(_POINTS)]


def _candidates(predictor: Predictor, points: Sequence[Point]) -> list[Candidate]:
    found = (candidate(point, predictor, "/local_nvme") for point in points)
    return [one for one in found if one is not None]


def _predicted(predictor: Predictor, ds_configs: Sequence[dict[str, object]]) -> int:
    for ds_config in ds_configs:
        predictor.predict(ds_config)
    return len(ds_configs)


def _ranked(predictor: Predictor, points: Sequence[Point], turn: int) -> int:
    """The next points, ranked; returns how many DeepSpeed would take."""
    first = turn * _AT_ONCE % _POINTS
    return len(ranked(_candidates(predictor, points[first : first + _AT_ONCE]), predictor.bounds))


def _rate(what: str, work: Callable[[int], int], seconds: float, goal_per_s: int) -> bool:
    """Print how many of `what` a second of processor time sees; returns whether the goal is met."""
    count, turn, start = 0, 0, time.process_time()
    while (spent := time.process_time() - start) < seconds:
        count += work(turn)
        turn += 1
    rate = count / spent
    met = rate >= goal_per_s
    print(
        f"{what}: {rate:.0f} per second of processor time (goal {goal_per_s}: {'met' if met else 'MISSED'})"
    )
    return met


if __name__ == "__main__":
    sys.exit(main())
