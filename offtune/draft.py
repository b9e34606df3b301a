"""A file being written: opened before the work that fills it, in its place only when it is whole.

Covered: refusing to overwrite, finding out early that a folder cannot be written. Not covered: what is in it.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO

from offtune.errors import OfftuneError, UsageError


@contextmanager
def draft(path: Path, *, force: bool) -> Iterator[TextIO]:
    """A file to write to; it becomes `path` when the block ends well, and is removed when it does not.

    Raises UsageError where something is there already and `force` is off, OfftuneError where it cannot be
    written; both before the block begins.
    """
    if path.is_dir() or (path.exists() and not path.is_file()):
        raise UsageError(f"{path} is not a file that can be replaced.", "Name another file with -o.")
    if path.exists() and not force:
        raise UsageError(f"{path} exists already.", "Overwrite it with --force, or name another with -o.")
    final = path.resolve()
    # Beside the real file: the rename stays on one file system, and a symbolic link stays a link.
    part = final.with_name(f".{final.name}.{os.getpid()}.part")
    try:
        file = part.open("x", encoding="utf-8")
    except OSError as error:
        reason = error.strerror or str(error)
        raise OfftuneError(f"{path} cannot be written: {reason}.", "Name another file with -o.") from error
    try:
        with file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        part.replace(final)
    finally:
        part.unlink(missing_ok=True)
