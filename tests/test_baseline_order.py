"""Baselines that are predicted far over a limit are measured last, and all of them are measured."""

from dataclasses import replace

from search_fakes import fitted_space, make_search

from offtune.baseline_order import first_and_last
from offtune.beliefs import Guess, by_itself

__all__ = ["make_search"]

BASELINES = [(name, {"name": name}) for name in ("stage 2", "stage 3", "both")]


def predicted(**shares: float):
    known = {name.replace("_", " "): share for name, share in shares.items()}
    return lambda point: Guess(key=point["name"], shares={"device_memory": known[point["name"]], "host": 0.2})


def labels(part) -> list[str]:
    return [label for label, _ in part]


def test_what_is_surely_over_comes_last_and_what_is_nearly_in_stays():
    first, last = first_and_last(BASELINES, predicted(stage_2=1.3, stage_3=1.1, both=0.4))
    assert labels(first) == ["stage 3", "both"]
    assert labels(last) == ["stage 2"]


def test_the_nearest_comes_first_where_all_are_over():
    first, last = first_and_last(BASELINES, predicted(stage_2=2.0, stage_3=1.5, both=1.7))
    assert labels(first) == ["stage 3"]
    assert labels(last) == ["stage 2", "both"]


def test_without_predictions_none_is_last_and_no_baselines_are_none():
    assert first_and_last(BASELINES, by_itself) == (tuple(BASELINES), ())
    assert first_and_last(BASELINES, lambda point: None) == (tuple(BASELINES), ())
    assert first_and_last([], by_itself) == ((), ())


def search_with_two_late(make_search, **options):
    ladder = fitted_space("ladder").baselines()
    search = make_search(baselines=labels(ladder[:-2]), **options)
    return replace(search, late=ladder[-2:]), labels(ladder[-2:])


def test_the_last_baselines_are_measured_within_the_target(make_search):
    search, late = search_with_two_late(make_search, trials=9)
    assert search.run().kind == "target"
    runs = [run for run in search.store.runs("s") if run.ran]
    assert len(runs) == 9
    assert [run.label for run in runs[-2:]] == late
    assert {run.origin for run in runs[-2:]} == {"baseline"}
    assert "search" in {run.origin for run in runs[:-2]}


def test_no_baseline_begins_when_the_time_is_up(make_search):
    search, _ = search_with_two_late(make_search, trials=9)
    search.config = replace(search.config, time_s=0.0)
    assert search.run().kind == "time"
    assert search.store.runs("s") == []


def test_a_search_that_converges_measures_them_before_it_ends(make_search):
    search, late = search_with_two_late(make_search, trials=None, sampler="offtune")
    assert search.run().kind == "converged"
    measured = [run.label for run in search.store.runs("s") if run.origin == "baseline"]
    assert measured[-2:] == late
