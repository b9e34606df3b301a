"""The loop over a runner that needs no machine: order of writing, reuse, stopping, budgets, interruption."""

import json
from pathlib import Path

import pytest
from search_fakes import MACHINE, imagined, make_search

from offtune import scratch
from offtune.errors import Interrupted, StoreError
from offtune.recording import write_timeline
from offtune.report.document import document
from offtune.report.summary import summarise
from offtune.timeline import MAX_POINTS, Mark, Series, Timeline
from offtune.trial import Status, TrialResult, TrialSpec, dump

__all__ = ["MACHINE", "imagined", "make_search"]  # tests of single features start from these


def test_the_search_ends_at_its_target_with_baselines_first_and_the_fastest_found(make_search):
    search = make_search()
    ending = search.run()
    assert ending.kind == "target" and "10 trials" in ending.text
    runs = search.store.runs("s")
    measured = [run for run in runs if run.reuse_of is None]
    assert len(measured) == 10
    assert [run.origin for run in runs[:5]] == ["baseline"] * 5
    fastest = max(r.result.samples_per_s for r in measured if r.status is Status.OK)
    assert search.study.best().result.samples_per_s == fastest
    assert all(r.result.memory.used_device_bytes <= 10**9 for r in measured if r.status is Status.OK)


def test_over_the_budget_is_never_best(make_search):
    search = make_search(budget="450MB", trials=20)
    search.run()
    assert search.study.best().result.memory.used_device_bytes <= 450 * 10**6
    assert any(run.status is Status.OVER_BUDGET for run in search.store.runs("s"))


def test_equal_configurations_are_measured_once_and_reused(make_search):
    trained: list[str] = []

    def counting(spec: TrialSpec) -> TrialResult:
        trained.append(json.dumps(spec.ds_config, sort_keys=True))
        return imagined(spec)

    search = make_search(counting, trials=25)
    search.run()
    assert len(trained) == len(set(trained))
    reused = [run for run in search.store.runs("s") if run.reuse_of is not None]
    assert reused
    assert all(run.result == search.store.run("s", run.reuse_of).result for run in reused)


def test_an_exhausted_space_ends_the_search_and_says_so(make_search, monkeypatch):
    monkeypatch.setattr("offtune.search._FRUITLESS_LIMIT", 20)
    search = make_search(trials=10_000)
    assert search.run().kind == "exhausted"
    assert len({run.fingerprint for run in search.store.runs("s")}) == search.study.measured_count()


def test_the_time_limit_starts_no_further_trial(make_search):
    search = make_search(time="1s", trials=1000)
    search.started -= 2
    assert search.run().kind == "time"
    assert search.store.runs("s") == []


def test_the_scratch_of_a_trial_is_gone_and_its_folder_was_there(make_search):
    def looking(spec: TrialSpec) -> TrialResult:
        assert Path(spec.trial_dir).is_dir()
        return imagined(spec)

    search = make_search(looking, trials=3)
    search.run()
    assert all(not Path(run.trial_dir).exists() for run in search.store.runs("s"))


def test_an_interruption_keeps_the_finished_and_queues_the_unfinished_again(make_search):
    seen: list[int] = []

    def stopped_at_the_third(spec: TrialSpec) -> TrialResult:
        seen.append(spec.number)
        if len(seen) == 3:
            raise KeyboardInterrupt
        return imagined(spec)

    search = make_search(stopped_at_the_third, trials=6)
    with pytest.raises(Interrupted) as caught:
        search.run()
    assert caught.value.exit_code == 130
    assert "offtune resume s" in caught.value.hint
    kept = [run for run in search.store.runs("s") if run.status is Status.OK]
    assert len(kept) == 2
    search.store.close()
    again = make_search(trials=6)
    again.repair()
    again.run()
    runs = again.store.runs("s")
    assert runs[: len(kept)] == kept
    assert again.study.measured_count() == 6
    labels = [run.label for run in runs if run.status is not Status.INTERRUPTED and run.label]
    assert len(labels) == len(set(labels)) == 5


def test_a_database_that_cannot_take_a_result_loses_nothing(make_search, monkeypatch):
    def leaving_its_result(spec: TrialSpec) -> TrialResult:
        result = imagined(spec)
        (Path(spec.trial_dir) / "result.json").write_text(dump(result))
        return result

    search = make_search(leaving_its_result, trials=4)
    finish = search.store.finish_run

    def full(study: str, number: int, result: TrialResult) -> None:
        if number == 2:
            raise StoreError("The disk is full.", "Free some space.")
        finish(study, number, result)

    monkeypatch.setattr(search.store, "finish_run", full)
    with pytest.raises(StoreError):
        search.run()
    search.store.close()
    again = make_search(trials=4)
    again.repair()
    assert any("recovered" in text for text in again.watcher.texts)
    assert again.store.run("s", 2).status is Status.OK
    assert not Path(again.store.run("s", 2).trial_dir).exists()
    again.run()
    assert again.study.measured_count() == 4


def test_the_document_counts_what_was_measured(make_search):
    search = make_search(trials=8)
    search.run()
    shown = document(summarise(search.store.study("s"), search.store.runs("s")))
    assert shown["measured"] == 8
    assert len([t for t in shown["trials"] if t["reuse_of"] is None]) == 8
    json.dumps(shown, allow_nan=False)


def test_two_scratch_folders_of_one_name_do_not_meet(tmp_path):
    first, second = scratch.make_trial_dir("s", 1), scratch.make_trial_dir("s", 1)
    assert first != second
    (first / "x").touch()
    scratch.remove_trial(str(second), None, "0")
    assert (first / "x").exists()
    scratch.remove_trial(str(first), None, "0")
    assert not first.parent.exists()


def test_a_study_name_cannot_leave_the_scratch_folder():
    folder = scratch.make_trial_dir("../../etc", 1)
    assert scratch.study_root("../../etc").parent == scratch.study_root("s").parent
    scratch.remove_trial(str(folder), None, "0")


def test_what_ranks_recorded_is_kept_bounded_with_trials_that_are_ok(make_search):
    times = tuple(float(k) for k in range(MAX_POINTS + 500))
    series = Series(key="host_resident_bytes", times_s=times, values=times)
    mark = Mark(name="step", step=0, start_s=0.0, end_s=1.0)

    def record(spec: TrialSpec) -> TrialResult:
        for rank in (1, 0):
            write_timeline(spec.trial_dir, Timeline(rank=rank, series=(series,), marks=(mark,)))
        status = Status.OK if spec.number == 0 else Status.CRASHED
        return TrialResult(status=status, samples_per_s=1.0, step_s=(1.0,), start="warm")

    search = make_search(record, trials=2)
    search.run()
    kept = search.store.timelines("s", 0)
    assert [timeline.rank for timeline in kept] == [0, 1]
    assert all(len(timeline.series[0].values) == MAX_POINTS for timeline in kept)
    assert search.store.timelines("s", 1) == []
