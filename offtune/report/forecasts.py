"""How good a study's predictions were, and what they kept from running.

Covered: medians of errors over the study's own trials. Not covered: errors over published runs
(docs/accuracy.md), predicting (`predict`).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import median

from offtune.records import Run, is_measured
from offtune.report.page import Block, Line
from offtune.report.words import numbers_text

_REASONS_SHOWN = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Forecasts:
    """Medians of absolute relative errors over `trials`; `not_run` counts what was told without running."""

    trials: int
    memory_error_share: float | None
    step_error_share: float | None
    not_run: int


def forecasts(runs: Iterable[Run]) -> Forecasts | None:
    """The predictions of a study against what was measured; None where nothing was predicted."""
    predicted = [run for run in runs if run.result and run.result.forecast and run.reuse_of is None]
    if not predicted:
        return None
    measured = [run for run in predicted if is_measured(run)]
    memory = [error for run in measured if (error := memory_error(run)) is not None]
    step = [error for run in measured if (error := step_error(run)) is not None]
    return Forecasts(
        trials=len(measured),
        memory_error_share=median(memory) if memory else None,
        step_error_share=median(step) if step else None,
        not_run=sum(not run.ran for run in predicted),
    )


def memory_error(run: Run) -> float | None:
    """How far predicted device memory was off, as a share of the measured; None for unknown."""
    result = run.result
    if result is None or result.forecast is None or result.samples_per_s is None:
        return None
    return _error(result.forecast.used_device_bytes, result.memory.used_device_bytes)


def step_error(run: Run) -> float | None:
    """The same of the step's time; the measured one is the median step's."""
    result = run.result
    if result is None or result.forecast is None or result.samples_per_s is None or not result.step_s:
        return None
    return _error(result.forecast.step_s, median(result.step_s))


def _error(predicted: float | None, measured: float | None) -> float | None:
    return abs(predicted / measured - 1) if predicted is not None and measured else None


def forecast_lines(found: Forecasts | None) -> list[Block]:
    """One sentence on the errors, one on what was not run; nothing without predictions."""
    if found is None:
        return []
    lines: list[Block] = []
    if found.trials:
        memory, step = _percent(found.memory_error_share), _percent(found.step_error_share)
        count = "one trial" if found.trials == 1 else f"medians of {found.trials} trials"
        text = f"Predictions were off by {memory} in memory and {step} in time ({count})."
        lines.append(Line(text=text, tone="dim"))
    if found.not_run:
        text = f"{found.not_run} predicted over the budget and not run; --no-predict runs them."
        lines.append(Line(text=text, tone="dim"))
    return lines


def unrun_blocks(runs: Sequence[Run]) -> list[Block]:
    """Trials told infeasible by a prediction, with their reasons."""
    if not runs:
        return []
    reasons = list(dict.fromkeys(run.result.reason for run in runs if run.result))
    return [
        Line(text=f"predicted over budget, not run ({len(runs)}): trial {numbers_text(runs)}", tone="warn"),
        *(Line(text=reason, tone="dim", indent=2) for reason in reasons[:_REASONS_SHOWN]),
    ]


def is_foretold(run: Run) -> bool:
    """Whether a prediction was told instead of running."""
    return not run.ran and run.result is not None and run.result.start == "predicted"


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{100 * share:.0f} %"
