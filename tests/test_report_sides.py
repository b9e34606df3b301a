"""What a report says of winner and baseline, and where there is nothing to tell them apart by."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

from profile_fakes import with_parts
from report_fakes import make_run, make_study, rich_study
from timeline_fakes import make_timeline
from typer.testing import CliRunner
from web_fakes import write_study

from offtune.cli import app
from offtune.phase_analysis import analyse
from offtune.report.html import render
from offtune.report.study_report import OWN_FILE_WINS, StudyReport, make_side, read_report, study_report
from offtune.report.study_sections import study_web_report
from offtune.report.summary import summarise
from offtune.store import Store
from offtune.trial import Status


def main_of(found: StudyReport) -> str:
    """What the page says, without its scripts."""
    return render(study_web_report(found)).partition("<main")[2].partition("</main>")[0]


def test_where_the_persons_own_file_wins_page_and_terminal_say_so_in_place_of_a_diff(tmp_path: Path) -> None:
    location = str(tmp_path / "s.db")
    mine = make_run(0, samples_per_s=9.0, used_gb=20, origin="baseline", label="your file", point={})
    other = make_run(1, samples_per_s=7.0, used_gb=20, origin="baseline", label="stage 2")
    with Store.open(location, write=True) as store:
        store.add_study(make_study())
        for run in (mine, replace(other, ds_config={})):
            store.add_run(run)
    found = read_report(location, None)
    assert found.baseline is not None and found.baseline.label == "stage 2" and found.changes
    change = main_of(found).partition('id="change"')[2].partition("</section>")[0]
    assert "From &#39;your file&#39; to the winner" in change and "<table" not in change
    assert OWN_FILE_WINS in change
    shown = CliRunner().invoke(app, ["show", "--storage", location]).stdout
    known = json.loads(CliRunner().invoke(app, ["show", "--json", "--storage", location]).stdout)
    assert known["own_file_wins"] is True and known["compared_with"] == 1
    assert OWN_FILE_WINS in shown and "stage 2' to the winner" not in shown


def test_a_winner_without_another_run_to_be_held_against_says_so() -> None:
    summary = summarise(make_study(), [make_run(0, samples_per_s=9, used_gb=10)])
    assert summary.best is not None
    found = study_report(summary, (make_side("Winner", summary.best, []),))
    assert "No other baseline trained" in main_of(found)


def test_parts_of_the_phases_stand_side_by_side(tmp_path: Path) -> None:
    found = read_report(write_study(tmp_path), None)
    sides = []
    for side in found.sides:
        result = side.run.result
        assert result is not None and side.timeline is not None
        analysis = analyse(with_parts(side.timeline))
        sides.append(replace(side, run=replace(side.run, result=replace(result, analysis=analysis))))
    text = main_of(replace(found, sides=tuple(sides)))
    assert text.count("update: cpu optimizer") == 2
    assert "Winner: parts inside the phases" in text and "Baseline: parts inside the phases" in text


def test_why_something_was_not_recorded_is_told_once_for_both_and_by_name_for_one() -> None:
    runs = rich_study()
    both, one = {"pinned_bytes": "no allocator"}, {"nvme_read_bytes_per_s": "no NVMe offload"}
    winner = make_side("Winner", runs[3], [replace(make_timeline(), reasons=both)])
    baseline = make_side("Baseline", runs[1], [replace(make_timeline(), reasons={**both, **one})])
    text = main_of(study_report(summarise(make_study(), runs), (winner, baseline), ()))
    assert text.count(">Not recorded: pinned memory (no allocator).<") == 1
    assert ">Baseline: Not recorded: NVMe read (no NVMe offload).<" in text


def test_memory_that_was_only_predicted_is_not_shown_as_measured() -> None:
    told = make_run(5, Status.OVER_BUDGET, used_gb=50, origin="baseline", label="your file", ran=False)
    assert told.result is not None
    told = replace(told, result=replace(told.result, start="predicted"))
    winner = make_run(6, samples_per_s=9, used_gb=20, host_gb=7)
    sides = (make_side("Winner", winner, []), make_side("Baseline", told, []))
    text = main_of(study_report(summarise(make_study(), [told, winner]), sides))
    assert "winner: trial 6" in text and "baseline: trial 5" not in text
