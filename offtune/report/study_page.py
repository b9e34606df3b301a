"""Pages about studies: one in full, and the list of all.

Covered: which facts are said and in which order. Not covered: drawing them (`report.terminal`).
"""

from __future__ import annotations

from collections.abc import Sequence

from offtune.knobs import describe
from offtune.records import Run
from offtune.report.forecasts import forecast_lines
from offtune.report.more_memory import more_memory_blocks
from offtune.report.overview import Standing
from offtune.report.page import Block, Column, Command, Facts, Heading, Line, Page, Table
from offtune.report.result_page import (
    baselines_blocks,
    count_text,
    failures_blocks,
    nothing_fits_blocks,
    verdict_blocks,
)
from offtune.report.summary import Summary
from offtune.report.words import CPU_CAVEATS, budget_text, rate_text, share_text, time_text
from offtune.units import format_bytes, format_rate

RANKING_ROWS = 15  # a screen; `--json` has all of them
_DAY = len("2026-11-30")
# A study that ended so goes on when it is resumed.
_GOES_ON = ("time", "crashes")


def study_page(summary: Summary, insight: Sequence[Block] = ()) -> Page:
    """One study in full: settings, ranking, baselines, failures by kind, memory against throughput."""
    study = summary.study
    blocks: list[Block] = [Heading(text=f"Study {study.name}"), Facts(rows=_study_facts(summary))]
    if study.device == "cpu":
        blocks += [Line(text=text, tone="dim") for text in CPU_CAVEATS]
    blocks += [Line(text=note, tone="dim") for note in study.settings.get("notes") or ()]
    if summary.best is None:
        blocks += nothing_fits_blocks(summary)
    else:
        blocks += [*_ranking(summary, summary.best), *baselines_blocks(summary)]
        blocks += [*verdict_blocks(summary), *forecast_lines(summary.forecasts)]
        blocks += _front(summary)
    return (*blocks, *insight, *failures_blocks(summary), *_next_commands(summary))


def list_page(studies: Sequence[Standing]) -> Page:
    """All studies of a database, the newest last."""
    if not studies:
        return (Line(text="No study here yet. Start one:"), Command(text="offtune search --budget 40GB"))
    columns = (
        Column(title="study"),
        Column(title="created"),
        Column(title="model", stretch=True),
        Column(title="dev"),
        Column(title="budget", right=True),
        Column(title="trials"),
        Column(title="best", right=True),
    )
    return (Table(columns=columns, rows=tuple(_list_row(one) for one in studies)),)


def _study_facts(summary: Summary) -> tuple[tuple[str, str], ...]:
    study = summary.study
    versions = study.settings.get("versions") or {}
    facts = [
        ("model", study.model),
        ("device", study.device),
        ("budget", budget_text(study.budget_bytes, summary.limits.device_bytes)),
        ("host limit", format_bytes(summary.limits.host_bytes)),
        ("trials", count_text(summary)),
        ("state", _state_text(summary)),
        ("created", time_text(study.created_at)),
        ("versions", ", ".join(f"{name} {version}" for name, version in versions.items())),
    ]
    return tuple((name, value) for name, value in facts if value not in ("", "-"))


def _state_text(summary: Summary) -> str:
    """'converged: Further trials are not expected ...', or how far the search is."""
    state = summary.state
    if state is None:
        return ""
    return f"{state.word}: {state.ending.text}" if state.ending else state.word


def _ranking(summary: Summary, best: Run) -> list[Block]:
    columns = (
        Column(title="trial", right=True),
        Column(title="samples/s", right=True),
        Column(title="used", right=True),
        Column(title="of limit", right=True),
        Column(title="settings, then what differs from them", stretch=True),
    )
    shown = summary.ranking[:RANKING_ROWS]
    rows = tuple(_ranking_row(run, best, summary.limits.device_bytes) for run in shown)
    blocks: list[Block] = [Heading(text="Ranking"), Table(columns=columns, rows=rows, tones=("good",))]
    if summary.outcome is not None and summary.outcome.ratios:
        blocks.append(Line(text="Speeds of single trials; the winner is by repeats in turn.", tone="dim"))
    if len(summary.ranking) > len(shown):
        blocks.append(Line(text=f"{len(summary.ranking) - len(shown)} more with --json", tone="dim"))
    return blocks


def _ranking_row(run: Run, best: Run, limit_bytes: int) -> tuple[str, ...]:
    result = run.result
    used = result.memory.used_device_bytes if result else None
    return (
        str(run.number),
        rate_text(result.samples_per_s if result else None),
        format_bytes(used),
        share_text(used, limit_bytes),
        describe(run.point, {} if run is best else best.point),
    )


def _front(summary: Summary) -> list[Block]:
    """What more memory buys, and how to take each step away."""
    command = f"offtune export {summary.study.name} --trial"
    blocks = more_memory_blocks(summary, "to export it", lambda run: f"{command} {run.number}")
    return [Heading(text="What more memory buys"), *blocks] if blocks else []


def _next_commands(summary: Summary) -> list[Block]:
    study = summary.study
    ending = summary.ending
    short = study.target_trials is not None and summary.measured < study.target_trials
    goes_on = short and (ending is None or ending.kind in _GOES_ON)
    blocks: list[Block] = [Command(text=f"offtune resume {study.name}")] if goes_on else []
    if summary.best:
        blocks.append(Command(text=f"offtune report {study.name} -o report.html"))
        blocks.append(Command(text=f"offtune export {study.name} -o ds_config.json"))
    return [Heading(text="Next"), *blocks] if blocks else []


def _list_row(standing: Standing) -> tuple[str, ...]:
    study, best, state = standing.study, standing.best, standing.state
    ended = state is not None and state.ending is not None
    wanted = study.target_trials or 0  # which a resume may have raised
    target = f"/{wanted}" if standing.measured <= wanted and not ended else ""
    return (
        study.name,
        time_text(study.created_at)[:_DAY],  # --json has the time, a screen has 80 columns
        study.model,
        study.device,
        format_bytes(study.budget_bytes),
        f"{standing.measured}{target}{f', {state.word}' if state else ''}",
        format_rate(best.result.samples_per_s if best and best.result else None, "/s"),
    )
