"""What more memory buys: the trials that are faster than those with less memory by more than the noise.

Covered: which they are and by how much, from the finals where both were trained again in turn, else from
single trials. Not covered: the plain front of single trials (`report.summary`), how it looks.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from offtune.records import Run
from offtune.repeats import Ratio
from offtune.report.finals_text import ratio_text
from offtune.report.gain import noise_percent
from offtune.report.page import Block, Column, Line, Table
from offtune.report.summary import Summary
from offtune.report.words import rate_text
from offtune.units import format_bytes
from offtune.winner import NEAR_SHARE

_NO_STEP = "More memory bought no speed beyond the noise: trial {number} makes do with {used}."


@dataclass(frozen=True, slots=True, kw_only=True)
class Lead:
    """How many times as fast a run is as the one with less memory before it, with its interval.

    `repeated` says that both were trained again in turn; else it is one trial against one.
    """

    over: int
    value: float
    low: float
    high: float
    repeated: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """A run worth its memory; the first, with the least memory, leads nobody.

    `samples_per_s` is what its longer confirmation measured, where it had one (`confirmed`).
    """

    run: Run
    samples_per_s: float | None
    confirmed: bool
    lead: Lead | None


def memory_steps(summary: Summary) -> tuple[Step, ...]:
    """From least memory to most; only leads beyond the noise make a step."""
    steps: list[Step] = []
    for run in _candidates(summary):
        lead = _lead(summary, steps[-1].run, run) if steps else None
        if lead is None or lead.low > 1:
            steps.append(_step(summary, run, lead))
    return tuple(steps)


def _candidates(summary: Summary) -> list[Run]:
    """The front, and the winner, which repeats may have preferred to one on the front with as much memory."""
    found = {run.number: run for run in (*summary.front, *summary.ranking[:1]) if _rate(run)}
    return sorted(found.values(), key=lambda run: (_used(run), run is not summary.best))


def _step(summary: Summary, run: Run, lead: Lead | None) -> Step:
    outcome = summary.outcome
    if outcome is not None and outcome.winner == run.number and outcome.confirmed_samples_per_s:
        return Step(run=run, samples_per_s=outcome.confirmed_samples_per_s, confirmed=True, lead=lead)
    return Step(run=run, samples_per_s=_rate(run), confirmed=False, lead=lead)


def _lead(summary: Summary, before: Run, run: Run) -> Lead:
    outcome = summary.outcome
    if outcome is not None and run.number == outcome.winner and (ratio := outcome.over(before.number)):
        return _repeated(ratio)
    if outcome is not None and before.number == outcome.winner and (ratio := outcome.over(run.number)):
        return _repeated(ratio.turned(before.number))
    value, doubt = _rate(run) / _rate(before), _doubt(summary, before, run)
    return Lead(over=before.number, value=value, low=value - doubt, high=value + doubt, repeated=False)


def _repeated(ratio: Ratio) -> Lead:
    return Lead(over=ratio.against, value=ratio.value, low=ratio.low, high=ratio.high, repeated=True)


def _doubt(summary: Summary, before: Run, run: Run) -> float:
    """Of one trial against one: what their steps scatter, repeats usually do, and those of the finals did."""
    within = (noise_percent(before.result, run.result) or 0.0) / 100
    ratios = summary.outcome.ratios if summary.outcome else ()
    return max([within, NEAR_SHARE, *((ratio.high - ratio.low) / 2 for ratio in ratios)])


def more_memory_blocks(summary: Summary, title: str, tell: Callable[[Run], str]) -> list[Block]:
    """The steps as a table whose last column `tell` fills; a sentence where no lead is beyond the noise."""
    steps = memory_steps(summary)
    if len(summary.front) < 2 or not steps:
        return []
    if len(steps) == 1:
        least = steps[0].run
        return [Line(text=_NO_STEP.format(number=least.number, used=format_bytes(_used(least))))]
    columns = (
        Column(title="used", right=True),
        Column(title="samples/s", right=True),
        Column(title="times as fast", right=True),
        Column(title="trial", right=True),
        Column(title=title, stretch=True),
    )
    rows = tuple(
        (
            format_bytes(_used(step.run)),
            rate_text(step.samples_per_s),
            _lead_text(step.lead),
            str(step.run.number),
            tell(step.run),
        )
        for step in steps
    )
    return [Table(columns=columns, rows=rows), Line(text=_note(steps), tone="dim")]


def _lead_text(lead: Lead | None) -> str:
    return "-" if lead is None else ratio_text(lead.value, lead.low, lead.high)


def _note(steps: Sequence[Step]) -> str:
    """Where the figures come from, as far as they differ in it."""
    repeated = [str(step.run.number) for step in steps if step.lead and step.lead.repeated]
    confirmed = [str(step.run.number) for step in steps if step.confirmed]
    told = [f"By repeats in turn: trial {', '.join(repeated)}."] if repeated else []
    told += [f"Confirmed by a longer run: trial {', '.join(confirmed)}."] if confirmed else []
    rest = "Single trials otherwise." if told else "All of it from single trials."
    return " ".join(["Each is faster than the one above it by more than the noise.", *told, rest])


def _rate(run: Run) -> float:
    return (run.result.samples_per_s if run.result else None) or 0.0


def _used(run: Run) -> int:
    return (run.result.memory.used_device_bytes if run.result else None) or 0
