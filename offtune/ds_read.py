"""Reading a person's ds_config, whatever state it is in: text, then names, then values, block by block.

Covered: the order of the steps; what comes out has known names, plain kinds of values and no old forms, but
may still say "auto". Not covered: "auto" (`ds_auto`), rules across keys (`ds_settle`).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from offtune.ds_change import BaseRefused, Draft, KeyPath, in_order, shown
from offtune.ds_file import read_text
from offtune.ds_keys import STRICT_BLOCKS, ZERO_ALIASES, ZERO_DEFAULTS
from offtune.ds_names import check_file, check_names
from offtune.ds_old_forms import make_block, replace_deprecated
from offtune.ds_schema import LOOSE_BLOCKS, TOP_LEVEL, ValueKind, kinds_of
from offtune.ds_text import parse
from offtune.ds_values import convert

_SWITCHED = ("tensorboard", "wandb", "csv_monitor", "comet", "autotuning")
# A block before those inside it.
_BLOCKS = ("", *(name for name in STRICT_BLOCKS if name != "bfloat16"), *LOOSE_BLOCKS, *_SWITCHED)
# "auto" is a value of DeepSpeed itself there, and is left alone.
_NOT_SIZES = ("mics_shard_size",)
_STAGES = (0, 1, 2, 3)
# Samples; more than any training has in a step, and what a slipped exponent gives.
_LARGEST_BATCH = 10_000_000


def read_draft(path: Path, deepspeed_version: str) -> Draft:
    """The file's content and change log. Raises BaseRefused with every reason, ConfigError without a file."""
    text, changes = read_text(path)
    draft = parse(text, str(path))
    draft.changes[:0] = changes
    check_file(draft)
    for block in _BLOCKS:
        parts = tuple(block.split(".")) if block else ()
        if parts:
            make_block(draft, parts)
        check_names(draft, block, deepspeed_version)
        check_values(draft, block)
    _check_blocks(draft)
    stop_if_refused(draft, path)
    replace_deprecated(draft)
    _no_aliases(draft)
    _check_ranges(draft)
    stop_if_refused(draft, path)
    return draft


def stop_if_refused(draft: Draft, path: Path | str) -> None:
    """Raise BaseRefused when something in the log is a refusal."""
    if any(change.kind == "refused" for change in draft.changes):
        raise BaseRefused(str(path), in_order(draft.changes))


def check_values(draft: Draft, block: str) -> None:
    """Bring the values of one block to their kinds."""
    path = tuple(block.split(".")) if block else ()
    kinds = kinds_of(block) or ({"enabled": "switch"} if block in _SWITCHED else {})
    if block == "zero_optimization":
        kinds = kinds | {alias: kinds[key] for alias, key in ZERO_ALIASES.items()}
    for key, value in list(draft.block(*path).items()):
        where = (*path, key)
        if value is None:
            _null(draft, where, strict=not block or block == "aio" or block in STRICT_BLOCKS)
        elif isinstance(value, str) and value.strip().lower() == "auto":
            draft.put(where, "auto")
        # A scalar in the place of a block is for `make_block`, when that block's turn comes.
        elif key in kinds and not (kinds[key] == "block" and not isinstance(value, dict)):
            _convert(draft, where, value, kinds[key])


def _null(draft: Draft, path: KeyPath, *, strict: bool) -> None:
    """In a strict block null is refused for most keys; elsewhere it is a value like any other."""
    if strict:
        draft.drop(path)
        draft.note("understood", path, "null; as if it were not written.")


def _convert(draft: Draft, path: KeyPath, value: Any, kind: ValueKind) -> None:
    found = convert(value, kind)
    if found.text:
        draft.note(found.kind, path, found.text)
    draft.put(path, found.value)


def _no_aliases(draft: Draft) -> None:
    """The bare name of a stage3_ key is read by DeepSpeed too; one name for each makes one key of both."""
    for key in list(draft.block("zero_optimization")):
        name = ZERO_ALIASES.get(key)
        if name is None or name == key:
            continue
        path = ("zero_optimization", key)
        if name in draft.block("zero_optimization"):
            draft.drop(path)
            draft.note("ignored", path, f"the same as {name}, which is there too and counts; left out.")
        else:
            draft.rename(path, name)


def _check_ranges(draft: Draft) -> None:
    zero = draft.block("zero_optimization")
    stage = zero.get("stage", 0)
    if stage != "auto" and stage not in _STAGES:
        draft.note("refused", ("zero_optimization", "stage"), f"there is no stage {stage}; ZeRO has 0 to 3.")
    for key, value in zero.items():
        size = isinstance(ZERO_DEFAULTS.get(key), int) and not isinstance(value, (bool, str))
        if size and value < 0 and key not in _NOT_SIZES:
            draft.note("refused", ("zero_optimization", key), f"{value} is below 0; write 0 or more.")
    ratio = draft.get("zero_optimization", "offload_optimizer", "ratio", default=1.0)
    if ratio != "auto" and not 0 <= ratio <= 1:
        path = ("zero_optimization", "offload_optimizer", "ratio")
        draft.note(
            "refused",
            path,
            f"{ratio} is no share; write a number from 0 (all on the GPU) to 1 (all on the CPU).",
        )
    for key in ("train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps"):
        value = draft.get(key, default=1)
        if value != "auto" and not 1 <= value <= _LARGEST_BATCH:
            draft.note("refused", (key,), f"{value:g} is no number of samples; write a whole number above 0.")


def _check_blocks(draft: Draft) -> None:
    """Refuse scalars in the place of a block that nothing could be made of."""
    nested = [tuple(block.split(".")) for block in _BLOCKS if block]
    for path in dict.fromkeys([*((key,) for key, kind in TOP_LEVEL.items() if kind == "block"), *nested]):
        value = draft.get(*path)
        if value is not None and value != "auto" and not isinstance(value, dict):
            draft.note("refused", path, f"{shown(value)} is not a block of keys; write one, {{...}}.")
