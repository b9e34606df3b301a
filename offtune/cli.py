"""The command line: parse, call one function, render. Heavy imports happen inside the commands.

stdout is data, stderr is talk. Exit codes: 0 done, 1 failed, 2 usage, 3 nothing fits, 130 interrupted.
"""

from __future__ import annotations

import functools
import gc
import json
import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer
from typer.core import TyperCommand

from offtune import __version__, cli_calibrate, cli_export, cli_plan, cli_profile, cli_report
from offtune.cli_options import (
    COMMAND,
    DEFAULT_STORAGE,
    AsJson,
    Checkpointing,
    Device,
    Gpus,
    Model,
    SeqLen,
    Storage,
    StudyName,
    WarmupSteps,
)
from offtune.errors import (
    EXIT_FAILED,
    EXIT_INTERRUPTED,
    EXIT_NOTHING_FITS,
    OfftuneError,
)

if TYPE_CHECKING:
    from offtune.report.page import Page
    from offtune.report.summary import Summary


class BeforeDashes(TyperCommand):
    """A command whose own arguments end at `--`; what follows is somebody else's and left as it is."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if "--" in args:
            at = args.index("--")
            ctx.meta[COMMAND] = tuple(args[at + 1 :])
            args = args[:at]
        return super().parse_args(ctx, args)


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


@app.command(cls=BeforeDashes)
@guarded
def search(
    ctx: typer.Context,
    budget: Annotated[
        str | None,
        typer.Option(help="Device memory a rank may use: 40GB (40e9) or 40GiB. Default: the card's."),
    ] = None,
    model: Model = None,
    seq_len: SeqLen = None,
    global_batch: Annotated[
        int | None, typer.Option(help="Samples per optimizer step over all ranks; kept constant.")
    ] = None,
    precision: Annotated[str | None, typer.Option(help="bf16, fp16 or fp32. [the base's, else bf16]")] = None,
    optimizer: Annotated[
        str | None, typer.Option(help="adamw, adam, lion or adagrad. [the base's, else adamw]")
    ] = None,
    activation_checkpointing: Checkpointing = None,
    gpus: Gpus = None,
    hostfile: Annotated[
        str | None, typer.Option(help="Ranks on several nodes: DeepSpeed's hostfile, 'host slots=8' a line.")
    ] = None,
    launcher: Annotated[
        str | None,
        typer.Option(help="Who starts them: pdsh (default), openmpi, mpich, impi, mvapich, slurm; or srun."),
    ] = None,
    shared_dir: Annotated[
        str | None, typer.Option(help="A folder all nodes share, for trials. Default: the current one.")
    ] = None,
    device: Device = None,
    host_budget: Annotated[
        str | None, typer.Option(help="Host memory of all ranks together. Default: 90 % of what is free.")
    ] = None,
    headroom: Annotated[
        str | None, typer.Option(help="Keep this much of the budget free: 5% or 2GB. Default: none.")
    ] = None,
    nvme_path: Annotated[
        str | None, typer.Option(help="A folder on NVMe; without one nothing is offloaded to disk.")
    ] = None,
    base: Annotated[
        str | None, typer.Option(help="Your own ds_config: the first baseline, and the base of every trial.")
    ] = None,
    space: Annotated[
        str, typer.Option(help="What is searched: a packaged space or a YAML file.")
    ] = "default",
    trials: Annotated[
        int | None,
        typer.Option(help="Trainings, baselines included. Default: until converged, at most 40."),
    ] = None,
    until_converged: Annotated[
        bool,
        typer.Option("--until-converged", help="Stop before --trials once no gain is expected."),
    ] = False,
    time: Annotated[str | None, typer.Option(help="Start no trial after this long: 30m, 2h.")] = None,
    trial_timeout: Annotated[str | None, typer.Option(help="Kill a trial after this long. [10m]")] = None,
    warmup_steps: WarmupSteps = 2,
    steps: Annotated[
        int | None, typer.Option(help="Measure exactly so many optimizer steps. [as --accuracy needs]")
    ] = None,
    accuracy: Annotated[
        str | None, typer.Option(help="Measure until the step time is known so well, or cannot win. [2%]")
    ] = None,
    seed: Annotated[int, typer.Option(help="Of weights, data and the sampler.")] = 0,
    loss_check: Annotated[
        bool,
        typer.Option(
            "--loss-check/--no-loss-check",
            help="Call a trial diverged when its losses depart from the baseline's.",
        ),
    ] = True,
    finals: Annotated[
        bool,
        typer.Option(
            "--finals/--no-finals",
            help="Train the best and the best baseline again in turn, until the winner is clear.",
        ),
    ] = True,
    sampler: Annotated[
        str, typer.Option(help="offtune's own strategy, or Optuna's tpe, random, gp, qmc, grid.")
    ] = "offtune",
    predict: Annotated[
        bool,
        typer.Option(
            "--predict/--no-predict",
            help="Do not run what is predicted far over; try the predicted best first.",
        ),
    ] = True,
    study: Annotated[
        str | None, typer.Option(help="A name for the study; default: study-1, study-2, ...")
    ] = None,
    storage: Storage = DEFAULT_STORAGE,
    as_json: AsJson = False,
    trial_cwd: Annotated[
        str, typer.Option(help="Where a command of your own runs: here, or a scratch directory of the trial.")
    ] = "here",
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Resolve everything, show it, run nothing.")
    ] = False,
) -> None:
    """Search for the fastest configuration under a memory budget; every trial is a short real training.

    Example: offtune search --budget 40GB --model llama-7b --nvme-path /mnt/nvme

    Your own training: offtune search --budget 40GB -- torchrun train.py --deepspeed {ds_config}
    """
    from offtune.config import Options

    options = Options(
        budget=budget, host_budget=host_budget, headroom=headroom, model=model, seq_len=seq_len,
        global_batch=global_batch, precision=precision, optimizer=optimizer,
        activation_checkpointing=activation_checkpointing, gpus=gpus, hostfile=hostfile, launcher=launcher,
        shared_dir=shared_dir, device=device, nvme_path=nvme_path,
        base=base, space=space, trials=trials, time=time, trial_timeout=trial_timeout,
        warmup_steps=warmup_steps, steps=steps, accuracy=accuracy, seed=seed, sampler=sampler,
        loss_check=loss_check, predict=predict, until_converged=until_converged, finals=finals,
        command=ctx.meta.get(COMMAND), trial_cwd=trial_cwd,
    )  # fmt: skip
    if dry_run:
        _dry_run(options, storage, as_json)
        return
    from offtune import session
    from offtune.report.terminal import Progress, make_console

    with Progress(make_console(stderr=True)) as progress:
        _finish(session.start(options, storage, study, progress), progress, as_json)


def _dry_run(options: Any, storage: str, as_json: bool) -> None:
    from offtune import session
    from offtune.ds_change import BaseRefused
    from offtune.report.base_page import refused_document, refused_page
    from offtune.report.setup_page import dry_run_document, dry_run_page

    try:
        config, space, notes = session.plan(options)
    except BaseRefused as refused:
        if as_json:
            _print_json(refused_document(refused.path, refused.changes))
        else:
            _print_page(refused_page(refused.path, refused.changes))
        raise
    trial_s = session.usual_trial_s(storage, config)
    if as_json:
        _print_json(dry_run_document(config, space, notes, trial_s))
    else:
        _print_page(dry_run_page(config, space, notes, trial_s))


def _finish(summary: Summary, progress: Any, as_json: bool) -> None:
    from offtune.report.document import document

    progress.finish(summary)
    if as_json:
        _print_json(document(summary))
    if summary.best is None:
        raise typer.Exit(EXIT_NOTHING_FITS)


@app.command(cls=BeforeDashes)
@guarded
def resume(
    ctx: typer.Context,
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
        command=ctx.meta.get(COMMAND),
    )
    with Progress(make_console(stderr=True)) as progress:
        _finish(session.resume(storage, study, changes, progress), progress, as_json)


@app.command(name="list")
@guarded
def list_studies(storage: Storage = DEFAULT_STORAGE, as_json: AsJson = False) -> None:
    """List the studies of a database.

    Example: offtune list --storage studies.db
    """
    from offtune.report.overview import overviews
    from offtune.store import Store

    with Store.open(storage, write=False) as store:
        studies = overviews(store)
    if as_json:  # each way loads only what it needs, since loading is most of the time
        from offtune.report.document import list_document

        _print_json(list_document(studies))
    else:
        from offtune.report.study_page import list_page

        _print_page(list_page(studies))


@app.command()
@guarded
def show(
    study: StudyName = None,
    trial: Annotated[int | None, typer.Option(help="One trial in full.")] = None,
    storage: Storage = DEFAULT_STORAGE,
    as_json: AsJson = False,
) -> None:
    """Show a study: ranking, baselines, failures, front, phases, knobs; or one trial in full.

    Example: offtune show study-1 --trial 7
    """
    if trial is not None:
        _show_trial(storage, study, trial, as_json)
        return
    from offtune.report.insight_page import insight_blocks, insight_document
    from offtune.report.study_report import read_report

    with _uncollected():
        found = read_report(storage, study)
    if as_json:
        from offtune.report.document import document

        _print_json({**document(found.summary), **insight_document(found)})
    else:
        from offtune.report.study_page import study_page

        _print_page(study_page(found.summary, insight_blocks(found)))


@contextmanager
def _uncollected() -> Iterator[None]:
    """Without Python's garbage collector: ten thousand records hold no cycles, and looking takes a while."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def _show_trial(storage: str, study: str | None, trial: int, as_json: bool) -> None:
    from offtune.report.document import trial_document
    from offtune.report.trial_page import trial_page
    from offtune.store import Store

    with Store.open(storage, write=False) as store:
        record = store.study(study)
        run = store.run(record.name, trial)
        again = [each for each in store.repeats.of(record.name) if each.run == trial]
    _print_json(trial_document(run, again)) if as_json else _print_page(trial_page(record, run, again))


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


app.command()(guarded(cli_export.export))
app.command()(guarded(cli_plan.plan))
app.command()(guarded(cli_report.report))
app.command()(guarded(cli_report.dashboard))
app.command()(guarded(cli_calibrate.calibrate))
app.command(cls=BeforeDashes)(guarded(cli_profile.profile))


def main() -> None:
    """The entry point of `offtune` and `python -m offtune`."""
    app()
