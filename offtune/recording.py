"""The files in which the ranks of a trial leave what they recorded, one a rank.

Covered: writing them in the child, reading them in the parent while the trial's folder exists. Not covered:
keeping them (`store.Store.add_timeline`) and recording (`worker/recorder.py`).
"""

from __future__ import annotations

from pathlib import Path

from pydantic import ValidationError

from offtune.timeline import Timeline
from offtune.trial import dump, load

_PATTERN = "timeline*.json"


def timeline_path(trial_dir: str | Path, rank: int) -> Path:
    """Where that rank leaves its recording."""
    return Path(trial_dir) / f"timeline{rank}.json"


def write_timeline(trial_dir: str | Path, timeline: Timeline) -> None:
    """Write a rank's recording under a temporary name, then rename it."""
    final = timeline_path(trial_dir, timeline.rank)
    draft = final.with_suffix(".tmp")
    draft.write_text(dump(timeline))
    draft.rename(final)


def read_timelines(trial_dir: str | Path) -> tuple[Timeline, ...]:
    """The recordings of a trial by rank; empty where nothing was recorded."""
    found = [_read(path) for path in Path(trial_dir).glob(_PATTERN)]
    return tuple(sorted((one for one in found if one is not None), key=lambda one: one.rank))


def _read(path: Path) -> Timeline | None:
    """A recording; None where another version of offtune has written it on the other end."""
    try:
        return load(Timeline, path.read_bytes())
    except (OSError, ValidationError):
        return None
