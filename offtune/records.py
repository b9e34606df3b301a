"""What is kept of a study: its settings, its runs, and which run is best.

Covered: plain records and the questions asked of them. Not covered: where they are kept (`store.py`).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Any, Literal

from offtune.errors import UsageError
from offtune.lock import Owner
from offtune.trial import DsConfig, MemoryPeaks, Point, Status, TrialResult

# What a study makes of a result before it is stored: the loss check may turn it into `diverged`.
Judge = Callable[["Run", TrialResult], TrialResult]
Origin = Literal["baseline", "search", "retry"]
# Labels of points that the search itself queues; any other label names a baseline.
QUEUED_LABEL, SIMPLER_LABEL = "predicted", "simplified"
_NAME_LIMIT = 100  # characters; the name is part of file names, percent-encoded up to three times as long
# A run that went over one budget may fit another; of all other failures no throughput is known.
WITH_THROUGHPUT = frozenset({Status.OK, Status.OVER_BUDGET})


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyRecord:
    """A study as it was started; `created_at` is UTC, `settings` everything a resume needs."""

    name: str
    created_at: str
    settings: dict[str, Any]
    target_trials: int | None
    model: str
    device: str
    budget_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What a run may use: device bytes per rank, host bytes of the whole node (None: no limit)."""

    device_bytes: int
    host_bytes: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One trial of a study: what was tried, by whom, and what came of it.

    `status` and `result` are None while it runs. `reuse_of` is the number of the run with the same effective
    ds_config whose result it repeats; `ran` is False for a point told infeasible without a trial. The store
    fills in `started_at`, `finished_at` (UTC) and `owner`.
    """

    study: str
    number: int
    origin: Origin
    label: str = ""
    point: Point
    ds_config: DsConfig
    fingerprint: str
    status: Status | None = None
    result: TrialResult | None = None
    reuse_of: int | None = None
    ran: bool = True
    started_at: str = ""
    finished_at: str | None = None
    owner: Owner | None = None
    trial_dir: str | None = None
    swap_dir: str | None = None
    token: str = ""


def as_it_is(run: Run, result: TrialResult) -> TrialResult:
    """The judge that has no objection."""
    return result


def utc_now() -> str:
    """The time as the tables hold it: ISO 8601, UTC, microseconds, so that text order is time order."""
    return datetime.now(timezone.utc).isoformat(timespec="microseconds")


def check_study_name(name: str) -> None:
    """Raise UsageError where the name of a study cannot be one."""
    if not name.strip() or len(name) > _NAME_LIMIT or not name.isprintable():
        raise UsageError(
            f"--study: '{name}' cannot be a name.", f"Use 1 to {_NAME_LIMIT} printable characters."
        )


def new_study_name(existing: Iterable[str]) -> str:
    """The next of study-1, study-2, ... after the highest one taken."""
    numbers = [int(match[1]) for name in existing if (match := re.fullmatch(r"study-(\d+)", name))]
    return f"study-{max(numbers, default=0) + 1}"


def is_measured(run: Run) -> bool:
    """Whether a trial of its own was run to an end; this is what counts against the trial target."""
    return run.ran and run.reuse_of is None and run.status not in (None, Status.INTERRUPTED)


def is_baseline(run: Run) -> bool:
    """Whether the run is a baseline, also one that was interrupted and comes again as a retry."""
    is_retry = run.origin == "retry" and run.label not in ("", QUEUED_LABEL, SIMPLER_LABEL)
    return run.origin == "baseline" or is_retry


def fits(memory: MemoryPeaks, limits: Limits) -> bool:
    """Whether the peaks stay within the limits; unknown device memory never does, unknown host does."""
    device, host = memory.used_device_bytes, memory.used_host_bytes
    if device is None or device > limits.device_bytes:
        return False
    return host is None or limits.host_bytes is None or host <= limits.host_bytes


def best_run(runs: Iterable[Run], limits: Limits) -> Run | None:
    """The fastest measured run within `limits` (not only the study's own); the earlier one of equals.

    One that drifted is best only where there is no other.
    """
    ranked = [(rank(run), run) for run in runs if speed_within(run, limits) is not None]
    return min(ranked, key=lambda entry: entry[0])[1] if ranked else None


def rank(run: Run) -> tuple[bool, float, int]:
    """The place of a run among others that fit, least first: steady ones, the faster, the earlier."""
    result = run.result
    unsafe, speed = (bool(result.unsafe), result.samples_per_s or 0.0) if result else (False, 0.0)
    return unsafe, -speed, run.number


def speed_within(run: Run, limits: Limits) -> float | None:
    """Samples per second of a measured run that fits; None for any other."""
    if run.result is None or not is_measured(run) or run.status not in WITH_THROUGHPUT:
        return None
    return run.result.samples_per_s if fits(run.result.memory, limits) else None
