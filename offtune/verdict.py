"""From what the ranks left behind to the trial's result.

Covered: merging ranks, deciding the status from reports, exit codes, deadline and the kernel's evidence,
never from the wording of a log. Not covered: watching the processes (`runner.py`).
"""

from __future__ import annotations

import signal
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import Literal

from offtune.phase_analysis import combined
from offtune.rank_report import RankReport
from offtune.trial import MemoryPeaks, Status, TrialResult, TrialSpec
from offtune.units import format_bytes, format_seconds

Cause = Literal["ended", "deadline", "host_limit", "partner"]

# Root causes first: one rank's failure makes its partners fail in less telling ways.
_BY_OUTCOME = {
    "oom_gpu": Status.OOM_GPU,
    "oom_host": Status.OOM_HOST,
    "invalid": Status.INVALID,
    "crashed": Status.CRASHED,
    "diverged": Status.DIVERGED,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Ending:
    """How the processes of a trial came to their end, as the parent saw it.

    `cause` is `ended` (by themselves), `deadline`, `host_limit` (stopped by offtune before the kernel would),
    or `partner` (a rank died and the others were stopped). `codes` are exit codes by rank, negative for
    signals, taken before offtune killed anything; `oom_kills` are the kernel's out-of-memory kills meanwhile.
    """

    cause: Cause
    codes: tuple[int | None, ...]
    oom_kills: int
    host_peak_bytes: int
    seconds: float


def verdict(spec: TrialSpec, reports: Sequence[RankReport | None], ending: Ending) -> TrialResult:
    """The trial's result without its start-up figures and log."""
    known = [report for report in reports if report is not None]
    status, reason = _status(spec, known, ending)
    merged = _merge(spec, known, ending)
    if status is Status.OK:
        status, reason = _within_budget(spec, merged.memory)
    return replace(merged, status=status, reason=reason)


def _status(spec: TrialSpec, reports: list[RankReport], ending: Ending) -> tuple[Status, str]:
    if spec.close_steps and len(reports) == spec.workload.world_size and _all_done(reports):
        # All was measured before the close look; how the processes ended in that says nothing of the trial.
        return Status.OK, ""
    if ending.cause == "deadline":
        return Status.TIMEOUT, f"Not finished after {format_seconds(spec.deadline_s)} (--trial-timeout)."
    if ending.cause == "host_limit":
        return Status.OOM_HOST, (
            f"Stopped by offtune: the ranks held {format_bytes(ending.host_peak_bytes)} of host memory, "
            f"over the host budget of {format_bytes(spec.host_limit_bytes)}."
        )
    for outcome, status in _BY_OUTCOME.items():
        for report in reports:
            if report.outcome == outcome:
                return status, f"{report.error} (rank {report.rank}, {report.stage})"
    command = spec.workload.command is not None
    if len(reports) == spec.workload.world_size and (command or all(code == 0 for code in ending.codes)):
        return Status.OK, ""
    return _from_exit_codes(ending, command=command)


def _all_done(reports: list[RankReport]) -> bool:
    return all(report.outcome == "done" for report in reports)


def _from_exit_codes(ending: Ending, *, command: bool) -> tuple[Status, str]:
    for rank, code in enumerate(ending.codes):
        # A launcher turns the death of its rank into an exit code of its own.
        if (code == -signal.SIGKILL or (code and command)) and ending.oom_kills > 0:
            return Status.OOM_HOST, f"The kernel killed rank {rank}: the host ran out of memory."
        if code and command:
            return Status.CRASHED, f"A rank ended without a report. The command: {explain_exit(code)}"
        if code:
            return Status.CRASHED, f"Rank {rank}: {explain_exit(code)}"
    return Status.CRASHED, "A rank ended without leaving a readable result."


_SIGNAL_MEANINGS = {
    signal.SIGKILL: "killed from outside; no out-of-memory kill was counted: a person or job manager did it",
    signal.SIGABRT: "aborted by a check in compiled code; with NVMe offload, see the limit of ulimit -l",
    signal.SIGSEGV: "a memory fault in compiled code; an op built for another torch or machine does that",
    signal.SIGILL: "an instruction this processor lacks; a DeepSpeed op built on another machine does that",
    signal.SIGBUS: "a failed access to mapped memory; /dev/shm or the swap device may be full",
    signal.SIGTERM: "asked to end from outside",
}  # fmt: skip


def explain_exit(code: int) -> str:
    """An exit code in plain words; negative codes are signals."""
    if code >= 0:
        return f"ended with exit code {code} and left no result."
    number = -code
    name = signal.Signals(number).name if number in signal.Signals._value2member_map_ else f"signal {number}"
    meaning = _SIGNAL_MEANINGS.get(signal.Signals(number), "") if name.startswith("SIG") else ""
    return f"exit {code} ({name})" + (f": {meaning}." if meaning else ".")


def _within_budget(spec: TrialSpec, memory: MemoryPeaks) -> tuple[Status, str]:
    device, host = memory.used_device_bytes, memory.used_host_bytes
    if device is None:
        return (
            Status.CRASHED,
            "Used device memory could not be measured, so nothing can be said about the budget.",
        )
    if device > spec.limit_bytes:
        return (
            Status.OVER_BUDGET,
            f"Used {format_bytes(device)}, {format_bytes(device - spec.limit_bytes)} over the budget.",
        )
    if host is not None and host > spec.host_limit_bytes:
        return Status.OVER_BUDGET, f"Used {format_bytes(host)} of host memory, over the host budget."
    return Status.OK, ""


def _merge(spec: TrialSpec, reports: list[RankReport], ending: Ending) -> TrialResult:
    """Figures over all ranks: the slowest rank's steps, the fullest rank's memory, the sum of host memory."""
    if not reports:
        return TrialResult(
            status=Status.CRASHED, memory=_memory([], ending), seconds=ending.seconds, exit_codes=ending.codes
        )
    first = min(reports, key=lambda report: report.rank)
    complete = all(report.outcome in ("done", "diverged") for report in reports)
    steps = tuple(max(same) for same in zip(*(report.step_s for report in reports), strict=False))
    rate = spec.workload.global_batch / median(steps) if complete and steps else None
    return TrialResult(
        status=Status.OK,
        samples_per_s=rate,
        tokens_per_s=_tokens_per_s(spec, reports, rate),
        step_s=steps,
        step_interval_s=first.step_interval_s,
        stopped=first.stopped,
        unsafe=next((report.unsafe for report in reports if report.unsafe), ""),
        losses=first.losses,
        warmup_losses=first.warmup_losses,
        phases=first.phases,
        memory=_memory(reports, ending),
        traffic=first.traffic,
        analysis=combined([report.analysis for report in reports if report.analysis is not None]),
        skipped_steps=max(report.skipped_steps for report in reports),
        warmup_skipped_steps=max(report.warmup_skipped_steps for report in reports),
        sub_groups=first.sub_groups,
        effective_ratio=first.effective_ratio,
        seconds=ending.seconds,
        exit_codes=ending.codes,
        versions=first.versions,
    )


def _tokens_per_s(spec: TrialSpec, reports: list[RankReport], samples_per_s: float | None) -> float | None:
    """Tokens a second over all ranks; None where the batches of a command do not show theirs."""
    if samples_per_s is None:
        return None
    if spec.workload.seq_len is not None:
        return samples_per_s * spec.workload.seq_len
    known = [report.step_tokens for report in reports if report.step_tokens is not None]
    return sum(known) * samples_per_s / spec.workload.global_batch if len(known) == len(reports) else None


def _memory(reports: list[RankReport], ending: Ending) -> MemoryPeaks:
    """On the device the maximum over ranks; on a host the sum of its ranks, or what the parent saw."""
    memories = [report.memory for report in reports]
    host = _fullest_host((report.host, report.memory.used_host_bytes) for report in reports)
    pinned = _fullest_host((report.host, report.memory.pinned_bytes) for report in reports)
    return MemoryPeaks(
        used_device_bytes=_maximum([m.used_device_bytes for m in memories]),
        device_source=memories[0].device_source if memories else "",
        allocated_bytes=_maximum([m.allocated_bytes for m in memories]),
        reserved_bytes=_maximum([m.reserved_bytes for m in memories]),
        used_host_bytes=max(host or 0, ending.host_peak_bytes) or None,
        pinned_bytes=pinned,
    )


def _fullest_host(amounts: Iterable[tuple[str, int | None]]) -> int | None:
    """The largest sum of a host's ranks; None where no rank could tell."""
    sums: dict[str, int] = {}
    for host, amount in amounts:
        if amount is not None:
            sums[host] = sums.get(host, 0) + amount
    return max(sums.values(), default=None)


def _maximum(values: list[int | None]) -> int | None:
    return max((value for value in values if value is not None), default=None)
