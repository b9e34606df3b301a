"""How offtune itself scales: one study filled to 100, 1,000, 10,000 trials, everything but the training real.

    python benchmarks/scale.py [--sizes 100,1000,10000] [--samplers offtune,tpe,random] [--rounds N] [--quick]
                               [-o docs/scale-figures.md]

The search, the study, Optuna and the database are the real ones; a trial is replaced by a result computed on
the spot (the predictor's figures with 4 % noise: SIMULATED, they say nothing about any machine). Beyond 1,000
trials the rows are copies of those. Measured at each size, in a process of its own for each sampler: what
offtune spends on one trial (ask, check, store, tell; median of wall and of processor time), memory of that
process; `offtune list` and `offtune show` as commands, in both times; bytes of the file per trial.

Exit code 1 when a goal is missed, judged by wall time: 100 ms a trial at 1,000 trials with our own sampler
(what others take is mostly Optuna's), list and show under 1 s at the largest size, memory of a search that
grows by less than 20 MB a thousand trials. Takes about five minutes on a quiet machine.
"""

from __future__ import annotations

import os

# As `offtune search` loads numpy (`one_thread`), before anything else has.
os.environ["OPENBLAS_NUM_THREADS"] = os.environ["OMP_NUM_THREADS"] = "1"

import argparse
import multiprocessing
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from datetime import date
from pathlib import Path

from scale_copies import copy_up_to
from scale_study import NAME, SIMULATED, Stopwatch, make_search, open_study

from offtune.convergence import STRATEGY
from offtune.report.study_report import keep_effects, read_summary
from offtune.store import Store

_SIZES = (100, 1_000, 10_000)
_WANTED = ("offtune", "tpe", "random")
_ROUNDS = 20
_MOST_SEARCHED = 1_000  # trials of a search; more are copies
_TRIAL_GOAL_MS, _TRIAL_GOAL_AT = 100.0, 1_000
_COMMAND_GOAL_S = 1.0
_COMMAND_REPEATS = 5
_LEAST_FOR_GROWTH = 500  # trials between the first and the last size that was searched
_GROWTH_GOAL_MB = 20.0  # per thousand trials; Optuna keeps its own copy of every trial in memory


@dataclass(frozen=True, slots=True, kw_only=True)
class Spent:
    """Seconds by the clock on the wall, and of a processor: on a machine with other work only these count."""

    wall_s: float
    cpu_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampled:
    """What one trial took with a sampler, and the resident memory of the process in the end."""

    trial: Spent
    parent_mb: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """What was measured at one size. `searched_mb`: memory of the process whose search filled the study."""

    trials: int
    searched_mb: float | None
    samplers: dict[str, Sampled]
    list_command: Spent
    show_command: Spent
    file_bytes: int

    @property
    def resumed_mb(self) -> float:
        """Memory of a process that goes on from here, with the first of the samplers."""
        return next(iter(self.samplers.values())).parent_mb


def main() -> int:
    options = _options()
    sizes = [int(size) for size in options.sizes.split(",")]
    samplers = options.samplers.split(",")
    with tempfile.TemporaryDirectory() as folder:
        rows = list(_measured(Path(folder) / "scale.db", sizes, samplers, options.rounds))
    missed = _missed(rows)
    text = _sheet(rows, samplers, missed)
    print(text)
    if options.output:
        Path(options.output).write_text(text)
    return 1 if missed else 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--sizes", default=",".join(map(str, _SIZES)))
    parser.add_argument("--samplers", default=",".join(_WANTED))
    parser.add_argument("--rounds", type=int, default=_ROUNDS)
    parser.add_argument("--quick", action="store_true", help="100 and 300 trials, 3 rounds")
    parser.add_argument("-o", "--output", help="Also write the sheet there.")
    options = parser.parse_args()
    if options.quick:
        options.sizes, options.rounds = "100,300", 3
    return options


def _measured(path: Path, sizes: list[int], samplers: list[str], rounds: int) -> Iterator[Row]:
    with Store.open(str(path), write=True) as store:
        open_study(store)
    for size in sizes:
        trials, searched_mb = _fill(path, size)
        yield Row(
            trials=trials,
            searched_mb=searched_mb,
            samplers={name: _in_its_own_process(path, name, rounds) for name in samplers},
            list_command=_command("list", path),
            show_command=_command("show", path),
            file_bytes=path.stat().st_size,
        )


def _fill(path: Path, size: int) -> tuple[int, float | None]:
    """Bring the study to so many trials; how many it has, and memory where all of them were searched for."""
    with Store.open(str(path), write=True) as store:
        search = make_search(store, "random")
        search.config = replace(search.config, trials=min(size, _MOST_SEARCHED))
        ended = search.run()
        if search.study.measured_count() < search.config.trials:
            raise SystemExit(f"The study could not be filled to {size} trials: {ended}")
        searched_mb = _resident_mb() if size <= _MOST_SEARCHED else None
    if size > _MOST_SEARCHED:
        copy_up_to(path, NAME, size)
    with Store.open(str(path), write=True) as store:
        # What every session does at its end (`session.py`), so that `show` reads which knobs matter.
        keep_effects(store, read_summary(store, store.study(NAME)))
        return store.measured_count(NAME), searched_mb


def _in_its_own_process(path: Path, sampler: str, rounds: int) -> Sampled:
    """Some trials with a sampler, on a copy of the study."""
    copy = Path(shutil.copy(path, path.with_name("copy.db")))
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as processes:
        return processes.submit(_sampled, copy, sampler, rounds).result()


def _sampled(path: Path, sampler: str, rounds: int) -> Sampled:
    """The median over `rounds` trials, after two that fill the caches; what is not trained is part of it."""
    with Store.open(str(path), write=True) as store:
        search = make_search(store, sampler)
        search.config = replace(search.config, trials=search.study.measured_count() + rounds + 2)
        search.run()
        assert isinstance(search.watcher, Stopwatch)
        took = search.watcher.took_s[2:]
        wall, cpu = (statistics.median(values) for values in zip(*took, strict=True))
        return Sampled(trial=Spent(wall_s=wall, cpu_s=cpu), parent_mb=_resident_mb())


def _command(command: str, path: Path) -> Spent:
    """Median seconds of a command, interpreter start included."""
    words = [sys.executable, "-m", "offtune", command, "--storage", str(path)]
    spent = [_spent(lambda: _run(words)) for _ in range(_COMMAND_REPEATS)]
    return Spent(
        wall_s=statistics.median(one.wall_s for one in spent),
        cpu_s=statistics.median(one.cpu_s for one in spent),
    )


def _spent(action: Callable[[], None]) -> Spent:
    """What an action takes that runs in children."""
    start, used = time.perf_counter(), _children_s()
    action()
    return Spent(wall_s=time.perf_counter() - start, cpu_s=_children_s() - used)


def _run(words: list[str]) -> None:
    subprocess.run(words, check=True, stdout=subprocess.DEVNULL)


def _children_s() -> float:
    found = resource.getrusage(resource.RUSAGE_CHILDREN)
    return found.ru_utime + found.ru_stime


def _resident_mb() -> float:
    """Resident memory of this process, in MB (10^6 bytes)."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize() / 1e6


def _sheet(rows: list[Row], samplers: list[str], missed: list[str]) -> str:
    """The result as a page of docs/."""
    titles = [*(f"{name}, ms" for name in samplers), "list, s", "show, s", "memory, MB", "kB a trial"]
    lines = ["| trials | " + " | ".join(titles) + " |", "|---:" * (len(titles) + 1) + "|"]
    for row in rows:
        cells = [_pair(row.samplers[name].trial, 1e3, 0) for name in samplers]
        cells += [_pair(row.list_command, 1, 2), _pair(row.show_command, 1, 2), f"{row.resumed_mb:.0f}"]
        cells.append(f"{row.file_bytes / row.trials / 1e3:.1f}")
        lines.append(f"| {row.trials:,} | " + " | ".join(cells) + " |")
    goals = "\n".join(f"- MISSED: {text}" for text in missed) or "All reached."
    found = _growth_mb(rows)
    growth = "not measured over so few" if found is None else f"{found:.1f} MB a thousand trials"
    return _SHEET.format(
        today=date.today().isoformat(), simulated=SIMULATED, table="\n".join(lines), goals=goals,
        growth=growth, sampler=samplers[0],
    )  # fmt: skip


def _pair(spent: Spent, scale: float, digits: int) -> str:
    return f"{scale * spent.wall_s:.{digits}f} ({scale * spent.cpu_s:.{digits}f})"


_SHEET = """# How offtune scales: figures

Measured on {today} by `python benchmarks/scale.py`; {simulated}. What they mean: [scale.md](scale.md).

{table}

By sampler: median milliseconds of one trial beside the training, by the clock and, in parentheses, of a
processor; the same of the commands in seconds. Memory: of a process that resumes the study with `{sampler}`,
for which Optuna reads all of it at once. A process that searches all along grows by: {growth}.

## Goals

{goals}
"""


def _growth_mb(rows: list[Row]) -> float | None:
    """Memory a thousand trials more take while searching; None over too few of them."""
    known = [(row.trials, row.searched_mb) for row in rows if row.searched_mb is not None]
    if not known or known[-1][0] - known[0][0] < _LEAST_FOR_GROWTH:
        return None
    return 1e3 * (known[-1][1] - known[0][1]) / (known[-1][0] - known[0][0])


def _missed(rows: list[Row]) -> list[str]:
    found = []
    for row in rows:
        if _TRIAL_GOAL_AT <= row.trials <= 2 * _TRIAL_GOAL_AT:
            ms = 1e3 * row.samplers[STRATEGY].trial.wall_s if STRATEGY in row.samplers else 0.0
            if ms > _TRIAL_GOAL_MS:
                found.append(f"{ms:.0f} ms a trial at {row.trials} trials")
    last = rows[-1]
    for name, spent in (("list", last.list_command), ("show", last.show_command)):
        if spent.wall_s > _COMMAND_GOAL_S:
            found.append(f"{name} takes {spent.wall_s:.2f} s at {last.trials} trials")
    growth = _growth_mb(rows)
    if growth is not None and growth > _GROWTH_GOAL_MB:
        found.append(f"memory grows by {growth:.0f} MB a thousand trials")
    return found


if __name__ == "__main__":
    sys.exit(main())
