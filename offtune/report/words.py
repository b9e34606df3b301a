"""Plain words for what happened: statuses, the CPU accelerator, what a trial tries.

Covered: what a report says that is not a number. Not covered: exit codes and signals, which the runner's
verdict explains in a trial's reason; layout (`report.terminal`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from offtune.knobs import describe
from offtune.records import Run
from offtune.trial import Point, Status
from offtune.units import format_bytes, format_rate

NUMBERS_SHOWN = 12  # trials of one kind; `--json` has all of them


@dataclass(frozen=True, slots=True, kw_only=True)
class StatusWords:
    """What a status means to a person, and what to do about it."""

    title: str
    meaning: str
    remedy: str


STATUS_WORDS: dict[Status, StatusWords] = {
    Status.OK: StatusWords(title="ok", meaning="It trained within the limits.", remedy=""),
    Status.OVER_BUDGET: StatusWords(
        title="over budget",
        meaning="It trained, but used more memory than it may.",
        remedy="Nothing to repair, the search learns from it. A larger --budget or --host-budget admits it.",
    ),
    Status.INVALID: StatusWords(
        title="invalid",
        meaning="DeepSpeed does not accept this combination of settings.",
        remedy="The reason names the setting. In a space of your own, a condition keeps it out.",
    ),
    Status.OOM_GPU: StatusWords(
        title="out of device memory",
        meaning="An allocation failed at the budget.",
        remedy="Nothing to repair: the search learns from it.",
    ),
    Status.OOM_HOST: StatusWords(
        title="out of host memory",
        meaning="Host memory ran out, or the ranks went over the host budget and were stopped.",
        remedy="Close other programs, raise the container's limit, or lower --host-budget to what is free.",
    ),
    Status.TIMEOUT: StatusWords(
        title="too slow",
        meaning="It had not finished when its time was up, and was ended.",
        remedy="If such a configuration is worth waiting for, raise --trial-timeout.",
    ),
    Status.DIVERGED: StatusWords(
        title="diverged",
        meaning="Its losses are not finite or depart from the baseline's: it does not train the same model.",
        remedy="Both curves: offtune show {study} --trial {trial}. With fp16, prefer --precision bf16.",
    ),
    Status.CRASHED: StatusWords(
        title="crashed",
        meaning="It ended with an error that was not about memory.",
        remedy="Read the end of its log: offtune show {study} --trial {trial}",
    ),
    Status.INTERRUPTED: StatusWords(
        title="interrupted",
        meaning="It was stopped together with offtune, and does not count.",
        remedy="offtune resume {study} runs it again.",
    ),
}

CPU_CAVEATS = (
    "No GPU is used: trials train for real, on DeepSpeed's CPU accelerator. It proves the machinery, not the "
    "gain.",
    "Used memory is the resident memory of a rank above its level before the model was built.",
    "Host and device are one memory here, nothing crosses a link (the PCIe columns stay empty), and the "
    "offload ratio has no effect.",
)
CPU_REMEDY = "For a GPU: an NVIDIA driver and a CUDA build of torch. `offtune doctor` says what is missing."


def status_text(run: Run) -> str:
    """The status in one or two words; 'reused' and 'not run' where nothing was trained."""
    if run.reuse_of is not None:
        return "reused"
    if run.status is None:
        return "running"
    return run.status.value.replace("_", " ") if run.ran else "not run"


def what_text(run: Run, reference: Point | None) -> str:
    """What a trial tries: a baseline's label, or placement, micro-batch and what differs from `reference`."""
    has_name = run.label and (run.origin == "baseline" or not run.point)
    text = run.label if has_name else describe(run.point, reference or {})
    if run.reuse_of is not None:
        return f"as trial {run.reuse_of}: {text}"
    # A simulated trial must never pass for a measured one.
    return f"predicted: {text}" if run.result and run.result.start == "predicted" else text


def time_text(moment: str) -> str:
    """A stored moment, ISO 8601 in UTC, to the minute."""
    return f"{moment[:16].replace('T', ' ')} UTC" if moment else ""


def rate_text(per_second: float | None) -> str:
    """A rate without its unit, for a column that has it in the title."""
    return format_rate(per_second, "").strip()


def share_text(used_bytes: int | None, limit_bytes: int) -> str:
    """Used memory as a share of the limit: '96 %'."""
    return "-" if used_bytes is None else f"{100 * used_bytes / limit_bytes:.0f} %"


def budget_text(budget_bytes: int, limit_bytes: int) -> str:
    """The budget, and what of it may be used where headroom leaves less."""
    budget = f"{format_bytes(budget_bytes)} per rank"
    headroom = "" if limit_bytes == budget_bytes else f", of which {format_bytes(limit_bytes)} may be used"
    return budget + headroom


def numbers_text(runs: Sequence[Run]) -> str:
    """'3, 7, 8': the numbers of the runs; of many the first and how many more there are."""
    shown = ", ".join(str(run.number) for run in runs[:NUMBERS_SHOWN])
    rest = len(runs) - NUMBERS_SHOWN
    return f"{shown} and {rest} more" if rest > 0 else shown
