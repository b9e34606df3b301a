"""Options that several commands share.

Covered: their names, help and defaults. Not covered: commands (`cli.py`, `cli_report.py`).
"""

from __future__ import annotations

from typing import Annotated

import typer

DEFAULT_STORAGE = "studies.db"
# Where `cli.BeforeDashes` leaves what follows `--`.
COMMAND = "offtune.command"

Storage = Annotated[
    str, typer.Option(help="Where studies are kept: a path, or a database URL.", envvar="OFFTUNE_STORAGE")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON document on stdout instead of a page.")]
StudyName = Annotated[str | None, typer.Argument(help="The study's name; the newest when left out.")]
