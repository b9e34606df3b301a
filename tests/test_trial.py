"""Records go to JSON and back unchanged, and nothing else passes for one."""

import json

import pytest
from conftest import workload
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from offtune.rank_report import RankReport
from offtune.trial import MemoryPeaks, Status, TrialResult, TrialSpec, as_dict, dump, load

seconds = st.floats(1e-6, 1e6, allow_nan=False)
results = st.builds(
    TrialResult,
    status=st.sampled_from(Status),
    reason=st.text(max_size=30),
    samples_per_s=st.none() | seconds,
    step_s=st.lists(seconds, max_size=5).map(tuple),
    losses=st.lists(st.none() | seconds, max_size=5).map(tuple),
    memory=st.builds(MemoryPeaks, used_device_bytes=st.none() | st.integers(0, 2**50)),
    effective_ratio=st.none() | st.floats(0, 1),
    seconds=seconds,
    start=st.sampled_from(("warm", "cold", "predicted", "")),
    exit_codes=st.lists(st.none() | st.integers(-64, 255), max_size=4).map(tuple),
    versions=st.dictionaries(st.text(max_size=5), st.text(max_size=5), max_size=2),
)


@given(results)
def test_a_result_survives_json(result):
    assert load(TrialResult, dump(result)) == result
    assert json.loads(dump(result)) == as_dict(result)


def test_a_spec_survives_json(make_spec):
    spec = make_spec({"zero_optimization": {"stage": 3}}, gpus=(0, 1), workload=workload(world_size=2))
    assert load(TrialSpec, dump(spec)) == spec


def test_what_is_not_finite_becomes_null_so_that_the_json_stays_strict():
    text = dump(TrialResult(status=Status.DIVERGED, losses=(2.0, float("nan")), seconds=1.0))
    assert "NaN" not in text
    assert load(TrialResult, text).losses == (2.0, None)


@pytest.mark.parametrize(
    "text", ["", "{}", '{"rank": 0}', '{"rank": 0, "outcome": "fine"}', '{"rank": 0, "outco']
)
def test_half_a_report_or_an_unknown_outcome_is_refused(text):
    with pytest.raises(ValidationError):
        load(RankReport, text)


def test_a_status_prints_as_its_name():
    assert f"{Status.OOM_GPU}" == "oom_gpu"
