"""How much faster the winner is than a baseline, and whether that is more than noise.

Covered: the gain in percent and the spread of the step times within the two runs. Not covered: shifts from
one process to the next, which a single run cannot show (2 to 8 % on a shared two-core machine); a gain that
matters is worth a second run.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from offtune.records import Run
from offtune.spread import relative_spread
from offtune.trial import Status, TrialResult


@dataclass(frozen=True, slots=True, kw_only=True)
class Gain:
    """The winner against one baseline.

    `percent` is None where there is no winner or the baseline has no usable throughput; `noise_percent` is
    None where either run has too few steps. `same` says that the baseline is the winner.
    """

    trial: int
    label: str
    status: Status | None
    fits: bool
    samples_per_s: float | None
    percent: float | None = None
    noise_percent: float | None = None
    same: bool = False

    @property
    def clear(self) -> bool | None:
        """Whether the gain exceeds the noise; None when that cannot be said."""
        if self.percent is None or self.noise_percent is None or self.same:
            return None
        return abs(self.percent) > self.noise_percent


def gain(winner: Run | None, baseline: Run, fits: bool) -> Gain:
    """The winner's gain over `baseline`; a baseline that does not fit is listed, not compared with."""
    result = baseline.result
    rate = result.samples_per_s if result else None
    known: dict[str, Any] = {
        "trial": baseline.number,
        "label": baseline.label,
        "status": baseline.status,
        "fits": fits,
        "samples_per_s": rate,
    }
    if winner is None or winner.result is None or not winner.result.samples_per_s or not rate or not fits:
        return Gain(**known)
    return Gain(
        **known,
        percent=100.0 * (winner.result.samples_per_s / rate - 1.0),
        noise_percent=noise_percent(winner.result, result),
        same=winner.number in (baseline.number, baseline.reuse_of),
    )


def noise_percent(first: TrialResult | None, second: TrialResult | None) -> float | None:
    """100 x sqrt(a^2 + b^2) of the two relative spreads: the spread of the quotient of two medians."""
    a, b = _spread(first), _spread(second)
    return None if a is None or b is None else 100.0 * math.hypot(a, b)


def _spread(result: TrialResult | None) -> float | None:
    """How far a run's steps scatter; of two steps, how well its step time is known."""
    spread = relative_spread(result.step_s) if result else None
    if spread is not None or result is None or result.step_interval_s is None:
        return spread
    low, high = result.step_interval_s
    return (high - low) / (high + low)
