"""A search whose finalists do not hold goes on, and says when nothing does."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from search_fakes import fitted_space, imagined, made_up, open_search

from offtune.conclusion import conclude
from offtune.ending import state_of
from offtune.finals import Finals
from offtune.finals_notes import kept
from offtune.records import Limits
from offtune.repeats import Outcome
from offtune.report.document import document
from offtune.report.overview import overviews
from offtune.report.result_page import result_page
from offtune.report.study_report import read_summary
from offtune.search import Search
from offtune.trial import Status, TrialResult, TrialSpec
from offtune.trial_length import CONFIRMATION_STEPS

OVER = "Used 1.1 GB."


def frail(spec: TrialSpec, holds: Callable[[dict[str, Any]], bool]) -> TrialResult:
    """As `imagined`; what does not hold goes over the budget in its longer run."""
    came = imagined(spec)
    if spec.steps < CONFIRMATION_STEPS or came.status is not Status.OK or holds(spec.ds_config):
        return came
    over = made_up(came.samples_per_s or 1.0, used=11 * 10**8, status=Status.OVER_BUDGET)
    return replace(over, reason=OVER)


@pytest.fixture
def conclude_with(tmp_path):
    opened: list[Search] = []

    def run(holds: Callable[[dict[str, Any]], bool], **options: Any) -> Search:
        given = {"trials": None, "sampler": "offtune", **options}
        search = open_search(tmp_path, lambda spec: frail(spec, holds), **given)
        opened.append(search)
        limits = Limits(device_bytes=search.config.limit_bytes)
        conclude(Finals(search=search, space=fitted_space("ladder"), limits=limits, own_label="your file"))
        return search

    yield run
    for search in opened:
        search.store.close()


def small(config: dict[str, Any]) -> bool:
    return config["train_micro_batch_size_per_gpu"] <= 2


def test_where_nothing_held_the_search_goes_on_to_something_that_does(conclude_with) -> None:
    search = conclude_with(small, baselines=["stage 2"])
    assert any("the search goes on" in text for text in search.watcher.texts)
    assert any("not expected to gain more than" in text for text in search.watcher.texts), "why it ended"
    summary = read_summary(search.store, search.store.study("s"))
    assert summary.best is not None and small(summary.best.ds_config)
    assert summary.outcome is not None and summary.outcome.winner == summary.best.number
    rejected = {each.run for each in summary.outcome.rejected}
    assert rejected and not rejected.intersection(run.number for run in summary.ranking)
    search.study.heed(search.store.repeats.of("s"))
    assert search.study.best().number not in rejected
    assert state_of(search.store, search.store.study("s")).word == "converged"
    # Taken up again there is nothing to do.
    measured = search.study.measured_count()
    again = conclude_with(small, baselines=["stage 2"])
    assert again.study.measured_count() == measured
    assert kept(again.store, "s", Outcome) == summary.outcome


def test_where_nothing_holds_at_all_that_is_the_result(conclude_with) -> None:
    search = conclude_with(lambda config: False, trials=2, baselines=["stage 3"])
    record = search.store.study("s")
    summary = read_summary(search.store, record)
    assert summary.best is None and summary.outcome is not None
    assert overviews(search.store)[0].best is None
    told = "\n".join(getattr(block, "text", "") for block in result_page(summary))
    assert "Nothing fits" in told
    assert f"did not hold: over budget in a longer run. {OVER}" in told
    assert "the budget is not the reason" not in told
    assert document(summary)["best"] is None
    assert not any("goes on" in text for text in search.watcher.texts), "a target that was given is meant"
