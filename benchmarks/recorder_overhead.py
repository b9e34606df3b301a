"""What recording costs: step times with the recorder on against off, in trials that take turns.

    python benchmarks/recorder_overhead.py                      20 pairs of trials a placement (20 minutes)
    python benchmarks/recorder_overhead.py --quick              2 pairs of one placement: does it work at all
    python benchmarks/recorder_overhead.py --nvme-path FOLDER   an NVMe placement, too

Pairs run on-off, off-on, on-off, ... so that a drift of the machine favours neither. A trial's figure is the
median of its measured steps; a pair's is on over off; the interval is Student's over the logarithms of pairs,
95 %. The goal is at most 1 %. Exit code 0 when the whole interval is below, 1 when it misses the goal and is
tight enough to say so, 2 when the noise of the machine leaves it undecided.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from statistics import mean, median, stdev

from offtune import ds_config, hardware, prepare, scratch
from offtune.config import Options, resolve
from offtune.ds_zero import placement_text
from offtune.errors import OfftuneError
from offtune.space import load_space
from offtune.trial import Status, TrialSpec

_GOAL = 1.01
_TIGHT = 0.005  # half the interval: narrower than that, a missed goal is not noise
_PLACEMENTS = ("zero2", "zero2 opt=cpu", "zero3 opt=cpu param=cpu")
_NVME_PLACEMENT = "zero3 opt=nvme param=cpu"
_MICRO_BATCH = 1  # the shortest phases there are, so the most of what is read at their edges
# Two-sided 95 % quantiles of Student's t for n - 1 degrees of freedom (any table); beyond the last, 1.96.
_T95 = {2: 12.71, 3: 4.30, 4: 3.18, 5: 2.78, 6: 2.57, 8: 2.36, 10: 2.26, 15: 2.14, 20: 2.09, 30: 2.05}


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
        return self.low > _GOAL or (self.high > _GOAL and math.log(self.high / self.low) / 2 < _TIGHT)


def main() -> int:
    options = _options()
    asked = Options(budget="4GB", model=options.model, nvme_path=options.nvme_path, device=options.device,
                    gpus=options.gpus, warmup_steps=2, steps=options.steps)  # fmt: skip
    config = resolve(asked, hardware.detect())
    placements = _PLACEMENTS[:1] if options.quick else _PLACEMENTS
    placements += (_NVME_PLACEMENT,) if options.nvme_path else ()
    costs = []
    space = load_space("nvme" if options.nvme_path else "ladder")
    prepared = prepare.prepare(config, space, lambda text: print(text, file=sys.stderr))
    with prepared.runner:
        for placement in placements:
            trial = partial(_median_step_s, prepared, placement)
            costs.append(_cost(placement, trial, 2 if options.quick else options.pairs))
            print(_line(costs[-1]), flush=True)
    return _verdict(costs)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--quick", action="store_true", help="only see that it runs")
    parser.add_argument("--pairs", type=int, default=20, help="pairs of trials a placement")
    parser.add_argument("--steps", type=int, default=20, help="measured steps a trial")
    parser.add_argument("--model", default="llama-5m", help="the smaller the model, the harder the goal")
    parser.add_argument("--device", choices=("cpu", "cuda"), help="default: cuda where there is one")
    parser.add_argument("--gpus", type=int, help="ranks")
    parser.add_argument("--nvme-path", help="a folder on the device to offload to")
    return parser.parse_args()


def _cost(placement: str, step_s: Callable[[bool], float], pairs: int) -> Cost:
    logs, without = [], []
    for pair in range(pairs):
        order = (True, False) if pair % 2 == 0 else (False, True)
        found = {record: step_s(record) for record in order}
        logs.append(math.log(found[True] / found[False]))
        without.append(found[False])
    half = _t95(pairs) * stdev(logs) / math.sqrt(pairs)
    middle = mean(logs)
    return Cost(placement=placement, ratio=math.exp(middle), low=math.exp(middle - half),
                high=math.exp(middle + half), pairs=pairs, step_s=median(without))  # fmt: skip


def _t95(count: int) -> float:
    """Of the nearest smaller count in the table: rather too wide than too narrow."""
    return _T95[max(known for known in _T95 if known <= count)]


def _line(cost: Cost) -> str:
    change, low, high = (100 * (ratio - 1) for ratio in (cost.ratio, cost.low, cost.high))
    return (
        f"{cost.placement:26} step {1000 * cost.step_s:7.1f} ms  recording {change:+.2f} % "
        f"({low:+.2f} to {high:+.2f}, {cost.pairs} pairs)"
    )


def _verdict(costs: Sequence[Cost]) -> int:
    missed = [cost.placement for cost in costs if cost.missed]
    open_ones = [cost.placement for cost in costs if cost.high > _GOAL and not cost.missed]
    if missed:
        print(f"\nRecording costs more than 1 % of a step: {', '.join(missed)}")
    elif open_ones:
        print(f"\nNot decided, the machine scatters too much: {', '.join(open_ones)}. More --pairs help.")
    else:
        print("\nRecording costs less than 1 % of a step.")
    return 1 if missed else 2 if open_ones else 0


def _median_step_s(prepared: prepare.Prepared, placement: str, record: bool) -> float:
    spec = _spec(prepared, placement, record)
    result = prepared.runner(spec)
    scratch.remove_trial(spec.trial_dir, spec.swap_dir, spec.token)
    if result.status is not Status.OK:
        raise OfftuneError(f"'{placement}' ended {result.status}: {result.reason}", "Run: offtune doctor")
    return median(result.step_s)


def _spec(prepared: prepare.Prepared, placement: str, record: bool) -> TrialSpec:
    config = prepared.config
    swap = None
    if config.nvme_path is not None and "nvme" in placement:
        swap = str(scratch.make_swap_dir(config.nvme_path, "overhead", 0))
    point = {"placement": placement, "micro_batch": _MICRO_BATCH}
    built = ds_config.build({}, point, prepared.facts, swap)
    assert placement_text(built) == placement
    return TrialSpec(
        **prepare.spec_fields(config, prepared.ops),
        study="overhead",
        number=0,
        ds_config=built,
        trial_dir=str(scratch.make_trial_dir("overhead", 0)),
        swap_dir=swap,
        token=scratch.new_token(),
        record=record,
    )


if __name__ == "__main__":
    sys.exit(main())
