"""Predicted against published: errors of the cost models over every run of data/published_runs.csv.

    python benchmarks/accuracy.py [--runs] [--worst N]

Prints the table of docs/accuracy.md and fails (exit 1) when a goal is missed. `calibration` are the runs that
constants were fitted to (fit_constants.py); goals are judged on the others. Memory is judged where
published_memory.py says how to predict it.
"""

from __future__ import annotations

import argparse
import importlib.util
import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from statistics import median

from calibration_set import fitted_to
from published import Case, cases, excluded, rows

from offtune.time_model import predict_time

QUANTITIES = ("step", "forward", "backward", "update", "device memory", "host memory")
# Largest median and 90th percentile of the error, None where no goal is set.
GOALS: dict[str, tuple[float, float | None]] = {
    "step": (0.08, 0.20),
    "forward": (0.10, None),
    "backward": (0.10, None),
    "update": (0.10, None),
    "device memory": (0.04, 0.08),
    "host memory": (0.10, None),
}
_MEMORY_COLUMNS = {"device memory": "alloc_backward_bytes", "host memory": "host_bytes"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """One quantity of one run; `error` is predicted over measured, less one."""

    case: Case
    quantity: str
    predicted: float
    measured: float

    @property
    def error(self) -> float:
        return self.predicted / self.measured - 1


def main() -> int:
    options = _options()
    found = [item for case in cases() for item in compare(case)]
    fitted = {id(item.case) for item in found if fitted_to(item.case.row)}
    judged = [item for item in found if id(item.case) not in fitted]
    print("Errors of predictions over published runs, in % of the measured value")
    _table(found, fitted)
    _left_out()
    if options.runs:
        _each_run(found, fitted)
    _worst(judged, options.worst)
    return _verdict(judged)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--runs", action="store_true", help="print every run")
    parser.add_argument("--worst", type=int, default=12, help="print so many of the worst cases")
    return parser.parse_args()


def compare(case: Case) -> Iterable[Found]:
    """What is predicted for a run, beside what its log says."""
    times = predict_time(case.work, case.hardware)
    predicted = {
        "step": times.step_s + case.harness_s,
        "forward": times.forward_s,
        "backward": times.backward_s,
        "update": times.update_s,
    }
    for name, measured in case.measured.items():
        if measured:
            yield Found(case=case, quantity=name, predicted=predicted[name], measured=measured)
    predict_bytes = _memory_model()
    if predict_bytes is not None:
        predicted_bytes = predict_bytes(case)
        for name, column in _MEMORY_COLUMNS.items():
            if case.row[column] and column in predicted_bytes:
                measured = float(case.row[column])
                yield Found(case=case, quantity=name, predicted=predicted_bytes[column], measured=measured)


def _memory_model() -> Callable[[Case], dict[str, float]] | None:
    if importlib.util.find_spec("published_memory") is None:
        return None
    from published_memory import predicted_bytes

    return predicted_bytes


def _table(found: list[Found], fitted: set[int]) -> None:
    groups: dict[tuple[str, str], list[Found]] = defaultdict(list)
    for item in found:
        kept = "calibration" if id(item.case) in fitted else "all others"
        for name in (item.case.row["machine"], kept):
            groups[name, item.quantity].append(item)
    names = sorted(
        {name for name, _ in groups}, key=lambda name: (name in ("calibration", "all others"), name)
    )
    print(f"\n| {'runs':16} | {'of':13} | {'n':>3} | median | 90th pct | bias |\n|---|---|---|---|---|---|")
    for name in names:
        for quantity in QUANTITIES:
            items = groups.get((name, quantity))
            if items:
                print(f"| {name:16} | {quantity:13} | {_row([item.error for item in items])} |")


def _row(errors: list[float]) -> str:
    sizes = [abs(error) for error in errors]
    ninth = percentile(sizes, 0.9)
    return f"{len(errors):3} | {100 * median(sizes):6.1f} | {100 * ninth:8.1f} | {100 * median(errors):+5.1f}"


def percentile(values: list[float], share: float) -> float:
    """The value at or above which the rest lies; the nearest rank."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, max(0, round(share * (len(ordered) - 1))))]


def _left_out() -> None:
    reasons = Counter(reason for row in rows() if (reason := excluded(row)) is not None)
    print("\nNot predicted:")
    for reason, count in reasons.most_common():
        print(f"  {count:3} runs: {reason}")


def _each_run(found: list[Found], fitted: set[int]) -> None:
    print("\nEvery run (predicted/measured)")
    for item in found:
        mark = "calibration" if id(item.case) in fitted else ""
        print(f"  {_line(item)} {mark}")


def _worst(judged: list[Found], count: int) -> None:
    print(f"\nWorst {count} predictions")
    for item in sorted(judged, key=lambda item: -abs(item.error))[:count]:
        print(f"  {_line(item)}")


def _line(item: Found) -> str:
    unit = 1e9 if item.quantity in _MEMORY_COLUMNS else 1.0
    values = f"{item.predicted / unit:8.2f}/{item.measured / unit:8.2f} {'GB' if unit > 1 else 's':2}"
    return f"{100 * item.error:+6.1f} % {item.quantity:13} {values} {item.case.name}"


def _verdict(judged: list[Found]) -> int:
    """0 when all goals are met; a quantity without a prediction has none."""
    print("\nGoals (median, 90th percentile), on runs that nothing was fitted to")
    missed = 0
    for quantity, (most, ninth) in GOALS.items():
        sizes = [abs(item.error) for item in judged if item.quantity == quantity]
        if not sizes:
            print(f"  {quantity:13} no prediction here")
            continue
        reached = (median(sizes), percentile(sizes, 0.9))
        met = reached[0] <= most and (ninth is None or reached[1] <= ninth)
        limit = f"{most:.0%}" + (f", {ninth:.0%}" if ninth else "")
        verdict = "met   " if met else "MISSED"
        print(f"  {quantity:13} {verdict} {reached[0]:.1%}, {reached[1]:.1%} (goal: {limit})")
        missed += not met
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
