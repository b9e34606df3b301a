"""From a study's records to its summary."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st
from report_fakes import GB, make_run, make_study, rich_study

from offtune.records import Limits, Run, best_run
from offtune.report.summary import Summary, summarise
from offtune.trial import Status

STUDY = make_study()


def summary_of(*runs: Run, limits: Limits | None = None) -> Summary:
    return summarise(STUDY, runs, limits)


def test_the_fastest_run_that_fits_is_best() -> None:
    summary = summarise(STUDY, rich_study())
    assert summary.best is not None
    assert summary.best.number == 3
    assert [run.number for run in summary.ranking] == [3, 5, 1, 2]


def test_of_equals_the_lower_number_is_best() -> None:
    best = summary_of(make_run(2, samples_per_s=9, used_gb=1), make_run(1, samples_per_s=9, used_gb=1)).best
    assert best is not None
    assert best.number == 1


def test_the_limit_is_the_budget_less_headroom_of_the_settings() -> None:
    assert summary_of().limits == Limits(device_bytes=38 * GB, host_bytes=200 * GB)
    assert summarise(replace(STUDY, settings={}), []).limits == Limits(device_bytes=40 * GB, host_bytes=None)


def test_a_smaller_limit_finds_another_best() -> None:
    summary = summarise(STUDY, rich_study(), Limits(device_bytes=31 * GB, host_bytes=200 * GB))
    assert summary.best is not None
    assert summary.best.number == 1


def test_a_larger_limit_admits_what_was_over_budget() -> None:
    summary = summarise(STUDY, rich_study(), Limits(device_bytes=39 * GB, host_bytes=200 * GB))
    assert summary.best is not None
    assert summary.best.status is Status.OVER_BUDGET


def test_a_run_over_the_host_limit_is_never_best() -> None:
    assert summary_of(make_run(0, samples_per_s=9, used_gb=1, host_gb=201)).best is None


def test_reused_and_unfinished_runs_are_counted_apart() -> None:
    summary = summarise(STUDY, rich_study())
    assert (summary.measured, summary.reused, summary.running) == (9, 1, 1)
    assert summary.counts["ok"] == 4
    assert list(summary.counts) == [
        "ok",
        "over_budget",
        "invalid",
        "oom_gpu",
        "oom_host",
        "timeout",
        "crashed",
    ]


def test_the_infeasible_share_is_of_measured_runs() -> None:
    assert summarise(STUDY, rich_study()).infeasible_share == 5 / 9
    assert summary_of(make_run(0, None)).infeasible_share is None


def test_a_reused_run_shows_the_result_of_its_original() -> None:
    reused = replace(make_run(1, None), reuse_of=0, ran=False)
    shown = summary_of(make_run(0, samples_per_s=9, used_gb=1), reused).runs[1]
    assert shown.status is Status.OK
    assert shown.result is not None
    assert shown.result.samples_per_s == 9


def test_every_baseline_is_listed_and_only_fitting_ones_are_compared() -> None:
    summary = summarise(STUDY, rich_study())
    assert [(gain.trial, gain.percent is not None) for gain in summary.gains] == [
        (0, False),
        (1, True),
        (2, True),
    ]
    assert summary.best_gain is not None
    assert summary.best_gain.trial == 1


def test_a_baseline_that_wins_is_not_compared_with_itself() -> None:
    summary = summary_of(make_run(0, samples_per_s=9, used_gb=1, origin="baseline", label="stage 2"))
    assert summary.best_gain is not None
    assert summary.best_gain.same


def test_the_front_holds_what_no_other_beats_in_both() -> None:
    runs = [
        make_run(0, samples_per_s=5, used_gb=10),
        make_run(1, samples_per_s=4, used_gb=11),
        make_run(2, samples_per_s=8, used_gb=30),
        make_run(3, samples_per_s=8, used_gb=31),
    ]
    assert [run.number for run in summarise(STUDY, runs).front] == [0, 2]


def test_nothing_that_fits_leaves_a_nearest_miss_and_advice() -> None:
    summary = summary_of(make_run(0, Status.OVER_BUDGET, samples_per_s=9, used_gb=39))
    assert summary.best is None
    assert summary.nearest_miss is not None
    assert summary.nearest_miss.device_over_bytes == GB
    assert summary.advice


def test_a_study_without_runs_is_summed_up_too() -> None:
    summary = summary_of()
    assert (summary.best, summary.nearest_miss, summary.best_gain, summary.front) == (None, None, None, ())


RATES = st.none() | st.floats(min_value=0.1, max_value=100)
RUNS = st.lists(
    st.tuples(st.sampled_from(list(Status)), RATES, st.none() | st.floats(min_value=1, max_value=80)),
    max_size=12,
)


@given(RUNS, st.integers(min_value=1, max_value=80))
def test_ranking_agrees_with_best_run_and_front_is_part_of_it(
    drawn: list[tuple[Status, float | None, float | None]], limit_gb: int
) -> None:
    runs = [
        make_run(number, status, samples_per_s=rate, used_gb=used)
        for number, (status, rate, used) in enumerate(drawn)
    ]
    limits = Limits(device_bytes=limit_gb * GB, host_bytes=None)
    summary = summarise(STUDY, runs, limits)
    assert summary.best == best_run(runs, limits)
    assert {run.number for run in summary.front} <= {run.number for run in summary.ranking}
    assert bool(summary.front) == bool(summary.ranking)
