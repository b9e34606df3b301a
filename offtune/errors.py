"""Errors of the tool itself: a message, a hint what to do next, an exit code.

Covered: everything that stops offtune. Not covered: trials that fail; those are values (`trial.Status`).
"""

from __future__ import annotations

EXIT_OK = 0
EXIT_FAILED = 1
EXIT_USAGE = 2
EXIT_NOTHING_FITS = 3
EXIT_INTERRUPTED = 130


class OfftuneError(Exception):
    """The tool cannot go on.

    `message` says what happened and why, `hint` what to do next; `exit_code` is what the command returns.
    """

    exit_code = EXIT_FAILED

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint


class UsageError(OfftuneError):
    """The person asked for something that cannot be done as asked."""

    exit_code = EXIT_USAGE


class SpaceError(UsageError):
    """A search space file is wrong; the message names file and key."""


class ConfigError(UsageError):
    """A ds_config cannot be used."""


class StoreError(OfftuneError):
    """The database cannot be read or written."""


class StudyMismatch(UsageError):
    """The study was made for another machine, workload, budget or version."""


class NothingTrains(OfftuneError):
    """Every trial so far has crashed, and always alike; the study is kept."""


class Interrupted(OfftuneError):
    """The person (or the system) asked offtune to stop; the study is kept."""

    exit_code = EXIT_INTERRUPTED
