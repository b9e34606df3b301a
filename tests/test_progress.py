"""The state of a search as it goes on, and its lines as text."""

from __future__ import annotations

import pytest
from report_fakes import GB, POINT, make_run

from offtune.report.progress import TRIAL_HEADER, Tally, trial_line
from offtune.trial import Status, TrialResult


class Clock:
    """Time that passes when told."""

    now = 100.0

    def __call__(self) -> float:
        return self.now


def make_tally(
    clock: Clock | None = None, target: int | None = 10, time_limit_s: float | None = None
) -> Tally:
    return Tally(limit_bytes=38 * GB, target=target, time_limit_s=time_limit_s, clock=clock or Clock())


def test_a_trial_line_has_every_figure_under_its_title() -> None:
    line = trial_line(make_run(3, samples_per_s=10.9, used_gb=36.8), None, 38 * GB, is_best=True)
    assert line.text.split()[:8] == ["3*", "ok", "10.9", "36.8", "GB", "97%", "41", "s"]
    assert line.text.index("zero3") == TRIAL_HEADER.index("what")
    assert line.tone == "good"


def test_unknown_figures_are_dashes_not_zeros() -> None:
    text = trial_line(make_run(3, Status.CRASHED), None, 38 * GB, is_best=False).text
    assert text.split()[:4] == ["3", "crashed", "-", "-"]
    assert "0 %" not in text


def test_a_search_trial_says_what_differs_from_the_best() -> None:
    run = make_run(3, samples_per_s=9, used_gb=1, point={**POINT, "reduce_bucket_size": 2**25})
    text = trial_line(run, POINT, 38 * GB, is_best=False).text
    assert text.endswith("zero3 opt=cpu param=cpu, micro 4, bucket 2^25")


def test_a_baseline_says_its_name_and_a_reused_run_its_original() -> None:
    baseline = make_run(0, samples_per_s=9, used_gb=1, origin="baseline", label="stage 2")
    assert trial_line(baseline, None, 38 * GB, is_best=False).text.endswith("  stage 2")
    reused = trial_line(
        make_run(7, samples_per_s=9, used_gb=1, reuse_of=3, ran=False), None, 38 * GB, is_best=False
    )
    assert "reused" in reused.text
    assert "as trial 3" in reused.text
    assert "9.00" not in reused.text


def test_a_predicted_result_never_passes_for_a_measured_one() -> None:
    run = make_run(3, result=TrialResult(status=Status.OK, samples_per_s=9.0, start="predicted"))
    assert "predicted: " in trial_line(run, None, 38 * GB, is_best=False).text


def test_the_reason_of_a_failure_is_said_once() -> None:
    tally = make_tally()
    assert [
        line.text for line in tally.end(make_run(0, Status.CRASHED, reason="It broke.\nlong"), None)[1:]
    ] == ["It broke."]
    assert len(tally.end(make_run(1, Status.CRASHED, reason="It broke."), None)) == 1
    assert len(tally.end(make_run(2, Status.OVER_BUDGET, used_gb=39, reason="Used 39 GB."), None)) == 1


def test_only_measured_trials_count_against_the_target() -> None:
    tally = make_tally()
    for run in (
        make_run(0, samples_per_s=9, used_gb=1),
        make_run(1, Status.OOM_GPU),
        make_run(2, reuse_of=0, ran=False),
        make_run(3, Status.INVALID, ran=False),
        make_run(4, Status.INTERRUPTED),
    ):
        tally.end(run, None)
    assert tally.done == 2
    assert "2/10 trials" in tally.live_text()


def test_time_left_follows_the_pace_of_this_session() -> None:
    clock = Clock()
    tally = Tally(limit_bytes=GB, target=10, done=4, clock=clock)
    assert tally.seconds_left() is None
    clock.now += 30
    tally.end(make_run(4, samples_per_s=9, used_gb=1), None)
    assert tally.seconds_left() == pytest.approx(150)
    assert "about 2 min 30 s left" in tally.live_text()


def test_time_left_is_cut_off_at_the_time_limit() -> None:
    clock = Clock()
    tally = make_tally(clock, time_limit_s=60)
    clock.now += 30
    tally.end(make_run(0, samples_per_s=9, used_gb=1), None)
    assert tally.seconds_left() == pytest.approx(30)
    assert make_tally(clock, target=None).seconds_left() is None


def test_the_live_text_says_the_best_and_what_is_tried_now() -> None:
    tally = make_tally()
    assert "nothing fits yet" in tally.live_text()
    best = make_run(0, samples_per_s=9, used_gb=30)
    tally.end(best, best)
    tally.begin(make_run(1, None, point={**POINT, "micro_batch": 8}))
    assert tally.live_text().startswith("best #0: 9.00 samples/s, 30.0 GB  1/10 trials")
    assert tally.live_text().endswith("#1 zero3 opt=cpu param=cpu, micro 8")
