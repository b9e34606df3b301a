"""The names of keys in a person's ds_config: misspelt, renamed, removed from DeepSpeed, or unknown to it.

Covered: one block's keys against those this version of DeepSpeed knows. A misspelt key is read as meant where
there is no doubt; what DeepSpeed would refuse is left out, what it would ignore is kept. Not covered: values
(`ds_values`), old ways to say the same thing (`ds_old_forms`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from difflib import get_close_matches
from typing import Any

from offtune.ds_change import Draft, KeyPath, shown
from offtune.ds_keys import ADDED, REMOVED, STRICT_BLOCKS, ZERO_ALIASES, Version, parse_version
from offtune.ds_schema import TOP_LEVEL, kinds_of

# Similarity (difflib's ratio) above which a name is taken for a misspelling, and above which it is only asked
# about: "stage3_param_persitence_threshold" has .98, "stage3_max_live" beside
# "stage3_max_live_parameters" .73.
_SURE = 0.85
_MAYBE = 0.75
# Other names of the same thing, by block: older DeepSpeed, or a common slip.
_RENAMED: dict[str, dict[str, str]] = {
    "": {"bfloat16": "bf16"},
    "zero_optimization": {
        "cpu_offload_pin_memory": "cpu_offload_use_pin_memory",
        "gather_fp16_weights_on_model_save": "stage3_gather_fp16_weights_on_model_save",
    },
    "aio": {"thread_count": "intra_op_parallelism"},
    "optimizer": {"name": "type"},
    "scheduler": {"name": "type"},
    "optimizer.params": {"learning_rate": "lr"},
}
_REMARKS = ("", "comment", "comments", "note", "notes", "description", "remark")
# Handed on to the optimizer's or scheduler's constructor, whatever they are.
_HANDED_ON = ("optimizer.params", "scheduler.params")
# Removed features without which the same model is trained all the same.
_HARMLESS = (
    "nebula",
    "graph_harvesting",
    "sparse_gradients",
    "zero_optimization.mics_shard_size",
    "zero_optimization.mics_hierarchical_params_gather",
    "zero_optimization.zeropp_loco_param",
)


def check_file(draft: Draft) -> None:
    """Refuse a file in which DeepSpeed would find nothing; often the ds_config is one block further in."""
    known = {*TOP_LEVEL, *(key for key in REMOVED if "." not in key), *_RENAMED[""]}
    if not draft.content or any(get_close_matches(key, known, n=1, cutoff=_SURE) for key in draft.content):
        return
    for key, value in draft.content.items():
        if isinstance(value, Mapping) and known & set(value):
            draft.note(
                "refused", (key,), "the ds_config seems to be in here; put this block in its own file."
            )
            return
    draft.note("refused", (), "there is no key that DeepSpeed knows; a ds_config has zero_optimization.")


def check_names(draft: Draft, block: str, version_text: str) -> None:
    """Put right or note each key of one block (dotted; "" is the top level)."""
    path = tuple(block.split(".")) if block else ()
    kinds = kinds_of(block)
    if kinds is None or not isinstance(draft.get(*path), dict):
        return
    version = parse_version(version_text)
    known = {key for key in kinds if _has(_dotted(block, key), version)}
    known |= set(ZERO_ALIASES) if block == "zero_optimization" else set()
    for key in list(draft.block(*path)):
        where = (*path, key)
        if _removed(_dotted(block, key), version):
            _leave_out_removed(draft, where, version_text)
        elif key not in known:
            _unknown(draft, block, where, known, version_text)


def _dotted(block: str, key: str) -> str:
    return f"{block}.{key}" if block else key


def _has(dotted: str, version: Version) -> bool:
    return version >= ADDED.get(dotted, ()) and not _removed(dotted, version)


def _removed(dotted: str, version: Version) -> bool:
    return dotted in REMOVED and version >= REMOVED[dotted]


def _leave_out_removed(draft: Draft, path: KeyPath, version: str) -> None:
    value = draft.get(*path)
    what = f"DeepSpeed {version} no longer has this and refuses the key"
    if _asks(value) and ".".join(path) not in _HARMLESS:
        draft.note(
            "refused",
            path,
            f"{what}, so the file cannot train as meant; remove it, or use an older DeepSpeed.",
        )
        return
    draft.drop(path)
    effect = f"without {shown(value)} the model is trained as usual" if _asks(value) else "it was off"
    draft.note("ignored", path, f"{what}; left out, {effect}.")


def _asks(value: Any) -> bool:
    """Whether a removed feature was in use: switched on somewhere in its block, or set without a switch."""
    if isinstance(value, Mapping):
        switches = list(_switches(value))
        return any(_asks(switch) for switch in switches) if switches else bool(value)
    if isinstance(value, (int, float)):
        return value is True or value > 0
    return str(value).lower() == "true"


def _switches(block: Mapping[str, Any]) -> Iterator[Any]:
    """Every "enabled" in the block or further in."""
    for key, value in block.items():
        if key == "enabled":
            yield value
        elif isinstance(value, Mapping):
            yield from _switches(value)


def _unknown(draft: Draft, block: str, path: KeyPath, known: set[str], version: str) -> None:
    key, here = path[-1], draft.block(*path[:-1])
    plain = key.strip().lower().replace("-", "_")
    meant = _RENAMED.get(block, {}).get(plain)
    near = [meant] if meant else get_close_matches(plain, known, n=1, cutoff=_SURE)
    strict = block in STRICT_BLOCKS
    does = f"DeepSpeed {version} refuses unknown keys here" if strict else "DeepSpeed ignores it"
    if near and near[0] not in here:
        draft.rename(path, near[0])
        how = f"another name of {near[0]}." if meant else f"misspelt; did you mean {near[0]}?"
        draft.note("changed", (*path[:-1], near[0]), f"written '{key}', {how} Read as that; {does}.")
        return
    if block in _HANDED_ON:
        return
    if plain.strip("_/#") in _REMARKS:
        draft.note(
            "ignored",
            path,
            "a remark. Kept in the export." if not strict else f"a remark, and {does}; left out.",
        )
        if strict:
            draft.drop(path)
        return
    near = near or get_close_matches(plain, known, n=1, cutoff=_MAYBE)
    ask = f" Did you mean {near[0]}?" if near else ""
    if strict:
        draft.note("ignored", path, f"unknown, and {does}; {shown(draft.get(*path))} is left out.{ask}")
        draft.drop(path)
    else:
        draft.note("ignored", path, f"unknown; {does}. Kept in the export.{ask}")
