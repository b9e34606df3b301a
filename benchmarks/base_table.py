"""What `search --base` makes of each ds_config in a folder, as a Markdown table (the one in docs/base.md).

Usage: python benchmarks/base_table.py FOLDER [--device cuda|cpu]. Nothing is run; "auto" is filled for the
default model of the device, on one rank, with the installed DeepSpeed.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from pathlib import Path

from offtune import installed
from offtune.config import OPTIMIZERS
from offtune.ds_change import BaseRefused, Change
from offtune.ds_settle import Settled, Wishes, settle_file
from offtune.models import default_preset, resolve_model

DEFAULT_BATCH = {"cpu": 8, "cuda": 32}
SHOWN_LINES = 4


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    arguments = parser.parse_args()
    print("| file | outcome | changed or left out | read or filled in |")
    print("|---|---|---|---|")
    for path in sorted(arguments.folder.glob("*.json")):
        print(row(path, arguments.device))


def row(path: Path, device: str) -> str:
    """One line of the table."""
    try:
        found = settle(path, device)
    except BaseRefused as refused:
        reasons = [change for change in refused.changes if change.kind == "refused"]
        return f"| {path.name} | refused | {'; '.join(map(cell, reasons))} | |"
    changes = found.base.changes
    work = f"{found.precision}, {found.optimizer}, global batch {found.global_batch}"
    return f"| {path.name} | loads ({work}) | {lost(changes) or '-'} | {kept(changes) or '-'} |"


def settle(path: Path, device: str) -> Settled:
    wishes = Wishes(
        device="cuda" if device == "cuda" else "cpu", world_size=1, optimizers=OPTIMIZERS,
        model_config=resolve_model(default_preset("cuda" if device == "cuda" else "cpu")).config,
        default_batch=DEFAULT_BATCH[device],
    )  # fmt: skip
    return settle_file(path, installed.version("deepspeed") or "0", wishes)


def lost(changes: Iterable[Change]) -> str:
    """What counts otherwise than written, in full, and unknown keys of the top level as one entry."""
    found = [change for change in changes if change.kind in ("changed", "ignored")]
    unknown = [change for change in found if change.text.startswith("unknown; DeepSpeed ignores it")]
    parts = [cell(change) for change in found if change not in unknown]
    if unknown:
        parts.append(f"{lines(unknown)}: {len(unknown)} key(s) that DeepSpeed ignores, kept in the export")
    return "; ".join(parts)


def kept(changes: Iterable[Change]) -> str:
    """What was only read in another way, by kind and line."""
    changes = tuple(changes)
    filled = [change for change in changes if change.kind == "filled"]
    floats = [change for change in changes if "a float; read as" in change.text]
    other = [change for change in changes if change.kind == "understood" and change not in floats]
    parts = [cell(change) for change in other]
    parts += [f"{lines(floats)}: {len(floats)} size(s) written as floats"] if floats else []
    parts += [f'{len(filled)} value(s) filled in ("auto" or left to the script)'] if filled else []
    return "; ".join(parts)


def lines(changes: list[Change]) -> str:
    numbers = [str(change.line) for change in changes]
    more = ", ..." if len(numbers) > SHOWN_LINES else ""
    return f"line{'s' if len(numbers) > 1 else ''} {', '.join(numbers[:SHOWN_LINES])}{more}"


def cell(change: Change) -> str:
    where = f"`{change.path}`: " if change.path else ""
    line = f"line {change.line}: " if change.line else ""
    return f"{line}{where}{change.text.rstrip('.')}".replace("|", "\\|")


if __name__ == "__main__":
    main()
