"""The published accuracy: the benchmark meets its goals on runs that nothing was fitted to."""

import csv
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
BENCHMARKS = ROOT / "benchmarks"


def run(script: str, *arguments: str) -> "subprocess.CompletedProcess[str]":
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, str(BENCHMARKS / script), *arguments]
    return subprocess.run(command, capture_output=True, text=True, env=environment, check=False)


def test_time_goals_are_met_over_published_runs():
    done = run("accuracy.py", "--worst", "3")
    lines = [line.split() for line in done.stdout.splitlines()]
    verdicts = {words[0]: words[1] for words in lines if len(words) > 1 and words[1] in ("met", "MISSED")}
    assert {name: verdicts.get(name) for name in ("step", "forward", "backward", "update")} == dict.fromkeys(
        ("step", "forward", "backward", "update"), "met"
    ), done.stdout + done.stderr


def test_few_runs_are_fitted_and_many_predicted():
    sys.path.insert(0, str(BENCHMARKS))
    try:
        from calibration_set import fitted_to
    finally:
        sys.path.remove(str(BENCHMARKS))
    with (BENCHMARKS / "data" / "published_runs.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert sum(map(fitted_to, rows)) < 30 < 300 < len(rows)
    assert all(row["source"] for row in rows)
