"""How much the steps of one trial scatter.

Covered: a spread that a slow step does not move. Not covered: shifts from one process to the next, which a
single run cannot show.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence

MIN_STEPS_FOR_SPREAD = 3  # quartiles of fewer values say nothing


def relative_spread(step_s: Sequence[float]) -> float | None:
    """Half the interquartile range of the step times over their median; None below three steps.

    The interquartile range, because one slow step in ten is common on a shared machine and says nothing
    about the configuration. It is not divided by the root of the count: steps of one process share most of
    their disturbance, so the standard error of the median would promise too much.
    """
    if len(step_s) < MIN_STEPS_FOR_SPREAD:
        return None
    lower, median, upper = statistics.quantiles(step_s, n=4, method="inclusive")
    return (upper - lower) / 2.0 / median if median > 0 else None
