"""A search space: knobs in order, from which points are drawn, completed and counted.

Covered: everything about points of one space. Not covered: reading it (`space_file`), fitting it to a machine
(`space_fit`), turning a point into a ds_config (`ds_config`).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from difflib import get_close_matches
from math import prod
from typing import Any

from offtune.errors import SpaceError
from offtune.knobs import Knob
from offtune.space_file import read_space, space_names
from offtune.space_fit import fit
from offtune.trial import Facts, Point

__all__ = ["Space", "load_space", "space_names"]

# What everybody tries first, in the order of trying: label and placement.
_LADDER = (
    ("stage 2", "zero2"),
    ("stage 2 + optimizer offload", "zero2 opt=cpu"),
    ("stage 3", "zero3"),
    ("stage 3 + optimizer offload", "zero3 opt=cpu"),
    ("stage 3 + both", "zero3 opt=cpu param=cpu"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Space:
    """Knobs in the order they are chosen; `notes` say what was left out for the machine at hand."""

    name: str
    about: str
    knobs: tuple[Knob, ...]
    changes_result: bool = False
    notes: tuple[str, ...] = ()

    def fit(self, facts: Facts) -> Space:
        """The space narrowed to machine and workload. Raises SpaceError when nothing is left."""
        knobs, notes = fit(self.knobs, facts)
        return replace(self, knobs=knobs, notes=notes)

    def suggest(self, choose: Callable[[Knob], Any]) -> Point:
        """A point, each active knob chosen in order; `choose` returns a value of the knob's domain."""
        point: Point = {}
        for knob in self.knobs:
            if knob.is_active(point):
                point[knob.name] = _checked(knob, choose(knob))
        return point

    def complete(self, partial: Point) -> Point:
        """`partial` with defaults for active knobs it lacks and without inactive ones.

        Raises SpaceError for an unknown knob or a value outside its domain.
        """
        self._check_names(partial)
        return self.suggest(lambda knob: partial.get(knob.name, knob.default))

    def baselines(self) -> tuple[tuple[str, Point], ...]:
        """The ladder as far as the space has it, other knobs at their defaults: label and point."""
        placements = next((knob.choices for knob in self.knobs if knob.name == "placement"), ())
        rungs = [(label, self.complete({"placement": text})) for label, text in _LADDER if text in placements]
        return tuple(rungs) or (("defaults", self.complete({})),)

    def size(self) -> int:
        """The number of different points, conditions counted."""
        asked = {name for knob in self.knobs for name in knob.when}
        return self._count(0, {}, asked)

    def _count(self, index: int, point: Point, asked: set[str]) -> int:
        """Points of the knobs from `index` on; only knobs that others ask about need their values tried."""
        free = prod(
            len(knob.values)
            for knob in self.knobs[index : self._next_asked(index, asked)]
            if knob.is_active(point)
        )
        index = self._next_asked(index, asked)
        if index == len(self.knobs):
            return free
        knob = self.knobs[index]
        points = [{**point, knob.name: value} for value in knob.values] if knob.is_active(point) else [point]
        return free * sum(self._count(index + 1, chosen, asked) for chosen in points)

    def _next_asked(self, index: int, asked: set[str]) -> int:
        later = range(index, len(self.knobs))
        return next((place for place in later if self.knobs[place].name in asked), len(self.knobs))

    def digest(self) -> str:
        """The same for two spaces with the same points and defaults, whatever their texts say."""
        content = [
            [knob.name, knob.kind, knob.values, knob.default, sorted(knob.when.items())]
            for knob in self.knobs
        ]
        return hashlib.sha256(json.dumps(content).encode()).hexdigest()[:16]

    def _check_names(self, point: Point) -> None:
        names = [knob.name for knob in self.knobs]
        for name in point:
            if name not in names:
                near = get_close_matches(name, names, n=1)
                guess = f"Did you mean '{near[0]}'? " if near else ""
                raise SpaceError(
                    f"The space '{self.name}' has no knob '{name}'.", f"{guess}It has: {', '.join(names)}."
                )


def _checked(knob: Knob, value: Any) -> Any:
    if not knob.holds(value):
        raise SpaceError(
            f"{knob.name}: {value!r} is not in {knob.domain}.", f"Give {knob.name} a value of its domain."
        )
    return value


def load_space(name_or_path: str) -> Space:
    """A packaged space by name, or a person's own by path. Raises SpaceError naming file, key and remedy."""
    found = read_space(name_or_path)
    return Space(name=found.name, about=found.about, knobs=found.knobs, changes_result=found.changes_result)
