"""The command that looks closely at one run: `profile`. `cli.py` registers it.

Covered: arguments, opening what is to be written, exit codes. Heavy imports happen inside.
"""

from __future__ import annotations

import functools
import json
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TextIO

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
    WarmupSteps,
)
from offtune.cli_output import print_json, print_page
from offtune.errors import EXIT_NOTHING_FITS, OfftuneError, UsageError

if TYPE_CHECKING:
    from offtune.profile import Profiled

_STEPS, _CLOSE_STEPS = 5, 2
_MOST_CLOSE_STEPS = 20  # what the profiler keeps of a step of a large model is some hundred MB


def profile(
    ctx: typer.Context,
    ds_config: Annotated[Path, typer.Argument(help="The DeepSpeed configuration to be looked at.")],
    budget: Annotated[
        str | None,
        typer.Option(help="Device memory a rank may use: 40GB or 40GiB. Default: the card's; CPU: none."),
    ] = None,
    model: Model = None,
    seq_len: SeqLen = None,
    global_batch: Annotated[
        int | None, typer.Option(help="Samples per optimizer step over all ranks. [the file's]")
    ] = None,
    precision: Annotated[str | None, typer.Option(help="bf16, fp16 or fp32. [the file's]")] = None,
    optimizer: Annotated[
        str | None, typer.Option(help="adamw, adam, lion or adagrad. [the file's, else adamw]")
    ] = None,
    activation_checkpointing: Checkpointing = None,
    gpus: Gpus = None,
    device: Device = None,
    nvme_path: Annotated[
        str | None, typer.Option(help="A folder on NVMe in place of the file's own.")
    ] = None,
    warmup_steps: WarmupSteps = 2,
    steps: Annotated[int, typer.Option(help="Optimizer steps measured.")] = _STEPS,
    close_steps: Annotated[
        int, typer.Option(help="Steps under torch's profiler after them, 0 for none; they are not timed.")
    ] = _CLOSE_STEPS,
    trial_timeout: Annotated[str | None, typer.Option(help="Give up after this long. [10m]")] = None,
    seed: Annotated[int, typer.Option(help="Of weights and data.")] = 0,
    html: Annotated[Path | None, typer.Option(help="Also write a page with the curves of a step.")] = None,
    trace: Annotated[
        Path | None, typer.Option(help="Also write a trace for Perfetto (ui.perfetto.dev): JSON.")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Overwrite these files.")] = False,
    storage: Storage = DEFAULT_STORAGE,
    as_json: AsJson = False,
    trial_cwd: Annotated[
        str, typer.Option(help="Where a command of your own runs: here, or a scratch directory.")
    ] = "here",
) -> None:
    """Run one ds_config and say what happens inside a step: memory, traffic and waiting, phase by phase.

    Example: offtune profile ds_config.json --model llama-7b --html profile.html --trace trace.json

    Your own training: offtune profile ds_config.json -- python train.py --deepspeed {ds_config}
    """
    from offtune.config import Options
    from offtune.draft import draft
    from offtune.profile import profile as run

    if not ds_config.is_file():
        raise UsageError(f"There is no file '{ds_config}'.", "Name a DeepSpeed configuration.")
    if not 0 <= close_steps <= _MOST_CLOSE_STEPS:
        raise UsageError(f"--close-steps {close_steps}: must be 0 to {_MOST_CLOSE_STEPS}.", "Try: 2")
    options = Options(
        budget=budget, model=model, seq_len=seq_len, global_batch=global_batch, precision=precision,
        optimizer=optimizer, activation_checkpointing=activation_checkpointing, gpus=gpus, device=device,
        nvme_path=nvme_path, base=str(ds_config), trial_timeout=trial_timeout, warmup_steps=warmup_steps,
        steps=steps, seed=seed, command=ctx.meta.get(COMMAND), trial_cwd=trial_cwd,
    )  # fmt: skip
    with ExitStack() as files:
        page = files.enter_context(draft(html, force=force)) if html else None
        events = files.enter_context(draft(trace, force=force)) if trace else None
        found = run(options, storage, close_steps, functools.partial(typer.echo, err=True))
        _show(found, as_json)
        _refuse_failed(found)
        _write(found, page, events)
    for path in (html, trace):
        if path is not None:
            typer.echo(f"Wrote {path}.", err=True)
    _end(found)


def _show(found: Profiled, as_json: bool) -> None:
    from offtune.report.profile_document import profile_document
    from offtune.report.profile_page import profile_page

    if as_json:
        print_json(profile_document(found))
    else:
        print_page(profile_page(found))


def _refuse_failed(found: Profiled) -> None:
    """A run without figures ends the command, and files that would be empty are not written."""
    if found.result.analysis is None:
        raise OfftuneError(
            f"The run ended without figures: {found.result.status}. {found.result.reason}",
            "The end of its log is above; offtune doctor says what is missing on this machine.",
        )


def _write(found: Profiled, page: TextIO | None, events: TextIO | None) -> None:
    from offtune.report.html import render
    from offtune.report.predicted_memory import with_memory
    from offtune.report.profile_html import expected_course, profile_report
    from offtune.trace_events import trace_document

    if page is not None:
        page.write(render(profile_report(found)))
    if events is not None:
        course, prediction = expected_course(found), found.expected.prediction
        if course is not None and prediction is not None:
            course = with_memory(course, prediction.memory)
        about = f"offtune profile of {found.base.path}: {found.config.workload.model_name}"
        json.dump(trace_document(found.timelines, found.looks, course, about), events, allow_nan=False)


def _end(found: Profiled) -> None:
    """A run that has figures but did not end well decides the exit code."""
    from offtune.trial import Status

    result = found.result
    if result.status is Status.OVER_BUDGET:
        typer.echo(f"offtune: {result.reason}", err=True)
        raise typer.Exit(EXIT_NOTHING_FITS)
    if result.status is not Status.OK:
        raise OfftuneError(f"The run is {result.status}. {result.reason}", "Its figures may mislead.")
