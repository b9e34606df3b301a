"""What `show` adds to the ranking of a study: where the time goes, what bounds it, knobs, the change made.

Covered: blocks for the terminal and entries for JSON. Not covered: curves, which need a page (`report.html`).
"""

from __future__ import annotations

from typing import Any

from offtune.bounds import StepBound
from offtune.effects import MOST_TRIALS, considered
from offtune.report.bar_plots import bar_runs, phase_rows
from offtune.report.bounds_page import bounds_blocks
from offtune.report.page import Block, Column, Heading, Line, Table
from offtune.report.study_report import OWN_FILE_LABEL, OWN_FILE_WINS, StudyReport
from offtune.timeline import OTHER, PHASES
from offtune.trial import as_dict
from offtune.units import format_seconds

_CHANGES_SHOWN = 20


def insight_blocks(found: StudyReport) -> list[Block]:
    """Everything that is known beyond the ranking."""
    return [*_phases(found), *_bounds(found), *_knobs(found), *_change(found)]


def insight_document(found: StudyReport) -> dict[str, Any]:
    """The same in base units."""
    return {
        "knobs": [as_dict(effect) for effect in found.effects],
        "change": [as_dict(change) for change in found.changes],
        "own_file_wins": found.own_file_wins,
        "compared_with": found.baseline.number if found.baseline else None,
        "bounds": {side.title.lower(): _bound_entry(side.bound) for side in found.sides},
    }


def _bound_entry(found: StepBound | None) -> dict[str, Any] | None:
    return as_dict(found) if found else None


def _phases(found: StudyReport) -> list[Block]:
    rows = phase_rows([(name, run.result.phases) for name, run in bar_runs(found.summary) if run.result])
    if not rows:
        return []
    names = (*PHASES, OTHER)
    columns = (Column(title="run", stretch=True), *(Column(title=name, right=True) for name in names))
    cells = tuple((name, *(format_seconds(seconds[phase]) for phase in names)) for name, seconds in rows)
    return [Heading(text="Time of a step"), Table(columns=columns, rows=cells)]


def _bounds(found: StudyReport) -> list[Block]:
    blocks: list[Block] = []
    for side in found.sides:
        if side.bound is not None:
            blocks += [Heading(text=f"What bounds trial {side.run.number}"), *bounds_blocks(side.bound)]
    return blocks


def _knobs(found: StudyReport) -> list[Block]:
    if not found.effects:
        return []
    columns = (
        Column(title="knob"),
        Column(title="importance", right=True),
        Column(title="effect", stretch=True),
    )
    rows = tuple((one.name, f"{100 * one.importance:.0f} %", one.direction) for one in found.effects)
    blocks: list[Block] = [Heading(text="Which knobs matter"), Table(columns=columns, rows=rows)]
    count = len(found.summary.ranking)
    if count > MOST_TRIALS:
        blocks.append(Line(text=f"From {considered(count)}.", tone="dim"))
    return blocks


def _change(found: StudyReport) -> list[Block]:
    if found.own_file_wins:
        title = f"From '{OWN_FILE_LABEL}' to the winner"
        return [Heading(text=title), Line(text=OWN_FILE_WINS)]
    if found.baseline is None or not found.changes:
        return []
    name = found.baseline.label or f"trial {found.baseline.number}"
    columns = (Column(title="key", stretch=True), Column(title="before"), Column(title="after"))
    shown = found.changes[:_CHANGES_SHOWN]
    rows = tuple((one.key, one.before or "-", one.after or "-") for one in shown)
    blocks: list[Block] = [
        Heading(text=f"From '{name}' to the winner"),
        Table(columns=columns, rows=rows),
    ]
    if len(found.changes) > len(shown):
        blocks.append(Line(text=f"{len(found.changes) - len(shown)} more with --json", tone="dim"))
    return blocks
