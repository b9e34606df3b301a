"""The search: ask for a point, train it, store it, tell; until the target is reached or time is up.

Covered: the loop and the order in which things are written, so that an interruption at any moment loses at
most the trial under way. Not covered: which point comes next (`study.py`), how a trial runs (`runner.py`).
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Protocol

from offtune import ds_config, prepare, scratch
from offtune.config import RunConfig
from offtune.ds_zero import placement_text
from offtune.errors import Interrupted
from offtune.foresight import QUEUED, QUEUED_LABEL, Foresight
from offtune.records import Run
from offtune.store import Store
from offtune.study import Proposal, Repair, Study
from offtune.trial import DsConfig, Facts, Status, TrialResult, TrialSpec

# After so many proposals in a row that need no training, what is left of the space is a corner.
_FRUITLESS_LIMIT = 100


class Watcher(Protocol):
    """Who is told what happens; the terminal, or nobody."""

    def begin(self, run: Run) -> None: ...

    def trial(self, run: Run, best: Run | None) -> None: ...

    def note(self, text: str) -> None: ...


@dataclass(slots=True, kw_only=True)
class Search:
    """One search under way; the caller holds the study's lock. `runner`: any TrialSpec -> TrialResult."""

    config: RunConfig
    store: Store
    study: Study
    facts: Facts
    ops: tuple[str, ...]
    runner: Callable[[TrialSpec], TrialResult]
    watcher: Watcher
    started: float = field(default_factory=time.monotonic)
    fruitless: int = 0
    foresight: Foresight | None = None

    @property
    def _base(self) -> DsConfig:
        """The ds_config that points are laid over: the person's file and what their script fixes."""
        command = self.config.workload.command
        own = self.config.base.ds_config if self.config.base else {}
        return own if command is None else {**own, **command.settings}

    def run(self) -> str:
        """Go on to the study's target; returns why it ended. Raises Interrupted when the person stops it."""
        while (reason := self._over()) is None:
            self._queue_predicted()
            self._next()
        return reason

    def repair(self) -> None:
        """Put right what a dead process left half done, and remove its scratch."""
        for repair in self.study.reconcile():
            if repair.run is not None:
                scratch.remove_trial(repair.run.trial_dir, repair.run.swap_dir, repair.run.token)
            self.watcher.note(_REPAIRED[repair.action].format(number=repair.number) + _again(repair))

    def _over(self) -> str | None:
        measured = self.study.measured_count()
        if measured >= self.config.trials:
            return f"{measured} trials measured, as asked."
        if self.config.time_s is not None and time.monotonic() - self.started >= self.config.time_s:
            return f"The time is up after {measured} trials."
        if self.fruitless >= _FRUITLESS_LIMIT:
            return (
                f"Of {self.fruitless} proposals in a row none was new and could fit: the space is exhausted."
            )
        return None

    def _next(self) -> None:
        proposal = self.study.ask()
        config = ds_config.build(self._base, proposal.point, self.facts, self.config.nvme_path)
        fingerprint = ds_config.fingerprint(config, self.facts)
        twin = self.store.find_measured(self.study.name, fingerprint)
        if twin is not None:
            self.study.reuse(proposal.number, twin)
            self.fruitless += 1
        elif problems := ds_config.problems(config, self.facts):
            result = TrialResult(status=Status.INVALID, reason=" ".join(problems))
            self._refuse(proposal, config, fingerprint, result)
        elif (hopeless := self._hopeless(proposal, config)) is not None:
            self._refuse(proposal, config, fingerprint, hopeless)
        else:
            self.fruitless = 0
            self._train(proposal, config, fingerprint)

    def _queue_predicted(self) -> None:
        """Once nothing is queued any more, so after the baselines: the points that look best."""
        if self.foresight is None or self.study.waiting():
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
        return self.foresight.hopeless(config)

    def _refuse(self, proposal: Proposal, config: DsConfig, fingerprint: str, result: TrialResult) -> None:
        """Tell a point that DeepSpeed would reject, or that cannot fit, as infeasible, without running it."""
        self.fruitless += 1
        run = self.store.add_run(replace(self._run(proposal, config, fingerprint), ran=False, result=result))
        self.study.tell(proposal.number, result)
        self.watcher.trial(run, self.study.best())

    def _train(self, proposal: Proposal, config: DsConfig, fingerprint: str) -> None:
        spec = self._spec(proposal, config)
        run = self._run(proposal, config, fingerprint)
        run = self.store.add_run(
            replace(run, trial_dir=spec.trial_dir, swap_dir=spec.swap_dir, token=spec.token)
        )
        forecast = self.foresight.predict(config).forecast if self.foresight else None
        self.watcher.begin(run)
        try:
            result = replace(self.runner(spec), forecast=forecast)
        except KeyboardInterrupt:
            self.study.abandon(proposal.number)
            scratch.remove_trial(spec.trial_dir, spec.swap_dir, spec.token)
            raise Interrupted(
                "Stopped; every finished trial is kept.", f"offtune resume {self.study.name}"
            ) from None
        # Row before tell: whatever happens between the two is repaired when the study is opened again. The
        # scratch goes last: it holds the result for the case that the database cannot take it.
        self.store.finish_run(self.study.name, proposal.number, result)
        self.study.tell(proposal.number, result)
        scratch.remove_trial(spec.trial_dir, spec.swap_dir, spec.token)
        if self.foresight is not None:
            self.foresight.learn(self.store.runs(self.study.name))
        self.watcher.trial(replace(run, status=result.status, result=result), self.study.best())

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

    def _spec(self, proposal: Proposal, config: DsConfig) -> TrialSpec:
        swap_dir = None
        if self.config.nvme_path is not None and "nvme" in placement_text(config):
            swap_dir = str(scratch.make_swap_dir(self.config.nvme_path, self.study.name, proposal.number))
        return TrialSpec(
            **prepare.spec_fields(self.config, self.ops),
            study=self.study.name,
            number=proposal.number,
            ds_config=ds_config.build(self._base, proposal.point, self.facts, swap_dir),
            trial_dir=str(scratch.make_trial_dir(self.study.name, proposal.number)),
            swap_dir=swap_dir,
            token=scratch.new_token(),
        )


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
