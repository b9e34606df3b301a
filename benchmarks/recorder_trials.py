"""What recording costs, told by whole trials: each with the recorder on beside one with it off, in turns.

`python benchmarks/recorder_overhead.py --trials`. Pairs run on-off, off-on, on-off, ... so that a drift of
the machine favours neither. A trial's figure is the median of its measured steps; a pair's is on over off;
the interval is Student's over the logarithms of pairs, 95 %. Processes differ by several per cent from one
to the next, so 20 pairs know the cost to some 2 %: steps within one training (`recorder_overhead.py`) know
more.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from statistics import fmean, median, stdev

from recorder_pairs import GOAL

from offtune import ds_config, prepare, scratch
from offtune.ds_zero import placement_text
from offtune.errors import OfftuneError
from offtune.intervals import t95
from offtune.trial import Status, TrialSpec

PLACEMENTS = ("zero2", "zero2 opt=cpu", "zero3 opt=cpu param=cpu")
NVME_PLACEMENT = "zero3 opt=nvme param=cpu"
STEPS = 20
_TIGHT = 0.005  # half the interval: narrower than that, a missed goal is not noise
_MICRO_BATCH = 1  # the shortest phases there are, so the most of what is read at their edges


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """Step time with recording over that without: geometric mean of pairs, and its interval."""

    placement: str
    ratio: float
    low: float
    high: float
    pairs: int
    step_s: float

    @property
    def missed(self) -> bool:
        return self.low > GOAL or (self.high > GOAL and math.log(self.high / self.low) / 2 < _TIGHT)


def compare(prepared: prepare.Prepared, placements: Sequence[str], pairs: int) -> int:
    """Print the cost for each placement; the exit code is that of the benchmark."""
    costs = []
    for placement in placements:
        costs.append(_cost(placement, partial(_median_step_s, prepared, placement), pairs))
        print(_line(costs[-1]), flush=True)
    return _verdict(costs)


def _cost(placement: str, step_s: Callable[[bool], float], pairs: int) -> Cost:
    logs, without = [], []
    for pair in range(pairs):
        order = (True, False) if pair % 2 == 0 else (False, True)
        found = {record: step_s(record) for record in order}
        logs.append(math.log(found[True] / found[False]))
        without.append(found[False])
    half = t95(pairs - 1) * stdev(logs) / math.sqrt(pairs)
    middle = fmean(logs)
    return Cost(placement=placement, ratio=math.exp(middle), low=math.exp(middle - half),
                high=math.exp(middle + half), pairs=pairs, step_s=median(without))  # fmt: skip


def _line(cost: Cost) -> str:
    change, low, high = (100 * (ratio - 1) for ratio in (cost.ratio, cost.low, cost.high))
    return (
        f"{cost.placement:26} step {1000 * cost.step_s:7.1f} ms  recording {change:+.2f} % "
        f"({low:+.2f} to {high:+.2f}, {cost.pairs} pairs)"
    )


def _verdict(costs: Sequence[Cost]) -> int:
    missed = [cost.placement for cost in costs if cost.missed]
    open_ones = [cost.placement for cost in costs if cost.high > GOAL and not cost.missed]
    if missed:
        print(f"\nRecording costs more than 1 % of a step: {', '.join(missed)}")
    elif open_ones:
        print(f"\nNot decided, the machine scatters too much: {', '.join(open_ones)}. More --pairs help.")
    else:
        print("\nRecording costs less than 1 % of a step.")
    return 1 if missed else 2 if open_ones else 0


def _median_step_s(prepared: prepare.Prepared, placement: str, record: bool) -> float:
    spec = overhead_spec(prepared, placement, record=record)
    result = prepared.runner(spec)
    scratch.remove_trial(spec.trial_dir, spec.swap_dir, spec.token)
    if result.status is not Status.OK:
        raise OfftuneError(f"'{placement}' ended {result.status}: {result.reason}", "Run: offtune doctor")
    return median(result.step_s)


def overhead_spec(
    prepared: prepare.Prepared, placement: str, *, record: bool, deadline_s: float | None = None
) -> TrialSpec:
    """A trial of that placement with scratch of its own, to be removed by whoever asked."""
    config = prepared.config
    swap = None
    if config.nvme_path is not None and "nvme" in placement:
        swap = str(scratch.make_swap_dir(config.nvme_path, "overhead", 0))
    point = {"placement": placement, "micro_batch": _MICRO_BATCH}
    built = ds_config.build({}, point, prepared.facts, swap)
    assert placement_text(built) == placement
    spec = TrialSpec(
        **prepare.spec_fields(config, prepared.ops),
        study="overhead",
        number=0,
        ds_config=built,
        trial_dir=str(scratch.make_trial_dir("overhead", 0)),
        swap_dir=swap,
        token=scratch.new_token(),
        record=record,
    )
    return spec if deadline_s is None else replace(spec, deadline_s=deadline_s)
