"""The command line of `offtune calibrate`: parse, measure, keep, render. Heavy imports happen inside.

Covered: its options. Not covered: errors and exit codes, which `cli.guarded` turns them into.
"""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Annotated

import typer

from offtune.cli_options import DEFAULT_STORAGE, AsJson, Storage
from offtune.cli_output import print_json, print_page


def calibrate(
    nvme_path: Annotated[
        str | None, typer.Option(help="A folder on NVMe; without one storage is not measured.")
    ] = None,
    gpus: Annotated[
        int | None, typer.Option(help="Ranks of the collectives; default: all visible GPUs, or 1.")
    ] = None,
    device: Annotated[str | None, typer.Option(help="cuda or cpu; default: cuda where there is one.")] = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Write a hardware profile (YAML) to this file.")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Overwrite the file.")] = False,
    quick: Annotated[bool, typer.Option("--quick", help="Measure briefly: figures scatter more.")] = False,
    storage: Storage = DEFAULT_STORAGE,
    as_json: AsJson = False,
) -> None:
    """Measure this machine: matrix rate, links, CPU Adam, memory, storage, collectives, launches.

    Example: offtune calibrate --nvme-path /mnt/nvme -o this-machine.yaml
    """
    from offtune import calibrated_profile
    from offtune.calibrate import Settings, check_output
    from offtune.calibrate import calibrate as measure
    from offtune.report.calibrate_page import calibrate_document, calibrate_page
    from offtune.store import Store

    check_output(output, force)
    settings = Settings(nvme_path=nvme_path, gpus=gpus, device=device, quick=quick)
    with Store.open(storage, write=True) as store:
        found = measure(settings, functools.partial(typer.echo, err=True))
        store.add_calibration(found.fingerprint, found)
    if output is not None:
        calibrated_profile.write(found, output, force)
    if as_json:
        print_json(calibrate_document(found))
    else:
        print_page(calibrate_page(found, output))
