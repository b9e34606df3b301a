"""Timelines: what they refuse, JSON both ways, thinning, counters turned into rates."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from timeline_fakes import make_timeline

from offtune.timeline import (
    LEVELS,
    MAX_MARKS,
    RATES,
    Mark,
    Series,
    Timeline,
    rates_of_counter,
    thinned,
)
from offtune.trial import dump, load


def series(values: list[float], key: str = "device_used_bytes", gap_s: float = 0.1) -> Series:
    return Series(key=key, times_s=tuple(gap_s * k for k in range(len(values))), values=tuple(values))


def test_a_timeline_survives_json() -> None:
    whole = make_timeline()
    assert load(Timeline, dump(whole)) == whole


def test_a_timeline_of_an_offtune_that_knew_no_core_groups_is_read() -> None:
    text = dump(make_timeline())
    assert '"core_groups":{},' in text
    assert load(Timeline, text.replace('"core_groups":{},', "")) == make_timeline()


def test_a_series_is_of_a_known_kind_complete_and_in_order() -> None:
    with pytest.raises(ValueError, match="none of"):
        Series(key="speed", times_s=(), values=())
    with pytest.raises(ValueError, match="1 for 2 times"):
        Series(key="allocated_bytes", times_s=(0.0, 1.0), values=(1.0,))
    with pytest.raises(ValueError, match="back in time"):
        Series(key="allocated_bytes", times_s=(1.0, 0.0), values=(1.0, 1.0))
    with pytest.raises(ValueError, match="ends before it starts"):
        Mark(name="forward", step=0, start_s=2.0, end_s=1.0)


def test_a_sample_stands_for_the_time_since_the_one_before_but_not_for_a_stall() -> None:
    stalled = Series(key="allocated_bytes", times_s=(1.0, 1.1, 1.2, 9.0), values=(1.0,) * 4)
    spans = stalled.spans()
    assert spans[0] == pytest.approx((0.9, 1.0))
    assert spans[1] == pytest.approx((1.0, 1.1))
    assert spans[3] == pytest.approx((9.0 - 5 * 0.1, 9.0))


def test_a_counter_misses_nothing_so_its_sample_stands_for_the_whole_stall() -> None:
    rate = rates_of_counter(RATES[0], [0.9, 1.0, 1.1, 1.2, 9.0], [0, 1, 2, 3, 400])
    assert rate.spans()[-1] == pytest.approx((1.2, 9.0))
    assert load(Series, dump(rate)) == rate


def test_of_too_many_marks_whole_steps_around_the_middle_are_kept() -> None:
    marks = make_timeline(steps=1001, interval_s=0.5).marks
    kept = Timeline(marks=marks).bounded().marks
    steps = sorted({mark.step for mark in kept})
    assert MAX_MARKS - 4 < len(kept) <= MAX_MARKS
    assert steps == list(range(steps[0], steps[0] + len(kept) // 4))
    assert 500 in steps
    assert sorted(kept, key=lambda mark: mark.start_s) == list(kept)


def test_of_a_huge_step_the_parts_go_first() -> None:
    parts = [Mark(name="update.flush", step=0, start_s=1.0, end_s=1.0)] * MAX_MARKS
    whole = Mark(name="step", step=0, start_s=0.0, end_s=2.0)
    update = Mark(name="update", step=0, start_s=1.0, end_s=2.0)
    assert Timeline(marks=(whole, update, *parts)).bounded().marks == (whole, update)


@given(st.lists(st.floats(0, 1e12), min_size=1, max_size=300), st.integers(1, 40))
def test_thinning_keeps_the_bound_the_end_and_the_peak_of_levels(values: list[float], most: int) -> None:
    before = series(values)
    after = thinned(before, most)
    assert len(after.values) == min(most, len(values))
    assert after.times_s[-1] == before.times_s[-1]
    assert max(after.values) == max(values)


@given(st.lists(st.floats(0, 1e12), min_size=1, max_size=300), st.integers(1, 40))
def test_thinning_keeps_the_bytes_of_rates(values: list[float], most: int) -> None:
    before = series(values, RATES[0])
    after = thinned(before, most)

    def moved(one: Series, edges: list[float]) -> float:
        return sum(v * (b - a) for v, a, b in zip(one.values, edges, edges[1:], strict=False))

    start = before.spans()[0][0]
    whole = moved(before, [start, *before.times_s])
    assert moved(after, [start, *after.times_s]) == pytest.approx(whole, rel=1e-9, abs=1e-3)


def test_a_bounded_timeline_has_at_most_two_thousand_points_a_series() -> None:
    long = Timeline(series=(series([1.0] * 5000), series([2.0] * 5000, RATES[0])))
    assert [len(one.values) for one in long.bounded().series] == [2000, 2000]


def test_one_step_is_cut_out_with_its_start_as_zero() -> None:
    one = make_timeline(steps=3).of_step(1)
    assert [mark.step for mark in one.marks] == [1, 1, 1, 1]
    assert one.steps()[0].start_s == 0.0
    memory = one.find(LEVELS[0])
    assert memory is not None
    assert memory.times_s[0] == pytest.approx(0.0, abs=1e-9)
    assert memory.times_s[-1] == pytest.approx(4.0)
    with pytest.raises(KeyError):
        make_timeline(steps=1).of_step(7)


def test_a_counter_becomes_a_rate() -> None:
    rate = rates_of_counter("nvme_read_bytes_per_s", [0.0, 0.5, 0.5, 2.5], [100, 150, 150, 1150])
    assert rate.times_s == (0.5, 2.5)
    assert rate.values == (100.0, 500.0)
