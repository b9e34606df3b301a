"""What "auto" stands for in a person's ds_config: filled in as the Hugging Face Trainer and accelerate do it.

Covered: every key that they fill (trainer_config_process and trainer_config_finalize in
transformers/integrations/deepspeed.py, 5.24; DeepSpeedPlugin in accelerate/utils/dataclasses.py, 1.15), and
what becomes of an "auto" that they leave alone. Not covered: batch sizes and precision (`ds_settle`), which
the workload decides; a script's own TrainingArguments, which offtune does not know: their defaults stand in.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from offtune.ds_change import Draft, KeyPath, shown
from offtune.ds_keys import STRICT_BLOCKS

# Defaults of TrainingArguments (transformers 5.24) for the keys the Trainer fills, and their arguments.
_TRAINER: dict[KeyPath, tuple[Any, str]] = {
    ("gradient_clipping",): (1.0, "max_grad_norm"),
    ("optimizer", "params", "lr"): (5e-5, "learning_rate"),
    ("optimizer", "params", "betas"): ([0.9, 0.999], "adam_beta1 and adam_beta2"),
    ("optimizer", "params", "eps"): (1e-8, "adam_epsilon"),
    ("optimizer", "params", "weight_decay"): (0.0, "weight_decay"),
    ("scheduler", "params", "warmup_min_lr"): (0, ""),
    ("scheduler", "params", "warmup_num_steps"): (1, "warmup_steps"),
}
# Known to the person's run only. Large, so that a decay over so many steps leaves a trial's rate as it is.
_UNKNOWN_TOTAL_STEPS = 1_000_000
_PLUGIN: dict[KeyPath, Any] = {
    ("zero_optimization", "stage"): 2,
    ("zero_optimization", "offload_optimizer", "device"): "none",
    ("zero_optimization", "offload_param", "device"): "none",
    ("zero_optimization", "stage3_gather_16bit_weights_on_model_save"): False,
}
_HIDDEN_NAMES = ("hidden_size", "n_embd", "d_model", "n_embed", "dim")
# Here "auto" is DeepSpeed's own word.
_MEANT = ("select_strategy", "select_interval", "update_interval", "keep_in_fp32_modules", "replace_method")
_ZERO = "zero_optimization"


# From the model's width h; the last two at stage 3 only.
_SIZES: dict[str, tuple[str, Callable[[int], int]]] = {
    "reduce_bucket_size": ("h x h", lambda h: h * h),
    "stage3_prefetch_bucket_size": ("0.9 x h x h", lambda h: int(0.9 * h * h)),
    "stage3_param_persistence_threshold": ("10 x h", lambda h: 10 * h),
}


def hidden_size(model_config: Mapping[str, Any]) -> int | None:
    """The width the Trainer's formulas use, under whichever name the model's configuration has it."""
    for config in (model_config, model_config.get("text_config") or {}):
        for name in _HIDDEN_NAMES:
            if isinstance(config.get(name), int):
                return int(config[name])
        if config.get("hidden_sizes"):
            return int(max(config["hidden_sizes"]))
    return None


def uses_auto(draft: Draft) -> bool:
    """Whether the file is written for the Trainer or accelerate: somewhere it says "auto"."""
    return next(_autos(draft.content, ()), None) is not None


def fill_autos(draft: Draft, model_config: Mapping[str, Any]) -> None:
    """Put a value in the place of every "auto" left, or leave the key out; each is noted."""
    for path, value in _PLUGIN.items():
        if draft.get(*path) == "auto":
            _fill(draft, path, value, "accelerate's default for its plugin")
    _hidden(draft, hidden_size(model_config))
    for path, (value, argument) in _TRAINER.items():
        if draft.get(*path) == "auto":
            says = (
                f"the Trainer puts --{argument} there, whose default this is"
                if argument
                else "as the Trainer does"
            )
            _fill(draft, path, value, says)
    _schedule(draft)
    for path in list(_autos(draft.content, ())):
        _leave_out(draft, path)


def _fill(draft: Draft, path: KeyPath, value: Any, why: str) -> None:
    draft.put(path, value)
    draft.note("filled", path, f'"auto" is {shown(value)}: {why}.')


def _hidden(draft: Draft, hidden: int | None) -> None:
    """The three sizes that follow from the model's width h."""
    stage = draft.get(_ZERO, "stage")
    for key, (formula, size) in _SIZES.items():
        path = (_ZERO, key)
        if draft.get(*path) != "auto" or (stage != 3 and key.startswith("stage3_")):
            continue
        if hidden is None:
            draft.note("refused", path, '"auto" needs a hidden_size, which the model lacks; write a number.')
        else:
            how = f"{formula} with h = {hidden}, the model's hidden size, as the Trainer does"
            _fill(draft, path, size(hidden), how)


def _schedule(draft: Draft) -> None:
    peak, total = ("scheduler", "params", "warmup_max_lr"), ("scheduler", "params", "total_num_steps")
    if draft.get(*peak) == "auto":
        rate = draft.get("optimizer", "params", "lr", default=_TRAINER["optimizer", "params", "lr"][0])
        _fill(draft, peak, rate, "the learning rate, as the Trainer does")
    if draft.get(*total) == "auto":
        why = "only your run knows it; this stands in for it, write yours into the export"
        _fill(draft, total, _UNKNOWN_TOTAL_STEPS, why)


def _leave_out(draft: Draft, path: KeyPath) -> None:
    default = STRICT_BLOCKS.get(".".join(path[:-1]), {}).get(path[-1])
    then = f"DeepSpeed's default, {shown(default)}, counts" if default is not None else "left out"
    draft.drop(path)
    draft.note("filled", path, f'nobody fills this "auto"; {then}.')


def _autos(value: Mapping[str, Any], path: KeyPath) -> Iterator[KeyPath]:
    """Paths of the keys whose value is "auto" and means the Trainer's."""
    for key, item in value.items():
        if isinstance(item, dict):
            yield from _autos(item, (*path, key))
        elif item == "auto" and key not in _MEANT:
            yield (*path, key)
