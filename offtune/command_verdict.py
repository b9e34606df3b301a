"""What became of a command whose ranks left no report: what was seen of it, and what to change.

Covered: telling apart the ways never to reach `deepspeed.initialize`. Not covered: endings after it, which
the ranks report themselves (`worker/hook.py`).
"""

from __future__ import annotations

from pathlib import Path

from pydantic import ValidationError

from offtune.rank_report import Failure
from offtune.script_start import REFUSAL_FILE
from offtune.trial import Status, load

_HANDED_OVER = "Give the script {ds_config}, or let it read the file named in OFFTUNE_DS_CONFIG"


def explain(trial_dir: str, code: int | None) -> tuple[Status, str]:
    """Status and reason of a command that ended with exit code `code` before `deepspeed.initialize`."""
    seen = Path(trial_dir) / "seen"
    ended = (
        "still ran"
        if code is None
        else f"ended with exit code {code}"
        if code >= 0
        else f"died by signal {-code}"
    )
    failure = _first_failure(seen)
    if failure is not None and failure.overridden:
        return Status.INVALID, (
            f"{failure.program}: {failure.error} The arguments of the Trainer contradict the ds_config: use "
            "{micro_batch} and {grad_accum} for its batch sizes, and leave the others to the ds_config."
        )
    if failure is not None:
        return Status.CRASHED, f"{failure.program} failed before deepspeed.initialize: {failure.error}"
    if not any(seen.glob("loaded-*")):
        return Status.CRASHED, (
            f"The command {ended}, and no Python process of it loaded offtune's hook: `python -I` and -E, "
            "containers and other machines do not take PYTHONPATH over. Start the training directly."
        )
    if not any(seen.glob("imported-*")):
        return Status.CRASHED, (
            f"The command {ended} without importing deepspeed, so nothing could be measured. Look at its "
            f"output; does it train with DeepSpeed? {_HANDED_OVER}."
        )
    return Status.CRASHED, (
        f"The command {ended} and never called deepspeed.initialize. Does it train with DeepSpeed when given "
        f"a ds_config? {_HANDED_OVER}."
    )


def not_warm(trial_dir: str) -> str:
    """Why a script that was forked from the warm server has to be started cold; "" where it did not say."""
    path = Path(trial_dir) / "seen" / REFUSAL_FILE
    return path.read_text() if path.exists() else ""


def _first_failure(seen: Path) -> Failure | None:
    """The earliest: when a rank fails, its launcher fails after it."""
    for path in sorted(seen.glob("failure-*.json"), key=lambda path: path.stat().st_mtime_ns):
        try:
            return load(Failure, path.read_bytes())
        except (OSError, ValidationError):
            continue
    return None
