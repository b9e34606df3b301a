"""The predicted step in a report: the models' figures, labelled, and none where nothing can be said."""

from dataclasses import replace
from pathlib import Path

import cost_cases
import pytest
from profile_fakes import make_profiled
from report_fakes import make_run, make_study, rich_study
from timeline_fakes import make_timeline
from web_fakes import with_predictions

from offtune.report.html import plots_of, render
from offtune.report.inside import NO_CURVE, inside_section
from offtune.report.predicted_step import predicted_step
from offtune.report.step_plots import timeline_plot
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


def sides_of_a_study():
    """A study's summary, and its winner and a baseline with what was recorded of them."""
    summary = summarise(make_study(), [one for one in rich_study() if one.status is not None])
    assert summary.best is not None
    baseline = next(run for run in summary.runs if run.number == 1)
    named = (("Winner", summary.best), ("Baseline", baseline))
    return summary, tuple(make_side(title, run, [make_timeline()]) for title, run in named)


def test_the_page_draws_it_for_winner_and_baseline_and_labels_it():
    summary, sides = sides_of_a_study()
    plain = study_report(summary, sides, ())
    section = inside_section(with_predictions(plain))
    plots = {plot.name: plot for plot in plots_of(section.blocks)}
    assert [name for name in plots if "-" in name] == ["curve-3", "curve-1", "predicted-3", "predicted-1"]
    for number, title in ((3, "Winner"), (1, "Baseline")):
        assert plots[f"predicted-{number}"].title == f"{title}: predicted, not measured"
        assert "nothing of it was recorded" in plots[f"predicted-{number}"].caption
        measured = plots[f"curve-{number}"]
        assert "device memory, predicted" in [entry.text for entry in measured.legend]
        assert "(predicted " in measured.alt and measured.table.rows[-1][0].endswith("predicted peak")
    bars = [row[0] for row in plots["phases"].table.rows]
    assert bars[:2] == ["winner: trial 3", "winner: trial 3, predicted"]
    assert bars[2:4] == ["stage 2 + optimizer offload", "stage 2 + optimizer offload, predicted"]
    assert "Winner: predicted, not measured" in render(study_web_report(with_predictions(plain)))
    assert not any("predicted" in plot.name for plot in plots_of(inside_section(plain).blocks))


def test_a_prediction_for_one_side_alone_is_drawn_alone():
    summary, (winner, baseline) = sides_of_a_study()
    both = with_predictions(study_report(summary, (winner, baseline), ()))
    names = [
        plot.name for plot in plots_of(inside_section(replace(both, sides=(winner, both.sides[1]))).blocks)
    ]
    assert "predicted-1" in names and "predicted-3" not in names


def test_of_trials_without_samples_the_predicted_step_is_drawn_all_the_same():
    summary, sides = sides_of_a_study()
    bare = study_report(summary, tuple(replace(side, timeline=None) for side in sides), ())
    section = inside_section(with_predictions(bare))
    assert [plot.name for plot in plots_of(section.blocks)][:2] == ["predicted-3", "predicted-1"]
    assert any(getattr(block, "text", "") == NO_CURVE for block in section.blocks)


def test_names_of_phases_that_would_run_into_each_other_stand_in_rows():
    def rows(span_s):
        plot = timeline_plot("x", "x", make_timeline(), 1, span_s=span_s)
        names = {name["text"]: name["yshift"] for name in plot.layout["annotations"]}
        return [names[phase] for phase in ("forward", "backward", "update")], plot.layout["margin"]["t"]

    assert rows(4.0) == ([0, 0, 0], 24)
    squeezed, top = rows(40.0)
    assert len(set(squeezed)) == 3 and top == 24 + max(squeezed)


def test_a_predicted_curve_has_the_limit_where_it_comes_near_it():
    step = with_predictions(study_report(*sides_of_a_study(), ())).sides[0].predicted
    assert step is not None
    used = step.memory.used_device_bytes

    def lines(limit):
        plot = timeline_plot("x", "x", step.course, 0, limit_bytes=limit, memory=step.memory)
        told = sum(entry.text == "limit" for entry in plot.legend)
        return [shape["y0"] for shape in plot.layout["shapes"] if shape["type"] == "line"], told

    assert lines(used) == ([used / 1e9], 1) and lines(3 * used) == ([], 0)
