"""The table of repeats: kept as it was, ended once, made in an older file; runs that drifted never lead."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from study_samples import LIMITS, result, run, study_record

from offtune import schema
from offtune.finals_notes import keep, kept
from offtune.lock import current_owner
from offtune.repeats import Outcome, Plan, Ratio, Rejected, Repeat
from offtune.report.overview import overviews
from offtune.store import Store
from offtune.store_standings import best_of, briefs
from offtune.trial import Status


@pytest.fixture
def store(tmp_path: Path):
    with Store.open(str(tmp_path / "studies.db"), write=True) as opened:
        opened.add_study(study_record())
        yield opened


def repeat(number: int, **more) -> Repeat:
    fields = {"finals": 1, "round": 1, "run": 4, "owner": current_owner(), "trial_dir": "/t", "token": "7"}
    return Repeat(study="study-1", number=number, **{**fields, **more})


def test_a_repeat_comes_back_as_it_was_and_ends_once(store) -> None:
    store.repeats.add(repeat(0))
    store.repeats.add(repeat(1, kind="confirmation", round=0))
    under_way = store.repeats.of("study-1")
    assert [each.status for each in under_way] == [None, None]
    assert replace(under_way[0], started_at="") == repeat(0)
    store.repeats.finish("study-1", 0, result(speed=3.0))
    store.repeats.finish("study-1", 0, result(speed=4.0))
    ended = store.repeats.of("study-1")[0]
    assert (ended.status, ended.result) == (Status.OK, result(speed=3.0))
    assert ended.finished_at is not None and ended.started_at <= ended.finished_at
    assert store.repeats.of("another") == []


def test_plan_outcome_and_owner_are_kept_as_the_last_one_said(store) -> None:
    plan = Plan(finals=2, measured=9, contenders=(4, 1), baseline=1)
    outcome = Outcome(
        plan=plan, winner=4, rounds=3, tied=(1,), ratios=(Ratio(against=1, value=1.34, low=1.3, high=1.37),),
        rejected=(Rejected(run=2, reason="crashed"),), confirmed_steps=20,
    )  # fmt: skip
    assert kept(store, "study-1", Plan) is None
    for record in (replace(plan, finals=1), plan, outcome, current_owner()):
        keep(store, "study-1", record)
    assert kept(store, "study-1", Plan) == plan
    assert kept(store, "study-1", Outcome) == outcome
    assert outcome.over(1) is not None and outcome.over(2) is None
    assert outcome.ratios[0].is_clear


def add_ended(store: Store, number: int, speed: float, **more) -> None:
    store.add_run(run(number, result=result(speed=speed, **more)))


def test_a_run_that_drifted_leads_only_where_no_other_fits(store) -> None:
    add_ended(store, 0, 12.0, unsafe="Memory grew.")
    assert best_of(store, "study-1", LIMITS).number == 0
    add_ended(store, 1, 9.0, step_interval_s=(0.4, 0.5), stopped="tight")
    assert best_of(store, "study-1", LIMITS).number == 1
    assert briefs(store, "study-1")[1].result.step_interval_s == (0.4, 0.5)
    assert briefs(store, "study-1")[0].result.unsafe == "Memory grew."


def test_a_list_names_the_winner_of_the_finals(store) -> None:
    for number, speed in ((0, 10.0), (1, 9.9)):
        add_ended(store, number, speed)
    assert overviews(store)[0].best.number == 0
    plan = Plan(finals=1, measured=2, contenders=(0, 1))
    keep(store, "study-1", Outcome(plan=plan, winner=1, rounds=2))
    assert overviews(store)[0].best.number == 1


def test_a_file_from_before_the_finals_is_brought_up_to_date(tmp_path: Path, monkeypatch) -> None:
    path = str(tmp_path / "old.db")
    with monkeypatch.context() as older:
        older.setattr(schema, "MIGRATIONS", schema.MIGRATIONS[:2])
        with Store.open(path, write=True) as store:
            store.add_study(study_record())
    with Store.open(path, write=False) as store:
        assert store.repeats.of("study-1") == []
    with Store.open(path, write=True) as store:
        store.repeats.add(repeat(0))
        add_ended(store, 0, 5.0)
        assert best_of(store, "study-1", LIMITS).number == 0
