"""One study as a conversation: ask for a point, tell what came of it.

Covered: keeping our rows and Optuna's trials in step, reusing results, repairing what a killed process left
half done. The row of a run is finished before Optuna is told, so what is missing after a crash can be told
again. Not covered: sampling (`sampling.py`), running trials. The caller holds `Store.lock` and, where several
workers share a study, makes each call in a turn of its own (`Crew.turn`).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from offtune.beliefs import Guesser, by_itself
from offtune.convergence import STRATEGY, converged
from offtune.crew import Alone, Crew
from offtune.errors import StoreError
from offtune.lock import refusal
from offtune.recording import read_timelines
from offtune.records import Judge, Limits, Origin, Run, as_it_is, is_measured
from offtune.repeats import Repeat
from offtune.sampling import AS_IS, EXPECTED_GAIN, REPEAT_NOISE, Draw, Sampling
from offtune.sampling_strategy import NOISE_ATTRIBUTE, SPEED_ATTRIBUTE
from offtune.score import score
from offtune.spread import relative_spread
from offtune.store import Store
from offtune.store_standings import best_of
from offtune.strategy import Strategy
from offtune.trial import Point, Status, TrialResult, load
from offtune.trouble import retrying

if TYPE_CHECKING:
    from offtune.space import Space

# In a run's trial_dir: the TrialResult, written before the row, for when the database cannot take it.
RESULT_FILE = "result.json"
# A point that brought offtune down twice (say, by taking the machine with it) is not tried a third time.
_CRASHES_TO_GIVE_UP = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Proposal:
    """A point to try, under the number its run will have; an empty point is the base as it is."""

    number: int
    point: Point
    origin: Origin
    label: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Repair:
    """What was done about one trial that a dead process left.

    `told`: its row was finished, Optuna now knows; `recovered`: its result was in the trial's folder;
    `interrupted`: it had not ended; `dropped`: it had not started. `run` is its row as found: what is left in
    its `trial_dir` and `swap_dir` and under its `token` can be removed. `again`: its point is queued again.
    """

    number: int
    action: Literal["told", "recovered", "interrupted", "dropped"]
    run: Run | None
    again: bool = False


class Study:
    """A study's points and runs; maximises samples per second within `limits`.

    `guess` says what is known of a point before it is tried, to the sampler 'offtune'.
    """

    def __init__(
        self,
        store: Store,
        name: str,
        space: Space,
        *,
        limits: Limits,
        seed: int,
        sampler: str = "tpe",
        judge: Judge = as_it_is,
        guess: Guesser = by_itself,
    ) -> None:
        self.name = name
        self._store = store
        self._space = space
        self._limits = limits
        self._judge = judge
        strategy = Strategy(space=space, guess=guess) if sampler == STRATEGY else None
        self._sampling = Sampling(store, name, seed=seed, sampler=sampler, strategy=strategy)
        self._failed: set[int] = set()  # runs that did not hold when they were trained again
        self._gains_before = 0  # expected when these had not failed yet

    def ask(self) -> Proposal:
        """The next point to try: a queued one, or one from the sampler."""
        draw, point = self._sampling.ask(self._space)
        return Proposal(number=draw.number, point=point, origin=draw.origin, label=draw.label)

    def enqueue(self, point: Point, origin: Origin, label: str) -> None:
        """Queue a point (what it leaves open gets its default), once: also after a resume."""
        whole = self._space.complete(point)
        raw = {knob.name: knob.raw(whole[knob.name]) for knob in self._space.knobs if knob.name in whole}
        self._sampling.queue(raw, {"origin": origin, "label": label})

    def waiting(self) -> int:
        """How many queued points nobody has asked for yet."""
        return self._sampling.waiting()

    def enqueue_as_is(self, label: str) -> None:
        """Queue the base as it is, once, as a baseline; its proposal has an empty point."""
        self._sampling.queue({}, {"origin": "baseline", "label": label, AS_IS: True})

    def tell(self, number: int, result: TrialResult) -> None:
        """Tell the sampler what came of a trial; its row must be finished before. Harmless when repeated."""
        if result.status is Status.INTERRUPTED:
            self.abandon(number)
        else:
            self._tell(number, result, {})

    def reuse(self, number: int, earlier: Run) -> Run:
        """Answer a proposal with the result of an earlier run of the same effective ds_config."""
        if earlier.result is None:
            raise StoreError(f"Trial {earlier.number} has not ended.", "Run the point instead.")
        draw = self._sampling.draw(number)
        run = Run(
            study=self.name,
            number=number,
            origin=draw.origin,
            label=draw.label,
            point=self._point(draw),
            ds_config=earlier.ds_config,
            fingerprint=earlier.fingerprint,
            result=earlier.result,
            reuse_of=earlier.number,
        )
        run = self._store.add_run(run)
        self._tell(number, earlier.result, {"reuse_of": earlier.number})
        return run

    def abandon(self, number: int) -> None:
        """End a trial before its time: its point is queued again, and nothing is learned from it."""
        self._end(number, crashed=False)

    def best(self, limits: Limits | None = None) -> Run | None:
        """The fastest measured run within the study's limits, or within others."""
        return best_of(self._store, self.name, limits or self._limits, without=self._failed)

    def heed(self, repeats: Iterable[Repeat]) -> None:
        """Take runs that did not hold when they were trained again for what they showed then."""
        for repeat in repeats:
            if repeat.fault and repeat.result is not None:
                self._failed.add(repeat.run)
                self._sampling.amend(repeat.run, score(repeat.result, self._limits))

    def look_anew(self) -> None:
        """Only what is expected to be gained from now on tells whether to end."""
        self._gains_before = len(self._sampling.noted(EXPECTED_GAIN))

    def converged(self, to_come: int = 0) -> str | None:
        """Why further trials are not worth it; None while they are, or nobody can tell.

        `to_come` trials count as measured: they will be, whatever is decided.
        """
        if self._sampling.waiting():
            return None
        gains = self._sampling.noted(EXPECTED_GAIN)[self._gains_before :]
        noises = self._sampling.noted(REPEAT_NOISE)
        return converged(gains, noises[-1] if noises else 0.0, self.measured_count() + to_come)

    def measured_count(self) -> int:
        """How many runs count against the trial target."""
        return self._store.measured_count(self.name)

    def reconcile(self, crew: Crew | None = None) -> list[Repair]:
        """Bring rows and Optuna's trials in step after a process died; to be called when a study is opened.

        Also ends the runs that waited for the result of a twin. Trials of living workers are left alone;
        raises StoreError where this process should be the only one.
        """
        crew = crew or Alone()
        running = self._store.running(self.name)
        alive = {
            run.number: run.owner
            for run in running
            if run.reuse_of is None and run.owner is not None and crew.is_alive(run.owner)
        }
        if alive and not crew.shared:
            raise refusal(f"Study '{self.name}'", next(iter(alive.values())))
        numbers = {run.number for run in running}.union(self._sampling.unended()) - alive.keys()
        # In order, since a twin has the lower number.
        repairs = [self._repair(number) for number in sorted(numbers)]
        return [repair for repair in repairs if repair is not None]

    def wait_for_twin(self, run: Run) -> None:
        """Keep a point whose effective ds_config a worker is training: `reconcile` gives it the result."""
        self._store.add_run(run)

    def _repair(self, number: int) -> Repair | None:
        run = self._store.find_run(self.name, number)
        if run is None:
            return Repair(number=number, action="dropped", run=None, again=self._end(number, crashed=False))
        if run.reuse_of is not None and run.result is None:
            return self._settle(run, self._store.run(self.name, run.reuse_of))
        result = run.result or _left_result(run)
        if result is None or result.status is Status.INTERRUPTED:
            again = self._end(number, crashed=run.result is None)
            return Repair(number=number, action="interrupted", run=run, again=again)
        if run.result is None:
            result = self._judge(run, result)
            self._store.finish_run(self.name, number, result)
        self.keep_recording(run, result)
        self._tell(number, result, {} if run.reuse_of is None else {"reuse_of": run.reuse_of})
        return Repair(number=number, action="told" if run.result else "recovered", run=run)

    def keep_recording(self, run: Run, result: TrialResult) -> None:
        """Store what the ranks of a trial that ended well left in its folder, where that is still to do."""
        if result.status is not Status.OK or run.trial_dir is None:
            return
        kept = {timeline.rank for timeline in self._store.timelines(self.name, run.number)}
        for timeline in read_timelines(run.trial_dir):
            if timeline.rank not in kept:
                self._store.add_timeline(self.name, run.number, timeline)

    def _settle(self, run: Run, twin: Run) -> Repair | None:
        """End a run that waits for its twin, where that has ended; tried again if the twin was stopped."""
        if is_measured(twin) and twin.result is not None:
            self._store.finish_run(self.name, run.number, twin.result)
            self._tell(run.number, twin.result, {"reuse_of": twin.number})
        elif twin.status is not None:
            again = self._end(run.number, crashed=False)
            return Repair(number=run.number, action="interrupted", run=run, again=again)
        return None

    def _tell(self, number: int, result: TrialResult, more: dict[str, Any]) -> None:
        retrying(partial(self._tell_once, number, result, more))

    def _tell_once(self, number: int, result: TrialResult, more: dict[str, Any]) -> None:
        draw = self._sampling.draw(number)
        if draw.ended:
            return
        scored = score(result, self._limits)
        attributes = {
            "status": str(result.status),
            "origin": draw.origin,
            "label": draw.label,
            "used_device_bytes": result.memory.used_device_bytes,
            SPEED_ATTRIBUTE: result.samples_per_s,
            NOISE_ATTRIBUTE: relative_spread(result.step_s),
            "feasible": scored.feasible,
            **more,
        }
        if draw.attributes.get(AS_IS):
            self._sampling.leave_out(draw, attributes)
        else:
            self._sampling.tell(draw, scored, attributes)

    def _end(self, number: int, *, crashed: bool) -> bool:
        """End a trial as interrupted, row first; returns whether its point is queued again."""
        run = self._store.find_run(self.name, number)
        if run is not None and run.result is None:
            ended = TrialResult(
                status=Status.INTERRUPTED, reason="offtune was stopped before the trial ended."
            )
            self._store.finish_run(self.name, number, ended)
        draw = self._sampling.draw(number)
        if draw.ended:
            return False
        crashes = draw.attributes.get("crashes", 0) + int(crashed)
        give_up = crashes >= _CRASHES_TO_GIVE_UP
        # Without a row nothing was started: a queued point goes back as it was, any other is drawn anew.
        again = not give_up and (run is not None or "origin" in draw.attributes)
        if again:
            origin = draw.origin if run is None else "retry"
            kept = {AS_IS: True} if draw.attributes.get(AS_IS) else {}
            self._sampling.queue_again(
                draw, {"origin": origin, "label": draw.label, "crashes": crashes, **kept}
            )
        self._sampling.fail(number, give_up=give_up)
        return again

    def _point(self, draw: Draw) -> Point:
        return {
            knob.name: knob.value(draw.raw[knob.name]) for knob in self._space.knobs if knob.name in draw.raw
        }


def _left_result(run: Run) -> TrialResult | None:
    """The result in the folder of a run whose row is unfinished, where there is a whole one."""
    if run.trial_dir is None:
        return None
    try:
        return load(TrialResult, (Path(run.trial_dir) / RESULT_FILE).read_bytes())
    except (OSError, ValueError):
        return None
