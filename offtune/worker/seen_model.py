"""What a person's own model shows of itself before it trains: sizes, shapes, configuration, checkpointing.

Covered: any torch module; what a Hugging Face model says more. Not covered: what follows from it
(`probe.py`, `model_guess.py`), which the parent decides.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

# Longer lists and whole tables (labels, say) describe no decoder.
_LONGEST_LIST = 256
_PLAIN = (bool, int, float, str)


def numels(model: Any) -> tuple[int, ...]:
    """Elements of each trainable parameter, also of one that ZeRO-3 has partitioned already."""
    return tuple(int(getattr(p, "ds_numel", p.numel())) for p in _trainable(model))


def matrix_shapes(model: Any) -> tuple[tuple[int, int], ...]:
    """The shape of each trainable matrix, in order."""
    shapes = (tuple(getattr(p, "ds_shape", p.shape)) for p in _trainable(model))
    return tuple((int(shape[0]), int(shape[1])) for shape in shapes if len(shape) == 2)


def _trainable(model: Any) -> Iterator[Any]:
    return (p for p in model.parameters() if p.requires_grad) if model is not None else iter(())


def hidden_size(model: Any) -> int | None:
    """As the Trainer looks for it (trainer_config_finalize in transformers, 5.24); None for other models."""
    config = getattr(model, "config", None)
    for place in (config, getattr(config, "text_config", None)):
        if isinstance(size := getattr(place, "hidden_size", None), int):
            return size
        if sizes := getattr(place, "hidden_sizes", None):
            return int(max(sizes))
    return None


def configuration(model: Any) -> dict[str, Any]:
    """The plain values of a Hugging Face model's configuration, of its text part; empty for other models."""
    config: Any = getattr(model, "config", None)
    if not hasattr(config, "to_dict") or not hasattr(config, "get_text_config"):
        return {}
    values: Mapping[str, Any] = config.get_text_config().to_dict()
    return {key: value for key, value in values.items() if _is_plain(value)}


def _is_plain(value: Any) -> bool:
    if isinstance(value, (list, tuple)):
        return len(value) <= _LONGEST_LIST and all(isinstance(item, _PLAIN) for item in value)
    return isinstance(value, _PLAIN)


def checkpoints_activations(model: Any) -> bool:
    """Whether a Hugging Face model recomputes its layers; of other models nobody can tell."""
    # transformers 5 renames it, and warns of the old name.
    names = ("is_activation_checkpointing", "is_gradient_checkpointing")
    known = next((name for name in names if hasattr(type(model), name)), None)
    return known is not None and getattr(model, known) is True
