"""What the finals claim of one run, in figures: how many times as fast as what, and how sure that is.

Covered: the record that goes with an export. Not covered: the sentences (`report.finals_text`), deciding
(`winner`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from offtune.records import Run
from offtune.repeats import Outcome, Ratio
from offtune.report.finals_text import finals_note
from offtune.report.summary import Summary

CONFIDENCE_SHARE = 0.95  # of the intervals, as `winner.ratios_over` makes them


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """The run's speed over that of the run `against`, with its interval; `text` is the same for a person.

    `verdict` is "unclear" where the interval holds 1; with `is_tie` the finals took the two for equal and
    kept the simpler one. A winner is held against the best baseline, or the next best where it is that
    baseline; any other run against the winner. `confirmed_*` are of the winner's longer run.
    """

    text: str
    against: int
    against_label: str
    times_as_fast: float
    low: float
    high: float
    confidence_share: float
    verdict: Literal["faster", "slower", "unclear"]
    rounds: int
    is_tie: bool
    confirmed_steps: int | None
    confirmed_samples_per_s: float | None


def claim_of(summary: Summary, run: Run) -> Claim | None:
    """The claim on a run; None where it took no part in the finals, or they compared nothing."""
    outcome = summary.outcome
    ratio = None if outcome is None else _ratio(outcome, run.number)
    if outcome is None or ratio is None:
        return None
    wins = run.number == outcome.winner
    return Claim(
        text=finals_note(summary, run),
        against=ratio.against,
        against_label=next(each.label for each in summary.runs if each.number == ratio.against),
        times_as_fast=ratio.value,
        low=ratio.low,
        high=ratio.high,
        confidence_share=CONFIDENCE_SHARE,
        verdict="unclear" if not ratio.is_clear else "faster" if ratio.low > 1 else "slower",
        rounds=outcome.rounds_of(ratio),
        is_tie=ratio.against in outcome.tied or run.number in outcome.tied,
        confirmed_steps=outcome.confirmed_steps if wins else None,
        confirmed_samples_per_s=outcome.confirmed_samples_per_s if wins else None,
    )


def _ratio(outcome: Outcome, number: int) -> Ratio | None:
    """The run over what it is held against."""
    if outcome.winner is None or not outcome.ratios:
        return None
    if number != outcome.winner:
        ratio = outcome.over(number)
        return ratio.turned(outcome.winner) if ratio else None
    baseline = outcome.over(outcome.plan.baseline)
    return baseline or min(outcome.ratios, key=lambda ratio: ratio.value)
