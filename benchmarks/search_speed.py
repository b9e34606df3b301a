"""Wall time of a whole search: `offtune search` as it is, against cold trials chosen by Optuna's TPE.

    python benchmarks/search_speed.py [--budget 180MB] [--rounds N] [--most FACTOR] [--quick] [-o FILE]

Both search the default space for the default model of this machine, in turns, each in a process of its own:
ours until it converges; the other with every trial in new processes, which start as any script does, no
predictions and no end of its own, so that its end is put where it first held something as good (the fastest
that had fitted by then), as if one knew. What is as good is not left to the single trials that found it: our
winner and what the other held are trained again in turn, each as long as a winner is confirmed, and as good
is what fits there and is as fast, less 3 % (what repeats differ by on a calm machine). Both are compared
whole, each with finals of its own, and without them. The other searches for `--most` times ours; where it has
not got there by then, that time is a lower bound. Exit 1 where it is less than 4 times slower. Run it on a
quiet machine: trials scatter with whatever else runs. Three rounds take some 25 times as long as one of ours.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import dataclass
from datetime import date
from functools import partial
from pathlib import Path
from statistics import median

import plain_rank
from searched import COLD, ROUNDS, Searched, measure_again, search, speed

from offtune import hardware, prepare
from offtune.config import Options, resolve
from offtune.errors import OfftuneError
from offtune.search import FINALS_SHARE

_GOAL = 4.0
_SAME_SHARE = 0.03
_MOST_TRIALS = 1_000  # of the other: its time ends it
_QUICK_TRIALS = 8
# What the other held and was that much slower in its trial needs no second look.
_NEAR_SHARE = 0.15


@dataclass(frozen=True, slots=True, kw_only=True)
class Round:
    """Ours against the other: seconds of each to the same quality; `reached`: whether the other got there.

    `best` is the speed of our winner trained again, `other_best` that of the fastest the other held; None
    where it did not hold. Finals are apart.
    """

    ours_s: float
    ours_finals_s: float
    ours_trials: int
    best: float | None
    other_s: float
    other_finals_s: float
    other_best: float | None
    other_trials: int
    reached: bool

    @property
    def factor(self) -> float:
        """Of whole searches."""
        return (self.other_s + self.other_finals_s) / (self.ours_s + self.ours_finals_s)

    @property
    def factor_without_finals(self) -> float:
        return self.other_s / self.ours_s


def main() -> int:
    options = _options()
    rounds = []
    ready = _ready(options.budget)
    with ready.runner:
        for seed in range(options.rounds):
            rounds.append(_round(options, seed, ready))
            print(f"round {seed}: {_line(rounds[-1])}", file=sys.stderr)
    text = _sheet(rounds, options)
    print(text)
    if options.output:
        Path(options.output).write_text(text)
    return 0 if median(one.factor for one in rounds) >= _GOAL else 1


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--budget", default="180MB", help="One that binds, by default.")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--most", type=float, default=5.0, help="End of the other, in times ours.")
    parser.add_argument("--quick", action="store_true", help="One short round: a look, not a result.")
    parser.add_argument("-o", "--output", help="Also write the sheet there.")
    options = parser.parse_args()
    if options.quick:
        options.rounds, options.most = 1, 1.0
    return options


def _ready(budget: str) -> prepare.Prepared:
    """What trains runs of both searches again, under the same limits."""
    config, space = prepare.with_space(resolve(Options(budget=budget), hardware.detect()))
    return prepare.prepare(config, space, lambda text: None)


def _round(options: argparse.Namespace, seed: int, ready: prepare.Prepared) -> Round:
    common = ["--budget", options.budget, "--seed", str(seed)]
    ours = search(["-m", "offtune"], [*common, *(["--trials", str(_QUICK_TRIALS)] if options.quick else [])])
    seconds = options.most * ours.seconds / (1 - FINALS_SHARE)
    limit = ["--trials", str(_MOST_TRIALS), "--time", f"{seconds:.0f}s"]
    plain = ["--sampler", "tpe", "--no-predict"]
    return _compared(ours, search([__file__, COLD], [*common, *plain, *limit]), ready)


def _compared(ours: Searched, other: Searched, ready: prepare.Prepared) -> Round:
    if ours.winner is None:
        raise OfftuneError("Nothing that ours found fits that budget.", "Give it more with --budget.")
    near = (1 - _NEAR_SHARE) * speed(ours.winner)
    held = [(second, run) for second, run in other.incumbents() if speed(run) >= near]
    best, *others = measure_again(ready, [ours.winner, *(run for _, run in held)])
    # Where ours does not hold, whatever the other held in the end is as good.
    wanted = best * (1 - _SAME_SHARE) if best else 0.0
    good = [second for (second, _), again in zip(held, others, strict=True) if (again or 0.0) >= wanted]
    return Round(
        ours_s=ours.seconds - ours.finals_s, ours_finals_s=ours.finals_s, ours_trials=len(ours.ended),
        other_s=min(good, default=other.seconds - other.finals_s), other_finals_s=other.finals_s,
        other_trials=len(other.ended), best=best, reached=bool(good),
        other_best=max((again for again in others if again), default=None),
    )  # fmt: skip


def _line(one: Round) -> str:
    bound = "" if one.reached else "at least "
    cells = (
        f"{one.ours_s:.0f} + {one.ours_finals_s:.0f} s, {one.ours_trials} trials", _rate(one.best),
        f"{bound}{one.other_s:.0f} + {one.other_finals_s:.0f} s", _rate(one.other_best),
        str(one.other_trials), f"{bound}{one.factor:.1f}", f"{bound}{one.factor_without_finals:.1f}",
    )  # fmt: skip
    return " | ".join(cells)


def _rate(speed_again: float | None) -> str:
    return "nothing that fits" if speed_again is None else f"{speed_again:.1f} samples/s"


def _sheet(rounds: list[Round], options: argparse.Namespace) -> str:
    lines = "\n".join(f"| {number} | {_line(one)} |" for number, one in enumerate(rounds))
    bound = "" if all(one.reached for one in rounds) else "at least "
    command = f"--budget {options.budget} --rounds {options.rounds} --most {options.most:g}"
    factor = f"{bound}{median(one.factor for one in rounds):.1f}"
    return _SHEET.format(
        today=date.today().isoformat(), command=command, lines=lines, factor=factor, goal=_GOAL, again=ROUNDS
    )


_SHEET = """# A whole search, in wall time

Measured on {today} by `python benchmarks/search_speed.py {command}`,
on the CPU accelerator where there is no GPU: `offtune search` against cold trials with plain TPE, to the same
quality. Cold trials start as any script does, without what offtune does to start its own sooner. Seconds are
of the search and of its finals; speeds are those of {again} confirmations, in turn.

| seed | ours | speed | TPE, until as good | its speed at last | of trials | times slower | without finals |
|---|---|---|---|---|---|---|---|
{lines}

Median of whole searches: {factor} times (goal {goal:g}).
"""


def _as_cold(arguments: list[str]) -> None:
    """offtune's command line, every trial started as a script of its own."""
    from offtune import cli, prepare
    from offtune.launch import ColdRanks
    from offtune.runner import TrialRunner

    prepare.TrialRunner = partial(TrialRunner, launch=partial(ColdRanks, program=plain_rank.PROGRAM))
    sys.argv = ["offtune", *arguments]
    cli.main()


if __name__ == "__main__":
    if sys.argv[1:2] == [COLD]:
        _as_cold(sys.argv[2:])
    else:
        sys.exit(main())
