"""Rivals: ways of choosing the next trial, all playing the same landscapes under the same rules.

Covered: random, nested grid, Optuna's samplers, offtune. Not covered: DeepSpeed's (`deepspeed_tuners`).
Rules: constraints are told alike, a configuration that was measured before costs nothing and tells the same
again, one that DeepSpeed would refuse is told as failed and costs nothing; baselines count where they run.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from random import Random

import optuna
from landscapes.landscape import REFUSED, Landscape, Truth
from optuna.samplers import BaseSampler, GPSampler, RandomSampler, TPESampler

from offtune.baseline_order import first_and_last
from offtune.convergence import converged
from offtune.pool import starting_points
from offtune.sampling import suggested
from offtune.sampling_strategy import NOISE_ATTRIBUTE, SPEED_ATTRIBUTE, StrategySampler
from offtune.score import INFEASIBLE_VALUE
from offtune.space import Space
from offtune.strategy import Strategy
from offtune.trial import Point

# A rival that proposes nothing new so often has nothing more to say; one that is slow, earlier.
_MOST_REPEATS = 300
SLOW_REPEATS = 50
_PREDICTED_BEST = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Played:
    """One trial of one game: its true throughput (0 where it does not fit) and its wall seconds."""

    true_speed: float
    feasible: bool
    baseline: bool
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """What came of a game: its limit, its trials in order, and after how many the rival converged."""

    trials: int
    played: tuple[Played, ...]
    stopped: int | None


@dataclass(slots=True, kw_only=True)
class Game:
    """One seed of one rival on one landscape: what was measured, in order; `stopped`: where it converged.

    It ends after `trials` different ones, or after `most_repeats` proposals in a row that were known.
    """

    landscape: Landscape
    trials: int
    draw: Random
    most_repeats: int = _MOST_REPEATS
    played: list[Played] = field(default_factory=list)
    stopped: int | None = None
    _known: dict[str, Truth] = field(default_factory=dict)

    @property
    def over(self) -> bool:
        return len(self.played) >= self.trials

    def measure(self, point: Point, *, baseline: bool = False) -> Truth | None:
        """One trial, or what it gave before; None for a point that is refused."""
        guess = self.landscape.guess(point)
        if guess is None:
            return None
        if guess.key not in self._known:
            seen = self.landscape.measure(point, self.draw)
            true = self.landscape.truth(point)
            self._known[guess.key] = seen
            speed = true.samples_per_s if true.feasible else 0.0
            self.played.append(
                Played(true_speed=speed, feasible=seen.feasible, baseline=baseline, seconds=seen.seconds)
            )
        return self._known[guess.key]

    def record(self) -> Record:
        """What came of it."""
        return Record(trials=self.trials, played=tuple(self.played), stopped=self.stopped)


Player = Callable[[Game, int], None]


def nested_grid(game: Game, seed: int) -> None:
    """Every point in the order of the space's knobs, the last turning fastest."""
    for point in _nested(game.landscape.space, {}, 0):
        if game.over:
            return
        game.measure(point)


def _nested(space: Space, point: Point, index: int) -> Iterator[Point]:
    if index == len(space.knobs):
        yield point
        return
    knob = space.knobs[index]
    for value in knob.values if knob.is_active(point) else [None]:
        yield from _nested(space, {**point, knob.name: value} if value is not None else point, index + 1)


def random_points(game: Game, seed: int) -> None:
    """Random points without repetition: on a small space a grid in random order."""
    _ask_and_tell(game, lambda number: RandomSampler(seed=seed + 1000 * number), [])


def plain_tpe(game: Game, seed: int) -> None:
    """Optuna's default."""
    sampler = TPESampler(seed=seed)
    _ask_and_tell(game, lambda number: sampler, [])


def tpe_with_baselines(game: Game, seed: int) -> None:
    """Optuna's default, after the ladder everybody tries."""
    sampler = TPESampler(seed=seed)
    _ask_and_tell(game, lambda number: sampler, game.landscape.baselines)


def tpe_with_predictions(game: Game, seed: int) -> None:
    """The same, after the ladder and the best predictions of as many placements: offtune before this."""
    sampler = TPESampler(seed=seed)
    _ask_and_tell(game, lambda number: sampler, [*game.landscape.baselines, *_predicted(game.landscape)])


def gp(game: Game, seed: int) -> None:
    """Optuna's Gaussian process."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        sampler = GPSampler(seed=seed, independent_sampler=TPESampler(seed=seed))
    _ask_and_tell(game, lambda number: sampler, [])


def offtune(game: Game, seed: int) -> None:
    """The strategy, as `offtune search` runs it."""
    _play_strategy(game, game.landscape, seed)


def offtune_blind(game: Game, seed: int) -> None:
    """The strategy without predictions, as for a model it does not know."""
    _play_strategy(game, game.landscape.without_predictions(), seed)


def _play_strategy(game: Game, landscape: Landscape, seed: int) -> None:
    strategy = Strategy(space=landscape.space, guess=landscape.guess)
    first, last = first_and_last([("", point) for point in landscape.baselines], landscape.guess)
    _ask_and_tell(
        game, lambda number: StrategySampler(strategy, seed * 1000 + number),
        [point for _, point in first], [point for _, point in last],
    )  # fmt: skip


def _predicted(landscape: Landscape) -> list[Point]:
    """The fastest predicted points that may fit, one a placement."""
    best: dict[str, tuple[float, Point]] = {}
    for point in starting_points(landscape.space, Random(0)):
        guess = landscape.guess(point)
        if guess is None or not guess.samples_per_s or any(share > 1.0 for share in guess.shares.values()):
            continue
        name = point.get("placement", "")
        if guess.samples_per_s > best.get(name, (0.0, {}))[0]:
            best[name] = (guess.samples_per_s, point)
    ranked = sorted(best.values(), key=lambda one: -one[0])
    return [point for _, point in ranked[:_PREDICTED_BEST]]


def _ask_and_tell(
    game: Game, sampler: Callable[[int], BaseSampler], first: Iterable[Point], late: Sequence[Point] = ()
) -> None:
    """Until the game is over; `late` baselines come where a search would end without them."""
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    space = game.landscape.space
    study = optuna.create_study(direction="maximize", sampler=sampler(0))
    waiting = _enqueue(study, space, first)
    count, repeats = waiting, 0
    gains: list[float | None] = []
    noise_share = 0.0  # as the sampler believes
    while not game.over and repeats < game.most_repeats:
        before = len(game.played)
        study.sampler = sampler(count)
        trial = study.ask()
        count = max(count, trial.number + 1)
        queued = waiting > 0
        waiting -= queued
        point = space.suggest(partial(suggested, trial))
        _tell(study, trial, game.measure(point, baseline=queued))
        repeats = repeats + 1 if len(game.played) == before else 0
        if isinstance(study.sampler, StrategySampler) and not queued:
            found = study.sampler.proposal
            gains.append(found.expected_gain if found else None)
            noise_share = (found.noise_share if found else None) or noise_share
        measured = len(game.played) + len(late)
        ends = not waiting and converged(gains, noise_share, measured) is not None
        if late and (ends or measured >= game.trials):
            waiting, late = _enqueue(study, space, late), ()
        elif ends and game.stopped is None:
            game.stopped = measured


def _enqueue(study: optuna.Study, space: Space, points: Iterable[Point]) -> int:
    """Queue the points; how many are queued now."""
    for point in points:
        study.enqueue_trial(
            {knob.name: knob.raw(point[knob.name]) for knob in space.knobs if knob.name in point}
        )
    return len(study.get_trials(deepcopy=False, states=(optuna.trial.TrialState.WAITING,)))


def _tell(study: optuna.Study, trial: optuna.Trial, seen: Truth | None) -> None:
    for name, overshoot in (REFUSED if seen is None else seen.constraints()).items():
        trial.set_constraint(name, overshoot)
    if seen is not None and not seen.out_of_memory:
        trial.set_user_attr(SPEED_ATTRIBUTE, seen.samples_per_s)
    if seen is not None and seen.noise_share is not None:
        trial.set_user_attr(NOISE_ATTRIBUTE, seen.noise_share)
    study.tell(trial, seen.value if seen is not None else INFEASIBLE_VALUE)


PLAYERS: dict[str, Player] = {
    "random": random_points,
    "grid, nested": nested_grid,
    "TPE": plain_tpe,
    "TPE + baselines": tpe_with_baselines,
    "TPE + baselines + 5 predictions": tpe_with_predictions,
    "GP": gp,
    "offtune": offtune,
    "offtune, no predictions": offtune_blind,
}
