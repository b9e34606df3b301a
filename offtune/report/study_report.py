"""Everything a report on a study is made of, read once from the database.

Covered: winner, the baseline it is held against, what was recorded of both, what bounds them, knobs that
matter. Not covered: how it looks (`report.study_sections`, `report.html`).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from offtune.bounds import Peaks, StepBound, bound, peaks_of
from offtune.effects import KnobEffect, knob_effects
from offtune.ending import state_of
from offtune.finals_notes import kept
from offtune.knob_workload import CHECKPOINTING, checkpoints
from offtune.records import Limits, Run, StudyRecord
from offtune.repeats import Outcome
from offtune.report.difference import KeyChange, key_changes
from offtune.report.summary import Summary, summarise
from offtune.store import Store
from offtune.store_standings import briefs
from offtune.timeline import Timeline
from offtune.trial import DsConfig, Point, as_dict

if TYPE_CHECKING:
    from offtune.report.predicted_step import PredictedStep

# A person's own ds_config among the baselines: what the winner is compared with first.
OWN_FILE_LABEL = "your file"
OWN_FILE_WINS = "The winner is your file as it is: there is nothing to change in it."
_EFFECTS = "knob_effects"
# Among the keys that changed: a switch of the model beside the ds_config.
_MODEL_SWITCH = "(model) gradient checkpointing"


@dataclass(frozen=True, slots=True, kw_only=True)
class Side:
    """A run that is looked into: the winner or the baseline. `timeline` is that of its first rank.

    `predicted` is its step by the models, None where they say nothing of it.
    """

    title: str
    run: Run
    timeline: Timeline | None
    bound: StepBound | None
    predicted: PredictedStep | None = None


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

    @property
    def own_file_wins(self) -> bool:
        """Whether the winner is the person's own file, so that nothing is to be changed in it."""
        best = self.summary.best
        own = [run for run in self.summary.runs if run.origin == "baseline" and run.label == OWN_FILE_LABEL]
        return best is not None and any(best.number in (run.number, run.reuse_of) for run in own)


def read_report(storage: str, name: str | None) -> StudyReport:
    """The report of the study of that name, or of the newest. Raises what `Store` raises."""
    with Store.open(storage, write=False) as store:
        record = store.study(name)
        summary = read_summary(store, record)
        sides = tuple(_side(store, summary, title, run) for title, run in _looked_into(summary))
        effects = _kept_effects(store, summary)
    return study_report(summary, sides, effects)


def with_prediction(storage: str, found: StudyReport) -> StudyReport:
    """The same with the steps predicted for its sides, for a page that draws them."""
    if not found.sides:
        return found
    # The models take a tenth of a second to load, and a terminal draws no step.
    from offtune.report.predicted_step import predicted_step

    study = found.summary.study
    with Store.open(storage, write=False) as store:
        sides = tuple(replace(side, predicted=predicted_step(store, study, side.run)) for side in found.sides)
    return replace(found, sides=sides)


def keep_effects(store: Store, summary: Summary) -> None:
    """Note which knobs matter, so that showing the study need not load Optuna."""
    effects = [as_dict(effect) for effect in knob_effects(summary.ranking)]
    store.note(summary.study.name, _EFFECTS, {"measured": summary.measured, "effects": effects})


def _kept_effects(store: Store, summary: Summary) -> tuple[KnobEffect, ...] | None:
    """What was noted, unless trials have been added since."""
    noted = store.notes(summary.study.name).get(_EFFECTS)
    if noted is None or noted["measured"] != summary.measured:
        return None
    return tuple(KnobEffect(**effect) for effect in noted["effects"])


def read_summary(store: Store, record: StudyRecord, limits: Limits | None = None) -> Summary:
    """The summary of a study: winner and nearest miss whole, all other runs in brief (`rows.brief`)."""
    summary = summarise(record, briefs(store, record.name), limits, kept(store, record.name, Outcome))
    if (miss := summary.nearest_miss) is not None:
        miss = replace(miss, run=store.run(record.name, miss.run.number))
    ranking = summary.ranking
    if ranking:
        ranking = (store.run(record.name, ranking[0].number), *ranking[1:])
    return replace(summary, ranking=ranking, nearest_miss=miss, state=state_of(store, record))


def study_report(
    summary: Summary, sides: tuple[Side, ...], effects: tuple[KnobEffect, ...] | None = None
) -> StudyReport:
    """The report from what was read; `effects` are worked out where they are not given."""
    own = (summary.study.settings.get("workload") or {}).get(CHECKPOINTING)
    whole = [_told(side.run, own) for side in sides]
    return StudyReport(
        summary=summary,
        sides=sides,
        effects=knob_effects(summary.ranking) if effects is None else effects,
        changes=key_changes(whole[1], whole[0]) if len(whole) > 1 else (),
    )


def _told(run: Run, own: bool | None) -> DsConfig:
    """The ds_config and, under a name that none of its keys has, what only the model is told."""
    return {**run.ds_config, _MODEL_SWITCH: checkpoints(run.point, own)}


def compared_baseline(summary: Summary) -> Run | None:
    """The person's own file among the baselines, else the fastest that fits, else the first that trained."""
    baselines = [run for run in summary.runs if run.origin == "baseline" and run.result is not None]
    own = [run for run in baselines if run.label == OWN_FILE_LABEL]
    best = summary.best_gain
    fastest = [run for run in baselines if best and run.number == best.trial]
    trained = [run for run in baselines if run.result and run.result.samples_per_s]
    return next(iter((*own, *fastest, *trained)), None)


def make_side(
    title: str, run: Run, timelines: list[Timeline], peaks: Peaks | None = None, searched: Point | None = None
) -> Side:
    """One side, with what bounds it where its phases were sampled; a person's own file has no knobs but those
    that were `searched`.
    """
    analysis = run.result.analysis if run.result else None
    return Side(
        title=title,
        run=run,
        timeline=next(iter(timelines), None),
        bound=bound(analysis, peaks, run.point or searched) if analysis else None,
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
    original = store.run(summary.study.name, number)
    whole = replace(run, ds_config=original.ds_config, result=original.result)
    searched = {name: value for other in summary.runs for name, value in other.point.items()}
    timelines = store.timelines(summary.study.name, number)
    return make_side(title, whole, timelines, peaks_of(summary.study), searched)
