"""The search: ask for a point, train it, store it, tell; until the target is reached or time is up.

Covered: the loop and the order in which things are written, so that an interruption at any moment loses at
most the trial under way. Where several workers share a study, everything but the training happens in turns
(`crew.py`). Not covered: which point comes next (`study.py`), how a trial runs (`runner.py`).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

from offtune import ds_config, hardware, scratch
from offtune.alike import Alike
from offtune.baseline_order import Labelled
from offtune.config import RunConfig
from offtune.convergence import STRATEGY
from offtune.crew import Alone, Crew
from offtune.devices import device_names
from offtune.ending import Ending, keep_ending
from offtune.errors import Interrupted, NothingTrains
from offtune.foresight import QUEUED, Foresight
from offtune.knob_workload import same_training
from offtune.lock import is_same_machine
from offtune.outlook import Outlook, look
from offtune.records import QUEUED_LABEL, Judge, Run, as_it_is
from offtune.store import Store
from offtune.store_standings import latest_steps, unseen
from offtune.study import Proposal, Repair, Study
from offtune.trial import DsConfig, Facts, Point, Status, TrialResult, TrialSpec
from offtune.trial_spec import Before, trial_spec

# After so many proposals in a row that need no training, what is left of the space is a corner.
_FRUITLESS_LIMIT = 100
# How often a waiting worker looks again; after each trial a worker lets the waiting ones look first.
_POLL_S = 0.3
_YIELD_S = 2 * _POLL_S
# Of --time: the finals of a search that ends by time get this part.
FINALS_SHARE = 0.2


class Watcher(Protocol):
    """Who is told what happens; the terminal, or nobody."""

    def begin(self, run: Run) -> None: ...

    def trial(self, run: Run, best: Run | None, *, done: int | None = None) -> None: ...

    def note(self, text: str) -> None: ...


@dataclass(slots=True, kw_only=True)
class Search:
    """One search under way; the caller holds the study's lock. `runner`: any TrialSpec -> TrialResult.

    `crew` are the workers of the study; with others among them, targets and devices are shared.
    """

    config: RunConfig
    store: Store
    study: Study
    facts: Facts
    ops: tuple[str, ...]
    runner: Callable[[TrialSpec], TrialResult]
    watcher: Watcher
    crew: Crew = field(default_factory=Alone)
    machine: hardware.Machine = field(default_factory=hardware.detect)
    judge: Judge = as_it_is
    started: float = field(default_factory=time.monotonic)
    fruitless: int = 0
    said: set[str] = field(default_factory=set)
    foresight: Foresight | None = None
    crashes: Alike = field(default_factory=Alike)
    late: Sequence[Labelled] = ()  # baselines to be measured last

    def run(self) -> Ending:
        """Go on to the study's target; returns why it ended.

        Raises Interrupted when the person stops it, NothingTrains when that is all it would find out.
        """
        while (reason := self._over()) is None or (reason.kind != "time" and self._queue_late()):
            if self.config.trials - self.study.measured_count() <= len(self.late):
                self._queue_late()
            self._queue_predicted()
            self._next()
            self._stop_if_all_crash_alike()
        return reason

    def _stop_if_all_crash_alike(self) -> None:
        if (reason := self.crashes.reason) is None:
            return
        runs = self.store.runs(self.study.name)  # before a resume, or by another worker
        if any(run.result is not None and run.result.samples_per_s is not None for run in runs):
            self.crashes.trained = True
            return
        said = f"Nothing trains: {self.crashes.count} trials crashed alike, whatever their configuration."
        keep_ending(self.store, self.study.name, Ending(kind="crashes", text=said))
        raise NothingTrains(
            f"{said} {reason}",
            f"The log: offtune show {self.study.name} --trial {self.crashes.last}. When it is mended, search "
            f"anew, or go on: offtune resume {self.study.name}",
        )

    def repair(self) -> None:
        """Put right what a dead process left half done, and remove its scratch."""
        for repair in self.study.reconcile(self.crew):
            run = repair.run
            if run is not None and run.reuse_of is None and (run.owner is None or is_same_machine(run.owner)):
                scratch.remove_trial(run.trial_dir, run.swap_dir, run.token)
            self.watcher.note(_REPAIRED[repair.action].format(number=repair.number) + _again(repair))

    def _over(self) -> Ending | None:
        measured = self.study.measured_count()
        if measured >= self.config.trials:
            return Ending(kind="target", text=f"{measured} trials measured, as asked.")
        kept_free = FINALS_SHARE if self.config.finals else 0.0
        limit = self.config.time_s
        if limit is not None and time.monotonic() - self.started >= (1 - kept_free) * limit:
            return Ending(kind="time", text=f"The time is up after {measured} trials.")
        if self.fruitless >= _FRUITLESS_LIMIT:
            proposals = f"Of {self.fruitless} proposals in a row none was new and could fit"
            return Ending(kind="exhausted", text=f"{proposals}: the space is exhausted.")
        reason = self.study.converged(len(self.late)) if self.config.until_converged else None
        return None if reason is None else Ending(kind="converged", text=reason)

    def _next(self) -> None:
        """One proposal, trained if need be; or a pause while only others can go on."""
        with self.crew.turn():
            if self.crew.shared:
                self.repair()
            view = look(self.store, self.crew, self.study.name, self.config, self.machine)
            self._say_once(view.note)
            work = None if view.wait else self._propose(view)
        if work is not None:
            self._train(*work)
        elif view.wait:
            self.pause()

    def _propose(self, view: Outlook) -> tuple[TrialSpec, Run] | None:
        """The next point, claimed for this worker; None when it needs no training."""
        self._queue_predicted()
        proposal = self.study.ask()
        config = ds_config.build(self.config.under_points, proposal.point, self.facts, self.config.nvme_path)
        effective = ds_config.fingerprint(config, self.facts)
        fingerprint = same_training(effective, proposal.point, self.facts.workload)
        run = self._run(proposal, config, fingerprint)
        self.fruitless += 1
        if (earlier := self.store.find_measured(self.study.name, fingerprint)) is not None:
            self.study.reuse(proposal.number, earlier)
        elif (twin := view.twin(self.study.name, fingerprint)) is not None:
            self.study.wait_for_twin(replace(run, reuse_of=twin))
        elif problems := ds_config.problems(config, self.facts):
            self._refuse(run, TrialResult(status=Status.INVALID, reason=" ".join(problems)))
        elif (hopeless := self._hopeless(proposal, config)) is not None:
            self._refuse(run, hopeless)
        else:
            self.fruitless = 0
            return self._claim(run, view.gpus)
        return None

    def try_point(self, point: Point, label: str) -> None:
        """Train one more point after the search, whatever the target; not while others are queued."""
        with self.crew.turn():
            if self.study.waiting():
                return
            self.study.enqueue(point, "search", label)
            work = self._propose(Outlook(gpus=self.config.gpus)) if self.study.waiting() else None
        if work is not None:
            self._train(*work)

    def _queue_late(self) -> bool:
        """Queue the baselines that were left for the end; whether there were any."""
        queued, self.late = self.late, ()
        for label, point in queued:
            self.study.enqueue(point, "baseline", label)
        if queued:
            self.fruitless = 0
        return bool(queued)

    def _queue_predicted(self) -> None:
        """Once nothing is queued any more, so after the baselines: the points that look best."""
        if self.config.sampler == STRATEGY:  # which predicts for itself
            return
        if self.foresight is None or not self.foresight.ready or self.study.waiting():
            return
        if QUEUED_LABEL in self.store.notes(self.study.name):
            return
        left = self.config.trials - self.study.measured_count()
        found = self.foresight.best(min(QUEUED, max(1, left // 2)))
        for point in found:
            self.study.enqueue(point, "search", QUEUED_LABEL)
        self.store.note(self.study.name, QUEUED_LABEL, len(found))

    def _hopeless(self, proposal: Proposal, config: DsConfig) -> TrialResult | None:
        if self.foresight is None or proposal.origin != "search":
            return None
        return self.foresight.hopeless(config, proposal.point)

    def _refuse(self, run: Run, result: TrialResult) -> None:
        """Tell a point that DeepSpeed would reject, or that cannot fit, as infeasible, without running it."""
        run = self.store.add_run(replace(run, ran=False, result=result))
        self.study.tell(run.number, result)
        self._show(run)

    def _claim(self, run: Run, gpus: tuple[int, ...]) -> tuple[TrialSpec, Run]:
        """The trial of a run, written down as ours and under way."""
        spec = self.spec_of(run, gpus)
        owner = replace(self.crew.owner, devices=device_names(self.machine, self.config.device, gpus))
        run = replace(run, owner=owner, trial_dir=spec.trial_dir, swap_dir=spec.swap_dir, token=spec.token)
        return spec, self.store.add_run(run)

    def _train(self, spec: TrialSpec, run: Run) -> None:
        forecast = self.foresight.forecast(run.ds_config, run.point) if self.foresight else None
        self.watcher.begin(run)
        try:
            result = replace(self.runner(spec), forecast=forecast)
        except KeyboardInterrupt:
            with self.crew.turn():
                self.study.abandon(run.number)
                scratch.remove_trial(spec.trial_dir, spec.swap_dir, spec.token)
            raise self.stopped() from None
        with self.crew.turn():
            result = self.judge(run, result)
            kept = self._keep(run, result)
            scratch.remove_trial(spec.trial_dir, spec.swap_dir, spec.token)
            if kept:
                run = replace(run, status=result.status, result=result)
                self.crashes.see(run)
                self._show(run)
        if self.crew.others():
            self.pause(_YIELD_S)

    def _keep(self, run: Run, result: TrialResult) -> bool:
        """Write a trial's result, unless it was taken over while we could not be seen."""
        if self.crew.shared and self.store.run(self.study.name, run.number).status is not None:
            self.watcher.note(f"Trial {run.number} was taken over meanwhile; its result is not kept.")
            return False
        # Row before tell: whatever happens between the two is repaired when the study is opened again. The
        # scratch goes last: it holds the result for the case that the database cannot take it.
        self.store.finish_run(self.study.name, run.number, result)
        self.study.keep_recording(run, result)
        self.study.tell(run.number, result)
        if self.crew.shared:
            self.study.reconcile(self.crew)  # who waits for this very result has it now
        if self.foresight is not None:
            self.foresight.learn(unseen(self.store, self.study.name, self.foresight.seen))
        return True

    def _show(self, run: Run) -> None:
        done = self.study.measured_count() if self.crew.shared else None
        self.watcher.trial(run, self.study.best(), done=done)

    def pause(self, seconds: float = _POLL_S) -> None:
        """Wait for other workers; Ctrl-C ends the search here, too."""
        try:
            time.sleep(seconds)
        except KeyboardInterrupt:
            raise self.stopped() from None

    def stopped(self) -> Interrupted:
        """What to raise when the person stops the search."""
        return Interrupted("Stopped; every finished trial is kept.", f"offtune resume {self.study.name}")

    def _say_once(self, text: str) -> None:
        if text and text not in self.said:
            self.said.add(text)
            self.watcher.note(text)

    def _run(self, proposal: Proposal, config: DsConfig, fingerprint: str) -> Run:
        return Run(
            study=self.study.name,
            number=proposal.number,
            origin=proposal.origin,
            label=proposal.label,
            point=proposal.point,
            ds_config=config,
            fingerprint=fingerprint,
        )

    def spec_of(self, run: Run, gpus: tuple[int, ...]) -> TrialSpec:
        """What the runner is given for a run, with scratch of its own."""
        before = Before(best=self.study.best(), steps_s=latest_steps(self.store, self.study.name))
        return trial_spec(run, self.config, self.facts, self.ops, gpus, before)


_REPAIRED = {
    "told": "Trial {number} had ended; the sampler now knows.",
    "recovered": "Trial {number} had ended; its result was recovered.",
    "interrupted": "Trial {number} was interrupted",
    "dropped": "Trial {number} had not started",
}


def _again(repair: Repair) -> str:
    if repair.action not in ("interrupted", "dropped"):
        return ""
    return "; it is tried again." if repair.again else "."
