"""What a study believes of points not measured yet: speed, memory, failures, and what a trial is worth.

Covered: predictions joined with measurements into a mean and a spread, expected gain, chance of fitting. Not
covered: which points to ask about (`pool`), the decision (`strategy`). Speeds and memory are logarithms
throughout, so that errors are shares.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from statistics import median

import numpy as np

from offtune.dominance import DEVICE_MEMORY, beyond
from offtune.features import Features, Matrix
from offtune.residuals import Residuals, Vector, fit
from offtune.trial import Point

# Standard deviations of log(measured / predicted), from docs/accuracy.md and docs/memory.md: nine of ten
# predictions are within about twice this. Without a prediction the points themselves spread like this.
_SPEED_PRIOR, _BLIND_SPEED_PRIOR = 0.2, 0.6
_MEMORY_PRIOR, _BLIND_MEMORY_PRIOR = 0.1, 0.5
# The least noise of a repeat, as a share: throughput (1 % on calm machines, docs/trials.md), memory.
_SPEED_NOISE, _MEMORY_NOISE = 0.01, 0.005
# An out-of-memory trial needed more than the limit, nobody knows how much; at least so much more is assumed.
_OUT_OF_MEMORY_SHARE = 1.1
# A failure next door weighs against so many unknown points that would not fail, and reaches so far.
_FAILURE_PRIOR = 1.0
_FAILURE_REACH = 0.5
# A point that is less likely than this to fit is not worth a trial while there are others; where the gain
# would be large a few are. What is as likely as the last is taken to fit: no safer point is better for that.
_LIKELY, _DARING, _SAFE = 0.8, 0.1, 0.95
_LAST = 1e3  # puts the unlikely behind every gain


@dataclass(frozen=True, slots=True, kw_only=True)
class Guess:
    """What is known of a point before a trial: `key` is the same for points that are the same ds_config.

    `shares` is predicted used over allowed memory by the name of the limit; None and absent: not predicted.
    """

    key: str
    samples_per_s: float | None = None
    shares: Mapping[str, float] = field(default_factory=dict)


# What a strategy is told of a point; None for one that DeepSpeed would refuse.
Guesser = Callable[[Point], Guess | None]


def by_itself(point: Point) -> Guess | None:
    """The guess of who knows nothing: every point is a configuration of its own."""
    return Guess(key=repr(point))


@dataclass(frozen=True, kw_only=True)
class Seen:
    """A trial told: `shares` is used over allowed memory by limit, None for "more than allowed".

    `samples_per_s` is None where it did not train; `noise_share` is the spread of its steps, where known.
    `chosen` by the strategy, not queued by somebody else.
    """

    point: Point
    samples_per_s: float | None
    shares: Mapping[str, float | None]
    failed: bool = False
    noise_share: float | None = None
    chosen: bool = True

    @cached_property
    def feasible(self) -> bool:
        """Whether it trained within every limit."""
        within = all(share is not None and share <= 1.0 for share in self.shares.values())
        return not self.failed and self.samples_per_s is not None and within


@dataclass(frozen=True, kw_only=True)
class Beliefs:
    """After `seen`, for points whose guesses are given; `pending` are being measured by others.

    A pending point is taken to turn out as believed, so that the next one goes elsewhere. `daring`: points
    that may well not fit are tried as well, once something fits. One that does not costs `price`, a share.
    """

    features: Features
    guess: Guesser
    seen: Sequence[Seen]
    pending: Sequence[Point] = ()
    daring: bool = True
    price: float = 0.0

    def worth(self, points: Sequence[Point]) -> tuple[Vector, Vector | None]:
        """What decides between points, and the expected gain of each (a share; None while nothing fits).

        Worth is the gain less the risk of a wasted trial. Whatever is unlikely to fit comes after everything
        that is likely, by its chance.
        """
        rows = self.features.rows(points)
        speed, spread = self._speed(points, rows)
        fits = self._fitting(points, rows)
        likely = fits >= (_DARING if self.daring and self._best is not None else _LIKELY)
        if self._best is None:
            return np.where(likely, speed + spread, fits - _LAST), None
        gain = fits * _expected_excess(speed - self._best, spread)
        worth = gain - self.price * np.maximum(0.0, _SAFE - fits)
        return np.where(likely, worth, fits - _LAST), np.where(likely, gain, 0.0)

    def chance_of_fitting(self, points: Sequence[Point]) -> Vector:
        """The probability that a point stays within every limit and does not fail."""
        return self._fitting(points, self.features.rows(points))

    def _fitting(self, points: Sequence[Point], rows: Matrix) -> Vector:
        chance = np.where(self._beyond(points), 0.0, 1.0 - self._failure(rows))
        for name, process in self._memory.items():
            mean, spread = process.at(rows)
            mean = mean + self._offsets[name] + self._guessed(points, name)
            total = np.sqrt(spread**2 + process.noise_variance)
            chance = chance * _normal(-mean / total)
        return chance

    def _beyond(self, points: Sequence[Point]) -> list[bool]:
        known = [(one.point, one.shares[DEVICE_MEMORY]) for one in self.seen if DEVICE_MEMORY in one.shares]
        return beyond(points, known)

    def believed_speed(self, points: Sequence[Point]) -> Vector:
        """The mean of the logarithm of samples per second."""
        return self._speed(points, self.features.rows(points))[0]

    @cached_property
    def noise_share(self) -> float:
        """The noise of one measurement of throughput, as a share."""
        known = [one.noise_share for one in self.seen if one.noise_share is not None]
        return max(_SPEED_NOISE, median(known)) if known else _SPEED_NOISE

    @cached_property
    def repeat_noise_share(self) -> float:
        """The noise of a repeat in another process, as a share: what the trials so far leave unexplained."""
        return math.sqrt(self._process.noise_variance)

    @cached_property
    def _trained(self) -> list[Seen]:
        return [one for one in self.seen if one.samples_per_s and not one.failed]

    @cached_property
    def _offset(self) -> float:
        """The mean of log(measured / predicted speed): the process starts from there."""
        values = [math.log(one.samples_per_s or 1.0) - self._log_speed(one.point) for one in self._trained]
        return float(np.mean(values)) if values else 0.0

    @cached_property
    def _process(self) -> Residuals:
        points = [one.point for one in self._trained]
        values = [math.log(one.samples_per_s or 1.0) - self._log_speed(one.point) for one in self._trained]
        prior = _SPEED_PRIOR if self._is_predicted else _BLIND_SPEED_PRIOR
        fitted = fit(self._likeness, self.features.rows(points), np.array(values) - self._offset,
                     prior_spread=prior, noise_spread=self.noise_share)  # fmt: skip
        return fitted.believing(self.features.rows(self.pending)) if self.pending else fitted

    def _speed(self, points: Sequence[Point], rows: Matrix) -> tuple[Vector, Vector]:
        mean, spread = self._process.at(rows)
        return mean + self._offset + np.array([self._log_speed(point) for point in points]), spread

    @cached_property
    def _best(self) -> float | None:
        """The best log speed that fits, as believed: a lucky measurement is not trusted as it stands."""
        points = [one.point for one in self.seen if one.feasible]
        return float(np.max(self.believed_speed(points))) if points else None

    @cached_property
    def _likeness(self) -> Features:
        # Predictions say already what the chief knobs do wherever states live.
        return self.features if self._is_predicted else replace(self.features, shared=True)

    @cached_property
    def _is_predicted(self) -> bool:
        return any(self._log_speed(one.point) != 0.0 for one in self.seen)

    def _log_speed(self, point: Point) -> float:
        found = self.guess(point)
        return math.log(found.samples_per_s) if found is not None and found.samples_per_s else 0.0

    @cached_property
    def _memory_values(self) -> dict[str, list[tuple[Point, float]]]:
        """By limit: points and log(measured share / predicted share)."""
        names = dict.fromkeys(name for one in self.seen for name in one.shares)
        return {
            name: [self._memory_value(one, name) for one in self.seen if name in one.shares] for name in names
        }

    def _memory_value(self, one: Seen, name: str) -> tuple[Point, float]:
        share = one.shares[name]
        guessed = float(self._guessed([one.point], name)[0])
        if share is None:
            return one.point, max(0.0, math.log(_OUT_OF_MEMORY_SHARE) - guessed)
        return one.point, math.log(share) - guessed

    @cached_property
    def _offsets(self) -> dict[str, float]:
        return {
            name: float(np.mean([value for _, value in pairs])) for name, pairs in self._memory_values.items()
        }

    @cached_property
    def _memory(self) -> dict[str, Residuals]:
        fitted = {}
        for name, pairs in self._memory_values.items():
            points, values = [point for point, _ in pairs], np.array([value for _, value in pairs])
            predicted = any(self._guessed(points, name) != 0.0)
            fitted[name] = fit(self._likeness, self.features.rows(points), values - self._offsets[name],
                               prior_spread=_MEMORY_PRIOR if predicted else _BLIND_MEMORY_PRIOR,
                               noise_spread=_MEMORY_NOISE)  # fmt: skip
        return fitted

    def _guessed(self, points: Sequence[Point], name: str) -> Vector:
        """Predicted log shares; 0 where there is no prediction."""
        guesses = [self.guess(point) for point in points]
        shares = [found.shares.get(name) if found is not None else None for found in guesses]
        return np.array([math.log(share) if share else 0.0 for share in shares])

    def _failure(self, rows: Matrix) -> Vector:
        """The chance of failing in another way than by memory, from failures nearby."""
        failed = np.array([one.failed for one in self.seen], dtype=np.float64)
        if not failed.any():
            return np.zeros(len(rows))
        known = self.features.rows([one.point for one in self.seen])
        squared = np.sum((rows[:, None, :] - known[None, :, :]) ** 2, axis=2)
        near = np.exp(-0.5 * squared / _FAILURE_REACH**2)
        result: Vector = near @ failed / (near.sum(axis=1) + _FAILURE_PRIOR)
        return result


def _normal(values: Vector) -> Vector:
    """The chance that a standard normal variable is below each value."""
    return np.array([0.5 * math.erfc(-value / math.sqrt(2.0)) for value in values])


def _expected_excess(mean: Vector, spread: Vector) -> Vector:
    """The mean of what a normal variable is above 0, and 0 where it is below."""
    ratio = mean / spread
    density = np.exp(-0.5 * ratio**2) / math.sqrt(2.0 * math.pi)
    result: Vector = mean * _normal(ratio) + spread * density
    return result
