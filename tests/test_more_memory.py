"""What more memory buys: leads beyond the noise only, from repeats where there are any."""

from dataclasses import replace

from report_fakes import make_run, make_study
from test_finals_text import ratio, seen

from offtune.repeats import Outcome, Plan
from offtune.report.document import document
from offtune.report.more_memory import memory_steps, more_memory_blocks
from offtune.report.page import Line, Table
from offtune.report.study_plots import frontier_plot
from offtune.report.summary import summarise


def study_of(*rates, outcome=None, spread=0.01):
    runs = [make_run(n, samples_per_s=rate, used_gb=10 + n, spread=spread) for n, rate in enumerate(rates)]
    return summarise(make_study(), runs, outcome=outcome)


def finals(winner, *ratios, **changes):
    plan = Plan(finals=1, measured=3, contenders=(0, 1, 2), baseline=0)
    return Outcome(plan=plan, winner=winner, rounds=3, ratios=ratios, **changes)


def numbers(summary):
    return [step.run.number for step in memory_steps(summary)]


def test_a_lead_within_what_repeats_differ_by_is_no_gain():
    assert numbers(study_of(10.0, 10.3, 12.0)) == [0, 2]
    assert numbers(study_of(10.0, 10.3, 10.4)) == [0]
    # Together they are: it is the last one kept that is to be beaten.
    assert numbers(study_of(10.0, 10.4, 10.8)) == [0, 2]


def test_runs_whose_steps_scatter_must_lead_by_more():
    assert numbers(study_of(10.0, 12.0, spread=0.001)) == [0, 1]
    assert numbers(study_of(10.0, 12.0, spread=0.2)) == [0]


def test_what_repeats_say_goes_before_single_trials():
    clear = study_of(10.0, 10.2, outcome=finals(1, ratio(0, 1.03, 0.01)))
    (_, step) = memory_steps(clear)
    assert step.lead is not None and step.lead.repeated and step.lead.value == 1.03
    assert numbers(study_of(10.0, 14.0, outcome=finals(1, ratio(0, 1.07, 0.17)))) == [0]


def test_the_noise_of_the_finals_holds_for_single_trials_too():
    noisy = finals(2, ratio(1, 1.0, 0.3))
    assert numbers(study_of(10.0, 12.0, 12.5, outcome=noisy)) == [0]
    assert numbers(study_of(10.0, 15.0, 15.5, outcome=noisy)) == [0, 1]


def test_the_winner_has_its_confirmed_speed():
    confirmed = finals(1, ratio(0, 1.3, 0.02), confirmed_steps=20, confirmed_samples_per_s=12.6)
    summary = study_of(10.0, 13.0, outcome=confirmed)
    table, note = more_memory_blocks(summary, "trial", lambda run: f"#{run.number}")
    assert isinstance(table, Table) and isinstance(note, Line)
    assert table.rows[1] == ("11.0 GB", "12.6", "1.30 ± 0.02", "1", "#1")
    assert "By repeats in turn: trial 1." in note.text and "Confirmed by a longer run: trial 1." in note.text
    entry = document(summary)["more_memory"][1]
    assert (entry["samples_per_s"], entry["confirmed"], entry["lead"]["over"]) == (12.6, True, 0)


def test_without_repeats_it_is_said_that_single_trials_speak():
    _, note = more_memory_blocks(study_of(10.0, 12.0), "trial", lambda run: "")
    assert isinstance(note, Line) and note.text.endswith(
        "by more than the noise. All of it from single trials."
    )


def test_where_nothing_is_gained_it_is_said_and_no_line_is_drawn():
    summary = study_of(10.0, 10.2)
    (line,) = more_memory_blocks(summary, "trial", lambda run: "")
    assert isinstance(line, Line) and "no speed beyond the noise: trial 0 makes do with 10.0 GB" in line.text
    plot = frontier_plot(summary)
    assert plot is not None and "front" not in [trace["name"] for trace in plot.data] and not plot.caption
    drawn = frontier_plot(study_of(10.0, 14.0))
    assert drawn is not None and "front" in [trace["name"] for trace in drawn.data]


def test_a_winner_by_repeats_that_is_not_on_the_front_is_considered():
    summary = seen(ratios=(ratio(0, 1.34, 0.03), ratio(1, 1.01, 0.02)))
    assert numbers(summary) == [0, 2] and summary.best is not None
    assert memory_steps(replace(summary, front=(), ranking=())) == ()
