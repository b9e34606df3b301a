"""How much risk a choice may take: less with every one that did not fit, more with every one that did."""

from offtune.beliefs import Seen
from offtune.caution import daring, price


def trials(fitting: int, over: int, *, chosen: bool = True) -> list[Seen]:
    shares = [0.5] * fitting + [1.5] * over
    return [
        Seen(point={}, samples_per_s=1.0, shares={"device_memory": share}, chosen=chosen) for share in shares
    ]


def test_a_wasted_choice_is_dearer_after_others_and_cheaper_after_choices_that_fitted():
    assert price(trials(5, 2)) > price(trials(5, 1)) > price(trials(5, 0)) > price(trials(20, 0)) > 0


def test_baselines_that_do_not_fit_are_no_waste_of_the_strategy():
    baselines = trials(0, 5, chosen=False)
    assert price(baselines) == price([])
    assert daring(baselines)


def test_three_choices_of_a_default_search_may_not_fit():
    assert daring(trials(4, 2))
    assert not daring(trials(4, 3))
