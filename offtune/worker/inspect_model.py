"""Counts a model without its weights: `python -m offtune.worker.inspect_model < config.json`.

Covered: sizes of trainable parameters, on the meta device. Not covered: activations and time. Prints a
ModelProfile as JSON; a configuration that cannot be built ends with exit code 1 and {"error": ...}.
"""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Any

from offtune.models import ModelProfile
from offtune.trial import dump

if TYPE_CHECKING:
    from transformers import PreTrainedConfig

# transformers lists every model it knows (20,000 characters) when it does not know one.
_ERROR_CHARACTERS = 300


def configuration(config: dict[str, Any]) -> PreTrainedConfig:
    """The transformers configuration of a plain dict. Raises ValueError for an unknown `model_type`."""
    from transformers import AutoConfig

    fields = dict(config)
    return AutoConfig.for_model(fields.pop("model_type"), **fields)


def profile(config: dict[str, Any]) -> ModelProfile:
    """Parameters of the causal language model of `config`. Raises ValueError (one line) if none."""
    try:
        return _profile(configuration(config))
    except _build_errors() as error:
        cause = error.__cause__ or error
        line = (str(cause).splitlines() or [type(cause).__name__])[0]
        raise ValueError(line[:_ERROR_CHARACTERS]) from error


def _profile(settings: PreTrainedConfig) -> ModelProfile:
    import torch
    from transformers import AutoModelForCausalLM

    with torch.device("meta"):
        # Code from the hub is never run: without the explicit False transformers would ask on the terminal.
        model = AutoModelForCausalLM.from_config(settings, trust_remote_code=False)
    numels = tuple(parameter.numel() for parameter in model.parameters() if parameter.requires_grad)
    text = settings.get_text_config()
    return ModelProfile(
        parameter_numels=numels,
        n_params=sum(numels),
        largest_numel=max(numels),
        vocab_size=text.vocab_size,
        max_positions=getattr(text, "max_position_embeddings", None),
    )


def _build_errors() -> tuple[type[Exception], ...]:
    """What building an arbitrary configuration raises; old versions of the hub lack their own kind."""
    from huggingface_hub import errors

    strict = getattr(errors, "StrictDataclassError", ValueError)
    return (ValueError, TypeError, KeyError, AttributeError, ImportError, RuntimeError, strict)


def main() -> int:
    """Profile the configuration on standard input; returns the exit code."""
    try:
        line = dump(profile(json.load(sys.stdin)))
    except ValueError as error:
        sys.stdout.write(json.dumps({"error": str(error)}) + "\n")
        return 1
    sys.stdout.write(line + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
