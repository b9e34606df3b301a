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
# Of a training: what is trained, and where.
Model = Annotated[
    str | None, typer.Option(help="A preset, a Hugging Face config.json (file or folder), or a hub id.")
]
SeqLen = Annotated[
    int | None, typer.Option(help="Tokens per sample; every batch has this length. [128; CUDA 1024]")
]
Checkpointing = Annotated[
    bool | None,
    typer.Option(
        "--activation-checkpointing/--no-activation-checkpointing",
        help="Recompute activations in backward. [a search tries both, a profile has it off]",
    ),
]
Gpus = Annotated[
    int | None,
    typer.Option(help="Ranks: GPUs of this node (default all visible); processes without CUDA (1)."),
]
Device = Annotated[str | None, typer.Option(help="cuda or cpu; default: cuda where there is one.")]
WarmupSteps = Annotated[int, typer.Option(help="Optimizer steps before measuring.")]
