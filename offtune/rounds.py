"""What rounds of training in turn say: how many times as fast one is as another, who is trained once more.

Covered: the statistics of rounds in which not everybody takes part, who is beaten, when the rounds are over.
Not covered: choosing the winner (`winner.py`), training (`finals.py`). A round is samples per second by run.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from offtune.intervals import Interval, t95

# Contenders nearer than this are equal: no choice between them is worth a stranger configuration.
TIE_SHARE = 0.02
LEAST_ROUNDS, MOST_ROUNDS = 2, 5
# A tie is seen where the whole interval of a ratio lies this near to 1; on a calm machine repeats scatter by
# 2 to 3 %, so that a narrower margin would cost more rounds than the whole search.
_EQUAL_SHARE = 0.03
# From so many rounds on the noise is known well enough to call a tie, or to say that more would tell nothing.
_ROUNDS_FOR_OUTLOOK = 3
# A clear difference is also worth a figure: '1.34 ± 0.03' and not '1.34 ± 0.3'.
_PRECISE_SHARE = 0.05

Rounds = Sequence[Mapping[int, float]]


def together(rounds: Rounds, one: int, other: int) -> int:
    """In how many rounds both were measured."""
    return sum(one in each and other in each for each in rounds)


def ratio_interval(rounds: Rounds, one: int, other: int) -> Interval | None:
    """How many times as fast `one` is as `other`, with the 95 % interval; None below two rounds of both.

    Within a round all met the same state of the machine, so that only what differs from round to round counts
    as noise. How much that is, all that was measured tells together.
    """
    if one == other or together(rounds, one, other) < LEAST_ROUNDS:
        return None
    return _Layout.of(rounds).ratio(one, other)


def leading(rounds: Rounds, names: Sequence[int]) -> int | None:
    """The fastest of the names; None without a round in which all of them took part."""
    if not names or not any(all(name in each for name in names) for each in rounds):
        return None
    levels = _Layout.of(rounds).levels
    return max(names, key=lambda name: levels[name])


def still_in(rounds: Rounds, names: Sequence[int], baseline: int | None) -> list[int]:
    """The names that may still win, and the baseline, which the winner is held against."""
    staying = list(names)
    for count in range(LEAST_ROUNDS, len(rounds) + 1):
        lead = leading(rounds[:count], staying)
        staying = [name for name in staying if name == baseline or not _is_beaten(rounds[:count], lead, name)]
    return staying


def next_round(rounds: Rounds, names: Sequence[int]) -> list[int]:
    """Who is trained in one more round: the fastest of `names`, and who is not told from it yet.

    Nobody where each difference is clear, or a tie is, or no round that is left would tell.
    """
    lead = leading(rounds, names)
    if lead is None:
        return list(names) if len(names) > 1 else []
    unknown = [name for name in names if name != lead and not _is_told(rounds, lead, name)]
    return [name for name in names if name == lead or name in unknown] if unknown else []


def _is_told(rounds: Rounds, lead: int, name: int) -> bool:
    count, ratio = together(rounds, lead, name), ratio_interval(rounds, lead, name)
    if ratio is None:
        return False
    if count < _ROUNDS_FOR_OUTLOOK:
        # Two rounds often look alike by chance: they only end a race that is not near.
        return ratio.low > 1 + TIE_SHARE and ratio.half_share <= _PRECISE_SHARE
    equal = max(ratio.high, 1 / ratio.low) <= 1 + _EQUAL_SHARE
    clear = ratio.low > 1 and ratio.half_share <= _PRECISE_SHARE
    return equal or clear or count >= MOST_ROUNDS or _is_hopeless(rounds, ratio, count)


def _is_hopeless(rounds: Rounds, ratio: Interval, count: int) -> bool:
    """Whether the last round would find neither a difference nor a tie, were all as it looks now.

    Stopping for that claims nothing: the interval that is told is that of the rounds that were made.
    """
    half, distance = math.log(ratio.high / ratio.centre), abs(math.log(ratio.centre))
    degrees = _Layout.of(rounds).degrees
    later = t95(degrees + MOST_ROUNDS - count)
    shrunk = half * later / t95(degrees) * math.sqrt(count / MOST_ROUNDS)
    return distance <= shrunk and distance + shrunk > math.log(1 + _EQUAL_SHARE)


def _is_beaten(rounds: Rounds, lead: int | None, name: int) -> bool:
    ratio = None if lead is None else ratio_interval(rounds, lead, name)
    return ratio is not None and ratio.low > 1 and ratio.centre > 1 + TIE_SHARE


@dataclass(frozen=True, slots=True)
class _Layout:
    """A two-way layout of the logarithms by least squares: each round and each name has a level of its own.

    `spread` are the covariances of the names' levels, in units of `variance`, the noise of one measurement.
    """

    levels: dict[int, float]
    spread: NDArray[np.float64]
    degrees: int
    variance: float

    @classmethod
    def of(cls, rounds: Rounds) -> _Layout:
        names = sorted({name for each in rounds for name in each})
        cells = [(place, name) for place, each in enumerate(rounds) for name in each]
        design = np.zeros((len(cells), len(names) + len(rounds)))
        for row, (place, name) in enumerate(cells):
            design[row, names.index(name)] = design[row, len(names) + place] = 1.0
        values = np.array([math.log(rounds[place][name]) for place, name in cells])
        inverse = np.linalg.pinv(design.T @ design)
        fitted = inverse @ design.T @ values
        degrees = len(cells) - int(np.linalg.matrix_rank(design))
        squares = float(np.sum((values - design @ fitted) ** 2))
        levels = dict(zip(names, map(float, fitted), strict=False))
        return cls(levels, inverse[: len(names), : len(names)], degrees, squares / max(degrees, 1))

    def ratio(self, one: int, other: int) -> Interval:
        names = list(self.levels)
        i, j = names.index(one), names.index(other)
        own = self.spread[i, i] + self.spread[j, j] - 2 * self.spread[i, j]
        error = t95(self.degrees) * math.sqrt(self.variance * own)
        middle = self.levels[one] - self.levels[other]
        return Interval(centre=math.exp(middle), low=math.exp(middle - error), high=math.exp(middle + error))
