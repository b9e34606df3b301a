"""What cannot fit by order and by the line of residency, whatever is predicted."""

from study_samples import small_space

from offtune.dominance import beyond
from offtune.trial import Point

SPACE = small_space()


def point(micro_batch: int, resident: int = 0, **other: object) -> Point:
    chosen = {"placement": "zero3 opt=cpu", "micro_batch": micro_batch, "resident_sixteenths": resident}
    return SPACE.complete({**chosen, **other})


def test_more_of_what_takes_memory_does_not_fit_where_less_did_not():
    asked = [point(8), point(4, 6), point(4), point(2, 4), point(8, placement="zero2")]
    for share in (1.01, None):
        assert beyond(asked, [(point(4, 4), share)]) == [False, True, False, False, False]
    assert beyond(asked, [(point(4), 1.2)]) == [True, True, True, False, False]


def test_what_fitted_says_nothing_about_more_of_it():
    assert beyond([point(8), point(8, 15)], [(point(4), 0.99)]) == [False, False]


def test_a_line_of_two_measurements_tells_what_is_over_the_budget_beyond_and_between_them():
    measured = [(point(4, 2), 0.6), (point(4, 4), 0.8)]
    assert beyond([point(4, at) for at in (0, 5, 6, 7)], measured) == [False, False, False, True]
    steep = [(point(4, 2), 0.6), (point(4, 10), 1.4)]
    assert beyond([point(4, at) for at in (3, 5, 7, 9)], steep) == [False, False, True, True]
    assert beyond([point(2, 15), point(8, 15)], measured) == [False, False]
