"""Memory over the course of a step, as far as the memory model knows it: levels at points of each phase.

Covered: where in a phase each of the model's moments lies. Not covered: how much is held at a moment
(`memory_model`), how long a phase takes (`time_model`). Between two levels memory is drawn as a straight
line: forwards keep activations layer by layer, and backwards give them back so.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from offtune.memory_case import Block, Case, Moment


@dataclass(frozen=True, slots=True, kw_only=True)
class Level:
    """Bytes of a rank's device held when `share` of a phase (forward, backward, update) has gone by."""

    phase: str
    share: float
    size: int


def levels(case: Case, totals: Mapping[Moment, int], resting: int) -> tuple[Level, ...]:
    """The levels of one micro-step and of the update, in their order; `resting` is held before a forward."""
    # The loss and each layer are taken to be equally long in backward.
    part = 1 / (case.shape.decoder.layers + 1)
    full = max(case.bucket / case.numel, 2 * part)
    found: tuple[tuple[str, float, int], ...] = (
        ("forward", 0.0, resting),
        ("forward", 1.0, totals["forward"]),
        ("backward", 0.0, totals["loss"]),
        ("backward", part, totals["layer"]),
        ("backward", min(1.0, full), totals["reduction"]),
        ("backward", 1.0, totals["drained"]),
        ("update", 0.0, totals["update"]),
        ("update", 1.0, totals["update"]),
    )
    return tuple(Level(phase=phase, share=share, size=size) for phase, share, size in found)


def lasting(blocks: Iterable[Block]) -> list[Block]:
    """The blocks that are there from one step to the next."""
    return [block for block in blocks if {"forward", "update"} <= block.moments]
