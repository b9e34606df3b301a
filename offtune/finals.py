"""The finals: the best of a search and the best baseline, trained again in turn until one is the winner.

Covered: who takes part, the rounds (A B C, B C A, ...), the longer run that confirms the winner, and how an
interruption at any moment is taken up again. Not covered: judging what was measured (`winner.py`). Where
several workers share a study, one of them holds the finals.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import median

from offtune import rounds, scratch, winner
from offtune.config import RunConfig
from offtune.devices import free_gpus
from offtune.finals_notes import keep, kept, line, opening
from offtune.lock import Owner
from offtune.records import SIMPLER_LABEL, Limits, Run, best_run, is_baseline, is_measured, rank
from offtune.repeats import Outcome, Plan, Repeat, used_bytes_of
from offtune.search import Search
from offtune.space import Space
from offtune.store_standings import briefs
from offtune.trial import Status, TrialResult, TrialSpec
from offtune.trial_length import CONFIRMATION_STEPS, REPEAT_STEPS, confirmation_rule, repeat_rule

# Of the trial's deadline: a confirmation that runs into it would speak against the wrong thing.
_DEADLINE_SHARE = 0.5
# So often the next best takes the place of what did not hold; after that the machine is not to be trusted.
_MOST_STAND_INS = 3
_STOPPED = TrialResult(status=Status.INTERRUPTED, reason="offtune was stopped before it ended.")


@dataclass(slots=True, kw_only=True)
class Finals:
    """The finals of a study whose search has ended; `own_label` is what the person's own file is called."""

    search: Search
    space: Space
    limits: Limits
    own_label: str

    def run(self) -> Outcome | None:
        """Hold the finals, or go on with them. None where there is nothing to decide, or another worker does.

        Raises Interrupted when the person stops them; every repeat so far is kept.
        """
        if not self.search.config.finals or not self._claim():
            return None
        self._clear_leftovers()
        self._wait_for_others()
        plan = self._known_plan() or self._new_plan()
        if plan is None:
            return None
        before = kept(self.search.store, self._study, Outcome)
        if before is not None and before.plan == plan and before.confirmed_steps is not None:
            return before
        self._say(opening(plan))
        self._play(plan)
        plan = self._confirm(plan)
        outcome = self._outcome(plan)
        with self.search.crew.turn():
            keep(self.search.store, self._study, outcome)
        return outcome

    def _claim(self) -> bool:
        """Whether the finals are ours; another worker that has them and lives keeps them."""
        crew = self.search.crew
        with crew.turn():
            owner = kept(self.search.store, self._study, Owner)
            if crew.shared and owner is not None and owner != crew.owner and crew.is_alive(owner):
                self.search.watcher.note("Another worker holds the finals.")
                return False
            keep(self.search.store, self._study, crew.owner)
        return True

    def _clear_leftovers(self) -> None:
        """End the repeats that a dead process left under way; they are made again."""
        for repeat in self._repeats():
            if repeat.status is None:
                self._finish(repeat, _STOPPED)

    def _wait_for_others(self) -> None:
        """Until the last trials of other workers have ended: beside them no speed could be told."""
        search = self.search
        while search.crew.shared and any(
            run.study == self._study and run.owner and search.crew.is_alive(run.owner)
            for run in search.store.under_way()
        ):
            search.pause()

    def _known_plan(self) -> Plan | None:
        """The plan of finals that were begun; None where the study has grown since then."""
        plan = kept(self.search.store, self._study, Plan)
        return plan if plan is not None and plan.measured == self.search.study.measured_count() else None

    def _new_plan(self) -> Plan | None:
        before = self._new_ranking()
        if not before:
            return None
        simple = self._simplified(before)
        ranking = self._new_ranking()
        found = winner.contenders(ranking, self.own_label, self._defaults, self.limits)
        names = [run.number for run in found]
        simple = simple if simple in names else None
        baseline = winner.best_baseline(ranking, self.own_label)
        earlier = kept(self.search.store, self._study, Plan)
        plan = Plan(
            finals=earlier.finals + 1 if earlier else 1,
            measured=self.search.study.measured_count(),
            contenders=tuple(names),
            baseline=baseline.number if baseline else None,
            simplified=simple,
            simple_of=before[0].number if simple is not None else None,
        )
        with self.search.crew.turn():
            keep(self.search.store, self._study, plan)
        return plan

    def _simplified(self, ranking: Sequence[Run]) -> int | None:
        """The run of the best one's simpler variant, trained if need be; None where there is none."""
        point = winner.simpler_point(ranking[0], ranking, self._defaults)
        if point is None or self._time_is_up():
            return None
        self.search.try_point(point, SIMPLER_LABEL)
        found = next((run for run in reversed(self._runs()) if run.point == point), None)
        if found is None:
            return None
        return found.number if found.reuse_of is None else found.reuse_of

    def _play(self, plan: Plan) -> None:
        self._try_tight(plan)
        # A round that was broken off is not taken up again: by now the machine may be in another state.
        last = max((each.round for each in self._repeats() if each.finals == plan.finals), default=0)
        for number in range(last + 1, last + 1 + rounds.MOST_ROUNDS):
            names = rounds.next_round(self._rounds(plan), self._names(plan))
            if not names:
                return
            for name in winner.rotated(names, number):
                if self._time_is_up():
                    return
                self._repeat(self._spec(name), plan, name, number)

    def _try_tight(self, plan: Plan) -> None:
        """Train the fastest longer first where it leaves little room: rounds with what fails are lost."""
        while True:
            names = self._names(plan)
            lead = next((run for run in self._ranking() if run.number in names), None)
            if lead is None or not winner.is_tight(lead, self.limits) or self._time_is_up():
                return
            if self._confirmation(plan, lead.number) is not None:
                return
            self._repeat(self._longer_spec(lead.number), plan, lead.number, 0)

    def _confirm(self, plan: Plan) -> Plan:
        """Train the winner longer; where it does not hold the next one is chosen, and trained longer."""
        while True:
            plan = self._with_stand_in(plan)
            chosen = self._choice(plan)[0]
            if chosen is None or self._confirmation(plan, chosen) is not None or self._time_is_up():
                return plan
            self._repeat(self._longer_spec(chosen), plan, chosen, 0)

    def _with_stand_in(self, plan: Plan) -> Plan:
        """The plan, with the next best run where nothing that the search found has held so far."""
        found = [run for run in self._ranking() if not is_baseline(run)]
        failed = {each.run for each in winner.rejected_of(self._repeats(), plan)}
        rejected = failed.intersection(plan.contenders)
        held = any(run.number in plan.contenders and run.number not in failed for run in found)
        new = winner.stand_in(found, plan, self._repeats())
        if held or new is None or len(rejected) > _MOST_STAND_INS or self._time_is_up():
            return plan
        plan = replace(plan, contenders=(*plan.contenders, new.number))
        with self.search.crew.turn():
            keep(self.search.store, self._study, plan)
        self._play(plan)
        return plan

    def _outcome(self, plan: Plan) -> Outcome:
        chosen, tied = self._choice(plan)
        held = self._rounds(plan)
        others = [name for name in plan.contenders if name != chosen]
        confirmed = self._confirmation(plan, chosen)
        return Outcome(
            plan=plan,
            winner=chosen,
            rounds=len(held),
            ratios=winner.ratios_over(held, chosen, others) if chosen is not None else (),
            tied=tied,
            rejected=winner.rejected_of(self._repeats(), plan),
            confirmed_steps=len(confirmed.step_s) if confirmed else None,
            confirmed_samples_per_s=confirmed.samples_per_s if confirmed else None,
            used_bytes=used_bytes_of(self._repeats(), chosen),
        )

    def _choice(self, plan: Plan) -> tuple[int | None, tuple[int, ...]]:
        runs = {run.number: run for run in self._runs()}
        return winner.choose(self._rounds(plan), self._names(plan), runs, self._defaults)

    def _names(self, plan: Plan) -> list[int]:
        """The contenders that hold and may still win, and the baseline."""
        rejected = {each.run for each in winner.rejected_of(self._repeats(), plan)}
        holding = [name for name in plan.contenders if name not in rejected]
        return rounds.still_in(self._rounds(plan), holding, plan.baseline)

    def _confirmation(self, plan: Plan, name: int | None) -> TrialResult | None:
        """The longer run of a contender, where it was made to its end and held."""
        sought = (plan.finals, "confirmation", name, Status.OK)
        for each in self._repeats():
            if (each.finals, each.kind, each.run, each.status) == sought:
                return each.result
        return None

    def _repeat(self, spec: TrialSpec, plan: Plan, name: int, number: int) -> None:
        """Train a contender once more; written down before and after."""
        search, run = self.search, self.search.store.run(self._study, name)
        repeat = Repeat(
            study=self._study, number=len(self._repeats()), finals=plan.finals, round=number, run=name,
            kind="repeat" if number else "confirmation", owner=search.crew.owner, trial_dir=spec.trial_dir,
            swap_dir=spec.swap_dir, token=spec.token,
        )  # fmt: skip
        with search.crew.turn():
            search.store.repeats.add(repeat)
        search.watcher.begin(run)
        try:
            result = search.runner(spec)
        except KeyboardInterrupt:
            self._finish(repeat, _STOPPED)
            raise search.stopped() from None
        result = self._finish(repeat, search.judge(run, result))
        self._say(line(repeat, run, result))

    def _finish(self, repeat: Repeat, result: TrialResult) -> TrialResult:
        with self.search.crew.turn():
            self.search.store.repeats.finish(self._study, repeat.number, result)
            scratch.remove_trial(repeat.trial_dir, repeat.swap_dir, repeat.token)
        return result

    def _spec(self, name: int) -> TrialSpec:
        search = self.search
        spec = search.spec_of(search.store.run(self._study, name), self._gpus())
        steps = min(spec.steps, REPEAT_STEPS) if spec.stop else spec.steps
        return replace(spec, steps=steps, stop=repeat_rule(spec.stop, steps), record=False)

    def _longer_spec(self, name: int) -> TrialSpec:
        """Of the same batches, all of full length, at the same limits; ended where it does not hold."""
        spec = self._spec(name)
        result = self.search.store.run(self._study, name).result
        step_s = median(result.step_s) if result and result.step_s else 0.0
        most = int(_DEADLINE_SHARE * spec.deadline_s / step_s) if step_s else CONFIRMATION_STEPS
        steps = max(spec.steps, min(CONFIRMATION_STEPS, most))
        return replace(spec, steps=steps, stop=confirmation_rule(spec.steps))

    def _gpus(self) -> tuple[int, ...]:
        """Ours, or free ones of their kind; where others have them all, the two have to share."""
        search = self.search
        config: RunConfig = search.config
        if not search.crew.shared:
            return config.gpus
        taken = {name for run in search.store.under_way() if run.owner for name in run.owner.devices}
        return free_gpus(search.machine, config.device, config.gpus, taken) or config.gpus

    def _time_is_up(self) -> bool:
        limit = self.search.config.time_s
        return limit is not None and time.monotonic() - self.search.started >= limit

    def _ranking(self) -> list[Run]:
        fitting = [run for run in self._runs() if is_measured(run) and best_run((run,), self.limits)]
        return sorted(fitting, key=rank)

    def _new_ranking(self) -> list[Run]:
        """Without the runs that did not hold in earlier finals."""
        failed = {each.run for each in self._repeats() if each.fault}
        return [run for run in self._ranking() if run.number not in failed]

    def _rounds(self, plan: Plan) -> list[dict[int, float]]:
        return winner.rounds_of(self._repeats(), plan)

    def _repeats(self) -> list[Repeat]:
        return self.search.store.repeats.of(self._study)

    def _runs(self) -> list[Run]:
        return briefs(self.search.store, self._study)

    @property
    def _study(self) -> str:
        return self.search.study.name

    @property
    def _defaults(self) -> dict[str, object]:
        return {knob.name: knob.default for knob in self.space.knobs}

    def _say(self, text: str) -> None:
        if text:
            self.search.watcher.note(text)
