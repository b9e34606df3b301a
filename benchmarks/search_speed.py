"""Wall time of a whole search: `offtune search` as it is, against cold trials chosen by Optuna's TPE.

    python benchmarks/search_speed.py [--budget 190MB] [--rounds N] [--most FACTOR] [--quick] [-o FILE]

Both search the default space for the default model of this machine, in turns, each in a process of its own:
ours until it converges, finals included; the other with every trial in new processes, no predictions, no
finals and no early end. Compared is the time from the command to the end of ours with the time the other
needs to a configuration that fits and is as fast, less 3 % (what repeats differ by on a calm machine). The
other ends after `--most` times ours; where it has not got there by then, that time is a lower bound. A trial
is as long in both: as many steps as its figures need. Exit 1 below a factor of 4. Run it on a quiet machine:
a search's trials scatter with whatever else runs. Three rounds take at most 18 times as long as one of ours.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from datetime import date, datetime, timezone
from functools import partial
from pathlib import Path
from statistics import median

from offtune.errors import EXIT_NOTHING_FITS, OfftuneError
from offtune.records import Run, is_measured
from offtune.report.study_report import read_summary
from offtune.store import Store

_GOAL = 4.0
_SAME_SHARE = 0.03
_MOST_TRIALS = 1_000  # of the other: its time ends it
_QUICK_TRIALS = 4
_COLD = "--cold-process"


@dataclass(frozen=True, slots=True, kw_only=True)
class Searched:
    """One search: wall seconds from command to end, runs with the seconds at which each had ended."""

    seconds: float
    best: float
    ended: tuple[tuple[float, Run], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Round:
    """Ours against the other: seconds of each to the same quality; `reached`: whether the other got there.

    `best` is the speed of our winner in its trial, `other_best` that of the other's fastest in all its time.
    """

    ours_s: float
    ours_trials: int
    best: float
    other_s: float
    other_best: float
    other_trials: int
    reached: bool

    @property
    def factor(self) -> float:
        return self.other_s / self.ours_s


def main() -> int:
    options = _options()
    rounds = []
    for seed in range(options.rounds):
        ours = _search(options.budget, seed, [] if not options.quick else ["--trials", str(_QUICK_TRIALS)])
        rest = ["--sampler", "tpe", "--no-predict", "--no-finals", "--trials", str(_MOST_TRIALS)]
        limit = ["--time", f"{options.most * ours.seconds:.0f}s"]
        other = _search(options.budget, seed, [*rest, *limit], cold=True)
        rounds.append(_compared(ours, other))
        print(f"round {seed}: {_line(rounds[-1])}", file=sys.stderr)
    text = _sheet(rounds, options)
    print(text)
    if options.output:
        Path(options.output).write_text(text)
    return 0 if median(one.factor for one in rounds) >= _GOAL else 1


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--budget", default="190MB")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--most", type=float, default=5.0, help="End of the other, in times ours.")
    parser.add_argument("--quick", action="store_true", help="One short round: a look, not a result.")
    parser.add_argument("-o", "--output", help="Also write the sheet there.")
    options = parser.parse_args()
    if options.quick:
        options.rounds, options.most = 1, 1.0
    return options


def _search(budget: str, seed: int, rest: list[str], *, cold: bool = False) -> Searched:
    """One search in a process of its own; its study is read afterwards. Raises OfftuneError if it failed."""
    program = [__file__, _COLD] if cold else ["-m", "offtune"]
    with tempfile.TemporaryDirectory() as folder:
        storage = str(Path(folder) / "studies.db")
        options = ["--budget", budget, "--seed", str(seed), "--storage", storage, *rest]
        begun, started = datetime.now(timezone.utc), time.monotonic()
        done = subprocess.run([sys.executable, *program, "search", *options], stdout=subprocess.DEVNULL)
        seconds = time.monotonic() - started
        # Where nothing fits the best is 0, and the other is as good at once.
        if done.returncode not in (0, EXIT_NOTHING_FITS):
            raise OfftuneError(f"The search ended with code {done.returncode}.", "See its words above.")
        with Store.open(storage, write=False) as store:
            record = store.study(None)
            runs = [run for run in store.runs(record.name) if is_measured(run)]
            # As the person is told: what did not hold in the finals is not the winner.
            best = read_summary(store, record).best
    ended = tuple((_since(begun, run), run) for run in runs)
    return Searched(seconds=seconds, best=_speed(best) if best else 0.0, ended=ended)


def _since(begun: datetime, run: Run) -> float:
    assert run.finished_at is not None
    return (datetime.fromisoformat(run.finished_at) - begun).total_seconds()


def _speed(run: Run) -> float:
    return (run.result.samples_per_s if run.result else None) or 0.0


def _compared(ours: Searched, other: Searched) -> Round:
    wanted = ours.best * (1 - _SAME_SHARE)
    good = [second for second, run in other.ended if run.status == "ok" and _speed(run) >= wanted]
    return Round(
        ours_s=ours.seconds, ours_trials=len(ours.ended), best=ours.best, reached=bool(good),
        other_s=min(good, default=other.seconds), other_best=other.best, other_trials=len(other.ended),
    )  # fmt: skip


def _line(one: Round) -> str:
    bound = "" if one.reached else "at least "
    return (
        f"{one.ours_trials} trials, {one.ours_s:.0f} s to {one.best:.1f} samples/s; "
        f"cold TPE {bound}{one.other_s:.0f} s: {bound}{one.factor:.1f} times; "
        f"it has {one.other_best:.1f} samples/s in the end, after {one.other_trials} trials"
    )


def _sheet(rounds: list[Round], options: argparse.Namespace) -> str:
    lines = "\n".join(f"| {number} | {_line(one)} |" for number, one in enumerate(rounds))
    bound = "" if all(one.reached for one in rounds) else "at least "
    command = f"--budget {options.budget} --rounds {options.rounds} --most {options.most:g}"
    factor = f"{bound}{median(one.factor for one in rounds):.1f}"
    return _SHEET.format(
        today=date.today().isoformat(), command=command, lines=lines, factor=factor, goal=_GOAL
    )


_SHEET = """# A whole search, in wall time

Measured on {today} by `python benchmarks/search_speed.py {command}`,
on the CPU accelerator where there is no GPU.

| seed | ours, and cold trials with plain TPE to the same quality |
|---|---|
{lines}

Median: {factor} times (goal {goal:g}).
"""


def _as_cold(arguments: list[str]) -> None:
    """offtune's command line, every trial started in new processes."""
    from offtune import cli, prepare
    from offtune.runner import TrialRunner

    prepare.TrialRunner = partial(TrialRunner, warm=False)
    sys.argv = ["offtune", *arguments]
    cli.main()


if __name__ == "__main__":
    if sys.argv[1:2] == [_COLD]:
        _as_cold(sys.argv[2:])
    else:
        sys.exit(main())
