"""Does a configuration still train? Its first losses, held against those of the study's reference run.

Covered: which run is the reference, how far apart two curves may be, what follows for the trial's status. A
built-in workload has the same weights and the same batches in every trial, so that only rounding differs. Not
covered: what a longer training would show; two curves that agree for a few steps may part later.

Measured on llama-5m, 12 steps, 20 configurations (ten placements, NVMe included, micro-batch 1 to 8)
against "zero2" with micro-batch 4, largest distance of one step: bf16 2.5e-4 nat, fp32 1e-6 nat. Larger
models, 7 steps, bf16: llama-25m 3.3e-4, gpt2-124m 3.5e-4. What broken updates cost (docs/loss-check.md): a
learning rate 10 % too low 1.4e-2, one layer of four frozen 1.4e-2, one step of three left out 5.6e-2, only
the last micro-batch counted 2.5e-2, no updates at all 8.7e-2.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Literal

from offtune.records import Judge, Run, is_baseline
from offtune.trial import LossCheck, Precision, Status, TrialResult

# judge: a departure makes the trial diverged. script: likewise, but for one at the first step, which shows
# that weights, data or dropout differ from run to run. note: settings that change the result by design are
# compared, not judged.
Mode = Literal["judge", "script", "note", "off"]

# Nats a step. Between the largest rounding and the smallest damage measured (above), a factor of several to
# either side. fp16 has three bits more than bf16 and was not measured; fp32 leaves room for the
# kernels of a GPU, not measured either.
TOLERANCE_NAT: dict[Precision, float] = {"bf16": 3e-3, "fp16": 3e-3, "fp32": 1e-3}
# Added for each nat that the reference has moved since its first step: a model that learns faster amplifies
# rounding more. The damages in docs/loss-check.md are 2 % of it and more.
TOLERANCE_SHARE = 0.01

# Said at the start of a study in these modes.
NOTES: dict[Mode, str] = {
    "note": "This space changes the training result: losses are compared, but not judged.",
    "off": "Losses are not compared with the baseline's (--no-loss-check).",
}
_COMPARED = frozenset({Status.OK, Status.OVER_BUDGET, Status.DIVERGED})
_TRAINED = frozenset({Status.OK, Status.OVER_BUDGET})


def make_judge(runs_of: Callable[[str], list[Run]], precision: Precision, mode: Mode) -> Judge:
    """A judge over the runs that a study has at the time; `runs_of` gives them by the study's name."""
    return lambda run, result: checked(run, result, runs_of(run.study), precision, mode)


def checked(
    run: Run, result: TrialResult, runs: Iterable[Run], precision: Precision, mode: Mode
) -> TrialResult:
    """`result` with its loss check, and `diverged` where the losses depart; `runs` are those of the study."""
    if result.status not in _COMPARED:
        return result
    check = _check(run, result, list(runs), precision, mode)
    if check.verdict == "departs" and result.status in _TRAINED:
        return replace(result, status=Status.DIVERGED, reason=check.reason, loss_check=check)
    return replace(result, loss_check=check)


def reference_of(runs: Iterable[Run]) -> Run | None:
    """The run that the others are compared with: the first one marked so; it never changes afterwards."""
    return next((run for run in runs if _verdict(run.result) == "reference"), None)


def curve(result: TrialResult) -> tuple[float | None, ...]:
    """The losses from the first optimizer step on, in nats; None is not finite, or not known."""
    return (*result.warmup_losses, *result.losses)


def tolerance_nat(precision: Precision, reference: tuple[float | None, ...], step: int) -> float:
    """How far a loss may be from the reference at `step` (from 0), in nats."""
    known = [loss for loss in reference[: step + 1] if loss is not None]
    moved = max((abs(loss - known[0]) for loss in known), default=0.0)
    return TOLERANCE_NAT[precision] + TOLERANCE_SHARE * moved


def _check(run: Run, result: TrialResult, runs: list[Run], precision: Precision, mode: Mode) -> LossCheck:
    if mode == "off":
        return LossCheck(verdict="skipped", reason="Switched off (--no-loss-check).")
    reference = reference_of(runs)
    if reference is None or reference.result is None:
        return _without_reference(run, result)
    if why := _incomparable(result, reference.result, precision):
        return LossCheck(verdict="skipped", reason=why, reference_trial=reference.number)
    check = _compare(result, reference.number, curve(reference.result), precision)
    if check.verdict != "departs" or mode == "judge":
        return check
    if mode == "note":
        return replace(check, verdict="noted", reason=f"{check.reason} {_BY_DESIGN}")
    if check.departure_step == 1:
        return replace(check, verdict="skipped", reason=f"{check.reason} {_NOT_REPEATED}")
    return check


_BY_DESIGN = "This space changes the result by design, so that it is not judged."
_NOT_REPEATED = "No update had been made by then: the script's weights, data or dropout are others."


def _without_reference(run: Run, result: TrialResult) -> LossCheck:
    if is_baseline(run) and result.status in _TRAINED and _is_known(result):
        return LossCheck(verdict="reference", reason="The others are compared with it.")
    return LossCheck(verdict="skipped", reason="No baseline has trained: there is nothing to compare with.")


def _incomparable(result: TrialResult, reference: TrialResult, precision: Precision) -> str:
    """Why the two curves say nothing about each other; "" when they do."""
    if not _is_known(result):
        return "Its losses are not known."
    own, other = _skipped(result), _skipped(reference)
    # Only fp16 has a loss scale to find; a step that bf16 skips had gradients that were not finite.
    if precision == "fp16" and own != other and own < len(curve(result)):
        return f"Loss scaling skipped {own} optimizer steps here and {other} in the reference."
    return ""


def _is_known(result: TrialResult) -> bool:
    """Whether there is a curve; a hole counts only where the rank itself saw that it is not finite."""
    losses = curve(result)
    return bool(losses) and (result.status is Status.DIVERGED or None not in losses)


def _skipped(result: TrialResult) -> int:
    return result.warmup_skipped_steps + result.skipped_steps


def _compare(
    result: TrialResult, number: int, reference: tuple[float | None, ...], precision: Precision
) -> LossCheck:
    pairs = list(zip(curve(result), reference, strict=False))
    allowed = [tolerance_nat(precision, reference, step) for step in range(len(pairs))]
    apart = [_distance(own, other) / allowed[step] for step, (own, other) in enumerate(pairs)]
    first = next((step for step, distance in enumerate(apart) if distance > 1), None)
    step = first if first is not None else apart.index(max(apart))
    own, other = pairs[step]
    return LossCheck(
        verdict="agrees" if first is None else "departs",
        reason="" if first is None else _sentence(step, own, other, number, allowed[step], precision),
        reference_trial=number,
        departure_step=step + 1,
        departure_nat=None if own is None or other is None else own - other,
        tolerance_nat=allowed[step],
        reference_losses=reference,
    )


def _distance(own: float | None, other: float | None) -> float:
    if own is None or other is None:
        return math.inf
    return abs(own - other)


def _sentence(
    step: int, own: float | None, other: float | None, number: int, allowed_nat: float, precision: Precision
) -> str:
    if own is None or other is None:
        return f"The loss of step {step + 1} is not finite."
    apart = f"{abs(own - other):.4f} {'above' if own > other else 'below'}"
    return (
        f"The loss of step {step + 1} was {own:.4f}, {apart} that of trial {number} with the same weights "
        f"and data; {precision} explains {allowed_nat:.4f}."
    )


def _verdict(result: TrialResult | None) -> str:
    return result.loss_check.verdict if result is not None and result.loss_check is not None else ""
