"""A landscape: a space whose every point has a known throughput and memory, so that searches can be compared.

Covered: what a rival is given and told, and the best that can be found. Not covered: where the figures come
from (`recorded`, `simulated`, `published`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from random import Random

from offtune.beliefs import Guess
from offtune.pool import around, starting_points
from offtune.score import (
    ASSUMED_OVERSHOOT,
    DEVICE_MEMORY,
    FAILED,
    FAILURE,
    HOST_MEMORY,
    INFEASIBLE_VALUE,
    MARGIN_UNKNOWN,
    NOT_FAILED,
)
from offtune.space import Space
from offtune.trial import Point

# A climb that has not ended after so many steps is not going to.
_MOST_STEPS = 200
_STARTS = 60


@dataclass(frozen=True, slots=True, kw_only=True)
class Truth:
    """A point as it is: throughput where it trains, used over allowed memory, wall seconds of a trial.

    `out_of_memory` trials end before anybody learns by how much. `noise_share` is the spread of its steps.
    """

    samples_per_s: float
    device_share: float
    host_share: float = 0.0
    seconds: float = 0.0
    out_of_memory: bool = False
    noise_share: float | None = None

    @property
    def feasible(self) -> bool:
        return self.device_share <= 1.0 and self.host_share <= 1.0

    def constraints(self) -> dict[str, float]:
        """The constraints as offtune tells them to a sampler."""
        over = ASSUMED_OVERSHOOT if self.out_of_memory else self.device_share - 1.0
        host = self.host_share - 1.0 if self.host_share else MARGIN_UNKNOWN
        return {DEVICE_MEMORY: over, HOST_MEMORY: host, FAILURE: NOT_FAILED}

    @property
    def value(self) -> float:
        """The value as offtune tells it: 0 where a limit is broken."""
        return self.samples_per_s if self.feasible else INFEASIBLE_VALUE


REFUSED = {DEVICE_MEMORY: MARGIN_UNKNOWN, HOST_MEMORY: MARGIN_UNKNOWN, FAILURE: FAILED}


@dataclass(slots=True, kw_only=True)
class Landscape:
    """One landscape. `measure` is one noisy trial, `truth` what it is without noise.

    `simulated` says that no such trial was run. `note` is the sentence that stands beside every figure.
    """

    name: str
    note: str
    simulated: bool
    space: Space
    guess: Callable[[Point], Guess | None]
    truth: Callable[[Point], Truth]
    measure: Callable[[Point, Random], Truth]
    baselines: tuple[Point, ...] = ()
    noise_share: float = 0.01
    best: float = 0.0
    climb: bool = True

    def __post_init__(self) -> None:
        if self.climb:
            self.best = max((self._climb(point) for point in self._starts()), default=0.0)

    def without_predictions(self) -> Landscape:
        """The same, where nothing is known of a point but which others it equals."""
        bare = replace(self, guess=lambda point: _bare(self.guess(point)), climb=False)
        bare.best = self.best
        return bare

    def _starts(self) -> Iterable[Point]:
        points = [point for point in starting_points(self.space, Random(0)) if self._speed(point) > 0]
        return sorted(points, key=self._speed, reverse=True)[:_STARTS]

    def _speed(self, point: Point) -> float:
        if self.guess(point) is None:
            return 0.0
        found = self.truth(point)
        return found.samples_per_s if found.feasible else 0.0

    def _climb(self, point: Point) -> float:
        """The throughput at the top of the hill that `point` stands on."""
        draw = Random(1)
        for _ in range(_MOST_STEPS):
            higher = max(around(self.space, point, draw), key=self._speed)
            if self._speed(higher) <= self._speed(point):
                break
            point = higher
        return self._speed(point)


def _bare(guess: Guess | None) -> Guess | None:
    return None if guess is None else Guess(key=guess.key)
