"""How long a trial measures: exactly as asked, or until its step time is known.

Covered: what the person asked for, and the stop rule of each kind of trial. Not covered: following the rule,
which the child does (`worker/pace.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from offtune.errors import UsageError
from offtune.intervals import usual_scatter
from offtune.records import Run
from offtune.trial import StopRule
from offtune.units import parse_share

# Times of the measured steps, in seconds, trial by trial.
Steps = Sequence[Sequence[float]]

# Steps of a trial whose speed is not known before: a noisy machine would go on for ever.
MOST_STEPS = 8
ACCURACY_SHARE = 0.02
# Baselines are what speeds are compared with, and the first that trains is what losses are: damage shows in
# them only after some updates.
FIRST_BASELINE_STEPS, BASELINE_STEPS = 5, 3
# Repeats: what differs from process to process is more than what further steps of one could tell. With 2 %
# from process to process and 1 % from step to step, two steps and more rounds know a ratio sooner than three.
REPEAT_STEPS = 2
# The longer run: memory has to stay level for the last of its steps, else it goes on.
CONFIRMATION_STEPS, CONFIRMATION_LEAST_STEPS, _LEVEL_STEPS = 20, 12, 8


def accuracy_share(steps: int | None, given: str | None) -> float | None:
    """How well a trial's step time is to be known; None where a number of steps is asked for."""
    if steps is not None and given is None:
        return None
    if steps is not None:
        raise UsageError("--steps and --accuracy both say how long to measure.", "Give one of them.")
    share = ACCURACY_SHARE if given is None else parse_share(given, "--accuracy", "2%")
    if not 0 < share < 1:
        raise UsageError(f"--accuracy: {given} is not between 0 and 100 %.", "Write it like 2%.")
    return share


def rule_for(
    rule: StopRule | None, most: int, *, is_baseline: bool, best: Run | None, steps_s: Steps = ()
) -> StopRule | None:
    """Longer for what others are held against, shorter for what is certainly slower than the best.

    `steps_s` are the step times of trials before, which say how much steps usually scatter.
    """
    if rule is None:
        return None
    known = best.result.step_interval_s if best is not None and best.result is not None else None
    rule = replace(rule, best_step_s=known[1] if known else None, scatter_share=usual_scatter(steps_s))
    if not is_baseline:
        return rule
    if best is not None:
        return replace(rule, least_steps=min(BASELINE_STEPS, most))
    # While nothing fits, one over the budget may be what losses are compared with.
    least = min(FIRST_BASELINE_STEPS, most)
    return replace(rule, least_steps=least, over_steps=least)


def repeat_rule(rule: StopRule | None, most: int) -> StopRule | None:
    """For a trial that is made again: its speed, whatever the best is, while it holds."""
    return rule and replace(rule, least_steps=min(REPEAT_STEPS, most), best_step_s=None, over_steps=1)


def confirmation_rule(most: int) -> StopRule:
    """That it does not hold ends a confirmation: it drifts, or uses more memory than it may.

    Or that its memory is level after enough steps, or the script, where it has made as much as a repeat by
    then (`most`).
    """
    least = min(REPEAT_STEPS, most)
    return StopRule(
        accuracy_share=0.0, least_steps=least, over_steps=1, level_steps=_LEVEL_STEPS,
        level_after=CONFIRMATION_LEAST_STEPS,
    )  # fmt: skip
