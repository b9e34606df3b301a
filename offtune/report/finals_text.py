"""What the finals decided, in sentences: the ratio with its interval, a tie said plainly, what did not hold.

Covered: words. Not covered: deciding (`winner.py`); what single trials say (`report.gain`).
"""

from __future__ import annotations

import math

from offtune.knobs import describe
from offtune.records import Run
from offtune.repeats import Outcome, Ratio
from offtune.report.miss import study_limits
from offtune.report.page import Block, Line
from offtune.report.summary import Summary
from offtune.units import format_bytes, format_rate

# What repeats of one configuration differ by on a machine that has not changed (docs/trials.md).
_SAME_SHARE = 0.1
# Below this half-width a third decimal says something.
_FINE = 0.01
# A tie that is known worse than this may hide a gain.
_KNOWN = 0.05


def ratio_text(value: float, low: float, high: float) -> str:
    """'1.34 ± 0.03', with as many decimals as the interval deserves."""
    half = (high - low) / 2
    decimals = 3 if half < _FINE else 2
    return f"{value:.{decimals}f} ± {half:.{decimals}f}"


def finals_verdict(summary: Summary) -> str | None:
    """The winner against the baseline, from repeats in turn; None where there were none to tell."""
    outcome = summary.outcome
    if outcome is None or outcome.plan.baseline is None or not outcome.ratios:
        return None
    label = _run(summary, outcome.plan.baseline).label
    if outcome.winner == outcome.plan.baseline:
        return _baseline_wins(outcome, label)
    ratio = outcome.over(outcome.plan.baseline)
    if ratio is None:
        return None
    times, count = f"{_text(ratio)} times as fast as '{label}'", outcome.rounds_of(ratio)
    if ratio.is_clear:
        return f"{times} (95 %, {count} rounds in turn)."
    return f"No clear winner: {times} after {count} rounds in turn."


def finals_lines(summary: Summary) -> list[Block]:
    """What else a person should know of the finals: confirmation, simplification, ties, what did not hold."""
    outcome = summary.outcome
    if outcome is None:
        return []
    texts = [_confirmation(summary, outcome), _memory(summary, outcome)]
    texts += [_simplification(summary, outcome), _ties(outcome)]
    texts += [f"Trial {each.run} did not hold: {each.reason}" for each in outcome.rejected]
    return [Line(text=text, tone="dim") for text in texts if text]


def finals_note(summary: Summary, run: Run) -> str:
    """What repeats in turn say of one run: the verdict where it is their winner, else the winner's lead."""
    outcome = summary.outcome
    if outcome is None or outcome.winner is None:
        return ""
    if run.number == outcome.winner:
        told = [finals_verdict(summary) or "", _confirmation(summary, outcome), _memory(summary, outcome)]
        return " ".join(text for text in told if text)
    ratio = outcome.over(run.number)
    if ratio is None:
        return ""
    rounds = f"(95 %, {outcome.rounds_of(ratio)} rounds in turn)"
    return f"the winner, trial {outcome.winner}, is {_text(ratio)} times as fast {rounds}."


def _baseline_wins(outcome: Outcome, label: str) -> str:
    near = min(outcome.ratios, key=lambda ratio: ratio.value)
    turned = ratio_text(1 / near.value, 1 / near.high, 1 / near.low)
    rival = (
        f"the fastest other, trial {near.against}, is {turned} times as fast "
        f"({outcome.rounds_of(near)} rounds in turn)."
    )
    if near.against in outcome.tied and near.high - near.low <= 2 * _KNOWN:
        return f"No measurable difference to '{label}': {rival}"
    if not near.is_clear:
        return f"No clear winner, '{label}' is kept: {rival}"
    return f"Nothing found is faster than '{label}': {rival}"


def _confirmation(summary: Summary, outcome: Outcome) -> str:
    if outcome.winner is None:
        return "" if summary.best is None else f"Trial {summary.best.number} was not trained again."
    if outcome.confirmed_steps is None:
        return "Not confirmed by a longer run: the time was up."
    now, result = outcome.confirmed_samples_per_s or 0.0, _run(summary, outcome.winner).result
    then = (result.samples_per_s if result else None) or now
    text = f"Confirmed over {outcome.confirmed_steps} steps: {format_rate(now)}"
    if abs(now - then) <= _SAME_SHARE * then:
        return f"{text}."
    return f"{text}, not the {format_rate(then)} of its trial: the machine has changed since the search."


def _memory(summary: Summary, outcome: Outcome) -> str:
    """What all runs of the winner used; where one more run could well use more than it may, what to do."""
    result = _run(summary, outcome.winner).result if outcome.winner is not None else None
    own = result.memory.used_device_bytes if result else None
    if own is None or not outcome.used_bytes:
        return ""
    used, limit = (own, *outcome.used_bytes), summary.limits.device_bytes
    least, most = min(used), max(used)
    between = " to ".join(dict.fromkeys((format_bytes(least), format_bytes(most))))
    text = f"Its {len(used)} runs used {between}"
    if most + (most - least) <= limit:
        return f"{text}."
    # Headroom is a part of the whole budget, of which the study may have left some free already.
    usable = study_limits(summary.study).device_bytes / summary.study.budget_bytes
    share = math.ceil(round(100 * (1 - usable * (1 - (most - least) / limit)), 6))  # 20 % is not 21 %
    return (
        f"{text} of {format_bytes(limit)}: another one may go over. "
        f"`offtune search --headroom {share}%` stays clear of the edge."
    )


def _simplification(summary: Summary, outcome: Outcome) -> str:
    plan = outcome.plan
    if plan.simplified is None or plan.simple_of is None or outcome.winner != plan.simplified:
        return ""
    original = _run(summary, plan.simple_of)
    reset = describe(original.point, _run(summary, plan.simplified).point)
    return f"It is trial {plan.simple_of} ({reset}) with what makes no measurable difference at its default."


def _ties(outcome: Outcome) -> str:
    others = [name for name in outcome.tied if name != outcome.plan.baseline]
    if not others or outcome.winner == outcome.plan.baseline:
        return ""
    names = ", ".join(str(name) for name in others)
    return f"As fast within the noise, but further from the defaults: trial {names}."


def _text(ratio: Ratio) -> str:
    return ratio_text(ratio.value, ratio.low, ratio.high)


def _run(summary: Summary, number: int) -> Run:
    return next(run for run in summary.runs if run.number == number)
