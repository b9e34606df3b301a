"""The command line: parse, call one function, render. Heavy imports happen inside the commands.

stdout is data, stderr is talk. Exit codes: 0 done, 1 failed, 2 usage, 3 nothing fits, 130 interrupted.
"""

from __future__ import annotations

import functools
import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Annotated, Any, TypeVar

import typer
from typer.core import TyperCommand

from offtune import (
    __version__,
    cli_calibrate,
    cli_export,
    cli_plan,
    cli_profile,
    cli_report,
    cli_search,
    cli_show,
)
from offtune.cli_options import COMMAND
from offtune.errors import EXIT_FAILED, EXIT_INTERRUPTED, OfftuneError


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


app.command(cls=BeforeDashes)(guarded(cli_search.search))
app.command(cls=BeforeDashes)(guarded(cli_search.resume))
app.command(name="list")(guarded(cli_show.list_studies))
app.command()(guarded(cli_show.show))
app.command()(guarded(cli_show.doctor))
app.command()(guarded(cli_export.export))
app.command()(guarded(cli_plan.plan))
app.command()(guarded(cli_report.report))
app.command()(guarded(cli_report.dashboard))
app.command()(guarded(cli_calibrate.calibrate))
app.command(cls=BeforeDashes)(guarded(cli_profile.profile))


def main() -> None:
    """The entry point of `offtune` and `python -m offtune`."""
    app()
