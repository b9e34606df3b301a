"""The command line: parse, call one function, render. Heavy imports happen inside the commands.

stdout is data, stderr is talk. Exit codes: 0 done, 1 failed, 2 usage, 3 nothing fits, 130 interrupted.
"""

from __future__ import annotations

import functools
import json
import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from offtune import __version__, cli_calibrate
from offtune.errors import (
    EXIT_FAILED,
    EXIT_INTERRUPTED,
    EXIT_NOTHING_FITS,
    OfftuneError,
)

if TYPE_CHECKING:
    from offtune.records import Run, StudyRecord
    from offtune.report.page import Page
    from offtune.report.summary import Summary
    from offtune.verify import Verification

app = typer.Typer(
    name="offtune",
    help="Find the fastest DeepSpeed offload configuration that stays under your GPU memory budget.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # plain help: loading rich for it would take longer than everything else
    context_settings={"help_option_names": ["-h", "--help"]},
)
Command = TypeVar("Command", bound=Callable[..., None])

Storage = Annotated[
    str, typer.Option(help="Where studies are kept: a path, or a database URL.", envvar="OFFTUNE_STORAGE")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON document on stdout instead of a page.")]
StudyName = Annotated[str | None, typer.Argument(help="The study's name; the newest when left out.")]
DEFAULT_STORAGE = "studies.db"


def guarded(command: Command) -> Command:
    """Turn what stops a command into one message and an exit code; nothing else catches OfftuneError."""

    @functools.wraps(command)
    def run(*arguments: Any, **options: Any) -> None:
        try:
            with _terminable():
                command(*arguments, **options)
        except OfftuneError as error:
            _complain(error.message, error.hint)
            raise typer.Exit(error.exit_code) from None
        except KeyboardInterrupt:
            _complain("Interrupted.", "")
            raise typer.Exit(EXIT_INTERRUPTED) from None
        except BrokenPipeError:
            # The reader (head, less) has seen enough; nothing is left to be said to it.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        except OSError as error:
            where = f"{error.filename}: " if error.filename else ""
            _complain(
                f"{where}{error.strerror or error}.",
                "Free some space or choose another folder, then: offtune resume",
            )
            raise typer.Exit(EXIT_FAILED) from error

    return run  # type: ignore[return-value]


@contextmanager
def _terminable() -> Iterator[None]:
    """Let SIGTERM end a search as Ctrl-C does: trial killed, study kept."""

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _complain(message: str, hint: str) -> None:
    typer.echo(f"offtune: {message}", err=True)
    if hint:
        typer.echo(f"  {hint}", err=True)


def _print_json(document: dict[str, Any]) -> None:
    typer.echo(json.dumps(document, indent=2, allow_nan=False))


def _print_page(page: Page) -> None:
    from offtune.report.terminal import draw, make_console

    draw(make_console(), page)


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"offtune {__version__}")
        raise typer.Exit


@app.callback()
def offtune(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and leave.")
    ] = False,
) -> None:
    """Find the fastest DeepSpeed offload configuration that stays under your GPU memory budget."""


@app.command()
@guarded
def search(
    budget: Annotated[
        str | None,
        typer.Option(help="Device memory a rank may use: 40GB (40e9) or 40GiB. Default: the card's."),
    ] = None,
    model: Annotated[
        str | None, typer.Option(help="A preset, a Hugging Face config.json (file or folder), or a hub id.")
    ] = None,
    seq_len: Annotated[
        int | None, typer.Option(help="Tokens per sample; every batch has this length. [128; CUDA 1024]")
    ] = None,
    global_batch: Annotated[
        int | None, typer.Option(help="Samples per optimizer step over all ranks; kept constant.")
    ] = None,
    precision: Annotated[str, typer.Option(help="bf16, fp16 or fp32.")] = "bf16",
    optimizer: Annotated[str, typer.Option(help="adamw, adam, lion or adagrad.")] = "adamw",
    activation_checkpointing: Annotated[
        bool,
        typer.Option(
            "--activation-checkpointing/--no-activation-checkpointing",
            help="Recompute activations in backward.",
        ),
    ] = False,
    gpus: Annotated[
        int | None,
        typer.Option(help="Ranks: GPUs of this node (default all visible); processes without CUDA (1)."),
    ] = None,
    device: Annotated[str | None, typer.Option(help="cuda or cpu; default: cuda where there is one.")] = None,
    host_budget: Annotated[
        str | None, typer.Option(help="Host memory of all ranks together. Default: 90 % of what is free.")
    ] = None,
    headroom: Annotated[
        str | None, typer.Option(help="Keep this much of the budget free: 5% or 2GB. Default: none.")
    ] = None,
    nvme_path: Annotated[
        str | None, typer.Option(help="A folder on NVMe; without one nothing is offloaded to disk.")
    ] = None,
    space: Annotated[
        str, typer.Option(help="What is searched: a packaged space or a YAML file.")
    ] = "default",
    trials: Annotated[int | None, typer.Option(help="Trainings to run, baselines included. [40]")] = None,
    time: Annotated[str | None, typer.Option(help="Start no trial after this long: 30m, 2h.")] = None,
    trial_timeout: Annotated[str | None, typer.Option(help="Kill a trial after this long. [10m]")] = None,
    warmup_steps: Annotated[int, typer.Option(help="Optimizer steps before measuring.")] = 2,
    steps: Annotated[int, typer.Option(help="Optimizer steps measured.")] = 5,
    seed: Annotated[int, typer.Option(help="Of weights, data and the sampler.")] = 0,
    sampler: Annotated[str, typer.Option(help="Optuna's sampler: tpe, random, gp, qmc.")] = "tpe",
    study: Annotated[
        str | None, typer.Option(help="A name for the study; default: study-1, study-2, ...")
    ] = None,
    storage: Storage = DEFAULT_STORAGE,
    as_json: AsJson = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Resolve everything, show it, run nothing.")
    ] = False,
) -> None:
    """Search for the fastest configuration under a memory budget; every trial is a short real training.

    Example: offtune search --budget 40GB --model llama-7b --nvme-path /mnt/nvme
    """
    from offtune.config import Options

    options = Options(
        budget=budget, host_budget=host_budget, headroom=headroom, model=model, seq_len=seq_len,
        global_batch=global_batch, precision=precision, optimizer=optimizer,
        activation_checkpointing=activation_checkpointing, gpus=gpus, device=device, nvme_path=nvme_path,
        space=space, trials=trials, time=time, trial_timeout=trial_timeout, warmup_steps=warmup_steps,
        steps=steps, seed=seed, sampler=sampler,
    )  # fmt: skip
    if dry_run:
        _dry_run(options, as_json)
        return
    from offtune import session
    from offtune.report.terminal import Progress, make_console

    with Progress(make_console(stderr=True)) as progress:
        _finish(session.start(options, storage, study, progress), progress, as_json)


def _dry_run(options: Any, as_json: bool) -> None:
    from offtune import session
    from offtune.report.setup_page import dry_run_document, dry_run_page

    config, space, notes = session.plan(options)
    if as_json:
        _print_json(dry_run_document(config, space, notes))
    else:
        _print_page(dry_run_page(config, space, notes))


def _finish(summary: Summary, progress: Any, as_json: bool) -> None:
    from offtune.report.document import document

    progress.finish(summary)
    if as_json:
        _print_json(document(summary))
    if summary.best is None:
        raise typer.Exit(EXIT_NOTHING_FITS)


@app.command()
@guarded
def resume(
    study: StudyName = None,
    trials: Annotated[int | None, typer.Option(help="A new target; default: the study's own.")] = None,
    time: Annotated[str | None, typer.Option(help="Start no trial after this long: 30m, 2h.")] = None,
    budget: Annotated[
        str | None, typer.Option(help="Only to make sure: refused when it is not the study's.")
    ] = None,
    anyway: Annotated[
        bool, typer.Option("--anyway", help="Go on although machine or versions differ.")
    ] = False,
    storage: Storage = DEFAULT_STORAGE,
    as_json: AsJson = False,
) -> None:
    """Continue a study to its own target after any interruption; finished trials are kept.

    Example: offtune resume study-1
    """
    from offtune import session
    from offtune.report.terminal import Progress, make_console
    from offtune.units import parse_bytes, parse_seconds

    changes = session.Changes(
        trials=trials,
        time_s=parse_seconds(time, "--time") if time else None,
        budget_bytes=parse_bytes(budget, "--budget") if budget else None,
        anyway=anyway,
    )
    with Progress(make_console(stderr=True)) as progress:
        _finish(session.resume(storage, study, changes, progress), progress, as_json)


@app.command(name="list")
@guarded
def list_studies(storage: Storage = DEFAULT_STORAGE, as_json: AsJson = False) -> None:
    """List the studies of a database.

    Example: offtune list --storage studies.db
    """
    from offtune.report.document import list_document
    from offtune.report.study_page import list_page
    from offtune.report.summary import summarise
    from offtune.store import Store

    with Store.open(storage, write=False) as store:
        summaries = [summarise(record, store.runs(record.name)) for record in store.studies()]
    if as_json:
        _print_json(list_document(summaries))
    else:
        _print_page(list_page(summaries))


@app.command()
@guarded
def show(
    study: StudyName = None,
    trial: Annotated[int | None, typer.Option(help="One trial in full.")] = None,
    storage: Storage = DEFAULT_STORAGE,
    as_json: AsJson = False,
) -> None:
    """Show a study: ranking, baselines, failures, front; or one trial in full.

    Example: offtune show study-1 --trial 7
    """
    from offtune.report.document import document, trial_document
    from offtune.report.study_page import study_page
    from offtune.report.summary import summarise
    from offtune.report.trial_page import trial_page
    from offtune.store import Store

    with Store.open(storage, write=False) as store:
        record = store.study(study)
        run = store.run(record.name, trial) if trial is not None else None
        summary = summarise(record, store.runs(record.name))
    if as_json:
        _print_json(trial_document(run) if run else document(summary))
    else:
        _print_page(trial_page(record, run) if run else study_page(summary))


@app.command()
@guarded
def export(
    study: StudyName = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="The file to write; stdout when left out.")
    ] = None,
    format_name: Annotated[str, typer.Option("--format", help="deepspeed.")] = "deepspeed",
    budget: Annotated[
        str | None, typer.Option(help="The best measured trial under another budget of the same study.")
    ] = None,
    trial: Annotated[int | None, typer.Option(help="This trial instead of the best.")] = None,
    force: Annotated[bool, typer.Option("--force", help="Overwrite the file.")] = False,
    verify: Annotated[
        bool,
        typer.Option("--verify", help="Train the exported file for a few steps and compare with the record."),
    ] = False,
    storage: Storage = DEFAULT_STORAGE,
    as_json: AsJson = False,
) -> None:
    """Write the best ds_config of a study, as DeepSpeed takes it.

    Example: offtune export study-1 -o ds_config.json --verify
    """
    from offtune.export import export_text, portable, write_export
    from offtune.report.document import export_document
    from offtune.selection import choose

    record, run = choose(storage, study, trial, budget)
    text = export_text(portable(run.ds_config, record.settings.get("nvme_path")), format_name)
    if output is not None:
        write_export(text, output, force)
        typer.echo(f"Wrote {output}: trial {run.number} of study {record.name}.", err=True)
    elif not as_json:
        typer.echo(text, nl=False)
    outcome = _verify(record, run, text) if verify else None
    if as_json:
        _print_json(export_document(record, run, json.loads(text), outcome))
    if outcome is not None and not outcome.holds:
        raise OfftuneError(
            f"The exported configuration did not hold: {outcome.result.status}. {outcome.result.reason}",
            "Export another trial (--trial), or search again under today's conditions.",
        )


def _verify(record: StudyRecord, run: Run, text: str) -> Verification:
    from offtune.report.export_page import verification_page
    from offtune.report.terminal import draw, make_console
    from offtune.session import stored_config
    from offtune.verify import verify

    outcome = verify(stored_config(record), run, json.loads(text), functools.partial(typer.echo, err=True))
    draw(make_console(stderr=True), verification_page(run, outcome))
    return outcome


@app.command()
@guarded
def doctor(
    nvme_path: Annotated[
        str | None, typer.Option(help="The folder for NVMe offload, to be checked too.")
    ] = None,
    storage: Storage = DEFAULT_STORAGE,
    quick: Annotated[bool, typer.Option("--quick", help="Skip what needs torch to be loaded.")] = False,
    as_json: AsJson = False,
) -> None:
    """Check what would make a search fail on this machine, each with its remedy.

    Example: offtune doctor --nvme-path /mnt/nvme
    """
    from offtune.doctor import checks, worst
    from offtune.report.setup_page import doctor_document, doctor_page

    found = checks(nvme_path=nvme_path, storage=storage, quick=quick)
    if as_json:
        _print_json(doctor_document(found))
    else:
        _print_page(doctor_page(found))
    if worst(found) == "failed":
        raise typer.Exit(EXIT_FAILED)


app.command()(guarded(cli_calibrate.calibrate))


def main() -> None:
    """The entry point of `offtune` and `python -m offtune`."""
    app()
