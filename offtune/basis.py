"""Which told trials beliefs rest on: all of a usual search, a fixed number of a long one.

Covered: the choice, from throughputs in the order told. Not covered: what is concluded from them (`beliefs`).
What is believed costs the cube of their number; what a search learned near its best, what it saw last and a
spread over everything else tell nearly as much as all of it.
"""

from __future__ import annotations

from collections.abc import Sequence

# Trials: twice a default search, and some milliseconds for a process over them (`benchmarks/scale.py`).
MOST = 80
_FASTEST, _NEWEST = 35, 15


def basis(speeds: Sequence[float | None]) -> list[int]:
    """Places of the trials to rest on, in order; `speeds` are None where a trial did not fit.

    The fastest, the newest, and of the others every n-th by throughput, those that did not fit at its end.
    """
    every = range(len(speeds))
    if len(speeds) <= MOST:
        return list(every)
    ranked = sorted(every, key=lambda place: (-(speeds[place] or 0.0), place))
    kept = {*ranked[:_FASTEST], *every[-_NEWEST:]}
    rest = [place for place in ranked if place not in kept]
    room = MOST - len(kept)
    kept.update(rest[number * len(rest) // room] for number in range(room))
    return sorted(kept)
