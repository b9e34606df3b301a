"""How a study's search ended, or how far it is: kept as a note of the study.

Covered: the record, keeping and reading it, the state that follows. Not covered: deciding to end (`search`).
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, Literal

from offtune.lock import is_other_alive, is_same_machine
from offtune.records import StudyRecord
from offtune.store import Store
from offtune.trial import as_dict, load

EndKind = Literal["target", "converged", "time", "exhausted", "crashes"]
# What a list says of each.
WORDS: dict[EndKind, str] = {
    "target": "finished",
    "converged": "converged",
    "time": "time was up",
    "exhausted": "space exhausted",
    "crashes": "nothing trains",
}
_NOTE = "ended"
# Until version 0.1 a sentence was all that was kept: how those began.
_BEGINNINGS: tuple[tuple[str, EndKind], ...] = (
    ("Further trials", "converged"),
    ("The time is up", "time"),
    ("Of ", "exhausted"),
    ("Nothing trains", "crashes"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ending:
    """Why a search ended: a kind, and the sentence with its figures."""

    kind: EndKind
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """How a study stands, in a word or two; with the ending where there is one."""

    word: str
    ending: Ending | None = None


def keep_ending(store: Store, study: str, ending: Ending | None) -> None:
    """Keep how the search ended; None as it goes on."""
    store.note(study, _NOTE, None if ending is None else as_dict(ending))


def state_of(store: Store, study: StudyRecord) -> State:
    """Ended and how, under way, interrupted or not started."""
    notes, measured = store.notes(study.name), store.measured_count(study.name)
    ending = _read(notes.get(_NOTE))
    # A resume with a higher target leaves a note of None, and the study's own target as it was.
    if _NOTE not in notes and study.target_trials is not None and measured >= study.target_trials:
        ending = Ending(kind="target", text=f"{measured} trials measured, as asked.")
    if ending is not None:
        return State(word=WORDS[ending.kind], ending=ending)
    if _is_under_way(store, study.name):
        return State(word="under way")
    return State(word="interrupted" if measured else "not started")


def _read(found: Any) -> Ending | None:
    """The ending in a note; None where there is no note, or the search went on after it."""
    if isinstance(found, str):
        kinds = [kind for beginning, kind in _BEGINNINGS if found.startswith(beginning)]
        return Ending(kind=kinds[0] if kinds else "target", text=found)
    return load(Ending, json.dumps(found)) if found else None


def _is_under_way(store: Store, study: str) -> bool:
    """Whether somebody trains for it now; of a process on another machine nobody can tell."""
    owners = [run.owner for run in store.under_way() if run.study == study and run.owner is not None]
    return any(is_other_alive(owner) or not is_same_machine(owner) for owner in owners)
