"""Plan and outcome of a study's finals, kept as notes of the study, and what is said as they go on.

Covered: notes written and read, lines for the person. Not covered: the repeats (`store_repeats.py`).
"""

from __future__ import annotations

import json
from typing import TypeVar

from offtune.knobs import describe
from offtune.lock import Owner
from offtune.records import Run
from offtune.repeats import Outcome, Plan, Repeat
from offtune.store import Store
from offtune.trial import Status, TrialResult, as_dict, load
from offtune.units import format_rate

_KEYS: dict[type, str] = {Plan: "finals plan", Outcome: "finals", Owner: "finals owner"}
T = TypeVar("T", Plan, Outcome, Owner)


def keep(store: Store, study: str, record: Plan | Outcome | Owner) -> None:
    """Keep the plan, the outcome or the owner of the study's latest finals."""
    store.note(study, _KEYS[type(record)], as_dict(record))


def kept(store: Store, study: str, kind: type[T]) -> T | None:
    """The last record of that kind; None where there is none."""
    found = store.notes(study).get(_KEYS[kind])
    return load(kind, json.dumps(found)) if found is not None else None


def opening(plan: Plan) -> str:
    """Who takes part; "" where nobody is to be compared."""
    if len(plan.contenders) < 2:
        return ""
    names = ", ".join(f"#{name}" for name in plan.contenders)
    return f"Finals: {names} are trained again in turn, until a difference or a tie is clear."


def line(repeat: Repeat, run: Run, result: TrialResult) -> str:
    """One repeat in one line."""
    steps = len(result.step_s)
    where = f"round {repeat.round}" if repeat.round else f"{steps} step{'s' if steps != 1 else ''}"
    speed = (
        format_rate(result.samples_per_s)
        if result.status is Status.OK
        else str(result.status).replace("_", " ")
    )
    what = run.label if run.origin == "baseline" else describe(run.point, {})
    return f"  {where:<8} #{run.number:<4} {speed:>18}  {what}"
