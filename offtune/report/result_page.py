"""Pages that end a search: the winner beside the baselines, or that nothing fits and what would help.

Covered: which facts are said and in which order. Not covered: drawing them (`report.terminal`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from offtune.knobs import describe
from offtune.records import Run, StudyRecord, is_measured
from offtune.report.finals_text import finals_lines, finals_verdict, ratio_text
from offtune.report.forecasts import forecast_lines, is_foretold, unrun_blocks
from offtune.report.gain import Gain
from offtune.report.page import Block, Column, Command, Facts, Heading, Line, Page, Table
from offtune.report.summary import Summary
from offtune.report.words import CPU_CAVEATS, STATUS_WORDS, numbers_text, rate_text, share_text
from offtune.trial import Status
from offtune.units import format_bytes, format_rate

REASONS_SHOWN = 3
_NOT_MEMORY = "No trial failed for memory, so the budget is not the reason."
_NOISE = "Noise: how far the steps of both runs scatter. A repeated run may differ by more."


def result_page(summary: Summary) -> Page:
    """The end of a search: the winner, the baselines beside it, and the next command."""
    if summary.best is None:
        return nothing_fits_page(summary)
    return (
        Heading(text="Result"),
        Facts(rows=_winner_facts(summary, summary.best)),
        *baselines_blocks(summary),
        *verdict_blocks(summary),
        *forecast_lines(summary.forecasts),
        *_cpu_reminder(summary.study),
        Line(text="Take it away:"),
        Command(text=f"offtune export {summary.study.name} -o ds_config.json"),
    )


def nothing_fits_page(summary: Summary) -> Page:
    """That nothing fits, by how much the nearest run missed, what would help, and where to read more."""
    details = [] if summary.nearest_miss else failures_blocks(summary)
    more = (Line(text="All trials and their reasons:"), Command(text=f"offtune show {summary.study.name}"))
    return (*nothing_fits_blocks(summary), *forecast_lines(summary.forecasts), *details, *more)


def nothing_fits_blocks(summary: Summary) -> list[Block]:
    """The message itself, without where to read more."""
    head = f"Nothing fits {_limit_text(summary)}: {count_text(summary)}."
    miss = summary.nearest_miss
    failed = finals_lines(summary)  # what seemed to fit, and did not hold
    if miss is None:
        why = [] if failed or not summary.measured else [Line(text=_NOT_MEMORY)]
        return [Line(text=head, tone="bad"), *failed, *why]
    return [
        Line(text=head, tone="bad"),
        *failed,
        Line(text=f"Nearest: trial {miss.run.number} ({describe(miss.run.point, {})})"),
        Line(text=_over_text(summary), indent=2),
        Line(text="What would help:"),
        *(Line(text=f"- {sentence}", indent=2) for sentence in summary.advice),
    ]


def _limit_text(summary: Summary) -> str:
    """The limit that was in the way: the host's where the nearest miss is within that of the device."""
    miss = summary.nearest_miss
    if miss is not None and miss.device_over_bytes == 0:
        return f"{format_bytes(summary.limits.host_bytes)} of host memory"
    return f"{format_bytes(summary.limits.device_bytes)} per rank"


def verdict_text(summary: Summary) -> str:
    """The winner against the best baseline, in one sentence that carries its uncertainty."""
    gain = summary.best_gain
    if (decided := finals_verdict(summary)) is not None:
        return decided
    if gain is None:
        return "No baseline fits the budget, so there is nothing to compare the winner with."
    if gain.same:
        return f"Nothing found is faster than the baseline '{gain.label}'."
    if gain.clear is False:
        against = f"{gain.percent:+.1f} % over the best baseline, '{gain.label}',"
        return f"No clear winner: {against} is within the noise of {gain.noise_percent:.1f} %."
    noise = "unknown: too few steps" if gain.noise_percent is None else f"{gain.noise_percent:.1f} %"
    return f"{gain.percent:.1f} % faster than the best baseline that fits, '{gain.label}' (noise {noise})."


def verdict_blocks(summary: Summary) -> list[Block]:
    """The winner against the best baseline, and how far that can be trusted."""
    return [Line(text=verdict_text(summary), tone="strong"), *finals_lines(summary)]


def gain_text(gain: Gain) -> str:
    """'+27.3 % (noise 2.1 %)', or why there is no such figure."""
    if gain.same:
        return "the winner"
    if gain.percent is None:
        return "-"
    noise = "unknown" if gain.noise_percent is None else f"{gain.noise_percent:.1f} %"
    return f"{gain.percent:+.1f} % (noise {noise})"


def count_text(summary: Summary) -> str:
    """'12 of 12 trials (8 ok, 3 over budget, 1 crashed), 2 reused'."""
    # The finals may add a trial: the winner with what does not matter at its default. A search that ended
    # before its target has no more to do.
    wanted, measured = summary.study.target_trials or 0, summary.measured
    short = measured < wanted and summary.ending is None
    target = f" of {wanted}" if short or measured == wanted else ""
    trained = Counter(run.status for run in summary.runs if is_measured(run))
    kinds = ", ".join(f"{trained[status]} {_spaced(status)}" for status in Status if trained[status])
    extras = [
        (summary.reused, "reused"),
        (sum(not run.ran and run.reuse_of is None for run in summary.runs), "not run"),
        (summary.counts.get(Status.INTERRUPTED.value, 0), "interrupted"),
        (summary.running, "running"),
    ]
    rest = "".join(f", {count} {word}" for count, word in extras if count)
    return f"{summary.measured}{target} trials" + (f" ({kinds})" if kinds else "") + rest


def _spaced(status: Status) -> str:
    return status.value.replace("_", " ")


def baselines_blocks(summary: Summary) -> list[Block]:
    if not summary.gains:
        return []
    columns = (
        Column(title="baseline", stretch=True),
        Column(title="trial", right=True),
        Column(title="status"),
        Column(title="samples/s", right=True),
        Column(title="the winner against it", right=True),
    )
    rows = tuple(
        (
            gain.label,
            str(gain.trial),
            _baseline_status(gain),
            rate_text(gain.samples_per_s),
            _against(summary, gain),
        )
        for gain in summary.gains
    )
    blocks: list[Block] = [Heading(text="Baselines"), Table(columns=columns, rows=rows)]
    if any(gain.noise_percent is not None for gain in summary.gains):
        blocks.append(Line(text=_NOISE, tone="dim", indent=1))
    return blocks


def _against(summary: Summary, gain: Gain) -> str:
    """The winner against a baseline: from repeats in turn where there were any, else from single trials."""
    ratio = summary.outcome.over(gain.trial) if summary.outcome else None
    return f"{ratio_text(ratio.value, ratio.low, ratio.high)} times" if ratio else gain_text(gain)


def _baseline_status(gain: Gain) -> str:
    if gain.status is Status.OK and not gain.fits:
        return "too large"
    return _spaced(gain.status) if gain.status else "running"


def failures_blocks(summary: Summary) -> list[Block]:
    """Failed trials by kind: which, what it means, what to do."""
    blocks: list[Block] = []
    for status in summary.counts:
        ended = [run for run in summary.runs if run.status == status and run.reuse_of is None]
        failed = [run for run in ended if not is_foretold(run)]
        if status != Status.OK and failed:
            blocks += _failure(Status(status), failed, summary.study.name)
    blocks += unrun_blocks([run for run in summary.runs if is_foretold(run) and run.reuse_of is None])
    return [Heading(text="Failures"), *blocks] if blocks else []


def _failure(status: Status, runs: Sequence[Run], study: str) -> list[Block]:
    words = STATUS_WORDS[status]
    remedy = words.remedy.format(study=study, trial=runs[0].number)
    reasons = list(dict.fromkeys(run.result.reason for run in runs if run.result and run.result.reason))
    return [
        Line(text=f"{words.title} ({len(runs)}): trial {numbers_text(runs)}", tone="warn"),
        Line(text=f"{words.meaning} {remedy}", indent=2),
        *(Line(text=_first_line(reason), tone="dim", indent=2) for reason in reasons[:REASONS_SHOWN]),
    ]


def _first_line(text: str) -> str:
    return text.strip().partition("\n")[0]


def _winner_facts(summary: Summary, best: Run) -> tuple[tuple[str, str], ...]:
    result = best.result
    memory = result.memory if result else None
    used = memory.used_device_bytes if memory else None
    return (
        ("winner", f"trial {best.number}"),
        ("throughput", format_rate(result.samples_per_s if result else None)),
        ("", format_rate(result.tokens_per_s if result else None, "tokens/s")),
        (
            "used memory",
            f"{format_bytes(used)}, {share_text(used, summary.limits.device_bytes)} of what it may use",
        ),
        ("host memory", format_bytes(memory.used_host_bytes if memory else None)),
        ("settings", describe(best.point, {}) or f"{best.label}, as it is"),
    )


def _over_text(summary: Summary) -> str:
    miss = summary.nearest_miss
    overs = [(miss.device_over_bytes, "device"), (miss.host_over_bytes, "host")] if miss else []
    texts = [
        f"ran out of {where} memory before its need could be measured"
        if over is None
        else f"{format_bytes(over)} ({over:,} bytes) too much {where} memory"
        for over, where in overs
        if over != 0
    ]
    return "; ".join(texts)


def _cpu_reminder(study: StudyRecord) -> list[Block]:
    return [Line(text=CPU_CAVEATS[0], tone="dim")] if study.device == "cpu" else []
