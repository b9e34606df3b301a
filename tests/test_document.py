"""The JSON documents: what they hold, and that they are JSON."""

from __future__ import annotations

import json
from typing import Any

import pytest
from report_fakes import make_run, make_study, rich_study

from offtune.report.document import document, list_document, trial_document
from offtune.report.summary import summarise
from offtune.trial import Status, TrialResult

STUDY = make_study(notes=["NVMe left out"], machine={"cpu": "some"})


def strict(value: Any) -> Any:
    """The value after a round trip through strict JSON."""
    return json.loads(json.dumps(value, allow_nan=False))


def test_a_study_document_is_strict_json_with_the_promised_keys() -> None:
    found = strict(document(summarise(STUDY, rich_study())))
    promised = (
        "schema study created_at budget_bytes limit_bytes device model target_trials best baselines trials"
    )
    assert set(promised.split()) | {"reused", "counts", "versions", "machine", "notes"} <= set(found)
    assert found["schema"] == "offtune.study/1"
    assert (found["notes"], found["machine"]) == (["NVMe left out"], {"cpu": "some"})


def test_the_best_entry_carries_what_one_needs_to_use_it() -> None:
    best = strict(document(summarise(STUDY, rich_study())))["best"]
    assert (best["trial"], best["samples_per_s"], best["used_device_bytes"]) == (3, 10.9, 36_800_000_000)
    assert best["ds_config"]["zero_optimization"]["stage"] == 3
    assert {"tokens_per_s", "used_host_bytes", "effective_ratio", "point"} <= set(best)


def test_every_trial_has_the_promised_keys_and_null_for_unknown() -> None:
    trials = strict(document(summarise(STUDY, rich_study())))["trials"]
    promised = (
        "number status reason origin label samples_per_s tokens_per_s used_device_bytes used_host_bytes"
    )
    for trial in trials:
        assert set(promised.split()) | {"point", "effective_ratio", "seconds", "start"} <= set(trial)
    assert trials[-1]["status"] is None
    assert trials[6]["used_device_bytes"] is None


def test_no_best_is_null_and_the_nearest_miss_is_in_bytes() -> None:
    found = strict(document(summarise(STUDY, [make_run(0, Status.OVER_BUDGET, used_gb=39)])))
    assert found["best"] is None
    assert found["nearest_miss"]["device_over_bytes"] == 10**9


def test_numbers_json_does_not_have_become_null() -> None:
    odd = TrialResult(status=Status.OK, samples_per_s=float("inf"), seconds=float("nan"))
    run = make_run(0, point={"odd": float("nan")})
    found = strict(document(summarise(STUDY, [make_run(1, result=odd), run])))
    assert found["trials"][1]["seconds"] is None
    assert found["trials"][0]["point"] == {"odd": None}
    assert strict(trial_document(run))["point"] == {"odd": None}


def test_the_best_configuration_names_the_persons_nvme_folder() -> None:
    config = {"zero_optimization": {"offload_optimizer": {"device": "nvme", "nvme_path": "/scratch/7"}}}
    run = make_run(0, samples_per_s=9, used_gb=1, ds_config=config)
    found = document(summarise(make_study(nvme_path="/mnt/nvme"), [run]))
    assert found["best"]["ds_config"]["zero_optimization"]["offload_optimizer"]["nvme_path"] == "/mnt/nvme"


def test_a_list_has_one_entry_a_study() -> None:
    found = strict(list_document([summarise(STUDY, rich_study()), summarise(STUDY, [])]))
    assert [entry["best"] and entry["best"]["trial"] for entry in found["studies"]] == [3, None]
    assert found["studies"][0]["measured"] == 9


@pytest.mark.parametrize("run", [make_run(0, samples_per_s=9, used_gb=1), make_run(1, None)])
def test_a_trial_document_holds_the_whole_record(run: Any) -> None:
    found = strict(trial_document(run))
    assert found["schema"] == "offtune.trial/1"
    assert found["ds_config"] == run.ds_config
    assert (found["result"] is None) == (run.result is None)
