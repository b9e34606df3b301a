"""Points to choose the next trial from: all of a small space, and the promising parts of a large one.

Covered: enumerating, neighbours of a point, points at random. Not covered: which is best (`strategy`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from random import Random
from typing import Any

from offtune import candidates
from offtune.space import Space
from offtune.trial import Point

# So many points are looked at one by one; a larger space is sampled.
_SMALL_SPACE = 2000
_SCATTERED = 50
_MUTANTS = 10  # of each promising point
_MUTATED_KNOBS = 3


def is_small(space: Space) -> bool:
    """Whether all of its points can be looked at."""
    return space.size() <= _SMALL_SPACE


def starting_points(space: Space, draw: Random) -> list[Point]:
    """Every point of a small space; else placements x micro-batches x residents, and some at random."""
    return unique((*lasting_points(space), *scattered_points(space, draw)))


def lasting_points(space: Space) -> list[Point]:
    """The starting points that are the same for every choice."""
    return unique(every_point(space) if is_small(space) else candidates.points(space))


def scattered_points(space: Space, draw: Random) -> list[Point]:
    """Some points at random; none where all points are looked at."""
    return [] if is_small(space) else [_random_point(space, draw) for _ in range(_SCATTERED)]


def around(space: Space, point: Point, draw: Random) -> Iterator[Point]:
    """`point` with one knob set otherwise, each to its next values, and with a few knobs set at random."""
    for knob in space.knobs:
        if knob.name in point:
            for value in _near(knob.values, point[knob.name], every=knob.kind == "choices"):
                yield space.complete({**point, knob.name: value})
    for _ in range(_MUTANTS):
        knobs = [knob for knob in space.knobs if knob.name in point]
        chosen = draw.sample(knobs, min(_MUTATED_KNOBS, len(knobs)))
        yield space.complete({**point, **{knob.name: draw.choice(knob.values) for knob in chosen}})


def every_point(space: Space) -> Iterator[Point]:
    """All points, conditions kept."""
    partial: list[Point] = [{}]
    for knob in space.knobs:
        partial = [
            {**point, **chosen}
            for point in partial
            for chosen in ([{knob.name: value} for value in knob.values] if knob.is_active(point) else [{}])
        ]
    yield from partial


def unique(points: Iterable[Point]) -> list[Point]:
    """Each point once, in the order of first appearance; true and 1 stay apart."""
    return list(others(points, set()))


def others(points: Iterable[Point], known: set[str]) -> Iterator[Point]:
    """Those whose text is not `known` yet, each once; their texts are added to it."""
    for point in points:
        text = repr(point)
        if text not in known:
            known.add(text)
            yield point


def _random_point(space: Space, draw: Random) -> Point:
    return space.suggest(lambda knob: draw.choice(knob.values))


def _near(values: tuple[Any, ...], value: Any, *, every: bool) -> list[Any]:
    """All other values of a choice; of a number the next ones down and up, and a leap each way."""
    place = values.index(value)
    if every:
        return [other for other in values if other is not value]
    return [values[near] for near in (place - 4, place - 1, place + 1, place + 4) if 0 <= near < len(values)]
