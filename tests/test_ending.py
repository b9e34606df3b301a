"""How a study stands: ended and why, under way, interrupted; in the list, in show and in both as JSON."""

from dataclasses import replace

import pytest
from report_fakes import make_run, make_study, rich_study

from offtune.ending import Ending, keep_ending, state_of
from offtune.lock import current_owner
from offtune.report.document import document, list_document
from offtune.report.overview import overviews
from offtune.report.page import Command, Facts
from offtune.report.study_page import list_page, study_page
from offtune.report.summary import summarise
from offtune.store import Store

CONVERGED = Ending(kind="converged", text="Further trials are not expected to gain more than 1 %.")


@pytest.fixture
def study():
    return replace(make_study(), target_trials=12)


@pytest.fixture
def store(tmp_path, study):
    with Store.open(str(tmp_path / "studies.db"), write=True) as opened:
        opened.add_study(study)
        yield opened


def add(store, study, number, **changes):
    store.add_run(replace(make_run(number, samples_per_s=10.0, used_gb=1.0), study=study.name, **changes))


def shown(store):
    (table,) = list_page(overviews(store))
    (row,) = table.rows
    return row[-2]


def test_a_search_that_ended_by_itself_is_not_listed_as_unfinished(store, study):
    add(store, study, 0)
    assert shown(store) == "1/12, interrupted"
    keep_ending(store, study.name, CONVERGED)
    assert shown(store) == "1, converged"
    (entry,) = list_document(overviews(store))["studies"]
    assert entry["state"] == "converged" and entry["ended"] == {"kind": "converged", "text": CONVERGED.text}


def test_a_search_that_goes_on_again_has_not_ended(store, study):
    keep_ending(store, study.name, CONVERGED)
    keep_ending(store, study.name, None)
    assert state_of(store, study).word == "not started" and state_of(store, study).ending is None


def test_a_trial_that_may_be_running_means_under_way(store, study):
    add(store, study, 0)
    elsewhere = replace(current_owner(), hostname="another")
    add(store, study, 1, result=None, status=None, owner=elsewhere)
    assert state_of(store, study).word == "under way"


def test_of_a_dead_process_of_this_machine_the_study_is_interrupted(store, study):
    add(store, study, 0)
    add(store, study, 1, result=None, status=None, owner=replace(current_owner(), pid=2**22 + 1))
    assert state_of(store, study).word == "interrupted"


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("Further trials are not expected to gain more than 1 %: stopped after 12 trials.", "converged"),
        ("The time is up after 3 trials.", "time"),
        ("12 trials measured, as asked.", "target"),
        ("Nothing trains: 5 trials crashed alike, whatever their configuration.", "crashes"),
    ],
)
def test_the_sentences_of_studies_from_before_are_understood(store, study, text, kind):
    store.note(study.name, "ended", text)
    assert state_of(store, study).ending == Ending(kind=kind, text=text)


def test_a_study_that_reached_its_target_has_finished_without_a_note(store, study):
    add(store, study, 0)
    assert state_of(store, replace(study, target_trials=1)).word == "finished"


def test_a_resume_beyond_the_target_is_not_finished_until_it_ends(store, study):
    add(store, study, 0)
    keep_ending(store, study.name, None)
    assert state_of(store, replace(study, target_trials=1)).word == "interrupted"


def test_show_says_why_and_offers_to_resume_only_what_goes_on(store, study):
    runs = [run for run in rich_study() if run.status is not None]
    keep_ending(store, study.name, CONVERGED)
    summary = replace(summarise(replace(study, target_trials=99), runs), state=state_of(store, study))
    page = study_page(summary)
    facts = dict(next(block for block in page if isinstance(block, Facts)).rows)
    assert facts["state"] == f"converged: {CONVERGED.text}" and " of 99" not in facts["trials"]
    resume = f"offtune resume {study.name}"
    assert resume not in [block.text for block in page if isinstance(block, Command)]
    assert document(summary)["ended"]["kind"] == "converged"
    late = replace(summary, state=replace(summary.state, ending=Ending(kind="time", text="The time is up.")))
    assert resume in [block.text for block in study_page(late) if isinstance(block, Command)]
