"""What the blocks of the recorder's benchmark say: the estimate, drift, spikes, and when enough is known."""

from __future__ import annotations

import random
import sys
from pathlib import Path

import pytest

from offtune.intervals import Interval
from offtune.trial import dump, load

sys.path.insert(0, str(Path(__file__).parent.parent / "benchmarks"))

from recorder_blocks import LEAST_COMPARISONS, ORDER, Block, Blocks, enough, side


def trained(cost: float, comparisons: int, noise: float = 0.02, drift: float = 0.0) -> Blocks:
    """Made-up blocks around 100 ms whose recorder takes the share `cost` more."""
    draw = random.Random(3)
    blocks = []
    for index in range(comparisons * len(ORDER)):
        on = ORDER[index % len(ORDER)]
        base_s = 0.1 * (1 + drift * index) * (1 + draw.gauss(0, noise))
        seconds = base_s * (1 + cost * on)
        blocks.append(Block(on=on, turn_s=seconds, step_s=0.99 * seconds, cpu_s=seconds))
    return Blocks(steps=2, blocks=tuple(blocks))


def test_the_cost_comes_out_with_an_interval_that_holds_it() -> None:
    found = trained(0.004, 100).ratio("turn_s")
    assert found.low < 1.004 < found.high
    assert found.high - found.low < 0.01
    assert trained(0.0, 100).ratio("step_s").low < 1.0


def test_a_drift_of_the_machine_favours_neither() -> None:
    assert trained(0.0, 30, noise=0.0, drift=0.01).ratio("turn_s").centre == pytest.approx(1.0, abs=1e-3)


def test_a_spike_does_not_carry_the_estimate_away() -> None:
    calm = trained(0.0, 40)
    spike = Block(on=True, turn_s=1.0, step_s=1.0, cpu_s=0.1)
    struck = Blocks(steps=2, blocks=(spike, *calm.blocks[1:]))
    assert struck.ratio("turn_s").centre == pytest.approx(calm.ratio("turn_s").centre, abs=2e-3)


def test_a_comparison_that_was_cut_off_does_not_count() -> None:
    whole = trained(0.0, 5)
    assert len(Blocks(steps=2, blocks=whole.blocks[:-1]).comparisons()) == 4
    with pytest.raises(ValueError, match="fewer than two"):
        Blocks(steps=2, blocks=whole.blocks[:5]).ratio("turn_s")


@pytest.mark.parametrize(("cost", "where"), [(0.0, "below"), (0.03, "above"), (0.01, "open")])
def test_the_side_of_the_goal_is_that_of_the_whole_interval(cost: float, where: str) -> None:
    assert side(trained(cost, 200).ratio("turn_s")) == where


def test_it_goes_on_until_the_answer_is_beyond_doubt() -> None:
    assert not enough(trained(0.0, LEAST_COMPARISONS - 1, noise=0.001))
    assert enough(trained(0.0, LEAST_COMPARISONS, noise=0.001))
    assert enough(trained(0.05, LEAST_COMPARISONS, noise=0.001))
    assert not enough(trained(0.0, LEAST_COMPARISONS + 1, noise=0.001))  # looked at now and then only
    assert not enough(trained(0.01, LEAST_COMPARISONS, noise=0.001))


def test_an_interval_that_touches_the_goal_is_open() -> None:
    assert side(Interval(centre=1.005, low=1.0, high=1.01)) == "open"


def test_blocks_travel_as_json() -> None:
    found = trained(0.0, 2)
    assert load(Blocks, dump(found)) == found


def test_the_recorders_own_code_is_compared_with_turns_that_do_not_record():
    on = Block(on=True, turn_s=1.1, step_s=1.0, cpu_s=1.0, own_s=0.005)
    off = Block(on=False, turn_s=1.0, step_s=1.0, cpu_s=1.0)
    assert Blocks(steps=1, blocks=(on, off, off, on)).own_share() == pytest.approx(0.005)
