"""The command that takes a result away: `export`. `cli.py` registers it.

Covered: arguments, one call each, what is said beside the file. Heavy imports happen inside.
"""

from __future__ import annotations

import functools
import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from offtune.cli_options import DEFAULT_STORAGE, AsJson, Storage, StudyName
from offtune.cli_output import print_json
from offtune.errors import OfftuneError

if TYPE_CHECKING:
    from offtune.records import Run, StudyRecord
    from offtune.verify import Verification


def export(
    study: StudyName = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="The file to write; stdout when left out.")
    ] = None,
    format_name: Annotated[str, typer.Option("--format", help="deepspeed, hf or accelerate.")] = (
        "deepspeed"
    ),
    note: Annotated[
        Path | None, typer.Option(help="Also write where it comes from, what was measured and how it spread.")
    ] = None,
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
    """Write the best ds_config of a study, as DeepSpeed, the Hugging Face Trainer or accelerate takes it.

    Example: offtune export study-1 -o ds_config.json --format hf --note ds_config.md --verify
    """
    from offtune.export import base_of, deepspeed_text, portable, write_all
    from offtune.export_formats import Purpose, files_of, make
    from offtune.report.document import export_document
    from offtune.report.export_page import export_lines
    from offtune.selection import choose, finals_of

    record, run = choose(storage, study, trial, budget)
    ds_config = portable(run.ds_config, record.settings.get("nvme_path"), base_of(record))
    made = make(format_name, ds_config, Purpose.of(record, run, output))
    claim, finals = finals_of(storage, record, run) if note or as_json else (None, "")
    files = files_of(made, record, run, output, note, finals)
    write_all(files, force)
    for line in export_lines(made, record, run, [path for path, _ in files]):
        typer.echo(line, err=True)
    if output is None and not as_json:
        typer.echo(made.text, nl=False)
    outcome = _verify(record, run, deepspeed_text(ds_config)) if verify else None
    if as_json:
        document = export_document(record, run, made, claim, outcome)
        print_json(document)
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
