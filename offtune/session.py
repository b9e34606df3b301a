"""A search from end to end: a new study or an old one, opened, prepared, run, summed up.

Covered: what must be settled before the first trial, in the order that fails soonest, and what a resume
refuses. Not covered: the loop (`search.py`) and what is shown (`report`).
"""

from __future__ import annotations

import json
import shlex
import statistics
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from functools import partial
from typing import Any, Protocol

from offtune import hardware, host, loss_check, prepare
from offtune.base_check import check_base, fit_to_base
from offtune.baseline_order import first_and_last
from offtune.beliefs import by_itself
from offtune.bound_peaks import machine_peaks
from offtune.calibrated_machine import profile_here
from offtune.conclusion import conclude
from offtune.config import Options, RunConfig, resolve
from offtune.convergence import STRATEGY
from offtune.crew import Crew
from offtune.devices import visible_gpus
from offtune.ending import keep_ending
from offtune.errors import OfftuneError, StudyMismatch, UsageError
from offtune.finals import Finals
from offtune.foresight import foresight_for
from offtune.guesses import guesses_for
from offtune.hardware_profile import HardwareProfile
from offtune.records import Limits, Run, StudyRecord, is_measured, utc_now
from offtune.report.miss import study_limits
from offtune.report.study_report import keep_effects, read_summary
from offtune.report.summary import Summary
from offtune.sampling_by_name import make_sampler
from offtune.search import Search, Watcher
from offtune.space import Space, load_space
from offtune.store import Store, new_study_name
from offtune.store_standings import briefs, labelled, unseen
from offtune.study import Study
from offtune.trial import as_dict, load
from offtune.units import format_bytes

# Loading the training environment keeps one core busy for seconds; above this it is somebody else.
_BUSY_LOAD_PER_CORE = 1.0
# What the person's own ds_config is called among the baselines.
AS_IS_LABEL = "your file"


class Progress(Watcher, Protocol):
    """A watcher that is also told how the search begins."""

    def start(self, study: StudyRecord, limits: Limits, *, best: Run | None = None, done: int = 0,
              time_limit_s: float | None = None, notes: Iterable[str] = ()) -> None: ...  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Changes:
    """What a resume asks to be different; `anyway` goes on where machine or versions differ."""

    trials: int | None = None
    time_s: float | None = None
    budget_bytes: int | None = None
    anyway: bool = False
    command: tuple[str, ...] | None = None


def plan(options: Options) -> tuple[RunConfig, Space, tuple[str, ...]]:
    """Everything resolved as `search` would, and nothing run: settings, fitted space, notes."""
    config, space = prepare.with_space(resolve(options, hardware.detect()))
    make_sampler(config.sampler)
    ready, notes = prepare.expected_ops(config, space)
    if config.workload.command is not None:
        config, numels, seen = prepare.look(config, tuple(ready), options)
        notes = (*seen, *notes)
    else:
        numels = prepare.profile_apart(config).parameter_numels
    facts = prepare.make_facts(config, numels, ready)
    fitted = fit_to_base(space.fit(facts), config.base, facts)
    return config, fitted, (*notes, *check_base(config.base, facts))


def usual_trial_s(storage: str, config: RunConfig) -> float | None:
    """Median seconds of trials of the same model on the same device; None where there are none."""
    alike = (config.workload.model_name, config.device)
    try:
        with Store.open(storage, write=False) as store:
            records = [record for record in store.studies() if (record.model, record.device) == alike]
            runs = [run for record in records for run in briefs(store, record.name) if is_measured(run)]
    except OfftuneError:
        return None  # no database yet, or none that can be read: a search will say so itself
    seconds = [run.result.seconds for run in runs if run.result is not None]
    return statistics.median(seconds) if seconds else None


def start(options: Options, storage: str, name: str | None, progress: Progress) -> Summary:
    """A new study, run to its target. Raises UsageError before anything is built."""
    config, space = prepare.with_space(resolve(options, hardware.detect()))
    make_sampler(config.sampler)
    with Store.open(storage, write=True) as store:
        name = _free_name(store, name)
        with store.lock(name) as crew, _ready(config, space, progress, options) as ready:
            ready = replace(ready, notes=(*ready.notes, *check_base(config.base, ready.facts)))
            record = _record(name, ready.config, ready, _profile(store, ready.config))
            with crew.turn():
                store.add_study(record)
            return _run(store, crew, record, ready.config, ready, progress)


def resume(storage: str, name: str | None, changes: Changes, progress: Progress) -> Summary:
    """An old study, run on to its own target, beside other workers where the database lets them be.

    Raises StudyMismatch where it was made for something else.
    """
    with Store.open(storage, write=False) as store:
        record = store.study(name)
    config = _with_gpus_here(stored_config(record))
    _refuse_differences(record, config, changes)
    config = _changed(config, changes)
    with (
        Store.open(storage, write=True) as store,
        store.lock(record.name) as crew,
        _ready(config, load_space(config.space), progress) as ready,
    ):
        _refuse_other_space(record, ready.space)
        record = replace(record, target_trials=config.trials)
        return _run(store, crew, record, config, ready, progress)


@contextmanager
def _ready(
    config: RunConfig, space: Space, progress: Progress, options: Options | None = None
) -> Iterator[prepare.Prepared]:
    """The prepared machine; its warm server ends on the way out. `options` are those of a new study."""
    prepared = prepare.prepare(config, space, progress.note, options)
    with prepared.runner:
        yield replace(prepared, space=fit_to_base(prepared.space, config.base, prepared.facts))


def _run(
    store: Store, crew: Crew, record: StudyRecord, config: RunConfig, ready: prepare.Prepared,
    progress: Progress,
) -> Summary:  # fmt: skip
    limits = study_limits(record)
    mode = _loss_mode(config, ready.space)
    judge = loss_check.make_judge(partial(labelled, store), config.workload.precision, mode)
    earlier = unseen(store, record.name, set())
    foresight = foresight_for(config, ready.facts, ready.space, _profile(store, config), earlier)
    guess = guesses_for(config, ready.facts, foresight)
    apart = config.sampler == STRATEGY and not crew.shared
    first, late = first_and_last(ready.space.baselines(), guess if apart else by_itself)
    with crew.turn():
        study = Study(store, record.name, ready.space, limits=limits, seed=config.seed,
                      sampler=config.sampler, judge=judge, guess=guess)  # fmt: skip
        search = Search(config=config, store=store, study=study, facts=ready.facts, ops=ready.ops,
                        runner=ready.runner, watcher=progress, crew=crew, judge=judge,
                        foresight=foresight, late=late)  # fmt: skip
        study.heed(store.repeats.of(record.name))
        search.repair()
        keep_ending(store, record.name, None)
        if config.base is not None:
            study.enqueue_as_is(AS_IS_LABEL)
        for label, point in first:
            study.enqueue(point, "baseline", label)
    notes = [*_notes(config, ready), *_busy(), *_beside_others(crew)]
    progress.start(record, limits, best=study.best(), done=study.measured_count(), time_limit_s=config.time_s,
                   notes=notes)  # fmt: skip
    conclude(Finals(search=search, space=ready.space, limits=limits, own_label=AS_IS_LABEL))
    with crew.turn():
        summary = read_summary(store, record)
        keep_effects(store, summary)
    return summary


def _profile(store: Store, config: RunConfig) -> HardwareProfile:
    """The profile predictions start from: of this machine where it was calibrated, else the packaged one."""
    return profile_here(store, config.device, hardware.detect(), config.gpus)


def _beside_others(crew: Crew) -> list[str]:
    others = crew.others()
    return [f"Other workers in this database: {others}. Trials and target are shared."] if others else []


def _loss_mode(config: RunConfig, space: Space) -> loss_check.Mode:
    if not config.loss_check:
        return "off"
    if space.changes_result:
        return "note"
    return "script" if config.workload.command is not None else "judge"


def _notes(config: RunConfig, ready: prepare.Prepared) -> list[str]:
    """What the person should know of this study: what was left out, and whether losses are judged."""
    losses = loss_check.NOTES.get(_loss_mode(config, ready.space))
    return [*ready.space.notes, *ready.notes, *([losses] if losses else [])]


def _busy() -> list[str]:
    """A warning where others use the machine: their work scatters the step times of ours."""
    load = host.load_per_core()
    if load < _BUSY_LOAD_PER_CORE:
        return []
    return [f"Others use this machine (load {load:.1f} per core): step times will scatter."]


def _free_name(store: Store, name: str | None) -> str:
    taken = [record.name for record in store.studies()]
    if name is None:
        return new_study_name(taken)
    if name in taken:
        raise UsageError(
            f"--study: there is a study '{name}' already.", f"Go on with it: offtune resume {name}"
        )
    return name


def _record(name: str, config: RunConfig, ready: prepare.Prepared, profile: HardwareProfile) -> StudyRecord:
    extra = {
        "peaks": as_dict(machine_peaks(profile, config)),
        "versions": prepare.recorded_versions(),
        "space_digest": ready.space.digest(),
        "notes": _notes(config, ready),
    }
    return StudyRecord(
        name=name,
        created_at=utc_now(),
        settings={**as_dict(config), **extra},
        target_trials=config.trials,
        model=config.workload.model_name,
        device=config.device,
        budget_bytes=config.budget_bytes,
    )


def stored_config(record: StudyRecord) -> RunConfig:
    """The settings a study was started with."""
    names = {field.name for field in fields(RunConfig)}
    kept = {key: value for key, value in record.settings.items() if key in names}
    return load(RunConfig, json.dumps(kept))


def _with_gpus_here(config: RunConfig) -> RunConfig:
    """The same number of GPUs, as they are numbered here; of which kind they are is compared later."""
    return replace(config, gpus=visible_gpus(hardware.detect(), config.gpus))


def _changed(config: RunConfig, changes: Changes) -> RunConfig:
    # A target given anew is meant.
    wanted: dict[str, Any] = {"trials": changes.trials, "time_s": changes.time_s,
                              "until_converged": None if changes.trials is None else False}  # fmt: skip
    return replace(config, **{key: value for key, value in wanted.items() if value is not None})


def _refuse_differences(record: StudyRecord, config: RunConfig, changes: Changes) -> None:
    """A figure measured elsewhere cannot be ranked beside one measured here."""
    here = hardware.fingerprint(hardware.detect(), config.device, config.gpus)
    found = [*_differences("machine", config.machine, here)]
    found += _differences("version of", record.settings.get("versions") or {}, prepare.recorded_versions())
    own = config.workload.command
    if changes.command is not None and changes.command != (own.arguments if own is not None else None):
        made_for = shlex.join(own.arguments) if own is not None else f"the built-in {record.model}"
        raise StudyMismatch(
            f"Study '{record.name}' was made for {made_for}, not {shlex.join(changes.command)}.",
            "Leave the command out of a resume, or start a new study.",
        )
    if changes.budget_bytes is not None and changes.budget_bytes != config.budget_bytes:
        raise StudyMismatch(
            f"Study '{record.name}' was made for a budget of {format_bytes(config.budget_bytes)}, "
            f"not {format_bytes(changes.budget_bytes)}.",
            "Start a new one for another budget; offtune export --budget picks from this one.",
        )
    if found and not changes.anyway:
        raise StudyMismatch(
            f"Study '{record.name}' was made under other conditions: {'; '.join(found)}.",
            "Resume it there, start a new one here, or say --anyway to mix figures that may not compare.",
        )


def _refuse_other_space(record: StudyRecord, space: Space) -> None:
    if record.settings.get("space_digest") != space.digest():
        raise StudyMismatch(
            f"Study '{record.name}' searched another space: the file of '{space.name}', an op or the "
            "workload has changed.",
            "Restore it, or start a new study.",
        )


def _differences(what: str, before: dict[str, str], now: dict[str, str]) -> list[str]:
    names = [*before, *(name for name in now if name not in before)]
    return [
        f"{what} {name}: {before.get(name, 'none')} then, {now.get(name, 'none')} now"
        for name in names
        if before.get(name) != now.get(name)
    ]
