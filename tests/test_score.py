"""What the sampler is told about each way a trial can end."""

from __future__ import annotations

import pytest
from study_samples import LIMITS, result

from offtune.records import Limits
from offtune.score import ASSUMED_OVERSHOOT, score
from offtune.trial import Status

ENDED = [status for status in Status if status is not Status.INTERRUPTED]


def test_a_run_within_the_limits_scores_its_throughput_and_negative_margins() -> None:
    scored = score(result(speed=12.5, used=900, host=2500), LIMITS)
    assert scored.value == 12.5
    assert scored.feasible
    assert scored.constraints == {
        "device_memory": pytest.approx(-0.1),
        "host_memory": pytest.approx(-0.5),
        "failure": -1.0,
    }


@pytest.mark.parametrize("status", ENDED)
def test_every_ending_has_the_same_constraints_in_the_same_order(status: Status) -> None:
    assert list(score(result(status=status), LIMITS).constraints) == [
        "device_memory",
        "host_memory",
        "failure",
    ]


@pytest.mark.parametrize("status", [status for status in ENDED if status is not Status.OK])
@pytest.mark.parametrize("used", [None, 900, 1200])
def test_every_ending_but_ok_is_infeasible_and_below_every_throughput(
    status: Status, used: int | None
) -> None:
    scored = score(result(speed=50.0, used=used, status=status), LIMITS)
    assert not scored.feasible
    assert scored.value == 0.0


def test_over_budget_tells_by_how_much() -> None:
    scored = score(result(used=1250, status=Status.OVER_BUDGET), LIMITS)
    assert scored.constraints["device_memory"] == 0.25
    assert scored.constraints["failure"] < 0


def test_over_the_host_budget_tells_by_how_much() -> None:
    scored = score(result(host=7500, status=Status.OVER_BUDGET), LIMITS)
    assert scored.constraints["host_memory"] == 0.5


def test_out_of_memory_is_worse_than_what_was_seen_before_it_died() -> None:
    assert (
        score(result(used=990, status=Status.OOM_GPU), LIMITS).constraints["device_memory"]
        == ASSUMED_OVERSHOOT
    )
    assert score(result(used=5000, status=Status.OOM_GPU), LIMITS).constraints["device_memory"] == 4.0
    host = score(result(used=990, status=Status.OOM_HOST), LIMITS).constraints
    assert (host["host_memory"], host["device_memory"] < 0) == (ASSUMED_OVERSHOOT, True)


def test_an_ok_without_a_usable_throughput_is_a_failure() -> None:
    for speed in (None, float("nan"), float("inf")):
        scored = score(result(speed=speed), LIMITS)
        assert (scored.value, scored.feasible) == (0.0, False)


def test_memory_nobody_could_measure_does_not_make_a_run_infeasible() -> None:
    scored = score(result(used=None, host=None), Limits(device_bytes=1000))
    assert scored.feasible
    assert scored.constraints["device_memory"] == 0.0
