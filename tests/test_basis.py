"""Which trials the beliefs of a long search rest on."""

from offtune.basis import MOST, basis


def test_a_usual_search_rests_on_all_of_its_trials():
    assert basis([3.0, None, 1.0]) == [0, 1, 2]
    assert basis([1.0] * MOST) == list(range(MOST))


def test_a_long_search_keeps_its_fastest_its_newest_and_some_of_all_kinds():
    speeds = [None if place % 3 == 0 else float(place % 500) for place in range(2_000)]
    kept = basis(speeds)
    assert len(kept) == MOST
    assert kept == sorted(set(kept))
    fastest = sorted(range(2_000), key=lambda place: (-(speeds[place] or 0.0), place))[:35]
    assert set(fastest) <= set(kept)
    assert set(range(1_985, 2_000)) <= set(kept)
    others = set(kept) - set(fastest) - set(range(1_985, 2_000))
    assert any(speeds[place] is None for place in others)
    assert any((speeds[place] or 500.0) < 100 for place in others)
