"""Scratch of one trial: its directory, its swap directory, its names in /dev/shm; made and removed here.

Covered: everything a trial leaves on disk or in shared memory, however it ended. and the folder it swaps
to. Not covered: the study's own files.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import tempfile
from pathlib import Path
from urllib.parse import quote

from offtune.errors import UsageError

_SHM = Path("/dev/shm")
# csrc/cpu/comm/shm.cpp (DeepSpeed 0.19.8): deepspeed_allreduce_buffer_<uid>_<MASTER_ADDR>_<MASTER_PORT>_
# <rank>, 69 MB each, never unlinked by DeepSpeed.
_SHM_NAME = "deepspeed_allreduce_buffer_{uid}_127.0.0.1_{token}_*"


def new_token() -> str:
    """A name for the trial that no other trial on this machine has; digits, since it stands in for a port."""
    return str(secrets.randbelow(10**12) + 10**12)


def study_root(study: str) -> Path:
    """Where the trials of a study keep their scratch: the temporary folder of this user and study."""
    return Path(tempfile.gettempdir()) / f"offtune-{os.getuid()}" / quote(study, safe="")


def make_trial_dir(study: str, number: int) -> Path:
    """A new, empty directory for one trial; its own, as studies of two databases may share a name."""
    root = study_root(study)
    root.mkdir(parents=True, exist_ok=True, mode=0o700)
    return Path(tempfile.mkdtemp(prefix=f"trial-{number}-", dir=root))


def make_swap_dir(nvme_path: str, study: str, number: int) -> Path:
    """A new, empty directory for one trial's swap files on the NVMe device."""
    return Path(tempfile.mkdtemp(prefix=f"offtune-{quote(study, safe='')}-trial-{number}-", dir=nvme_path))


def remove_swap_and_shm(swap_dir: str | None, token: str) -> None:
    """Remove the trial's swap files and DeepSpeed's shared buffers; what is gone already is fine."""
    if swap_dir is not None:
        shutil.rmtree(swap_dir, ignore_errors=True)
    for path in shm_files(token):
        with contextlib.suppress(FileNotFoundError):
            path.unlink()


def shm_files(token: str) -> list[Path]:
    """DeepSpeed's shared buffers of the trial with this token."""
    return sorted(_SHM.glob(_SHM_NAME.format(uid=os.getuid(), token=token)))


def remove_trial(trial_dir: str | None, swap_dir: str | None, token: str) -> None:
    """Remove everything a trial left."""
    remove_swap_and_shm(swap_dir, token)
    if trial_dir is None:
        return
    shutil.rmtree(trial_dir, ignore_errors=True)
    with contextlib.suppress(OSError):  # the study's folder goes with its last trial
        Path(trial_dir).parent.rmdir()


def swap_folder(text: str | None) -> str | None:
    """The folder of --nvme-path, in full. Raises UsageError where it is none, or cannot be written."""
    if text is None:
        return None
    path = Path(text).expanduser().resolve()
    if not path.is_dir():
        raise UsageError(
            f"--nvme-path: there is no folder '{text}'.", f"Make it (mkdir -p {text}) or name another."
        )
    probe = path / ".offtune-writable"
    try:
        probe.touch()
        probe.unlink()
    except OSError as error:
        raise UsageError(
            f"--nvme-path: cannot write to '{text}' ({error.strerror}).", "Name a writable folder."
        ) from error
    return str(path)
