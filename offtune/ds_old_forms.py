"""Old and short ways to write a ds_config, brought to the present one: blocks written as true, cpu_offload.

Covered: forms that DeepSpeed itself took once, and scalars where only one block can be meant. Not covered:
names of single keys (`ds_names`).
"""

from __future__ import annotations

from typing import Any

from offtune.ds_change import Draft, KeyPath, shown
from offtune.ds_values import convert

_ZERO = "zero_optimization"
_OFFLOADS = ("offload_optimizer", "offload_param")
# Blocks that one word can stand for, and the key the word is.
_BY_TEXT = {"optimizer": "type", "scheduler": "type"}
_BY_SWITCH = (
    *("fp16", "bf16", "flops_profiler", "comms_logger", "tensorboard", "wandb", "csv_monitor", "comet"),
    *("autotuning", "torch_autocast", "activation_checkpointing", "data_efficiency", "hybrid_engine"),
)


def make_block(draft: Draft, path: KeyPath) -> None:
    """Turn a scalar at `path` into the block it stands for, where that is plain."""
    value = draft.get(*path)
    if value is None or isinstance(value, dict) or value == "auto":
        return
    block = _meant(draft, path, value)
    if block is None:
        return
    draft.put(path, block)
    draft.note("understood", path, f"{shown(value)} where a block is expected; read as {shown(block)}.")


def _meant(draft: Draft, path: KeyPath, value: Any) -> dict[str, Any] | None:
    name = path[-1]
    if path == (_ZERO,):
        return _zero(draft, value)
    if name in _OFFLOADS and (device := convert(value, "device")).kind != "refused":
        return {"device": device.value}
    if name in _BY_TEXT and isinstance(value, str):
        return {_BY_TEXT[name]: value}
    switch = convert(value, "switch")
    if name == "compile" and switch.kind != "refused":
        return {"deepcompile": switch.value}
    if name in _BY_SWITCH and switch.kind != "refused":
        return {"enabled": switch.value}
    return None


def _zero(draft: Draft, value: Any) -> dict[str, Any] | None:
    """The boolean form of DeepSpeed's first releases means stage 1 (read_zero_config_deprecated, 0.19.8)."""
    if isinstance(value, bool):
        block: dict[str, Any] = {"stage": int(value)}
        size = draft.get("allgather_size")
        if value and size is not None and (whole := convert(size, "whole")).kind != "refused":
            block["allgather_bucket_size"] = whole.value
            draft.drop(("allgather_size",))
            draft.lines[(_ZERO, "allgather_bucket_size")] = draft.lines[("allgather_size",)]
            draft.note("changed", ("allgather_size",), "now zero_optimization.allgather_bucket_size.")
        return block
    stage = convert(value, "whole")
    return {"stage": stage.value} if stage.kind != "refused" else None


def replace_deprecated(draft: Draft) -> None:
    """cpu_offload and its relatives become the blocks that replaced them; values are converted before."""
    if not isinstance(draft.get(_ZERO), dict):
        return
    if draft.get("allgather_size") is not None:
        draft.note(
            "ignored", ("allgather_size",), "counts only beside zero_optimization: true. Kept in the export."
        )
    pinned = draft.drop((_ZERO, "cpu_offload_use_pin_memory"))
    made = _offload(draft, ("cpu_offload",), "offload_optimizer", pinned)
    made = _offload(draft, ("cpu_offload_param", "cpu_offload_params"), "offload_param", pinned) or made
    if pinned is not None:
        end = f"now pin_memory {shown(pinned)} of the offload blocks" if made else "without effect; left out"
        draft.note(
            "changed" if made else "ignored", (_ZERO, "cpu_offload_use_pin_memory"), f"deprecated, {end}."
        )
    _gather(draft)
    _legacy(draft)


def _offload(draft: Draft, names: tuple[str, ...], block: str, pinned: Any) -> bool:
    """Whether an old flag became the block."""
    made = False
    for name in names:
        path, line = (_ZERO, name), draft.line((_ZERO, name))
        wanted = draft.drop(path)
        if wanted is None:
            continue
        if draft.get(_ZERO, block) is not None:
            draft.note("ignored", path, f"deprecated, and {block} is there already, which counts; left out.")
        elif wanted:
            new = {"device": "cpu"} if pinned is None else {"device": "cpu", "pin_memory": pinned}
            draft.put((_ZERO, block), new, line)
            draft.note("changed", path, f"deprecated; read as {block} {shown(new)}.")
            made = True
        else:
            draft.note("understood", path, f"deprecated, and off: no {block}.")
    return made


def _gather(draft: Draft) -> None:
    old, new = "stage3_gather_fp16_weights_on_model_save", "stage3_gather_16bit_weights_on_model_save"
    if draft.get(_ZERO, old) is None:
        return
    if draft.get(_ZERO, new) is None:
        draft.rename((_ZERO, old), new)
        draft.note("changed", (_ZERO, new), f"written {old}, its deprecated name.")
    else:
        draft.drop((_ZERO, old))
        draft.note("ignored", (_ZERO, old), f"deprecated, and {new} is there already; left out.")


def _legacy(draft: Draft) -> None:
    if draft.get(_ZERO, "legacy_stage1"):
        draft.drop((_ZERO, "legacy_stage1"))
        draft.note(
            "ignored", (_ZERO, "legacy_stage1"), "DeepSpeed no longer has that code and raises; left out."
        )
    norm = draft.drop(("optimizer", "params", "max_grad_norm"))
    if norm is None:
        return
    what = "DeepSpeed raises for it here"
    if draft.get("gradient_clipping") is None:
        draft.put(("gradient_clipping",), norm, draft.line(("optimizer", "params", "max_grad_norm")))
        draft.note(
            "changed", ("optimizer", "params", "max_grad_norm"), f"{what}; moved to gradient_clipping."
        )
    else:
        draft.note(
            "ignored", ("optimizer", "params", "max_grad_norm"), f"{what}, and gradient_clipping is set."
        )
