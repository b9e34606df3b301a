"""A measured ds_config in the form that a program takes: DeepSpeed, Hugging Face Trainer, accelerate.

Covered: the text of each file, what becomes "auto" there and why, and what the person's own arguments must
say for the file to train as measured. Not covered: writing files (`export.py`), choosing the trial
(`selection.py`).

Rule: what was tuned (batch split, precision, ZeRO) stays a number, so that arguments that contradict it are
refused by the Trainer and not followed in silence; what only the training decides (learning rate, betas,
decay, clipping) becomes "auto" where the format knows that word. Checked against transformers 5.24
(integrations/deepspeed.py) and accelerate 1.15 (accelerator.py, utils/dataclasses.py).
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from offtune.errors import UsageError
from offtune.export import deepspeed_text
from offtune.export_note import note_text
from offtune.knob_workload import CHECKPOINTING, checkpoints
from offtune.records import Run, StudyRecord
from offtune.trial import DsConfig

AUTO = "auto"
# What a script says to its model; no ds_config says it (knob_workload.py).
_ENABLE = "model.gradient_checkpointing_enable()"


@dataclass(frozen=True, slots=True, kw_only=True)
class Purpose:
    """What a format needs to know of a run's workload; `path` is the file, None for stdout."""

    world_size: int
    activation_checkpointing: bool
    path: Path | None

    @classmethod
    def of(cls, study: StudyRecord, run: Run, path: Path | None) -> Purpose:
        workload = study.settings.get("workload") or {}
        return cls(
            world_size=int(workload.get("world_size") or 1),
            activation_checkpointing=checkpoints(run.point, workload.get(CHECKPOINTING)),
            path=path,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Export:
    """One export. `text` is the file, `ds_config` the ds_config that it is or points to.

    `beside` is the text of a second file, the ds_config under the name `beside_path`. `must_match` are
    arguments that have to be as they are here, `chosen` those that are the training's own, with the value
    that was measured; `remarks` are sentences.
    """

    text: str
    ds_config: DsConfig
    beside: str | None = None
    beside_path: Path | None = None
    must_match: tuple[str, ...] = ()
    chosen: tuple[str, ...] = ()
    remarks: tuple[str, ...] = ()


def make(format_name: str, ds_config: DsConfig, purpose: Purpose) -> Export:
    """The configuration in one of `FORMATS`. Raises UsageError for another, or for a path it cannot have."""
    if format_name not in FORMATS:
        known = ", ".join(FORMATS)
        raise UsageError(f"--format: there is no format '{format_name}'.", f"Use one of: {known}.")
    # Read back: whole numbers are integers then, and keys stand in reading order.
    return FORMATS[format_name](json.loads(deepspeed_text(ds_config)), purpose)


def files_of(
    made: Export, study: StudyRecord, run: Run, path: Path | None, note: Path | None, finals: str = ""
) -> list[tuple[Path, str]]:
    """All that is to be written: the export under `path`, what lies beside it, the note with the `finals`."""
    files = [] if path is None else [(path, made.text)]
    if made.beside_path is not None and made.beside is not None:
        files.append((made.beside_path, made.beside))
    if note is not None:
        names = [file.name for file, _ in files]
        files.append((note, note_text(study, run, names, made.must_match, finals)))
    return files


def _deepspeed(ds_config: DsConfig, purpose: Purpose) -> Export:
    must_match = (_ENABLE,) if purpose.activation_checkpointing else ()
    return Export(text=deepspeed_text(ds_config), ds_config=ds_config, must_match=must_match)


# TrainingArguments by the key that the Trainer fills from them (HfTrainerDeepSpeedConfig, transformers 5.24).
_CHOSEN = {
    "gradient_clipping": "--max_grad_norm",
    "optimizer.params.lr": "--learning_rate",
    "optimizer.params.weight_decay": "--weight_decay",
}
# The Trainer fills these with Adam's arguments whatever the optimizer is: "auto" is right for Adam only.
_ADAM = {
    "optimizer.params.betas": ("--adam_beta1", "--adam_beta2"),
    "optimizer.params.eps": ("--adam_epsilon",),
}
_SCHEDULER = ("warmup_min_lr", "warmup_max_lr", "warmup_num_steps", "total_num_steps")


def _hf(ds_config: DsConfig, purpose: Purpose) -> Export:
    filled = json.loads(json.dumps(ds_config))
    optimizer = str(_get(ds_config, "optimizer.type") or "")
    is_adam = optimizer.lower() in ("adam", "adamw")
    adam_flags = [*_adam_flags(ds_config)]
    chosen = [f"{flag} {_get(ds_config, key)}" for key, flag in _CHOSEN.items() if _has(ds_config, key)]
    for key in (*_CHOSEN, *(_ADAM if is_adam else ()), *(f"scheduler.params.{name}" for name in _SCHEDULER)):
        _set_auto(filled, key)
    remarks = [f"The file builds the optimizer ({optimizer}): --optim has no effect."] if optimizer else []
    return Export(
        text=json.dumps(filled, indent=2, allow_nan=False) + "\n",
        ds_config=filled,
        must_match=(*_batch_flags(ds_config, purpose), *([] if is_adam else adam_flags)),
        chosen=(*chosen, *(adam_flags if is_adam else [])),
        remarks=tuple(remarks),
    )


def _batch_flags(ds_config: DsConfig, purpose: Purpose) -> list[str]:
    flags = [
        f"--per_device_train_batch_size {ds_config['train_micro_batch_size_per_gpu']}",
        f"--gradient_accumulation_steps {ds_config['gradient_accumulation_steps']}",
    ]
    flags += [f"--{name}" for name in ("bf16", "fp16") if _get(ds_config, f"{name}.enabled")]
    return flags + (["--gradient_checkpointing"] if purpose.activation_checkpointing else [])


def _adam_flags(ds_config: DsConfig) -> list[str]:
    flags = []
    for key, names in _ADAM.items():
        if _has(ds_config, key):
            value = _get(ds_config, key)
            values = value if isinstance(value, list) else [value]
            flags += [f"{name} {each}" for name, each in zip(names, values, strict=True)]
    return flags


def _accelerate(ds_config: DsConfig, purpose: Purpose) -> Export:
    """A YAML for `accelerate launch --config_file`, and the ds_config that it points to.

    Everything is in the ds_config: accelerate refuses a file that says the same thing twice
    (DeepSpeedPlugin._deepspeed_config_checks). The optimizer is the script's, as accelerate wants it.
    """
    if purpose.path is None:
        raise UsageError("--format accelerate writes two files.", "Name the first with: -o accelerate.yaml")
    beside = purpose.path.with_suffix(".json")
    if beside == purpose.path:
        raise UsageError(
            f"{purpose.path}: the .json beside it is for the ds_config.", "Use: -o accelerate.yaml"
        )
    # Without our block the script's own optimizer is free to be any; with it accelerate refuses torch's.
    kept = {key: value for key, value in ds_config.items() if key not in ("optimizer", "scheduler")}
    return Export(
        text=_yaml(kept, purpose, beside.resolve()),
        ds_config=kept,
        beside=deepspeed_text(kept),
        beside_path=beside,
        must_match=(
            f"DataLoader(batch_size={kept['train_micro_batch_size_per_gpu']})",
            f"Accelerator(gradient_accumulation_steps={kept['gradient_accumulation_steps']})",
            *([_ENABLE] if purpose.activation_checkpointing else []),
        ),
        chosen=tuple(_measured_optimizer(ds_config)),
        remarks=_accelerate_remarks(kept),
    )


def _yaml(ds_config: DsConfig, purpose: Purpose, ds_path: Path) -> str:
    stage_3 = _get(ds_config, "zero_optimization.stage") == 3
    # JSON's quoting is YAML's too.
    return f"""\
compute_environment: LOCAL_MACHINE
distributed_type: DEEPSPEED
deepspeed_config:
  # Batch sizes, precision, clipping and ZeRO are in this file; accelerate refuses them here as well.
  deepspeed_config_file: {json.dumps(str(ds_path))}
  zero3_init_flag: {json.dumps(stage_3)}
machine_rank: 0
main_training_function: main
num_machines: 1
num_processes: {purpose.world_size}
use_cpu: false
"""


def _measured_optimizer(ds_config: DsConfig) -> list[str]:
    kind = str(_get(ds_config, "optimizer.type") or "")
    return [f"the optimizer, in the script (measured: {kind})"] if kind else []


def _accelerate_remarks(ds_config: DsConfig) -> tuple[str, ...]:
    device = _get(ds_config, "zero_optimization.offload_optimizer.device") or "none"
    if device == "none":
        return ("The script's torch optimizer is used as it is; the trial used DeepSpeed's fused one.",)
    return (
        "accelerate turns the script's torch Adam, AdamW or Adagrad into DeepSpeed's CPU version, which the "
        "offload needs: leave zero_force_ds_cpu_optimizer unset.",
    )


FORMATS: dict[str, Callable[[DsConfig, Purpose], Export]] = {
    "deepspeed": _deepspeed,
    "hf": _hf,
    "accelerate": _accelerate,
}


def _node(ds_config: DsConfig, key: str) -> tuple[Any, str]:
    """The innermost block that a dotted key leads to (None: there is none) and the last part of the key."""
    *blocks, last = key.split(".")
    node: Any = ds_config
    for block in blocks:
        node = node.get(block) if isinstance(node, dict) else None
    return (node if isinstance(node, dict) else None), last


def _has(ds_config: DsConfig, key: str) -> bool:
    node, last = _node(ds_config, key)
    return node is not None and last in node


def _get(ds_config: DsConfig, key: str) -> Any:
    node, last = _node(ds_config, key)
    return None if node is None else node.get(last)


def _set_auto(ds_config: DsConfig, key: str) -> None:
    node, last = _node(ds_config, key)
    if node is not None and last in node:
        node[last] = AUTO
