"""The predicted step in a report: the models' figures, labelled, and none where nothing can be said."""

from dataclasses import replace
from pathlib import Path

import cost_cases
import pytest
from profile_fakes import make_profiled
from report_fakes import make_run, make_study, rich_study
from timeline_fakes import make_timeline

from offtune.report.html import render
from offtune.report.predicted_step import predicted_step
from offtune.report.study_report import make_side, study_report
from offtune.report.study_sections import study_web_report
from offtune.report.summary import summarise
from offtune.store import Store
from offtune.trial import as_dict

A100 = {"GPUs": "1 x NVIDIA A100-SXM4-40GB, 40 GB"}


@pytest.fixture
def store(tmp_path: Path):
    with Store.open(str(tmp_path / "studies.db"), write=True) as opened:
        yield opened


def profiled_study(**settings):
    """The record and the only run of a study of what `make_profiled` has."""
    found = make_profiled()
    config = replace(found.config, workload=replace(found.config.workload, model_config=cost_cases.CONFIG))
    known = {**as_dict(config), "machine": A100, **settings}
    run = replace(make_run(3, samples_per_s=10.9, used_gb=36.8), ds_config=found.ds_config)
    return replace(make_study(), settings=known), run


def test_the_step_is_the_models_and_says_whose_rates_it_took(store):
    study, run = profiled_study()
    step = predicted_step(store, study, run)
    expected = make_profiled().expected.prediction
    assert step is not None and expected is not None
    assert step.phases.forward_s == pytest.approx(expected.time.forward_s, rel=1e-3)
    assert step.phases.update_s == pytest.approx(expected.time.update_s, rel=1e-3)
    assert "not measured" in step.course.source and step.course.find("d2h_bytes_per_s") is not None
    assert "A100" in step.rates


def test_of_an_unknown_card_or_a_workload_without_layers_nothing_is_predicted(store):
    study, run = profiled_study(machine={"GPUs": "1 x Some Card, 40 GB"})
    assert predicted_step(store, study, run) is None
    study, run = profiled_study()
    work = {**study.settings["workload"], "model_config": {}}
    assert predicted_step(store, replace(study, settings={**study.settings, "workload": work}), run) is None


def test_the_page_draws_it_beside_the_measured_step_and_labels_it(store):
    study, run = profiled_study()
    summary = summarise(make_study(), [one for one in rich_study() if one.status is not None])
    assert summary.best is not None
    side = make_side("Winner", summary.best, [make_timeline()])
    plain = study_report(summary, (side,), ())
    text = render(study_web_report(replace(plain, predicted=predicted_step(store, study, run))))
    assert "winner, predicted" in text and "Winner: predicted, not measured" in text
    assert (
        "predicted"
        not in render(study_web_report(plain)).partition('id="inside"')[2].partition("</section>")[0]
    )
