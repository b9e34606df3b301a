"""Which point to measure next, from predictions and from what the study has measured.

Covered: the decision, as a function of (space, predictions, trials seen, seed), with no state of its own. Not
covered: Optuna (`sampling_strategy`), what is believed of a point (`beliefs`), when to stop (`convergence`).
First the edge of the budget along partial offload, then the point with the greatest expected gain among those
that are likely to fit. In words: docs/strategy.md.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from random import Random

import numpy as np

from offtune.basis import MOST, basis
from offtune.beliefs import Beliefs, Guesser, Seen
from offtune.boundary import edge
from offtune.caution import daring, price
from offtune.features import Features, features_of
from offtune.pool import around, is_small, lasting_points, others, scattered_points
from offtune.space import Space
from offtune.trial import Point

# How often the neighbourhood of the best is looked at, and of how many: fewer in a long study, for speed.
_ROUNDS, _BEAM, _LONG_BEAM = 2, 3, 1
# The edge of the budget is found by a line; the beliefs only have to not contradict it.
_EDGE_CHANCE = 0.3


@dataclass(frozen=True, slots=True, kw_only=True)
class Proposal:
    """A point to measure; `expected_gain` is over the best so far, `noise_share` that of a trial, as shares.

    Both are None for a step to the edge, whose gain is not in question; the gain also where nothing fits yet.
    """

    point: Point
    expected_gain: float | None
    noise_share: float | None = None


@dataclass(frozen=True, kw_only=True)
class Strategy:
    """Decides for one space. `guess` gives None for a point that DeepSpeed would refuse."""

    space: Space
    guess: Guesser

    @cached_property
    def features(self) -> Features:
        return features_of(self.space)

    @cached_property
    def _lasting(self) -> dict[str, Point]:
        """By their texts, which take longer to write than all else that a draw asks of most of them."""
        return {repr(point): point for point in lasting_points(self.space)}

    def propose(self, seen: Sequence[Seen], pending: Sequence[Point], seed: int) -> Proposal | None:
        """The next point; None when nothing is left that is neither seen nor being measured."""
        beliefs = self._beliefs(seen, pending)
        known = [*(one.point for one in seen), *pending]
        taken = {found.key for point in known if (found := self.guess(point)) is not None}
        at_edge = edge(self.space, seen, self.guess)
        steps = self._new([at_edge] if at_edge is not None else [], taken)
        if steps and beliefs.chance_of_fitting(steps)[0] >= _EDGE_CHANCE:
            return Proposal(point=steps[0], expected_gain=None)
        return self._best_of_pool(beliefs, taken, seed)

    def _beliefs(self, seen: Sequence[Seen], pending: Sequence[Point]) -> Beliefs:
        speeds = [one.samples_per_s if one.feasible else None for one in seen]
        return Beliefs(
            features=self.features, guess=self.guess, seen=[seen[place] for place in basis(speeds)],
            pending=pending, daring=daring(seen), price=price(seen),
        )  # fmt: skip

    def _best_of_pool(self, beliefs: Beliefs, taken: set[str], seed: int) -> Proposal | None:
        """The best of the pool, after some rounds of looking around what is best."""
        looked_at = set(self._lasting)
        scattered = others(scattered_points(self.space, Random(seed)), looked_at)
        pool = self._new((*self._lasting.values(), *scattered), taken)
        if not pool:
            return None
        worth, gain = beliefs.worth(pool)
        beam = _BEAM if len(beliefs.seen) < MOST else _LONG_BEAM
        for round_ in range(0 if is_small(self.space) else _ROUNDS):
            top = [pool[place] for place in np.argsort(-worth, kind="stable")[:beam]]
            near = (other for point in top for other in self._around(point, seed, round_))
            # What has been judged comes first, and keeps its worth.
            fresh = self._new(others(near, looked_at), taken)
            more, more_gain = beliefs.worth(fresh)
            pool += fresh
            worth = np.concatenate([worth, more])
            gain = None if gain is None or more_gain is None else np.concatenate([gain, more_gain])
        best = int(np.argmax(worth))
        return Proposal(
            point=pool[best], expected_gain=None if gain is None else float(gain[best]),
            noise_share=beliefs.repeat_noise_share,
        )  # fmt: skip

    def _around(self, point: Point, seed: int, round_: int) -> Iterator[Point]:
        # The same surroundings for the same seed, whatever else looks good: their guesses are known then.
        return around(self.space, point, Random(f"{seed} {round_} {point}"))

    def _new(self, points: Iterable[Point], taken: set[str]) -> list[Point]:
        guesses = ((point, self.guess(point)) for point in points)
        return [point for point, found in guesses if found is not None and found.key not in taken]
