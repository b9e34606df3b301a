"""Profiles corrected by trials: a machine that is slower throughout is found again."""

from dataclasses import replace

import pytest
from cost_cases import ds_config, offloaded, work

from offtune import hardware_profile
from offtune.time_fit import MeasuredStep, corrected
from offtune.time_model import predict_time

A100 = hardware_profile.load("a100-80gb")
SLOW = replace(
    A100,
    matrix_efficiency=A100.matrix_efficiency / 2,
    attention_efficiency=A100.attention_efficiency / 2,
    device_bytes_per_s=A100.device_bytes_per_s / 2,
    layer_launch_s=A100.layer_launch_s * 2,
    adam_elements_per_s=A100.adam_elements_per_s / 3,
    pageable_h2d_bytes_per_s=A100.pageable_h2d_bytes_per_s / 3,
    d2h_bytes_per_s=A100.d2h_bytes_per_s / 4,
    h2d_bytes_per_s=A100.h2d_bytes_per_s / 4,
)
SEEN = [ds_config(micro=2, **offloaded()), ds_config(micro=4, **offloaded(ratio=0.5))]
OTHER = ds_config(micro=1, steps=4, **offloaded(ratio=0.8))


def measured(config, hardware):
    done = work(config)
    found = predict_time(done, hardware)
    return MeasuredStep(
        work=done, forward_s=found.forward_s, backward_s=found.backward_s, update_s=found.update_s
    )


def test_two_trials_bring_the_prediction_of_a_third_within_a_tenth():
    fitted = corrected(A100, [measured(config, SLOW) for config in SEEN])
    truth = predict_time(work(OTHER), SLOW).step_s
    assert predict_time(work(OTHER), fitted).step_s == pytest.approx(truth, rel=0.1)
    assert predict_time(work(OTHER), A100).step_s < 0.7 * truth


def test_trials_that_fit_already_change_little():
    fitted = corrected(A100, [measured(config, A100) for config in SEEN])
    assert fitted.matrix_efficiency == pytest.approx(A100.matrix_efficiency, rel=0.01)
    assert fitted.d2h_bytes_per_s == pytest.approx(A100.d2h_bytes_per_s, rel=0.05)


def test_no_trials_change_nothing():
    assert corrected(A100, []) == A100


def test_an_absurd_trial_does_not_run_away():
    trial = replace(measured(SEEN[0], A100), forward_s=1e9, backward_s=1e9, update_s=1e9)
    assert 0 < corrected(A100, [trial]).matrix_efficiency < A100.matrix_efficiency
