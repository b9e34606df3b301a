"""The edge of the budget along partial offload: a line, then bisection, in few steps."""

import pytest
from study_samples import small_space

from offtune.beliefs import Guess, Seen, by_itself
from offtune.boundary import Mark, edge, next_resident

VALUES = range(16)


def unknown() -> None:
    return None


@pytest.mark.parametrize("start", [0.2, 0.5, 0.9])
@pytest.mark.parametrize("rise", [0.01, 0.04, 0.11])
def test_the_edge_of_a_straight_line_is_found_in_three_steps(start, rise):
    def share(resident: int) -> float:
        return start + rise * resident

    marks = [Mark(resident=0, share=share(0))]
    while (step := next_resident(VALUES, marks, lambda: 1.2 * rise)) is not None:
        marks.append(Mark(resident=step, share=share(step)))
    last = max(value for value in VALUES if share(value) <= 0.98 or value == 0)
    assert len(marks) <= 4
    assert max(mark.resident for mark in marks if mark.share <= 1.0) in (last, last - 1)


def test_without_a_slope_the_middle_is_tried():
    assert next_resident(VALUES, [Mark(resident=0, share=0.5)], unknown) == 8


def test_an_out_of_memory_trial_bounds_the_bisection():
    marks = [Mark(resident=0, share=0.5), Mark(resident=12, share=None)]
    assert next_resident(VALUES, marks, unknown) == 6


def test_the_same_residency_measured_twice_is_one_point_of_the_line():
    marks = [Mark(resident=0, share=0.5), Mark(resident=0, share=0.51)]
    assert next_resident(VALUES, marks, lambda: 0.1) == 4


def test_nothing_is_proposed_where_nothing_fits_or_the_edge_is_known():
    assert next_resident(VALUES, [Mark(resident=0, share=1.2)], unknown) is None
    marks = [Mark(resident=6, share=0.93), Mark(resident=7, share=1.01)]
    assert next_resident(VALUES, marks, unknown) is None


def test_the_line_of_the_fastest_partial_placement_is_walked_with_the_predicted_slope():
    space = small_space()
    start = space.complete({"placement": "zero3 opt=cpu", "micro_batch": 2})

    def predicted(point) -> Guess:
        return Guess(key=repr(point), shares={"device_memory": 0.4 + 0.05 * point["resident_sixteenths"]})

    seen = [Seen(point=start, samples_per_s=5.0, shares={"device_memory": 0.5})]
    step = edge(space, seen, predicted)
    assert step == {**start, "resident_sixteenths": 9}
    other = Seen(
        point=space.complete({"placement": "zero2"}), samples_per_s=9.0, shares={"device_memory": 0.5}
    )
    assert edge(space, [other], by_itself) is None
