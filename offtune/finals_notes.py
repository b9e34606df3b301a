"""Plan and outcome of a study's finals, kept as notes of the study.

Covered: writing and reading them. Not covered: the repeats themselves (`store_repeats.py`).
"""

from __future__ import annotations

import json
from typing import TypeVar

from offtune.lock import Owner
from offtune.repeats import Outcome, Plan
from offtune.store import Store
from offtune.trial import as_dict, load

_KEYS: dict[type, str] = {Plan: "finals plan", Outcome: "finals", Owner: "finals owner"}
T = TypeVar("T", Plan, Outcome, Owner)


def keep(store: Store, study: str, record: Plan | Outcome | Owner) -> None:
    """Keep the plan, the outcome or the owner of the study's latest finals."""
    store.note(study, _KEYS[type(record)], as_dict(record))


def kept(store: Store, study: str, kind: type[T]) -> T | None:
    """The last record of that kind; None where there is none."""
    found = store.notes(study).get(_KEYS[kind])
    return load(kind, json.dumps(found)) if found is not None else None
