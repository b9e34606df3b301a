"""What a study found: pure functions from its records to one Summary.

Covered: winner, ranking, baselines, Pareto front, counts, nearest miss; under the study's own limits or
others. Not covered: how it looks (`report.document`, `report.pages`) and where records
come from (`store`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from offtune.ending import Ending, State
from offtune.records import Limits, Run, StudyRecord, is_baseline, is_measured, rank, speed_within
from offtune.repeats import Outcome
from offtune.report.forecasts import Forecasts, forecasts
from offtune.report.gain import Gain, gain
from offtune.report.miss import NearestMiss, advice, nearest_miss, study_limits
from offtune.trial import Status
from offtune.winner import winner_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """What a study found under one pair of limits.

    `ranking` is the winner, then fastest first, `front` from least memory to most. `measured`
    counts real, finished trainings; `infeasible_share` is the part of them that gave nothing usable.
    """

    study: StudyRecord
    runs: tuple[Run, ...]
    limits: Limits
    ranking: tuple[Run, ...]
    front: tuple[Run, ...]
    gains: tuple[Gain, ...]
    nearest_miss: NearestMiss | None
    counts: dict[str, int]
    measured: int
    reused: int
    running: int
    infeasible_share: float | None
    outcome: Outcome | None = None
    state: State | None = None

    @property
    def ending(self) -> Ending | None:
        """How the search came to its end by itself; None where it has not, or that was not looked up."""
        return self.state.ending if self.state else None

    @property
    def best(self) -> Run | None:
        """The winner: that of the finals, else the fastest run that fits."""
        return self.ranking[0] if self.ranking else None

    @property
    def forecasts(self) -> Forecasts | None:
        """How good the predictions were; None where nothing was predicted."""
        return forecasts(self.runs)

    @property
    def best_gain(self) -> Gain | None:
        """The winner against the fastest baseline that fits."""
        usable = [gain for gain in self.gains if gain.percent is not None]
        return max(usable, key=lambda gain: (gain.samples_per_s or 0.0, -gain.trial), default=None)

    @property
    def advice(self) -> list[str]:
        """What would make the nearest miss fit, one sentence each."""
        miss = self.nearest_miss
        return advice(miss, self.study, self.limits) if miss else []


def summarise(
    study: StudyRecord,
    runs: Iterable[Run],
    limits: Limits | None = None,
    outcome: Outcome | None = None,
) -> Summary:
    """The summary under `limits`, by default the study's own.

    Read from `study.settings`, each where present: `limit_bytes`, `host_limit_bytes`. `outcome` is that of
    the study's finals.
    """
    limits = limits or study_limits(study)
    complete = _with_results(runs)
    trained = [run for run in complete if is_measured(run)]
    # The same question as in `best_run`, so that the two cannot disagree about what fits.
    fitting = [run for run in trained if speed_within(run, limits) is not None]
    if outcome is not None and limits.device_bytes <= study_limits(study).device_bytes:
        rejected = {each.run for each in outcome.rejected}
        fitting = [run for run in fitting if run.number not in rejected]
    chosen = winner_of(fitting, limits, outcome)
    ranking = sorted(fitting, key=lambda run: (run is not chosen, *rank(run)))
    return Summary(
        study=study,
        runs=complete,
        limits=limits,
        ranking=tuple(ranking),
        front=_front(ranking),
        gains=_gains(complete, ranking),
        nearest_miss=nearest_miss(trained, limits),
        counts=_counts(complete),
        measured=len(trained),
        reused=sum(run.reuse_of is not None for run in complete),
        running=sum(run.status is None for run in complete),
        infeasible_share=sum(run.status is not Status.OK for run in trained) / len(trained)
        if trained
        else None,
        outcome=outcome if outcome and _is_about(outcome, chosen) else None,
    )


def _is_about(outcome: Outcome, chosen: Run | None) -> bool:
    """Whether the finals say something of the winner: that it is theirs, or that nothing held."""
    return outcome.winner is None or (chosen is not None and chosen.number == outcome.winner)


def _with_results(runs: Iterable[Run]) -> tuple[Run, ...]:
    """The runs by number; one that reused a measurement shows the status and result of its original."""
    by_number = {run.number: run for run in runs}

    def complete(run: Run) -> Run:
        original = by_number.get(run.reuse_of) if run.reuse_of is not None else None
        if original is None or run.result is not None:
            return run
        return replace(run, status=original.status, result=original.result)

    return tuple(complete(by_number[number]) for number in sorted(by_number))


def _gains(runs: Iterable[Run], ranking: Sequence[Run]) -> tuple[Gain, ...]:
    """The winner against every baseline; one that reused a measurement stands for the run it reused."""
    fitting = {run.number for run in ranking}
    best = ranking[0] if ranking else None
    baselines = (run for run in runs if is_baseline(run) and run.status is not Status.INTERRUPTED)
    return tuple(gain(best, run, not fitting.isdisjoint({run.number, run.reuse_of})) for run in baselines)


def _rate(run: Run) -> float:
    return (run.result.samples_per_s if run.result else None) or 0.0


def _used(run: Run) -> int | None:
    return run.result.memory.used_device_bytes if run.result else None


def _front(runs: Iterable[Run]) -> tuple[Run, ...]:
    """Runs that no other beats in both throughput and used memory, from least memory to most."""
    front: list[Run] = []
    known = [(used, run) for run in runs if (used := _used(run)) is not None]
    for _, run in sorted(known, key=lambda pair: (pair[0], -_rate(pair[1]), pair[1].number)):
        if not front or _rate(run) > _rate(front[-1]):
            front.append(run)
    return tuple(front)


def _counts(runs: Iterable[Run]) -> dict[str, int]:
    """Finished runs by status, in the order of the closed list; reused measurements count once."""
    found = Counter(run.status for run in runs if run.reuse_of is None and run.status is not None)
    return {status.value: found[status] for status in Status if found[status]}
