"""The commands that run trials: `search` and `resume`. `cli.py` registers them.

Covered: arguments, one call each, how a search is shown. Heavy imports happen inside.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

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
from offtune.cli_output import print_json, print_page
from offtune.errors import EXIT_NOTHING_FITS

if TYPE_CHECKING:
    from offtune.report.summary import Summary


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
    from offtune.one_thread import load_numpy

    load_numpy()
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
            print_json(refused_document(refused.path, refused.changes))
        else:
            print_page(refused_page(refused.path, refused.changes))
        raise
    trial_s = session.usual_trial_s(storage, config)
    if as_json:
        print_json(dry_run_document(config, space, notes, trial_s))
    else:
        print_page(dry_run_page(config, space, notes, trial_s))


def _finish(summary: Summary, progress: Any, as_json: bool) -> None:
    from offtune.report.document import document

    progress.finish(summary)
    if as_json:
        print_json(document(summary))
    if summary.best is None:
        raise typer.Exit(EXIT_NOTHING_FITS)


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
    from offtune.one_thread import load_numpy

    load_numpy()
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
