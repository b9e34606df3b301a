"""Made-up rounds of finals."""

from __future__ import annotations

import random

from offtune.rounds import MOST_ROUNDS


def simulated(speeds: dict[int, float], noise: float, seed: int, count: int = MOST_ROUNDS):
    """Rounds on a machine whose state differs from round to round by 10 %, and each repeat by `noise`."""
    draw = random.Random(seed)
    rounds = []
    for _ in range(count):
        state = draw.gauss(1, 0.1)
        rounds.append({name: speed * state * draw.gauss(1, noise) for name, speed in speeds.items()})
    return rounds
