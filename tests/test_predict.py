"""Predictions and their verdicts, candidates and their ranking."""

from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st
from space_samples import facts

from offtune import hardware_profile
from offtune.candidates import candidates, distinct, points, ranked, within
from offtune.model_shape import shape_of
from offtune.models import PRESETS
from offtune.predict import HOST_ERROR_SHARE, Bounds, Predictor, judge
from offtune.space import load_space

GB = 10**9
CONFIG = PRESETS["llama-1b"].config
SHAPE = shape_of(CONFIG)
FACTS = facts(model_config=CONFIG, parameter_numels=SHAPE.parameter_numels, seq_len=1024, global_batch=8)
SPACE = load_space("default").fit(FACTS)


def predictor(device_gb: float = 40, **changes):
    bounds = Bounds(device_bytes=int(device_gb * GB), host_bytes=500 * GB)
    hardware = hardware_profile.load("a100-40gb")
    return Predictor(**{"facts": FACTS, "shape": SHAPE, "hardware": hardware, "bounds": bounds, **changes})


FOUND = candidates(SPACE, predictor(), "/scratch")


@given(st.integers(1, 10**12), st.integers(1, 10**12), st.floats(0, 0.5))
def test_a_verdict_leaves_no_doubt_by_its_own_error(used, limit, share):
    verdict, reason = judge(used, 0, share, Bounds(device_bytes=limit))
    assert (verdict == "over") == (used * (1 - share) > limit)
    assert (verdict == "fits") == (used * (1 + share) <= limit)
    assert reason.startswith("Predicted")


def test_the_shorter_memory_decides_and_is_named():
    bounds = Bounds(device_bytes=10 * GB, host_bytes=10 * GB)
    verdict, reason = judge(GB, 100 * GB, 0.1, bounds)
    assert verdict == "over"
    assert "host memory" in reason
    assert f"{100 * HOST_ERROR_SHARE:.0f} %" in reason
    assert judge(GB, 100 * GB, 0.1, Bounds(device_bytes=10 * GB))[0] == "fits"


def test_candidates_cover_placements_micro_batches_and_resident_sub_groups_once_each():
    seen = {(c.placement, c.point["micro_batch"]) for c in FOUND}
    assert len({placement for placement, _ in seen}) == 12
    assert {micro for _, micro in seen} == {1, 2, 4, 8}
    assert len({c.point.get("resident_sixteenths") for c in FOUND}) > 8
    built = [repr(c.ds_config) for c in FOUND]
    assert len(built) == len(set(built))
    assert len(FOUND) <= len(list(points(SPACE)))


def test_ranking_is_by_verdict_then_speed():
    verdicts = [c.prediction.verdict for c in FOUND]
    assert verdicts == sorted(verdicts, key=("fits", "close", "over").index)
    fitting = [c.prediction.samples_per_s for c in FOUND if c.prediction.verdict == "fits"]
    assert fitting
    assert fitting == sorted(fitting, reverse=True)
    assert len({c.placement for c in distinct(FOUND, 4)}) == 4


@settings(max_examples=25, deadline=None)
@given(st.floats(4, 80), st.floats(4, 80))
def test_more_budget_never_makes_the_best_slower(one, other):
    def best(budget):
        first = within(FOUND, Bounds(device_bytes=int(budget * GB), host_bytes=500 * GB))[0]
        return first.prediction.samples_per_s if first.prediction.verdict == "fits" else 0.0

    assert best(min(one, other)) <= best(max(one, other))


def test_more_resident_sub_groups_use_more_device_memory_and_no_more_host():
    stairs = sorted(
        (c.point["resident_sixteenths"], c.prediction)
        for c in FOUND
        if c.placement == "zero3 opt=cpu" and c.point["micro_batch"] == 1 and c.point["sub_groups"] == 16
    )
    used = [p.used_device_bytes for _, p in stairs]
    host = [p.used_host_bytes for _, p in stairs]
    assert used == sorted(used)
    assert used[0] < used[-1]
    assert host == sorted(host, reverse=True)


def test_a_measured_ratio_scales_device_memory_and_its_verdict():
    config = FOUND[0].ds_config
    plain, doubled = predictor().predict(config), predictor(memory_ratio=2.0).predict(config)
    assert doubled.used_device_bytes == 2 * plain.used_device_bytes
    tight = Bounds(device_bytes=int(1.5 * plain.used_device_bytes), host_bytes=500 * GB)
    assert replace(predictor(), bounds=tight).predict(config).verdict == "fits"
    assert replace(predictor(memory_ratio=2.0), bounds=tight).predict(config).verdict == "over"


def test_a_close_one_within_the_budget_comes_before_one_above_it():
    fits = FOUND[0]
    used = fits.prediction.used_device_bytes
    bounds = Bounds(device_bytes=used, host_bytes=500 * GB)
    slower = replace(fits, prediction=replace(fits.prediction, samples_per_s=1.0).within(bounds))
    above = replace(fits.prediction, used_device_bytes=used + 10).within(bounds)
    first, second = ranked([replace(fits, prediction=above), slower], bounds)
    assert first is slower
    assert second.prediction.verdict == "close"


def test_a_forecast_is_what_was_predicted():
    found = FOUND[0].prediction
    assert found.forecast.used_device_bytes == found.used_device_bytes
    assert found.forecast.step_s == found.time.step_s
