"""How offtune itself scales: one study filled to 100, 1,000, 10,000 trials, everything but the training real.

    python benchmarks/scale.py [--sizes 100,1000,10000] [--samplers offtune,tpe,random] [--rounds N] [--quick]

The search, the study, Optuna and the database are the real ones; a trial is replaced by a result computed on
the spot (the predictor's figures with 4 % noise: SIMULATED, they say nothing about any machine). Measured at
each size: milliseconds offtune spends on one trial (ask, check, store, tell; median), wall seconds of
`offtune list` and `offtune show` as commands, memory of the process, bytes of the file per trial.

Exit code 1 when a goal is missed: 100 ms a trial at 1,000 trials, list and show under 1 s at the largest
size, memory that grows by less than 20 MB a thousand trials.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import date
from pathlib import Path

from scale_study import NAME, SIMULATED, Stopwatch, make_search, open_study

from offtune.report.study_report import keep_effects, read_summary
from offtune.search import Search
from offtune.store import Store

_SIZES = (100, 1_000, 10_000)
_WANTED = ("offtune", "tpe", "random")
_ROUNDS = 15
_TRIAL_GOAL_MS, _TRIAL_GOAL_AT = 100.0, 1_000
_COMMAND_GOAL_S = 1.0
_COMMAND_REPEATS = 5
_LEAST_FOR_GROWTH = 500  # trials between the first and the last size
_GROWTH_GOAL_MB = 20.0  # per thousand trials; Optuna keeps its own copy of every trial in memory


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """What was measured at one size; `trial_ms` by sampler, `parent_mb` is resident memory of the filler."""

    trials: int
    trial_ms: dict[str, float]
    list_s: float
    show_s: float
    parent_mb: float
    file_bytes: int


def main() -> int:
    options = _options()
    sizes = [int(size) for size in options.sizes.split(",")]
    samplers = options.samplers.split(",")
    with tempfile.TemporaryDirectory() as folder:
        rows = list(_measured(Path(folder) / "scale.db", sizes, samplers, options.rounds))
    print(_sheet(rows, samplers))
    missed = _missed(rows)
    for text in missed:
        print(f"MISSED: {text}")
    return 1 if missed else 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--sizes", default=",".join(map(str, _SIZES)))
    parser.add_argument("--samplers", default=",".join(_WANTED))
    parser.add_argument("--rounds", type=int, default=_ROUNDS)
    parser.add_argument("--quick", action="store_true", help="100 and 300 trials, 3 rounds")
    options = parser.parse_args()
    if options.quick:
        options.sizes, options.rounds = "100,300", 3
    return options


def _measured(path: Path, sizes: list[int], samplers: list[str], rounds: int) -> Iterator[Row]:
    with Store.open(str(path), write=True) as store:
        open_study(store)
        filling = make_search(store, "random")
        for size in sizes:
            _fill(filling, size)
            took = {name: _trial_ms(make_search(store, name), rounds) for name in samplers}
            _end_session(store)
            yield Row(
                trials=filling.study.measured_count(),
                trial_ms=took,
                list_s=_command_s("list", path),
                show_s=_command_s("show", path),
                parent_mb=_resident_mb(),
                file_bytes=sum(one.stat().st_size for one in path.parent.glob(f"{path.name}*")),
            )


def _fill(search: Search, size: int) -> None:
    search.config = replace(search.config, trials=size)
    search.fruitless = 0
    ended = search.run()
    if search.study.measured_count() < size:
        raise SystemExit(f"The study could not be filled to {size} trials: {ended}")


def _end_session(store: Store) -> None:
    """What every session does at its end (`session.py`), so that `show` reads which knobs matter."""
    keep_effects(store, read_summary(store, store.study(NAME)))


def _trial_ms(search: Search, rounds: int) -> float:
    """The median over `rounds` trials, after one that fills the caches; what is not trained is part of it."""
    assert isinstance(search.watcher, Stopwatch)
    search.config = replace(search.config, trials=search.study.measured_count() + rounds + 1)
    search.run()
    return 1e3 * statistics.median(search.watcher.took_s[1:])


def _command_s(command: str, path: Path) -> float:
    """Median wall seconds of a command, interpreter start included."""
    words = [sys.executable, "-m", "offtune", command, "--storage", str(path)]
    return statistics.median(_wall_s(words) for _ in range(_COMMAND_REPEATS))


def _wall_s(words: list[str]) -> float:
    start = time.perf_counter()
    subprocess.run(words, check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - start


def _resident_mb() -> float:
    """Resident memory of this process, in MB (10^6 bytes)."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * 4096 / 1e6


def _sheet(rows: list[Row], samplers: list[str]) -> str:
    """The result as a table for docs/scale.md."""
    titles = [*(f"{name}, ms" for name in samplers), "list, s", "show, s", "memory, MB", "kB a trial"]
    lines = [f"{date.today()}; {SIMULATED}", "", "| trials | " + " | ".join(titles) + " |"]
    lines.append("|---:" * (len(titles) + 1) + "|")
    for row in rows:
        cells = [f"{row.trial_ms[name]:.1f}" for name in samplers]
        cells += [f"{row.list_s:.2f}", f"{row.show_s:.2f}", f"{row.parent_mb:.0f}"]
        cells.append(f"{row.file_bytes / row.trials / 1e3:.1f}")
        lines.append(f"| {row.trials} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _missed(rows: list[Row]) -> list[str]:
    found = []
    for row in rows:
        if row.trials <= 2 * _TRIAL_GOAL_AT:
            slow = {name: took for name, took in row.trial_ms.items() if took > _TRIAL_GOAL_MS}
            found += [f"{name}: {took:.0f} ms a trial at {row.trials} trials" for name, took in slow.items()]
    last = rows[-1]
    for name, seconds in (("list", last.list_s), ("show", last.show_s)):
        if seconds > _COMMAND_GOAL_S:
            found.append(f"{name} takes {seconds:.2f} s at {last.trials} trials")
    if last.trials - rows[0].trials >= _LEAST_FOR_GROWTH:
        thousands = (last.trials - rows[0].trials) / 1e3
        growth = (last.parent_mb - rows[0].parent_mb) / thousands
        if growth > _GROWTH_GOAL_MB:
            found.append(f"memory grows by {growth:.0f} MB a thousand trials")
    return found


if __name__ == "__main__":
    sys.exit(main())
