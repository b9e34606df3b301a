"""A measured ds_config as text for somebody else's training, and the file it goes into.

Covered: strict JSON, what of a trial is left out, where it comes from, writing. Not covered: what other
programs want (`export_formats.py`), choosing the trial (`selection.py`), checking the configuration against a
machine (`ds_config.problems`).
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from offtune import __version__
from offtune.ds_quiet import restored
from offtune.errors import ConfigError, OfftuneError, UsageError
from offtune.knob_workload import CHECKPOINTING, checkpoints
from offtune.records import Run, StudyRecord
from offtune.trial import DsConfig

# What a reader looks for first; every other key follows in alphabetical order.
_READING_ORDER = (
    "train_batch_size",
    "train_micro_batch_size_per_gpu",
    "gradient_accumulation_steps",
    "bf16",
    "fp16",
    "zero_optimization",
    "optimizer",
    "stage",
    "enabled",
    "device",
    "type",
)

# Keys DeepSpeed declares as int (runtime/zero/config.py, runtime/zero/offload_config.py and
# runtime/swap_tensor/aio_config.py of 0.19.8). 5e8 passes its own check, but not every reader's: the aio
# block and the top level are not checked at all and fail later.
_INTEGER_KEYS = frozenset({
    "train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps", "steps_per_print",
    "stage", "reduce_bucket_size", "allgather_bucket_size", "sub_group_size", "stage3_prefetch_bucket_size",
    "stage3_param_persistence_threshold", "stage3_model_persistence_threshold",
    "stage3_max_live_parameters", "stage3_max_reuse_distance", "stage3_module_granularity_threshold",
    "zero_hpz_partition_size", "buffer_count", "buffer_size", "max_in_cpu",
    "block_size", "queue_depth", "intra_op_parallelism",
    "initial_scale_power", "loss_scale_window", "hysteresis",
})  # fmt: skip


def deepspeed_text(ds_config: DsConfig) -> str:
    """The configuration as strict JSON: stable key order, whole numbers as integers, no "auto".

    Raises ConfigError for a value that strict JSON or plain DeepSpeed does not have, naming its key.
    """
    return json.dumps(_strict(ds_config, ()), indent=2, allow_nan=False) + "\n"


def portable(ds_config: DsConfig, nvme_path: str | None, base: DsConfig | None = None) -> DsConfig:
    """A copy for somebody's training: swap folder `nvme_path`, and without what only served the trial.

    What a trial switched off is as in `base`, the person's own file, again.

    Raises OfftuneError when the configuration swaps to NVMe and the study has no such path.
    """
    zero = dict(ds_config.get("zero_optimization", {}))
    for block in ("offload_optimizer", "offload_param"):
        if isinstance(zero.get(block), Mapping):
            zero[block] = _with_swap_path(zero[block], nvme_path)
    kept = restored(ds_config, base or {})
    return {**kept, "zero_optimization": zero} if zero else kept


def _with_swap_path(offload: Mapping[str, Any], nvme_path: str | None) -> dict[str, Any]:
    rest = {key: value for key, value in offload.items() if key != "nvme_path"}
    if offload.get("device") != "nvme":
        return rest
    if not nvme_path:
        raise OfftuneError(
            "This configuration swaps to NVMe, and the study does not say where.",
            "Name the folder with --nvme-path, or choose another trial with --trial.",
        )
    return {**rest, "nvme_path": nvme_path}


def base_of(study: StudyRecord) -> DsConfig:
    """The ds_config under every point of the study; empty where the person gave none."""
    return dict((study.settings.get("base") or {}).get("ds_config") or {})


def provenance(study: StudyRecord, run: Run) -> dict[str, Any]:
    """Where an exported configuration comes from, in base units; null for unknown.

    It is shown beside the file, not inside it: DeepSpeed's configuration has no place for remarks.
    """
    result = run.result
    return {
        "offtune_version": __version__,
        "study": study.name,
        "trial": run.number,
        "measured_at": run.finished_at,
        "model": study.model,
        CHECKPOINTING: checkpoints(run.point, (study.settings.get("workload") or {}).get(CHECKPOINTING)),
        "device": study.device,
        "budget_bytes": study.budget_bytes,
        "samples_per_s": result.samples_per_s if result else None,
        "tokens_per_s": result.tokens_per_s if result else None,
        "used_device_bytes": result.memory.used_device_bytes if result else None,
        "used_host_bytes": result.memory.used_host_bytes if result else None,
        "effective_ratio": result.effective_ratio if result else None,
        "versions": dict(result.versions) if result else {},
    }


def write_export(text: str, path: Path, force: bool = False) -> None:
    """Write the file in one step: a reader sees the old one or the whole new one.

    Raises UsageError when something is there already and `force` is off, OfftuneError when writing fails.
    """
    try:
        check_target(path, force)
        _replace(path.resolve(), text)
    except OSError as error:
        reason = error.strerror or str(error)
        raise OfftuneError(f"{path} cannot be written: {reason}.", "Name another file with -o.") from error


def write_all(files: Sequence[tuple[Path, str]], force: bool = False) -> None:
    """Write several files, or none where one of them cannot be replaced; errors as in `write_export`."""
    if len({path.resolve() for path, _ in files}) < len(files):
        raise UsageError("Two of the files have the same name.", "Name them apart.")
    for path, _ in files:
        check_target(path, force)
    for path, text in files:
        write_export(text, path, force)


def _replace(final: Path, text: str) -> None:
    # Beside the real file: the rename stays on one file system, and a symbolic link stays a link.
    draft = final.with_name(f".{final.name}.{os.getpid()}.part")
    try:
        with draft.open("x", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        draft.replace(final)
    finally:
        with suppress(OSError):
            draft.unlink(missing_ok=True)


def check_target(target: Path, force: bool) -> None:
    """Raise UsageError where `write_export` could not write, so that it is known before the work."""
    if not target.parent.is_dir():
        raise UsageError(
            f"{target} cannot be written: there is no folder {target.parent}.", "Name another file with -o."
        )
    if target.is_dir() or (target.exists() and not target.is_file()):
        raise UsageError(f"{target} is not a file that can be replaced.", "Name another file with -o.")
    if target.exists() and not force:
        raise UsageError(
            f"{target} exists already.", "Overwrite it with --force, or name another file with -o."
        )


def _strict(value: Any, where: tuple[str, ...]) -> Any:
    """`value` in plain JSON terms; `where` is the path of keys to it, for the message."""
    if isinstance(value, Mapping):
        return {str(key): _strict(value[key], (*where, str(key))) for key in sorted(value, key=_place)}
    if isinstance(value, (list, tuple)):
        return [_strict(item, where) for item in value]
    if isinstance(value, float):
        return _number(value, where)
    if value is None or (isinstance(value, (bool, int, str)) and value != "auto"):
        return value
    raise ConfigError(
        f"{'.'.join(where)}: {value!r} means nothing to plain DeepSpeed.",
        'Write the value out: "auto" belongs to the Hugging Face Trainer.',
    )


def _number(value: float, where: tuple[str, ...]) -> float | int:
    if not math.isfinite(value):
        raise ConfigError(f"{'.'.join(where)}: {value} is not a number JSON has.", "Export another trial.")
    if not where or where[-1] not in _INTEGER_KEYS:
        return value
    if not value.is_integer():
        raise ConfigError(f"{'.'.join(where)}: {value} should be a whole number.", "Export another trial.")
    return int(value)


def _place(key: object) -> tuple[int, str]:
    name = str(key)
    early = _READING_ORDER.index(name) if name in _READING_ORDER else len(_READING_ORDER)
    return early, name
