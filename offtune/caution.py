"""How much risk of not fitting a choice may take, from how many of the strategy's own have not fitted.

Covered: whether unlikely points are tried at all, and what a choice that does not fit costs. Not covered: how
likely a point is to fit (`beliefs`).
"""

from __future__ import annotations

from collections.abc import Sequence

from offtune.beliefs import Seen

# Points that may well not fit are tried while no more than so many of the strategy's choices do not, of the
# first so many at the least (three in a default search).
_WASTED_SHARE, _FIRST_CHOICES = 0.08, 38
# A choice that does not fit costs as much as a gain of so much, and the more the more have not fitted: twice
# that for each one beyond their share.
_PRICE, _DEARER = 0.01, 2.0


def daring(seen: Sequence[Seen]) -> bool:
    """Whether a choice that may not fit can be afforded: while few of the strategy's own have not."""
    chosen, wasted = _choices(seen)
    return wasted + 1 <= _WASTED_SHARE * max(_FIRST_CHOICES, chosen + 1)


def price(seen: Sequence[Seen]) -> float:
    """The gain, as a share, that a choice which does not fit is set against."""
    chosen, wasted = _choices(seen)
    return float(_PRICE * _DEARER ** (wasted - _WASTED_SHARE * chosen))


def _choices(seen: Sequence[Seen]) -> tuple[int, int]:
    """The strategy's own choices, and how many of them did not fit."""
    chosen = [one for one in seen if one.chosen]
    return len(chosen), sum(not one.feasible for one in chosen)
