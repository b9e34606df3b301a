"""The nearest miss, and the advice that knows what the run already does."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from report_fakes import DS_CONFIG, GB, make_run, make_study

from offtune.records import Limits, Run
from offtune.report.miss import NearestMiss, advice, nearest_miss, size_option
from offtune.trial import Status
from offtune.units import parse_bytes

LIMITS = Limits(device_bytes=38 * GB, host_bytes=200 * GB)


def miss_of(*runs: Run) -> NearestMiss:
    miss = nearest_miss(runs, LIMITS)
    assert miss is not None
    return miss


def advice_for(run: Run, device: str = "cuda", **settings: Any) -> str:
    return "\n".join(advice(miss_of(run), make_study(device, **settings), LIMITS))


def test_the_smallest_overshoot_wins() -> None:
    miss = miss_of(
        make_run(0, Status.OVER_BUDGET, used_gb=45),
        make_run(1, Status.OVER_BUDGET, used_gb=39),
        make_run(2, Status.OOM_GPU),
    )
    assert (miss.run.number, miss.device_over_bytes, miss.host_over_bytes) == (1, GB, 0)


def test_overshoots_are_compared_as_shares_of_their_limits() -> None:
    device, host = (
        make_run(0, Status.OVER_BUDGET, used_gb=40),
        make_run(1, Status.OVER_BUDGET, used_gb=20, host_gb=204),
    )
    assert miss_of(device, host).run.number == 1


def test_a_run_stopped_at_its_limit_has_an_unknown_overshoot() -> None:
    miss = miss_of(make_run(0, Status.OOM_GPU, used_gb=37.9))
    assert (miss.device_over_bytes, miss.host_over_bytes) == (None, 0)
    assert miss_of(make_run(0, Status.OOM_HOST, host_gb=None)).host_over_bytes is None


def test_a_run_over_budget_without_a_reading_is_unknown_not_perfect() -> None:
    assert (
        miss_of(make_run(0, Status.OVER_BUDGET), make_run(1, Status.OVER_BUDGET, used_gb=90)).run.number == 1
    )


def test_runs_that_did_not_fail_for_memory_are_no_misses() -> None:
    others = [
        make_run(0, Status.CRASHED),
        make_run(1, Status.TIMEOUT),
        make_run(2, samples_per_s=9, used_gb=20),
    ]
    assert nearest_miss([*others, make_run(3, Status.OOM_GPU, ran=False)], LIMITS) is None


def test_under_a_smaller_limit_a_run_that_fitted_is_a_miss() -> None:
    miss = nearest_miss([make_run(0, samples_per_s=9, used_gb=20)], Limits(device_bytes=15 * GB))
    assert miss is not None
    assert miss.device_over_bytes == 5 * GB


def test_advice_names_a_budget_that_would_hold_the_run_with_its_headroom() -> None:
    text = advice_for(make_run(0, Status.OVER_BUDGET, used_gb=39))
    assert "--budget 41.1GB" in text  # 39 GB x 40 / 38, rounded up


def test_advice_does_not_repeat_what_is_already_done() -> None:
    done = advice_for(
        make_run(0, Status.OVER_BUDGET, used_gb=39), workload={"activation_checkpointing": True}
    )
    assert "--activation-checkpointing" not in done
    assert "Offload more" not in done  # the configuration offloads both
    assert "--activation-checkpointing" in advice_for(make_run(0, Status.OVER_BUDGET, used_gb=39))
    searched = {"activation_checkpointing": None}
    for on in (True, False):
        run = make_run(0, Status.OVER_BUDGET, used_gb=39, point={"activation_checkpointing": on})
        assert ("--activation-checkpointing" in advice_for(run, workload=searched)) is not on


def test_advice_speaks_of_the_micro_batch_only_above_one() -> None:
    one = {**DS_CONFIG, "train_micro_batch_size_per_gpu": 1}
    assert "micro-batch below 4" in advice_for(make_run(0, Status.OOM_GPU))
    assert "micro-batch" not in advice_for(make_run(0, Status.OOM_GPU, ds_config=one))


def test_advice_to_offload_says_what_is_still_on_the_gpu() -> None:
    config = {"zero_optimization": {"stage": 3, "offload_optimizer": {"device": "cpu"}}}
    run = make_run(0, Status.OOM_GPU, ds_config=config)
    assert "keeps parameters on the GPU" in advice_for(run)
    assert "Offload more" not in advice_for(run, device="cpu")  # one memory there


def test_advice_for_the_host_speaks_of_the_host() -> None:
    text = advice_for(make_run(0, Status.OOM_HOST, host_gb=230))
    assert "--host-budget 230GB" in text
    assert "--nvme-path" in text
    assert "--budget " not in text.replace("--host-budget", "")
    assert "--nvme-path" not in advice_for(make_run(0, Status.OOM_HOST, host_gb=230), nvme_path="/mnt/nvme")


@pytest.mark.parametrize(
    ("size", "text"), [(2_400_000_001, "2.41GB"), (40 * GB, "40GB"), (1, "1B"), (999_999, "1000KB")]
)
def test_sizes_are_rounded_up(size: int, text: str) -> None:
    assert size_option(size) == text


@given(st.integers(min_value=1, max_value=10**15))
def test_a_suggested_size_can_be_typed_and_suffices(size: int) -> None:
    typed = parse_bytes(size_option(size))
    assert size <= typed <= size * 1.01 + 1
