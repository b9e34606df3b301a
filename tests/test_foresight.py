"""Predictions in a search: what is not run, what is tried first, what is learned, what is said about it."""

import json
from dataclasses import replace

import pytest
from space_samples import facts
from test_search import make_search  # noqa: F401  (a fixture)

from offtune import ds_config, hardware_profile
from offtune.command import parse_command
from offtune.foresight import QUEUED, QUEUED_LABEL, foresight_for
from offtune.model_shape import shape_of
from offtune.report.document import document
from offtune.report.forecasts import forecasts
from offtune.report.result_page import failures_blocks
from offtune.report.summary import summarise
from offtune.report.trial_page import trial_page
from offtune.rows import measurement_rows
from offtune.space import load_space
from offtune.trial import MemoryPeaks, PhaseTimes, Status, TrialResult, TrialSpec

PROFILE = hardware_profile.load("cpu")
SEQ_LEN = 128
COMMAND = parse_command(["python", "train.py", "{ds_config}"], "/", "here")
SPACE = load_space("ladder").fit(
    facts(device="cpu", nvme_dir=None, ops=frozenset({"cpu_adam", "fused_adam"}))
)


@pytest.fixture
def foresee(make_search):  # noqa: F811
    """A search with foresight, on a machine off by `factor` in memory and `slower` in time."""

    def make(factor=1.0, slower=1.0, command=False, **options):
        def machine(spec: TrialSpec) -> TrialResult:
            found = plain.predict(spec.ds_config)
            used, time = int(factor * found.memory.used_device_bytes), found.time
            step = slower * time.step_s
            return TrialResult(
                status=Status.OK if used <= spec.limit_bytes else Status.OVER_BUDGET,
                samples_per_s=spec.workload.global_batch / step,
                tokens_per_s=SEQ_LEN * spec.workload.global_batch / step,
                step_s=(step, step),
                phases=PhaseTimes(
                    forward_s=slower * time.forward_s,
                    backward_s=slower * time.backward_s,
                    update_s=slower * time.update_s,
                ),
                memory=MemoryPeaks(used_device_bytes=used, used_host_bytes=10**6),
            )

        search = make_search(machine, **options)
        numels = shape_of(search.config.workload.model_config).parameter_numels
        search.facts = replace(search.facts, parameter_numels=numels)
        if command:
            own = replace(search.config.workload, seq_len=None, command=COMMAND)
            search.config = replace(search.config, workload=own)
            search.facts = replace(search.facts, workload=own)
        search.foresight = foresight_for(search.config, search.facts, SPACE, PROFILE, search.store.runs("s"))
        assert search.foresight is not None
        long = replace(search.facts, workload=replace(search.facts.workload, seq_len=SEQ_LEN))
        plain = replace(search.foresight.plain, facts=long)
        return search

    return make


def test_what_is_predicted_far_over_is_told_without_running_and_does_not_count(foresee):
    search = foresee(budget="130MB", trials=9)
    search.run()
    runs = search.store.runs("s")
    foretold = [run for run in runs if not run.ran]
    assert foretold
    for run in foretold:
        assert run.status is Status.OVER_BUDGET
        assert run.result.reason.startswith("Predicted:")
        assert run.result.start == "predicted"
        assert run.result.samples_per_s is None
    assert search.study.measured_count() == 9


def test_baselines_run_however_hopeless(foresee):
    search = foresee(budget="40MB", trials=5)
    search.run()
    runs = search.store.runs("s")
    assert [run.origin for run in runs[:5]] == ["baseline"] * 5
    assert all(run.ran for run in runs[:5])


def test_nothing_is_skipped_or_queued_when_switched_off(foresee, make_search):  # noqa: F811
    search = make_search(predict=False)
    assert foresight_for(search.config, search.facts, SPACE, PROFILE) is None
    search.run()
    assert all(run.ran for run in search.store.runs("s"))
    assert all(run.label != QUEUED_LABEL for run in search.store.runs("s"))


def test_a_training_without_a_model_shape_is_not_predicted(make_search):  # noqa: F811
    search = make_search()
    blank = replace(search.config, workload=replace(search.config.workload, model_config={}))
    assert foresight_for(blank, search.facts, SPACE, PROFILE) is None


def test_a_guessed_shape_forbids_nothing(foresee):
    search = foresee(budget="40MB")
    assert search.foresight.best(1) == []
    guessed = replace(search.foresight.plain.shape, exact=False)
    point = SPACE.complete({"placement": "zero3", "micro_batch": 8})
    built = ds_config.build({}, point, search.facts, None)
    assert search.foresight.hopeless(built, point) is not None
    search.foresight.plain = replace(search.foresight.plain, shape=guessed)
    assert search.foresight.hopeless(built, point) is None


def test_the_predicted_best_come_right_after_the_baselines_and_once(foresee):
    search = foresee(budget="1GB", trials=15)
    search.run()
    runs = search.store.runs("s")
    queued = [run for run in runs if run.label == QUEUED_LABEL]
    assert 1 <= len(queued) <= QUEUED
    assert [run.number for run in queued] == list(range(5, 5 + len(queued)))
    assert all(run.origin == "search" for run in queued)
    assert len({run.point["placement"] for run in queued}) == len(queued)
    again = foresee(budget="1GB", trials=20)
    again.run()
    labels = [run.label for run in again.store.runs("s")]
    assert labels.count(QUEUED_LABEL) == len(queued)


def test_the_study_corrects_memory_and_time(foresee):
    search = foresee(factor=1.25, slower=1.7, budget="2GB", trials=10)
    search.run()
    runs = [run for run in search.store.runs("s") if run.ran and run.reuse_of is None]
    first, last = runs[0].result, runs[-1].result
    assert first.forecast.used_device_bytes == pytest.approx(first.memory.used_device_bytes / 1.25, rel=0.01)
    assert last.forecast.used_device_bytes == pytest.approx(last.memory.used_device_bytes, rel=0.01)
    assert abs(last.forecast.step_s / last.step_s[0] - 1) < abs(first.forecast.step_s / first.step_s[0] - 1)
    assert search.foresight.fitted.memory_ratio == pytest.approx(1.25, rel=0.01)


def test_a_resume_knows_what_the_study_measured(foresee):
    search = foresee(factor=1.25, budget="2GB", trials=6)
    search.run()
    again = foresee(factor=1.25, budget="2GB", trials=8)
    assert again.foresight.fitted.memory_ratio == pytest.approx(1.25, rel=0.01)


def test_a_few_trials_correct_nothing(foresee):
    search = foresee(factor=1.25, budget="2GB", trials=2)
    search.run()
    assert search.foresight.fitted == search.foresight.plain


def test_a_command_is_predicted_from_its_first_trial_on_and_corrected_by_it(foresee):
    search = foresee(factor=1.3, slower=2.0, command=True, budget="1GB", trials=9)
    point = SPACE.complete({})
    assert not search.foresight.ready
    assert search.foresight.best(3) == []
    built = ds_config.build({}, point, search.facts, None)
    assert search.foresight.forecast(built, point) is None
    assert search.foresight.hopeless(built, point) is None
    search.run()
    runs = [run for run in search.store.runs("s") if run.ran and run.reuse_of is None]
    assert runs[0].result.forecast is None
    assert all(run.result.forecast is not None for run in runs[1:])
    second = runs[1].result
    assert second.forecast.used_device_bytes == pytest.approx(second.memory.used_device_bytes, rel=0.01)
    assert second.forecast.step_s == pytest.approx(second.step_s[0], rel=0.2)
    assert search.foresight.plain.facts.workload.seq_len == SEQ_LEN
    assert [run.label for run in runs].count(QUEUED_LABEL) >= 1
    assert forecasts(runs).trials == len(runs) - 1


def test_a_command_is_spared_what_is_far_over_and_a_resume_needs_no_new_first_trial(foresee):
    search = foresee(command=True, budget="130MB", trials=9)
    search.run()
    foretold = [run for run in search.store.runs("s") if not run.ran]
    assert foretold
    assert min(run.number for run in foretold) > 5
    again = foresee(command=True, budget="130MB", trials=9)
    assert again.foresight.ready
    assert again.foresight.fitted == search.foresight.fitted


def test_a_backward_that_nobody_saw_is_what_is_left_of_the_step(foresee):
    search = foresee(slower=2.0, command=True, budget="1GB", trials=3)
    run = search.runner

    def unseen(spec):
        result = run(spec)
        return replace(result, phases=replace(result.phases, backward_s=None))

    search.runner = unseen
    search.run()
    last = search.store.runs("s")[-1].result
    assert last.forecast.step_s == pytest.approx(last.step_s[0], rel=0.2)


def test_a_command_whose_trials_count_no_tokens_is_not_predicted(foresee):
    search = foresee(command=True, trials=4)
    run = search.runner
    search.runner = lambda spec: replace(run(spec), tokens_per_s=None)
    search.run()
    assert not search.foresight.ready
    assert forecasts(search.store.runs("s")) is None


def test_the_summary_says_how_good_predictions_were_and_keeps_them_apart(foresee):
    search = foresee(factor=1.1, budget="130MB", trials=9)
    search.run()
    summary = summarise(search.store.study("s"), search.store.runs("s"))
    found = summary.forecasts
    assert found.trials == 9
    assert found.not_run == sum(not run.ran for run in summary.runs)
    assert 0 <= found.memory_error_share < 0.1
    shown = json.loads(json.dumps(document(summary), allow_nan=False))
    assert shown["predictions"]["not_run"] == found.not_run
    entry = next(trial for trial in shown["trials"] if not trial["ran"])
    assert entry["used_device_bytes"] is None
    assert entry["predicted"]["used_device_bytes"] > 130e6
    text = repr(failures_blocks(summary))
    assert "predicted over budget, not run" in text
    run = next(run for run in summary.runs if not run.ran)
    page = repr(trial_page(summary.study, run))
    assert "Predicted before it" in page
    assert "Measured" not in page
    assert "It trained" not in page


def test_without_predictions_nothing_is_said_of_them(make_search):  # noqa: F811
    search = make_search()
    search.run()
    runs = search.store.runs("s")
    assert forecasts(runs) is None
    assert document(summarise(search.store.study("s"), runs))["predictions"] is None


def test_figures_of_what_was_not_run_are_in_the_tables_as_predicted_only(foresee):
    search = foresee(budget="130MB", trials=9)
    search.run()
    run = next(run for run in search.store.runs("s") if not run.ran)
    keys = {row["key"] for row in measurement_rows("s", run.number, run.result)}
    assert "predicted_used_device_bytes" in keys
    assert "used_device_bytes" not in keys
