"""The process over log(measured / predicted): what it says near and far from what was measured."""

import numpy as np
import pytest
from study_samples import small_space

from offtune.features import features_of
from offtune.pool import every_point
from offtune.residuals import fit

SPACE = small_space()
FEATURES = features_of(SPACE)
POINTS = list(every_point(SPACE))
ROWS = FEATURES.rows(POINTS)


def fitted(places, values, noise=0.01):
    return fit(FEATURES, ROWS[list(places)], np.array(values), prior_spread=0.2, noise_spread=noise)


def test_it_passes_near_what_was_measured_and_is_least_certain_far_away():
    process = fitted([0, 1, 2], [0.2, 0.22, 0.24])
    mean, spread = process.at(ROWS)
    assert mean[:3] == pytest.approx([0.2, 0.22, 0.24], abs=0.03)
    assert spread[:3].max() < spread[-1]
    assert 0 < mean[-1] < 0.24  # the machine as a whole is taken to be off, less so elsewhere


def test_without_measurements_it_knows_nothing():
    mean, spread = fitted([], []).at(ROWS[:5])
    assert list(mean) == [0.0] * 5
    assert spread == pytest.approx([spread[0]] * 5)
    assert spread[0] > 0.2


def test_a_scatter_without_a_pattern_is_taken_as_noise():
    draw = np.random.default_rng(0)
    places = range(0, len(POINTS), 6)
    noisy = fitted(places, draw.normal(0.0, 0.1, len(places)))
    assert 0.05 < noisy.noise_variance**0.5 < 0.15


def test_a_trial_under_way_makes_its_surroundings_certain_and_moves_nothing():
    process = fitted([0, 1, 2], [0.2, 0.22, 0.24])
    believing = process.believing(ROWS[-1:])
    before, spread_before = process.at(ROWS)
    after, spread_after = believing.at(ROWS)
    assert after == pytest.approx(before, abs=1e-6)
    assert spread_after[-1] < 0.5 * spread_before[-1]


def test_an_inactive_knob_is_no_difference():
    with_knob = SPACE.complete({"placement": "zero3 opt=cpu"})
    row = FEATURES.rows([with_knob, {**with_knob, "resident_sixteenths": 0}])
    assert list(row[0]) == list(row[1])
