"""The report on a study: which sections there are, in which order, and what each says.

Covered: from a `StudyReport` to a `Report`. Not covered: how it looks (`report.html`), the plots themselves.
"""

from __future__ import annotations

from collections.abc import Iterable

from offtune import __version__
from offtune.effects import MIN_TRIALS
from offtune.knobs import describe
from offtune.records import Run
from offtune.report.bounds_page import AT_BEST, NOT_SAMPLED, bounds_blocks
from offtune.report.finals_text import ratio_text
from offtune.report.forecasts import is_foretold
from offtune.report.inside import inside_section
from offtune.report.more_memory import more_memory_blocks
from offtune.report.page import Block, Column, Command, Facts, Heading, Line, Table
from offtune.report.result_page import (
    baselines_blocks,
    count_text,
    failures_blocks,
    nothing_fits_blocks,
    verdict_text,
)
from offtune.report.sections import Report, Section, Tile, WebBlock
from offtune.report.study_plots import frontier_plot, importance_plot, progress_plot
from offtune.report.study_report import OWN_FILE_LABEL, OWN_FILE_WINS, StudyReport
from offtune.report.summary import Summary
from offtune.report.words import CPU_CAVEATS, budget_text, rate_text, status_text, time_text
from offtune.units import format_bytes, format_rate, format_seconds


def study_web_report(found: StudyReport) -> Report:
    """The whole report."""
    summary = found.summary
    sections = (
        _frontier_section(summary),
        _baselines_section(summary),
        inside_section(found),
        _bounds_section(found),
        _knobs_section(found),
        _progress_section(summary),
        _failures_section(summary),
        _change_section(found),
        _trials_section(summary),
        _machine_section(summary),
    )
    study = summary.study
    budget = budget_text(study.budget_bytes, summary.limits.device_bytes)
    return Report(
        kicker="offtune report",
        title=study.name,
        subtitle=f"{study.model} on {study.device}, {budget}",
        verdict=_verdict(summary),
        tiles=_tiles(summary),
        cautions=CPU_CAVEATS if study.device == "cpu" else (),
        sections=tuple(section for section in sections if section.blocks or section.lead),
        footer=(f"offtune {__version__}", f"study created {time_text(study.created_at)}"),
    )


def _verdict(summary: Summary) -> str:
    if summary.best is None:
        return f"Nothing fits {format_bytes(summary.limits.device_bytes)} per rank."
    return verdict_text(summary)


def _tiles(summary: Summary) -> tuple[Tile, ...]:
    trials = Tile(label="Trials", value=str(summary.measured), note=count_text(summary))
    best = summary.best
    if best is None or best.result is None:
        return (trials,)
    result = best.result
    used = result.memory.used_device_bytes or 0
    limit = summary.limits.device_bytes
    tiles = [
        Tile(
            label="Throughput",
            value=format_rate(result.samples_per_s),
            note=f"{format_rate(result.tokens_per_s, 'tokens/s')}, trial {best.number}",
        ),
        Tile(
            label="Used memory",
            value=format_bytes(used),
            note=f"{100 * used / limit:.0f} % of the {format_bytes(limit)} it may use",
            share=min(1.0, used / limit),
        ),
    ]
    against = _against_tile(summary)
    return (*tiles, against, trials) if against else (*tiles, trials)


def _against_tile(summary: Summary) -> Tile | None:
    """The winner against the baseline: by the finals or, where there were none, by single trials."""
    outcome, gain = summary.outcome, summary.best_gain
    ratio = outcome.over(outcome.plan.baseline) if outcome else None
    if outcome is not None and ratio is not None:
        label = next(run.label for run in summary.runs if run.number == ratio.against)
        return Tile(
            label=f"Times as fast as '{label}'",
            value=ratio_text(ratio.value, ratio.low, ratio.high),
            note=f"95 %, {outcome.rounds_of(ratio)} rounds in turn",
            tone="good" if ratio.low > 1 else "plain",
        )
    if gain is None or gain.percent is None or gain.same:
        return None
    known = gain.noise_percent
    noise = "noise unknown: too few steps" if known is None else f"noise {known:.1f} %"
    return Tile(
        label="Against the best baseline",
        value=f"{gain.percent:+.1f} %",
        note=f"{gain.label}, {noise}",
        tone="good" if gain.clear and gain.percent > 0 else "plain",
    )


def _frontier_section(summary: Summary) -> Section:
    plot = frontier_plot(summary)
    blocks: list[WebBlock] = [plot] if plot else []
    if summary.best is None:
        blocks = [*nothing_fits_blocks(summary), *blocks]
    elif bought := more_memory_blocks(summary, "settings", lambda run: describe(run.point, {})):
        blocks += [Heading(text="What more memory buys"), *bought]
    return Section(anchor="memory", title="Memory and speed", blocks=tuple(blocks))


def _baselines_section(summary: Summary) -> Section:
    blocks = [block for block in baselines_blocks(summary) if not isinstance(block, Heading)]
    lead = "What everybody would try first, and how the winner compares." if blocks else ""
    return Section(anchor="baselines", title="Baselines", lead=lead, blocks=tuple(blocks))


def _bounds_section(found: StudyReport) -> Section:
    blocks: list[WebBlock] = []
    for side in found.sides:
        blocks.append(Heading(text=f"{side.title}: trial {side.run.number}"))
        blocks += bounds_blocks(side.bound) if side.bound else [Line(text=NOT_SAMPLED)]
    lead = AT_BEST if any(side.bound for side in found.sides) else ""
    return Section(anchor="bounds", title="What bounds it", lead=lead, blocks=tuple(blocks))


def _knobs_section(found: StudyReport) -> Section:
    count = len(found.summary.ranking)
    plot = importance_plot(found.effects, count)
    if plot is None:
        text = (
            f"Not enough to say: it takes {MIN_TRIALS} trials that ran and fit, and knobs that differ among "
            f"them; there are {count} such trials."
        )
        return Section(anchor="knobs", title="Which knobs matter", blocks=(Line(text=text),))
    return Section(anchor="knobs", title="Which knobs matter", blocks=(plot,))


def _progress_section(summary: Summary) -> Section:
    plot = progress_plot(summary)
    told = (Line(text=summary.ending.text),) if summary.ending else ()
    blocks = (*((plot,) if plot else ()), *told)
    return Section(anchor="progress", title="How the search went", blocks=blocks)


def _failures_section(summary: Summary) -> Section:
    blocks = tuple(block for block in failures_blocks(summary) if not isinstance(block, Heading))
    lead = "" if blocks else "No trial failed."
    return Section(anchor="failures", title="Failures", lead=lead, blocks=blocks)


def _change_section(found: StudyReport) -> Section:
    if not found.sides:
        return Section(anchor="change", title="The change")
    if found.own_file_wins:
        return _no_change(OWN_FILE_LABEL, OWN_FILE_WINS)
    baseline = found.baseline
    if baseline is None:
        return _no_change("a baseline", "No other baseline trained, so there is nothing to compare with.")
    name = baseline.label or f"trial {baseline.number}"
    winner = found.sides[0].run.number
    if not found.changes:
        return _no_change(name, "The two ds_configs are the same.")
    blocks: list[WebBlock] = [change_table(found)]
    export: Iterable[Block] = (
        Line(text="The whole file:"),
        Command(text=f"offtune export {found.summary.study.name} -o ds_config.json"),
    )
    return Section(
        anchor="change",
        title=f"From '{name}' to the winner",
        lead=f"What differs between the ds_config of trial {baseline.number} and that of trial {winner}. "
        "- is what was there, + is what is there now.",
        blocks=(*blocks, *export),
    )


def _no_change(name: str, why: str) -> Section:
    return Section(anchor="change", title=f"From '{name}' to the winner", blocks=(Line(text=why),))


def change_table(found: StudyReport) -> Table:
    """The differing keys of the two ds_configs."""
    columns = (Column(title="key", stretch=True), Column(title="before"), Column(title="after"))
    rows = tuple(
        (one.key, f"- {one.before}" if one.before else "", f"+ {one.after}" if one.after else "")
        for one in found.changes
    )
    return Table(columns=columns, rows=rows)


def _trials_section(summary: Summary) -> Section:
    columns = (
        Column(title="trial", right=True),
        Column(title="status"),
        Column(title="samples/s", right=True),
        Column(title="used", right=True),
        Column(title="host", right=True),
        Column(title="took", right=True),
        Column(title="what", stretch=True),
    )
    rows = tuple(_trial_row(run) for run in summary.runs)
    lead = f"{count_text(summary)}."
    return Section(
        anchor="trials", title="All trials", lead=lead, blocks=(Table(columns=columns, rows=rows),)
    )


def _trial_row(run: Run) -> tuple[str, ...]:
    # A prediction must never pass for a measurement.
    result = None if is_foretold(run) else run.result
    return (
        str(run.number),
        status_text(run),
        rate_text(result.samples_per_s if result else None),
        format_bytes(result.memory.used_device_bytes if result else None),
        format_bytes(result.memory.used_host_bytes if result else None),
        format_seconds(result.seconds if result else None),
        run.label or describe(run.point, {}),
    )


def _machine_section(summary: Summary) -> Section:
    study = summary.study
    settings = study.settings
    result = summary.best.result if summary.best else None
    versions = {**(settings.get("versions") or {}), **(result.versions if result else {})}
    work = settings.get("workload") or {}
    facts = [
        ("model", study.model),
        ("sequence", f"{work['seq_len']} tokens" if work.get("seq_len") else ""),
        ("global batch", f"{work['global_batch']} samples" if work.get("global_batch") else ""),
        ("ranks", str(work["world_size"]) if work.get("world_size") else ""),
        ("precision", str(work.get("precision") or "")),
        ("host limit", format_bytes(summary.limits.host_bytes)),
        *((str(name), str(value)) for name, value in (settings.get("machine") or {}).items()),
        *((name, version) for name, version in versions.items() if version),
    ]
    notes = tuple(Line(text=str(note), tone="dim") for note in settings.get("notes") or ())
    rows = tuple((name, value) for name, value in facts if value not in ("", "-"))
    return Section(anchor="machine", title="Machine and versions", blocks=(Facts(rows=rows), *notes))
