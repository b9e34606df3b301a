"""Points as rows of numbers, so that likeness between configurations can be computed.

Covered: a column for every aspect of a placement and for every other knob, each weighted by how much it tends
to matter. Not covered: what is concluded from likeness (`residuals`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from offtune.knobs import Knob, parse_placement
from offtune.space import Space
from offtune.trial import Point

Matrix = NDArray[np.float64]

# How far apart two settings are, in units of a likeness that has faded to 1/e^0.5. Placement and micro-batch
# decide memory and time, buckets and switches move them by per cents (docs/strategy.md).
_STAGE_STEP = 0.4
_OTHER_DEVICE = 0.7
_WEIGHTS = {"micro_batch": 1.5, "resident_sixteenths": 1.0, "activation_checkpointing": 0.7}
_MINOR = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Features:
    """Columns of one space; `where` and `main` are the first so many that tell placements and chief knobs
    apart; `shared`: what a knob does is taken to be much the same under every placement.
    """

    columns: tuple[Callable[[Point], float], ...]
    where: int
    main: int
    shared: bool = False

    def rows(self, points: Sequence[Point]) -> Matrix:
        """One row a point; an inactive knob counts as its default."""
        values = [[column(point) for column in self.columns] for point in points]
        return np.array(values, dtype=np.float64).reshape(len(points), len(self.columns))


def features_of(space: Space) -> Features:
    """The columns of a space: placements first, then the chief knobs, then all the rest."""
    where: list[Callable[[Point], float]] = []
    main: list[Callable[[Point], float]] = []
    minor: list[Callable[[Point], float]] = []
    for knob in space.knobs:
        if knob.name == "placement":
            where += _placement_columns(knob)
        elif knob.name in _WEIGHTS:
            main.append(_column(knob, _WEIGHTS[knob.name]))
        else:
            minor.append(_column(knob, _MINOR))
    return Features(columns=(*where, *main, *minor), where=len(where), main=len(where) + len(main))


def _placement_columns(knob: Knob) -> list[Callable[[Point], float]]:
    # Taken apart once: a strategy asks for thousands of rows.
    placements = {text: parse_placement(text) for text in knob.values}

    def is_on(part: str, device: str) -> Callable[[Point], float]:
        places = {text: _OTHER_DEVICE * (getattr(one, part) == device) for text, one in placements.items()}
        return lambda point: places[point["placement"]]

    devices = [is_on(part, device) for part in ("optimizer", "param") for device in ("none", "cpu", "nvme")]
    return [lambda point: _STAGE_STEP * placements[point["placement"]].stage, *devices]


def _column(knob: Knob, weight: float) -> Callable[[Point], float]:
    places: dict[Any, float] = {
        value: weight * place / max(1, len(knob.values) - 1) for place, value in enumerate(knob.values)
    }
    default = places[knob.default]
    return lambda point: places.get(point.get(knob.name, knob.default), default)
