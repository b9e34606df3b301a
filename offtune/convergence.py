"""When to stop: further trials are not expected to gain more than the noise.

Covered: the decision from expected gains, as each proposal noted them. Not covered: what is expected
(`beliefs`), the target and the clock (`search`).
"""

from __future__ import annotations

from collections.abc import Sequence

from offtune.errors import UsageError

# The sampler that says what it expects; the others never converge.
STRATEGY = "offtune"
# Below this no gain is worth a trial; repeats of one configuration differ by as much on calm machines.
LEAST_GAIN_SHARE = 0.01
# Whatever the noise, this is worth one: what trials leave unexplained may be a knob not understood yet.
_MOST_GAIN_SHARE = 0.04
# So many proposals in a row must agree: one that is told may open a new region.
_IN_A_ROW = 3
# Five baselines and three choices; with fewer baselines, more choices. A later end found nothing better on
# any landscape of `benchmarks/rivals.py`.
_LEAST_TRIALS = 8


def ends_early(wanted: bool, trials: int | None, sampler: str) -> bool:
    """Whether convergence ends a study; `trials` that were given are meant, unless it is `wanted`.

    Raises UsageError where the sampler never converges.
    """
    if wanted and sampler != STRATEGY:
        raise UsageError(
            f"--until-converged: the sampler '{sampler}' does not say what it expects to gain.",
            f"Use --sampler {STRATEGY}, or give --trials a number.",
        )
    return wanted or trials is None


def converged(gains: Sequence[float | None], noise_share: float, measured: int) -> str | None:
    """Why to stop after `measured` trials; None to go on. `gains` are the expected ones, oldest first.

    `noise_share` is that of a trial against its repeat in another process.

    A gain of None is not known: nothing fits yet, or the proposal was not made for its gain.
    """
    threshold = min(max(noise_share, LEAST_GAIN_SHARE), _MOST_GAIN_SHARE)
    last = gains[-_IN_A_ROW:]
    if measured < _LEAST_TRIALS or len(last) < _IN_A_ROW:
        return None
    if any(gain is None or gain >= threshold for gain in last):
        return None
    return (
        f"Further trials are not expected to gain more than {100 * threshold:.1g} %: "
        f"stopped after {measured} trials."
    )
