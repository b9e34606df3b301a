"""The commands that look back: `report` and `dashboard`. `cli.py` registers them.

Covered: arguments, one call each, the closing word. Heavy imports happen inside.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from offtune.cli_options import DEFAULT_STORAGE, Storage, StudyName
from offtune.cli_output import print_page
from offtune.errors import UsageError


def report(
    study: StudyName = None,
    output: Annotated[Path, typer.Option("--output", "-o", help="The page to write.")] = Path("report.html"),
    trace: Annotated[
        Path | None,
        typer.Option(help="Instead of a study: an NVML poller's CSV of somebody's training. Needs --phases."),
    ] = None,
    phases: Annotated[
        Path | None, typer.Option(help="The phase times of that trace, one row an iteration.")
    ] = None,
    link_peak: Annotated[
        str | None, typer.Option(help="For --trace: what its link can do each way in a second: 25GB.")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Overwrite the page.")] = False,
    storage: Storage = DEFAULT_STORAGE,
) -> None:
    """Write a study as one page of HTML with plots, which needs no network; or somebody else's NVML trace.

    Example: offtune report study-1 -o report.html
    """
    from offtune.draft import draft
    from offtune.report.html import render
    from offtune.report.study_report import read_report, with_prediction
    from offtune.report.study_sections import study_web_report

    if trace is None and (phases is not None or link_peak is not None):
        raise UsageError("--phases and --link-peak belong to a trace.", "Name its CSV with --trace.")
    with draft(output, force=force) as file:
        if trace is not None:
            file.write(_trace_html(trace, phases, link_peak))
        else:
            file.write(render(study_web_report(with_prediction(storage, read_report(storage, study)))))
    typer.echo(f"Wrote {output}. Open it in a browser.", err=True)


def _trace_html(trace: Path, phases: Path | None, link_peak: str | None) -> str:
    from offtune.bounds import Peaks
    from offtune.nvml_trace import read_trace
    from offtune.report.html import render
    from offtune.report.trace_sections import trace_page, trace_report
    from offtune.units import parse_bytes

    if phases is None:
        raise UsageError("--trace needs the times of its phases.", "Name their CSV with --phases.")
    peak = parse_bytes(link_peak, "--link-peak") if link_peak else None
    peaks = Peaks(h2d_bytes_per_s=peak, d2h_bytes_per_s=peak)
    timelines = read_trace(trace, phases)
    name = trace.stem.removesuffix("_nvml")
    print_page(trace_page(name, timelines, peaks))
    return render(trace_report(name, timelines, peaks))


def dashboard(
    study: StudyName = None,
    host: Annotated[str, typer.Option(help="The address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="The port to listen on.")] = 8080,
    storage: Storage = DEFAULT_STORAGE,
) -> None:
    """Open optuna-dashboard on a copy of a study, until Ctrl-C; nothing done there changes it.

    Example: offtune dashboard study-1 --port 8081
    """
    from offtune.dashboard import check_package, serve
    from offtune.report.miss import study_limits
    from offtune.store import Store

    check_package()
    with Store.open(storage, write=False) as store:
        record = store.study(study)
        runs = store.runs(record.name)
    typer.echo(f"Study {record.name} on http://{host}:{port} (a copy). Ctrl-C ends it.", err=True)
    serve(record, runs, study_limits(record), host=host, port=port)
