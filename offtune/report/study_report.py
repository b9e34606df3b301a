"""Everything a report on a study is made of, read once from the database.

Covered: winner, the baseline it is held against, what was recorded of both, what bounds them, knobs that
matter. Not covered: how it looks (`report.study_sections`, `report.html`).
"""

from __future__ import annotations

from dataclasses import dataclass

from offtune.bounds import Peaks, StepBound, bound, peaks_of
from offtune.effects import KnobEffect, knob_effects
from offtune.records import Run
from offtune.report.difference import KeyChange, key_changes
from offtune.report.summary import Summary, summarise
from offtune.store import Store
from offtune.timeline import Timeline

# A person's own ds_config among the baselines: what the winner is compared with first.
OWN_FILE_LABEL = "your file"


@dataclass(frozen=True, slots=True, kw_only=True)
class Side:
    """A run that is looked into: the winner or the baseline. `timeline` is that of its first rank."""

    title: str
    run: Run
    timeline: Timeline | None
    bound: StepBound | None


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyReport:
    """A study to be reported on. `sides` are the winner and, where there is another, the baseline."""

    summary: Summary
    sides: tuple[Side, ...]
    effects: tuple[KnobEffect, ...]
    changes: tuple[KeyChange, ...]

    @property
    def baseline(self) -> Run | None:
        """The baseline the winner is held against, None where it is the winner itself or there is none."""
        return self.sides[1].run if len(self.sides) > 1 else None


def read_report(storage: str, name: str | None) -> StudyReport:
    """The report of the study of that name, or of the newest. Raises what `Store` raises."""
    with Store.open(storage, write=False) as store:
        record = store.study(name)
        summary = summarise(record, store.runs(record.name))
        sides = tuple(_side(store, summary, title, run) for title, run in _looked_into(summary))
    return study_report(summary, sides)


def study_report(summary: Summary, sides: tuple[Side, ...]) -> StudyReport:
    """The report from what was read."""
    configs = [side.run.ds_config for side in sides]
    return StudyReport(
        summary=summary,
        sides=sides,
        effects=knob_effects(summary.ranking),
        changes=key_changes(configs[1], configs[0]) if len(configs) > 1 else (),
    )


def compared_baseline(summary: Summary) -> Run | None:
    """The person's own file among the baselines, else the fastest that fits, else the first that trained."""
    baselines = [run for run in summary.runs if run.origin == "baseline" and run.result is not None]
    own = [run for run in baselines if run.label == OWN_FILE_LABEL]
    best = summary.best_gain
    fastest = [run for run in baselines if best and run.number == best.trial]
    trained = [run for run in baselines if run.result and run.result.samples_per_s]
    return next(iter((*own, *fastest, *trained)), None)


def make_side(title: str, run: Run, timelines: list[Timeline], peaks: Peaks | None = None) -> Side:
    """One side, with what bounds it where its phases were sampled."""
    analysis = run.result.analysis if run.result else None
    return Side(
        title=title,
        run=run,
        timeline=next(iter(timelines), None),
        bound=bound(analysis, peaks, run.point) if analysis else None,
    )


def _looked_into(summary: Summary) -> list[tuple[str, Run]]:
    if summary.best is None:
        return []
    found = [("Winner", summary.best)]
    other = compared_baseline(summary)
    if other is None or other.number == summary.best.number or other.reuse_of == summary.best.number:
        others = [gain for gain in summary.gains if gain.percent is not None and not gain.same]
        near = max(others, key=lambda gain: gain.samples_per_s or 0.0, default=None)
        other = next((run for run in summary.runs if near and run.number == near.trial), None)
    return [*found, ("Baseline", other)] if other else found


def _side(store: Store, summary: Summary, title: str, run: Run) -> Side:
    number = run.number if run.reuse_of is None else run.reuse_of
    return make_side(title, run, store.timelines(summary.study.name, number), peaks_of(summary.study))
