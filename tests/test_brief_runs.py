"""Runs in brief: what their columns say is there at once, their text is read for the rest."""

from copy import deepcopy
from dataclasses import replace

import pytest

from offtune import rows
from offtune.brief_runs import BriefRun
from offtune.records import Run
from offtune.trial import Forecast, LossCheck, MemoryPeaks, PhaseTimes, Status, TrialResult

RESULT = TrialResult(
    status=Status.OVER_BUDGET,
    reason="too much",
    samples_per_s=7.5,
    step_s=(0.1, 0.2),
    step_interval_s=(0.1, 0.3),
    unsafe="Memory grew.",
    phases=PhaseTimes(forward_s=0.1),
    memory=MemoryPeaks(used_device_bytes=5, device_source="torch", used_host_bytes=7),
    loss_check=LossCheck(verdict="agrees", reference_losses=(1.0,)),
    exit_codes=(0, None),
    forecast=Forecast(
        used_device_bytes=6, used_host_bytes=7, step_s=0.2, samples_per_s=8.0,
        device_error_share=0.1, step_error_share=0.1,
    ),
)  # fmt: skip
RUN = Run(
    study="s", number=3, origin="search", point={"placement": "zero2"}, ds_config={}, fingerprint="f",
    status=RESULT.status, result=rows.brief(RESULT),
)  # fmt: skip


def row(result: TrialResult = RESULT, **changed: object) -> dict[str, object]:
    columns = {**rows.run_row(replace(RUN, result=result)), **rows.outcome_row(RUN, result)}
    return {**columns, **changed}


def test_it_equals_the_whole_run_in_brief() -> None:
    found = BriefRun.of(row())
    for one, other in ((found, RUN), (RUN, found)):
        assert one == other
    assert BriefRun.of(row()) != replace(RUN, number=4)
    assert BriefRun.of(row()) != replace(RUN, result=replace(rows.brief(RESULT), reason="other"))
    assert BriefRun.of(row()) != "a run"


def test_ranking_reads_no_text() -> None:
    run = BriefRun.of(row(replace(RESULT, unsafe=""), brief="{", point="{"))
    assert run.result is not None
    assert (run.number, run.status, run.origin, run.reuse_of, run.ran) == (
        3, Status.OVER_BUDGET, "search", None, True,
    )  # fmt: skip
    assert (run.result.samples_per_s, run.result.unsafe) == (7.5, "")
    assert (run.result.memory.used_device_bytes, run.result.memory.used_host_bytes) == (5, 7)
    for ask in (lambda: run.point, lambda: run.result.step_s, lambda: run.result.memory.device_source):
        with pytest.raises(ValueError, match="EOF"):
            ask()


def test_a_changed_or_copied_one_is_whole() -> None:
    run = BriefRun.of(row())
    assert replace(run, number=4) == replace(RUN, number=4)
    assert deepcopy(run) == RUN
    assert not hasattr(run, "no_such_field")
    assert not hasattr(run.result, "no_such_field")


def test_whether_an_old_file_s_run_drifted_is_in_its_text() -> None:
    found = BriefRun.of(row(unsafe=None)).result
    assert found is not None
    assert found.unsafe == "Memory grew."
