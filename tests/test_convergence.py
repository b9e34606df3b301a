"""When a search ends by itself, and that it says so."""

import pytest
from test_search import MACHINE, make_search  # noqa: F401  (a fixture)

from offtune.config import Options, resolve
from offtune.convergence import converged
from offtune.errors import UsageError


def test_small_gains_in_a_row_end_it_and_large_or_unknown_ones_do_not():
    small = [0.3, 0.004, 0.003, 0.002]
    assert converged(small, 0.0, 20) == (
        "Further trials are not expected to gain more than 1 %: stopped after 20 trials."
    )
    assert converged(small, 0.0, 8) is not None
    assert converged(small, 0.0, 7) is None
    assert converged([*small, 0.2], 0.0, 20) is None
    assert converged([*small, None], 0.0, 20) is None
    assert converged(small[-2:], 0.0, 20) is None


def test_noise_raises_what_a_gain_has_to_be():
    gains = [0.03, 0.03, 0.03]
    assert converged(gains, 0.01, 20) is None
    assert "4 %" in (converged(gains, 0.04, 20) or "")


def test_a_search_without_a_target_ends_when_no_gain_is_expected(make_search):  # noqa: F811
    search = make_search(trials=None, sampler="offtune")
    assert search.config.until_converged
    reason = search.run().text
    assert reason.startswith("Further trials are not expected to gain more than")
    measured = search.study.measured_count()
    assert 8 <= measured < 40
    # Taken up again it has nothing to do, and does nothing.
    again = make_search(trials=None, sampler="offtune")
    assert again.run().text == reason
    assert again.study.measured_count() == measured


def test_a_target_that_was_given_is_reached(make_search):  # noqa: F811
    search = make_search(trials=25, sampler="offtune")
    assert "25 trials" in search.run().text


def test_optunas_samplers_never_converge(make_search):  # noqa: F811
    search = make_search(trials=6, sampler="random")
    search.run()
    assert search.study.converged() is None
    assert search.study.measured_count() == 6


def test_converging_needs_a_sampler_that_says_what_it_expects():
    with pytest.raises(UsageError, match="does not say"):
        resolve(Options(budget="1GB", sampler="tpe", until_converged=True), MACHINE)
    given = resolve(Options(budget="1GB", trials=9, until_converged=True), MACHINE)
    assert (given.trials, given.until_converged) == (9, True)
