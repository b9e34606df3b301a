"""Do the intervals hold what they promise, and do the finals name the right winner? By simulation.

    python benchmarks/winner_statistics.py            # the table of docs/winner.md, about a minute
    python benchmarks/winner_statistics.py --quick

Covered: coverage of the interval of a step time for four kinds of noise, of a trial that stops once it is
tight with and without what other trials scatter by, of the ratio of two contenders, and how often finals end
with a winner that is more than a tie slower than the best. Simulated noise only: how a machine really
scatters is seen by the repeats of a search. Exits 1 where a promise is not kept.
"""

from __future__ import annotations

import argparse
import math
import random
import sys
from collections.abc import Callable
from statistics import fmean

from offtune.intervals import interval, usual_scatter
from offtune.records import Run
from offtune.rounds import LEAST_ROUNDS, MOST_ROUNDS, TIE_SHARE, next_round, ratio_interval, still_in
from offtune.trial import MemoryPeaks, Status, TrialResult
from offtune.trial_length import ACCURACY_SHARE, MOST_STEPS
from offtune.winner import choose

_NOISE = 0.03  # standard deviation of a step, as a share; a calm shared machine
_COUNTS = (2, 3, 5, 8, 20)
_STEP_NOISE = (0.005, 0.01, 0.02, 0.03)
# Nominal coverage is 0.95; what few, disturbed or correlated samples may cost of it.
_LEAST = {"normal": 0.92, "spikes": 0.90, "alike, r = 0.3": 0.84, "alike, r = 0.6": 0.72}
# The fastest, its simpler rival, the baseline: apart; two as fast; near; all the same.
_FIELDS = ((10.0, 9.5, 8.0), (10.0, 10.0, 8.0), (10.0, 9.9, 9.5), (10.0, 10.0, 10.0))
_BASELINE = 3
_LEAST_RIGHT, _LEAST_HELD = 0.95, 0.90
_REPEAT_NOISE_HELD = 0.02  # up to which the winner is promised to be within a tie of the best
_REPEAT_NOISE = (0.01, 0.02, 0.04)  # of one repeat against another

Speeds = dict[int, float]


def samples(kind: str, count: int, draw: random.Random) -> list[float]:
    """Made-up step times around 1."""
    if kind.startswith("alike"):
        return _waves(float(kind.rpartition(" ")[2]), count, draw)
    found = [draw.gauss(1, _NOISE) for _ in range(count)]
    if kind == "spikes":
        found = [each + (draw.random() < 0.1) * draw.uniform(0.3, 2) for each in found]
    return found


def _waves(correlation: float, count: int, draw: random.Random) -> list[float]:
    level, found = draw.gauss(0, _NOISE), []
    for _ in range(count):
        found.append(1 + level)
        level = correlation * level + draw.gauss(0, _NOISE * math.sqrt(1 - correlation**2))
    return found


def share(holds: Callable[[], bool], tries: int) -> float:
    """How often something holds."""
    return sum(holds() for _ in range(tries)) / tries


def coverage(kind: str, count: int, tries: int) -> float:
    """The share of intervals of so many samples that hold the truth."""
    draw = random.Random(f"{kind} {count}")

    def holds() -> bool:
        known = interval(samples(kind, count, draw))
        return known is not None and known.low <= 1 <= known.high

    return share(holds, tries)


def trial_of(noise: float, usual: float | None, draw: random.Random) -> list[float]:
    """The step times of a trial that ends when it is known to 2 %, or at its most."""
    found = [draw.gauss(1, noise)]
    while len(found) < MOST_STEPS:
        found.append(draw.gauss(1, noise))
        known = interval(found, usual)
        if known is not None and known.half_share <= ACCURACY_SHARE:
            break
    return found


def lengths(noise: float, odd: float, lent: bool, tries: int) -> tuple[float, float, float]:
    """Steps of a trial, the share of intervals that hold the truth, and that share of odd trials alone.

    Searches of twelve trials, five baselines first; each fourth of the others scatters `odd` times as much.
    """
    draw = random.Random(f"lengths {noise} {odd} {lent}")
    steps, held, held_odd = [], [], []
    for _ in range(tries // 10):
        before: list[list[float]] = [[draw.gauss(1, noise) for _ in range(3)] for _ in range(5)]
        for number in range(5, 12):
            usual = usual_scatter(before) if lent else None
            is_odd = number % 4 == 0
            before.append(trial_of(noise * (odd if is_odd else 1), usual, draw))
            known = interval(before[-1], usual)
            assert known is not None
            steps.append(len(before[-1]))
            (held_odd if is_odd else held).append(known.low <= 1 <= known.high)
    return fmean(steps), fmean((*held, *held_odd)), fmean(held_odd)


def one_round(speeds: Speeds, noise: float, draw: random.Random, names: list[int]) -> dict[int, float]:
    """Everybody once, on a machine whose state differs by 10 % from round to round."""
    state = draw.gauss(1, 0.1)
    return {name: speeds[name] * state * draw.gauss(1, noise) for name in names}


def held_finals(speeds: Speeds, noise: float, draw: random.Random) -> tuple[int | None, list[Speeds]]:
    """Finals as a search holds them: their winner and their rounds."""
    rounds: list[Speeds] = []
    names = list(speeds)
    while racing := next_round(rounds, names):
        rounds.append(one_round(speeds, noise, draw, racing))
        names = still_in(rounds, names, baseline=_BASELINE)
    return choose(rounds, names, {name: _run(name) for name in speeds}, {})[0], rounds


def _run(number: int) -> Run:
    # The slower, the smaller: a tie is always decided for the slower one.
    memory = MemoryPeaks(used_device_bytes=1 + _BASELINE - number)
    made = TrialResult(status=Status.OK, samples_per_s=1.0, memory=memory, start="predicted")
    return Run(study="simulated", number=number, origin="search", point={}, ds_config={},
               fingerprint=str(number), status=Status.OK, result=made)  # fmt: skip


def finals(field: tuple[float, ...], noise: float, tries: int) -> tuple[float, float, float, float]:
    """How often the winner is the best or ties with it, how often the ratio to the baseline holds the truth,
    how often a difference is claimed that is none or the other way round, mean trainings."""
    draw = random.Random(f"finals {field} {noise}")
    speeds = dict(enumerate(field, 1))
    right = held = wrong = count = 0
    for _ in range(tries):
        name, rounds = held_finals(speeds, noise, draw)
        count += sum(len(each) for each in rounds)
        right += name is not None and speeds[name] >= max(field) * (1 - TIE_SHARE)
        ratio, truth = ratio_interval(rounds, 1, _BASELINE), speeds[1] / speeds[_BASELINE]
        assert ratio is not None
        held += ratio.low <= truth <= ratio.high
        wrong += (ratio.low > 1 >= truth) or (ratio.high < 1 <= truth)
    return right / tries, held / tries, wrong / tries, count / tries


def print_coverage(tries: int) -> bool:
    """The table of plain intervals; whether they hold what is promised."""
    kept = True
    print(f"Simulated, {tries} tries each. Share of 95 % intervals that hold the truth, by samples")
    print("| noise | " + " | ".join(str(count) for count in _COUNTS) + " |")
    print("|---|" + "--:|" * len(_COUNTS))
    for kind, least in _LEAST.items():
        found = [coverage(kind, count, tries) for count in _COUNTS]
        kept &= min(found) >= least
        print(f"| {kind} | " + " | ".join(f"{100 * each:.0f} %" for each in found) + " |")
    return kept


def print_lengths(tries: int) -> bool:
    """The table of trials that stop when known; whether those that scatter alike hold what is promised."""
    kept = True
    print("\nTrials that stop when known to 2 %: steps, and the share of intervals that hold the truth")
    print("| noise | odd trials | alone: steps | hold | lent: steps | hold | odd alone | odd lent |")
    print("|--:|---|--:|--:|--:|--:|--:|--:|")
    for odd in (1, 3):
        for noise in _STEP_NOISE:
            both = [lengths(noise, odd, lent, tries) for lent in (False, True)]
            kept &= odd != 1 or both[1][1] >= _LEAST_HELD
            told = [f"{steps:.1f} | {100 * held:.0f} %" for steps, held, _ in both]
            told += ["-" if odd == 1 else f"{100 * held:.0f} %" for _, _, held in both]
            many = "-" if odd == 1 else f"each fourth {odd} times"
            print(f"| {100 * noise:.1f} % | {many} | " + " | ".join(told) + " |")
    return kept


def print_finals(tries: int) -> bool:
    """The table of finals; whether winner and ratio are what is promised."""
    kept = True
    print(f"\nFinals of three, {LEAST_ROUNDS} to {MOST_ROUNDS} rounds; a tie always goes to the slower one")
    print("| speeds | noise | winner within 2 % | ratio holds the truth | false claim | trainings |")
    print("|---|--:|--:|--:|--:|--:|")
    for field in _FIELDS:
        for noise in _REPEAT_NOISE:
            right, held, wrong, trained = finals(field, noise, tries)
            kept &= (right >= _LEAST_RIGHT or noise > _REPEAT_NOISE_HELD) and held >= _LEAST_HELD
            print(f"| {', '.join(map(str, field))} | {100 * noise:.0f} % | {100 * right:.1f} % "
                  f"| {100 * held:.0f} % | {100 * wrong:.1f} % | {trained:.1f} |")  # fmt: skip
    return kept


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="a tenth of the tries")
    tries = 500 if parser.parse_args().quick else 5000
    kept = [table(tries) for table in (print_coverage, print_lengths, print_finals)]
    print("\nEvery promise is kept." if all(kept) else "\nA promise is NOT kept.")
    return 0 if all(kept) else 1


if __name__ == "__main__":
    sys.exit(main())
