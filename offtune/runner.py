"""Run one trial: start its ranks, watch them, end them, judge, clean up.

Covered: `TrialRunner`, a callable TrialSpec -> TrialResult that raises nothing a configuration can cause.
Not covered: which trials to run (`search.py`) and storing what came of them (`store.py`).
"""

from __future__ import annotations

import contextlib
import os
import shutil
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Literal

from pydantic import ValidationError

from offtune import command_verdict, hardware, log_tail, scratch
from offtune.command_ranks import CommandRanks
from offtune.launch import ColdRanks, Ranks, ServerGone, WarmServer
from offtune.rank_report import RankReport
from offtune.recording import timeline_path
from offtune.trial import DeviceKind, Status, TrialResult, TrialSpec, dump, load
from offtune.verdict import Cause, Ending, verdict

_POLL_S = 0.02
# A rank whose partner died sits in a collective until gloo or NCCL gives up, minutes later.
_PARTNER_GRACE_S = 5.0
# A killed process gives its device memory back within a second; with much pinned memory it takes longer.
_DEVICE_FREE_S = 60.0
_DEVICE_TOLERANCE_BYTES = 64 * 2**20
_RESULT_FILE = "result.json"

Launch = Callable[[TrialSpec, Path], Ranks]


class TrialRunner:
    """Runs trials one after the other on this machine, warm where it can, or elsewhere through `launch`.

    `say` gets warnings for the person. Use as a context manager: the warm server ends with it.
    """

    def __init__(self, device: DeviceKind, threads_per_rank: int, ops: Sequence[str], model_type: str,
                 say: Callable[[str], None], *, warm: bool = True,
                 launch: Launch | None = None) -> None:  # fmt: skip
        self._log = _server_log()
        self._new_server: Callable[[], WarmServer] = partial(
            WarmServer, device, threads_per_rank, ops, model_type, self._log
        )
        self._say = say
        self._warm = warm and launch is None
        self._cold = launch or ColdRanks
        self.server: WarmServer | None = self._new_server() if self._warm else None

    def __enter__(self) -> TrialRunner:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the warm server."""
        if self.server is not None:
            self.server.close()
            self.server = None
        self._log.unlink(missing_ok=True)
        with contextlib.suppress(OSError):  # other searches of this user may log there
            self._log.parent.rmdir()

    def __call__(self, spec: TrialSpec) -> TrialResult:
        if spec.workload.command is not None:
            return self._run_command(spec)
        if not self._warm:
            return run_trial(spec, self._cold, "cold")
        for _ in range(2):  # a server that died is replaced; twice in one trial, and the trial runs cold
            try:
                result = run_trial(spec, self._warm_ranks, "warm")
            except ServerGone:
                self._replace_server()
                continue
            if not _was_bad_fork(spec):
                return result
            self._say(
                "The warm server had touched the GPU before forking; trials start cold from here on (slower)."
            )
            self._warm = False
            break
        return run_trial(spec, self._cold, "cold")

    def _run_command(self, spec: TrialSpec) -> TrialResult:
        """A command's trial. One that crashes when it is forked is run again cold; that has the last word."""
        if not self._warm:
            return run_trial(spec, CommandRanks, "cold")
        try:
            result = run_trial(spec, self.command_ranks, "warm")
        except ServerGone:
            self._replace_server()
            return run_trial(spec, CommandRanks, "cold")
        if result.status is not Status.CRASHED:
            return result
        why = command_verdict.not_warm(spec.trial_dir) or result.reason
        again = run_trial(spec, CommandRanks, "cold")
        if again.status is not Status.CRASHED:
            self.stay_cold(why)
        return again

    def command_ranks(self, spec: TrialSpec, spec_path: Path) -> Ranks:
        """The processes of a command, forked from the warm server where there is one for it."""
        return CommandRanks(spec, spec_path, self._living_server() if self._warm else None)

    def stay_cold(self, why: str) -> None:
        """Start every further trial of a command in an interpreter of its own, and say so."""
        reason = why.partition("\n")[0]
        self._say(
            f"The script does not run from the loaded process; its trials start cold (slower). {reason}"
        )
        self._warm = False
        if self.server is not None:
            self.server.close()
            self.server = None

    def _warm_ranks(self, spec: TrialSpec, spec_path: Path) -> Ranks:
        return self._living_server().start(spec_path)

    def _living_server(self) -> WarmServer:
        if self.server is None or not self.server.alive:
            self._replace_server()
        assert self.server is not None
        return self.server

    def _replace_server(self) -> None:
        if self.server is not None:
            self.server.close()
        self.server = self._new_server()


def _server_log() -> Path:
    folder = scratch.study_root("server")
    folder.mkdir(parents=True, exist_ok=True)
    return folder / f"{os.getpid()}.log"


def run_trial(spec: TrialSpec, launch: Launch, start: Literal["warm", "cold"]) -> TrialResult:
    """One trial through `launch`. The result is also left as `result.json` in the trial's directory."""
    spec_path = Path(spec.trial_dir) / "spec.json"
    spec_path.write_text(dump(spec))
    _forget_earlier_attempt(spec)
    levels = {gpu: hardware.device_used_bytes(gpu) for gpu in spec.gpus}
    requested = time.time()
    try:
        ending = run_ranks(spec, launch, spec_path)
        reports = read_reports(spec)
        result = verdict(spec, reports, ending)
        if spec.workload.command is not None and not any(reports) and ending.cause == "ended":
            result = _explained(spec, result, ending)
    finally:
        scratch.remove_swap_and_shm(spec.swap_dir, spec.token)
    _wait_until_free(levels)
    first_steps = [report.first_step_at for report in reports if report and report.first_step_at]
    result = replace(
        result,
        start=start,
        seconds=time.time() - requested,
        first_step_s=max(first_steps) - requested if first_steps else None,
        log_tail="" if result.status is Status.OK else log_tails(spec, ending.codes),
    )
    _write_result(spec, result)
    return result


def _explained(spec: TrialSpec, result: TrialResult, ending: Ending) -> TrialResult:
    """A command that ended without a report, in the words for commands; a kill by the kernel stays one."""
    if result.status is Status.OOM_HOST:
        return result
    status, reason = command_verdict.explain(spec.trial_dir, ending.codes[0])
    return replace(result, status=status, reason=reason)


def _forget_earlier_attempt(spec: TrialSpec) -> None:
    folder, ranks = Path(spec.trial_dir), range(spec.workload.world_size)
    for name in ("rendezvous", _RESULT_FILE, *(f"rank{rank}.json" for rank in ranks)):
        (folder / name).unlink(missing_ok=True)
    shutil.rmtree(folder / "seen", ignore_errors=True)  # what a command left there
    for rank in ranks:
        timeline_path(folder, rank).unlink(missing_ok=True)


def run_ranks(spec: TrialSpec, launch: Launch, spec_path: Path) -> Ending:
    """Start the ranks of a trial, wait for their end or bring it about; none is left afterwards."""
    oom_kills = hardware.oom_kills()
    started = time.monotonic()
    ranks = launch(spec, spec_path)
    try:
        ending = _watch(spec, ranks, started + spec.deadline_s)
    finally:
        ranks.kill()
    return replace(ending, oom_kills=hardware.oom_kills() - oom_kills, seconds=time.monotonic() - started)


def _watch(spec: TrialSpec, ranks: Ranks, deadline: float) -> Ending:
    """Look at the ranks until they have ended or must be ended."""
    failed_at, host_peak = None, 0
    while True:
        codes = dict(ranks.poll())
        host = ranks.host_bytes()
        host_peak = max(host_peak, host)
        cause = "ended" if len(codes) == len(ranks.pids) else _cause(spec, host, failed_at, deadline)
        if cause:
            ended = tuple(codes.get(rank) for rank in range(len(ranks.pids)))
            return Ending(cause=cause, codes=ended, oom_kills=0, host_peak_bytes=host_peak, seconds=0.0)
        if failed_at is None and any(codes.values()):
            failed_at = time.monotonic()
        _bound_logs(spec)
        time.sleep(_POLL_S)


def _cause(spec: TrialSpec, host: int, failed_at: float | None, deadline: float) -> Cause | None:
    now = time.monotonic()
    if host > spec.host_limit_bytes:
        return "host_limit"
    if failed_at is not None and now - failed_at > _PARTNER_GRACE_S:
        return "partner"
    return "deadline" if now > deadline else None


def read_reports(spec: TrialSpec) -> list[RankReport | None]:
    """Each rank's report; None where there is none or only part of one."""
    return [
        _read_report(Path(spec.trial_dir) / f"rank{rank}.json") for rank in range(spec.workload.world_size)
    ]


def _read_report(path: Path) -> RankReport | None:
    try:
        return load(RankReport, path.read_bytes())
    except (FileNotFoundError, ValidationError):
        return None


def _was_bad_fork(spec: TrialSpec) -> bool:
    return any(report is not None and report.outcome == "bad_fork" for report in read_reports(spec))


def _bound_logs(spec: TrialSpec) -> None:
    for rank in range(spec.workload.world_size):
        log_tail.bound(Path(spec.trial_dir) / f"rank{rank}.log")


def log_tails(spec: TrialSpec, codes: Sequence[int | None]) -> str:
    """The end of the log of the first rank that failed by itself, else of rank 0."""
    rank = next((rank for rank, code in enumerate(codes) if code), 0)
    return log_tail.read_tail(Path(spec.trial_dir) / f"rank{rank}.log")


def _wait_until_free(levels: dict[int, int | None]) -> None:
    """Wait until the cards are back at their level, so that the next trial does not pay for this one."""
    give_up = time.monotonic() + _DEVICE_FREE_S
    for gpu, level in levels.items():
        while level is not None and time.monotonic() < give_up:
            used = hardware.device_used_bytes(gpu)
            if used is None or used <= level + _DEVICE_TOLERANCE_BYTES:
                break
            time.sleep(_POLL_S)


def _write_result(spec: TrialSpec, result: TrialResult) -> None:
    final = Path(spec.trial_dir) / _RESULT_FILE
    draft = final.with_suffix(".tmp")
    draft.write_text(dump(result))
    draft.rename(final)
