"""Which baselines are measured first, and which last: those predicted not to fit by more than any doubt.

Covered: the split, from predictions. Every baseline is measured, but a search that does not begin with what
cannot fit has something good sooner. Not covered: when the last are queued (`search`). Optuna's samplers are
told all of them first, and several workers begin with all: so they need not agree when the last are due.
"""

from __future__ import annotations

from collections.abc import Sequence

from offtune.beliefs import Guesser
from offtune.trial import Point

Labelled = tuple[str, Point]
# Nine of ten predictions of used memory are nearer than this to what is measured (docs/memory.md).
_SURELY_OVER_SHARE = 1.15


def first_and_last(
    baselines: Sequence[Labelled], guess: Guesser
) -> tuple[tuple[Labelled, ...], tuple[Labelled, ...]]:
    """The baselines apart, each part in the order given. Some come first whatever is predicted."""
    shares = [_greatest_share(point, guess) for _, point in baselines]
    most = max(_SURELY_OVER_SHARE, min(shares, default=0.0))
    pairs = list(zip(baselines, shares, strict=True))
    first = tuple(baseline for baseline, share in pairs if share <= most)
    return first, tuple(baseline for baseline, share in pairs if share > most)


def _greatest_share(point: Point, guess: Guesser) -> float:
    """Predicted used over allowed memory, of the limit that is the tightest; 0 where nothing is predicted."""
    found = guess(point)
    return max(found.shares.values(), default=0.0) if found is not None else 0.0
