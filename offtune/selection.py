"""Which run of a study is meant: the best under its budget, under another one, or one by number.

Covered: choosing and the message when there is nothing to choose. Not covered: writing it (`export.py`).
"""

from __future__ import annotations

from offtune.errors import EXIT_NOTHING_FITS, OfftuneError, UsageError
from offtune.records import Limits, Run, StudyRecord, is_measured
from offtune.report.claim import Claim, claim_of
from offtune.report.finals_text import finals_note
from offtune.report.miss import study_limits
from offtune.report.study_report import read_summary
from offtune.store import Store
from offtune.trial import Status
from offtune.units import format_bytes, parse_bytes


class NothingFits(OfftuneError):
    """No measured run of the study fits the budget."""

    exit_code = EXIT_NOTHING_FITS


def choose(storage: str, study: str | None, trial: int | None, budget: str | None) -> tuple[StudyRecord, Run]:
    """The study and the run to export. Raises UsageError for a useless run, NothingFits for none."""
    if trial is not None and budget is not None:
        raise UsageError("--trial and --budget both choose a trial.", "Give one of them.")
    with Store.open(storage, write=False) as store:
        record = store.study(study)
        if trial is not None:
            return record, _usable(store.run(record.name, trial), record)
        limits = study_limits(record)
        if budget is not None:
            limits = Limits(device_bytes=parse_bytes(budget, "--budget"), host_bytes=limits.host_bytes)
        summary = read_summary(store, record, limits)
    if summary.best is None:
        raise NothingFits(
            f"No trial of study '{record.name}' fits {format_bytes(limits.device_bytes)}.",
            " ".join(summary.advice) or f"See: offtune show {record.name}",
        )
    return record, summary.best


def finals_of(storage: str, record: StudyRecord, run: Run) -> tuple[Claim | None, str]:
    """What the finals claim of the run, None where they compared nothing; all they say of it, in words."""
    with Store.open(storage, write=False) as store:
        summary = read_summary(store, record)
    return claim_of(summary, run), finals_note(summary, run)


def _usable(run: Run, record: StudyRecord) -> Run:
    if run.reuse_of is not None:
        raise UsageError(f"Trial {run.number} repeats trial {run.reuse_of}.", f"Use --trial {run.reuse_of}.")
    if run.status is Status.DIVERGED:
        raise UsageError(
            f"Trial {run.number} diverged: {run.result.reason if run.result else 'it does not train.'}",
            f"Choose one that trains: offtune show {record.name}",
        )
    if not is_measured(run) or run.result is None or run.result.samples_per_s is None:
        raise UsageError(
            f"Trial {run.number} of study '{record.name}' has no throughput: it ended as {run.status}.",
            f"Choose one that trained: offtune show {record.name}",
        )
    return run
