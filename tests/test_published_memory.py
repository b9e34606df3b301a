"""Predicted memory of published runs: the goals are met, and nothing is called what it was not."""

import sys
from pathlib import Path
from statistics import median

import pytest

BENCHMARKS = Path(__file__).parent.parent / "benchmarks"


@pytest.fixture(scope="module")
def benchmarks():
    sys.path.insert(0, str(BENCHMARKS))
    try:
        import memory_limits
        import published
        import published_memory

        yield published, published_memory, memory_limits
    finally:
        sys.path.remove(str(BENCHMARKS))


def errors(benchmarks, column):
    published, published_memory, _ = benchmarks
    found = []
    for case in published.cases():
        predicted = published_memory.predicted_bytes(case)
        if case.row[column] and column in predicted:
            found.append(abs(predicted[column] / float(case.row[column]) - 1))
    return sorted(found)


@pytest.mark.parametrize(
    ("column", "middle", "ninth"),
    [
        ("alloc_static_bytes", 0.02, 0.05),
        ("alloc_forward_bytes", 0.04, 0.08),
        ("alloc_backward_bytes", 0.04, 0.08),
        ("host_bytes", 0.10, 0.15),
    ],
)
def test_memory_of_published_runs_is_within_the_goals(column, middle, ninth, benchmarks):
    found = errors(benchmarks, column)
    assert len(found) > 100
    assert median(found) < middle
    assert found[int(0.9 * len(found))] < ninth


def test_no_run_that_ran_is_called_impossible_and_none_that_ran_out_of_memory_safe(benchmarks, capsys):
    assert benchmarks[2].main() == 0
    assert "ran: no " in capsys.readouterr().out


def test_nine_of_ten_recorded_trials_used_what_was_predicted(benchmarks, monkeypatch, capsys):
    import accuracy_cpu

    monkeypatch.setattr(sys, "argv", ["accuracy_cpu.py"])
    assert accuracy_cpu.main() == 0
    assert "configurations" in capsys.readouterr().out
