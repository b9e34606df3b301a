"""What a person's ds_config says about the workload: precision, optimizer, batch sizes, the folder on NVMe.

Covered: options beat the file, the file beats defaults; the batch sizes adapted to a fixed global batch and
the ranks at hand. Not covered: reading (`ds_read`), keys that do not reach the workload.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from offtune.ds_auto import fill_autos, uses_auto
from offtune.ds_change import Base, Draft, in_order, shown
from offtune.ds_conflicts import resolve_conflicts
from offtune.ds_key_rules import key_problems
from offtune.ds_read import read_draft, stop_if_refused
from offtune.trial import DeviceKind, Precision

_ZERO = "zero_optimization"
_BATCH, _MICRO, _STEPS = "train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps"
# per_device_train_batch_size of TrainingArguments (transformers 5.24).
_TRAINER_MICRO = 8
_16_BIT: tuple[Precision, Precision] = ("bf16", "fp16")


@dataclass(frozen=True, slots=True, kw_only=True)
class Wishes:
    """What the person asked for beside the file; None leaves it to the file, then to `default_batch`."""

    device: DeviceKind
    world_size: int
    model_config: Mapping[str, Any]
    optimizers: tuple[str, ...]
    default_batch: int
    precision: str | None = None
    optimizer: str | None = None
    global_batch: int | None = None
    nvme_path: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Settled:
    """The workload's part of the file, and the file as it counts in the study."""

    precision: str
    optimizer: str
    global_batch: int
    nvme_path: str | None
    base: Base


def settle_file(path: Path, deepspeed_version: str, wishes: Wishes) -> Settled:
    """Read a ds_config and settle it. Raises BaseRefused with every reason, ConfigError without a file."""
    draft = read_draft(path, deepspeed_version)
    settled = settle(draft, str(path), wishes)
    for sentence in key_problems(draft.content, deepspeed_version):
        where, _, text = sentence.partition(": ")
        draft.note("refused", tuple(where.split(".")), text)
    stop_if_refused(draft, path)
    return settled


def settle(draft: Draft, path: str, wishes: Wishes) -> Settled:
    """Decide what the file and the wishes leave open. Raises BaseRefused with every reason."""
    trainer = uses_auto(draft)
    precision = _precision(draft, wishes)
    optimizer = _optimizer(draft, wishes)
    stop_if_refused(draft, path)
    global_batch = _batch(draft, wishes, trainer)
    fill_autos(draft, wishes.model_config)
    resolve_conflicts(draft, wishes.device, wishes.world_size)
    nvme_path = wishes.nvme_path or _nvme(draft)
    stop_if_refused(draft, path)
    base = Base(path=path, ds_config=draft.content, changes=in_order(draft.changes))
    return Settled(
        precision=precision, optimizer=optimizer, global_batch=global_batch, nvme_path=nvme_path, base=base
    )


def _precision(draft: Draft, wishes: Wishes) -> str:
    said = {name: draft.get(name, "enabled") for name in _16_BIT}
    on = [name for name in _16_BIT if said[name] is True]
    if len(on) > 1:
        draft.note(
            "refused", ("fp16", "enabled"), "fp16 and bf16 are both on; DeepSpeed asserts: turn one off."
        )
    found = wishes.precision or (on[0] if on else next((n for n in _16_BIT if said[n] == "auto"), "fp32"))
    if found == "fp16" and wishes.device == "cpu" and wishes.precision is None:
        found = "bf16"
        draft.note(
            "changed", ("fp16", "enabled"), "bf16 in its place: DeepSpeed's CPU accelerator has no fp16."
        )
    elif on and on[0] != found:
        draft.note("changed", (on[0], "enabled"), f"--precision {found} counts.")
    for name in _16_BIT:
        if said[name] == "auto":
            draft.note(
                "filled", (name, "enabled"), f'"auto" is {shown(name == found)}: trials train in {found}.'
            )
        if said[name] is not None or name == found:
            draft.put((name, "enabled"), name == found)
    if found == "fp32" and not wishes.precision:
        draft.note("understood", (), "neither bf16 nor fp16 is on: trials train in fp32, as DeepSpeed does.")
    return found


def _optimizer(draft: Draft, wishes: Wishes) -> str:
    path = ("optimizer", "type")
    written = draft.get(*path)
    if written is None or written == "auto":
        found = wishes.optimizer or wishes.optimizers[0]
        if written is None and draft.get("optimizer") == "auto":
            draft.drop(("optimizer",))
        why = "the file leaves it to the script; trials train with" if written is None else '"auto" is'
        draft.note("filled", path, f"{why} {found}.")
        if written == "auto":
            draft.put(path, found)
        return found
    kind = str(written).lower()
    if wishes.optimizer is not None and kind != wishes.optimizer:
        draft.note(
            "changed", path, f"{written}, but --optimizer {wishes.optimizer} counts; its params are left out."
        )
        draft.put(("optimizer",), {"type": wishes.optimizer})
        return wishes.optimizer
    if kind not in wishes.optimizers:
        near = get_close_matches(
            kind.removeprefix("fused").removeprefix("deepspeedcpu"), wishes.optimizers, n=1
        )
        ask = f" Did you mean {near[0]}?" if near else ""
        known = ", ".join(wishes.optimizers)
        draft.note(
            "refused", path, f"offtune does not train with {written}, but with {known}: say --optimizer.{ask}"
        )
    return kind


@dataclass(slots=True)
class _Sizes:
    """The three batch keys as the file has them; None is "auto" or not written."""

    total: int | None
    micro: int | None
    steps: int | None


def _batch(draft: Draft, wishes: Wishes, trainer: bool) -> int:
    """The global batch, with the three keys made to agree on it for the ranks at hand."""
    written = {key: draft.get(key) for key in (_BATCH, _MICRO, _STEPS)}
    sizes = _Sizes(*(None if value == "auto" else value for value in written.values()))
    ranks = wishes.world_size
    total = wishes.global_batch or sizes.total or _implied(sizes, written, wishes)
    if total % ranks:
        near = max(ranks, total // ranks * ranks)
        draft.note(
            "refused",
            (_BATCH,),
            f"{total} samples cannot be split over {ranks} ranks: say --global-batch {near}.",
        )
        return total
    micro = _micro(draft, sizes, total // ranks, trainer)
    for key, value in ((_BATCH, total), (_MICRO, micro), (_STEPS, total // ranks // micro)):
        _put_size(draft, key, written[key], value, f"{total} samples a step over {ranks} rank(s)")
    return total


def _implied(sizes: _Sizes, written: Mapping[str, Any], wishes: Wishes) -> int:
    """The global batch of a file that does not write it."""
    ranks = wishes.world_size
    if sizes.micro and (sizes.steps or written[_STEPS] is None):
        return sizes.micro * (sizes.steps or 1) * ranks  # no accumulation is DeepSpeed's default
    least = (sizes.micro or 1) * (sizes.steps or 1) * ranks
    return max(least, wishes.default_batch // least * least)


def _micro(draft: Draft, sizes: _Sizes, per_rank: int, trainer: bool) -> int:
    """A micro-batch that divides a rank's samples, as near to the file's as can be."""
    interval = draft.get(_ZERO, "zenflow", "update_interval")
    if isinstance(interval, int) and interval > 0:
        if per_rank % interval:
            path = (_ZERO, "zenflow", "update_interval")
            draft.note(
                "refused", path, f"ZenFlow accumulates {interval} times, which does not divide {per_rank}."
            )
            return 1
        draft.note(
            "understood",
            (_ZERO, "zenflow", "update_interval"),
            "DeepSpeed takes it for accumulation steps too.",
        )
        return per_rank // interval
    if sizes.micro:
        wanted = sizes.micro
    elif sizes.steps:
        wanted = max(1, per_rank // sizes.steps)
    else:
        wanted = _TRAINER_MICRO if trainer else per_rank
    return next(size for size in range(min(wanted, per_rank), 0, -1) if per_rank % size == 0)


def _put_size(draft: Draft, key: str, written: Any, value: int, why: str) -> None:
    draft.put((key,), value)
    if written == "auto":
        draft.note("filled", (key,), f'"auto" is {value}: {why}.')
    elif written is None and key == _BATCH:
        draft.note("filled", (key,), f"not written; {value} from the rest: say --global-batch for another.")
    elif written is not None and written != value:
        draft.note("changed", (key,), f"{written} is {value} in the trials: {why}.")


def _nvme(draft: Draft) -> str | None:
    """The file's own folder, where it exists here; without one nothing can be swapped."""
    folder = None
    for block in ("offload_optimizer", "offload_param"):
        path = (_ZERO, block, "nvme_path")
        written = draft.get(*path)
        if draft.get(_ZERO, block, "device") != "nvme":
            continue
        if isinstance(written, str) and Path(written).is_dir() and os.access(written, os.W_OK):
            folder = str(Path(written).resolve())
        else:
            what = f"{shown(written)} is no folder that can be written here"
            draft.note("ignored", path, f"{what}: without --nvme-path nothing can be offloaded to NVMe.")
    return folder
