"""Models: from what a person types to a Hugging Face configuration, and the arithmetic of its parameters.

Covered: presets, config.json files, hub ids; how ZeRO-3 partitions parameters and groups them. Not covered:
building the model, which only the child does (`worker/inspect_model.py`).
"""

from __future__ import annotations

import json
import re
from bisect import bisect_right
from dataclasses import dataclass
from difflib import get_close_matches
from functools import lru_cache
from itertools import accumulate
from pathlib import Path
from typing import Any

from offtune import hub
from offtune.errors import UsageError
from offtune.trial import DeviceKind

_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*\Z")


@dataclass(frozen=True, slots=True, kw_only=True)
class Preset:
    """A built-in model shape; `about` is one sentence for help pages."""

    name: str
    about: str
    config: dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """A resolved model: the name shown to people and a Hugging Face configuration with `model_type`."""

    name: str
    config: dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelProfile:
    """What the child counted: elements per trainable parameter in `model.parameters()` order, ties once.

    `max_positions` is the longest sequence the model was made for, None when the configuration sets none.
    """

    parameter_numels: tuple[int, ...]
    n_params: int
    largest_numel: int
    vocab_size: int
    max_positions: int | None


def _llama(
    hidden: int, layers: int, heads: int, kv_heads: int, intermediate: int, vocab: int
) -> dict[str, Any]:
    return {
        "model_type": "llama",
        "architectures": ["LlamaForCausalLM"],
        "hidden_size": hidden,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "intermediate_size": intermediate,
        "vocab_size": vocab,
        "hidden_act": "silu",
        "max_position_embeddings": 4096,
        "initializer_range": 0.02,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "attention_bias": False,
        "attention_dropout": 0.0,
        "mlp_bias": False,
        "tie_word_embeddings": False,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "use_cache": False,
    }


def _gpt2(hidden: int, layers: int, heads: int) -> dict[str, Any]:
    # Without dropout, unlike the published files: losses of two configurations must be comparable.
    return {
        "model_type": "gpt2",
        "architectures": ["GPT2LMHeadModel"],
        "n_embd": hidden,
        "n_layer": layers,
        "n_head": heads,
        "n_inner": None,
        "vocab_size": 50257,
        "n_positions": 1024,
        "activation_function": "gelu_new",
        "initializer_range": 0.02,
        "layer_norm_epsilon": 1e-5,
        "resid_pdrop": 0.0,
        "embd_pdrop": 0.0,
        "attn_pdrop": 0.0,
        "tie_word_embeddings": True,
        "bos_token_id": 50256,
        "eos_token_id": 50256,
        "use_cache": False,
    }


# Shapes: llama-160m and larger follow public models of those sizes (llama-1b is TinyLlama 1.1B, llama-3b
# OpenLLaMA 3B, 7b and 13b Llama 2), gpt2-* the published family; the two smallest are ours, for CPU trials.
_PRESETS = (
    Preset(
        name="llama-5m",
        about="5.3 M parameters; the default without CUDA",
        config=_llama(256, 4, 4, 4, 688, 4096),
    ),
    Preset(name="llama-25m", about="25 M parameters", config=_llama(512, 6, 8, 8, 1376, 6144)),
    Preset(name="gpt2-124m", about="124 M parameters; also 'gpt2'", config=_gpt2(768, 12, 12)),
    Preset(name="llama-160m", about="162 M parameters", config=_llama(768, 12, 12, 12, 3072, 32000)),
    Preset(
        name="llama-1b",
        about="1.1 B parameters; the default on CUDA",
        config=_llama(2048, 22, 32, 4, 5632, 32000),
    ),
    Preset(name="gpt2-xl", about="1.6 B parameters", config=_gpt2(1600, 48, 25)),
    Preset(name="llama-3b", about="3.4 B parameters", config=_llama(3200, 26, 32, 32, 8640, 32000)),
    Preset(name="llama-7b", about="6.7 B parameters", config=_llama(4096, 32, 32, 32, 11008, 32000)),
    Preset(name="llama-13b", about="13 B parameters", config=_llama(5120, 40, 40, 40, 13824, 32000)),
)
PRESETS: dict[str, Preset] = {preset.name: preset for preset in _PRESETS}
_ALIASES = {"gpt2": "gpt2-124m"}


def default_preset(device: DeviceKind) -> str:
    """The model of a search that names none: small enough for minutes on two cores, real enough for a GPU."""
    return "llama-1b" if device == "cuda" else "llama-5m"


def resolve_model(text: str) -> Model:
    """The model behind a preset name, a config.json (file or folder) or a hub id. Raises UsageError."""
    preset = PRESETS.get(_ALIASES.get(text, text))
    if preset is not None:
        return Model(name=preset.name, config=dict(preset.config))
    path = Path(text).expanduser()
    if path.exists():
        return Model(name=text, config=_read_config(path))
    if path.suffix == ".json" or text.startswith((".", "/", "~")):
        raise UsageError(f"--model: there is no '{text}'.", _WAYS)
    if not _HUB_ID.match(text):
        raise UsageError(f"--model: '{text}' is no preset, file or hub id.", _near_miss(text) or _WAYS)
    return Model(name=text, config=_read_config(_fetch(text)))


_WAYS = f"Give a path to a config.json or a preset: {', '.join(PRESETS)}."


def _near_miss(text: str) -> str:
    near = get_close_matches(text.lower(), [*PRESETS, *_ALIASES], n=2, cutoff=0.6)
    return f"Did you mean {' or '.join(near)}? Hub ids are written owner/name." if near else ""


def _fetch(repo: str) -> Path:
    try:
        return hub.config_file(repo)
    except UsageError as error:
        raise UsageError(
            f"--model: {error.message}", f"{error.hint} {_near_miss(repo) or _WAYS}".strip()
        ) from error


def _read_config(path: Path) -> dict[str, Any]:
    """The configuration in a file or a folder's config.json, checked to be of a causal language model."""
    file = path / "config.json" if path.is_dir() else path
    try:
        config = json.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(f"--model: cannot read {file}: {error.strerror}.", _WAYS) from error
    except ValueError as error:
        raise UsageError(f"--model: {file} is not JSON: {error}.", _WAYS) from error
    if not isinstance(config, dict) or not isinstance(config.get("model_type"), str):
        raise UsageError(
            f"--model: {file} has no 'model_type', so it is not a Hugging Face configuration.", _WAYS
        )
    _require_causal(config, file)
    return config


def _require_causal(config: dict[str, Any], file: Path) -> None:
    architectures = [str(name) for name in config.get("architectures") or ()]
    masked = bool(architectures) and all(name.endswith("ForMaskedLM") for name in architectures)
    if config.get("is_encoder_decoder") or masked:
        kind = "a masked language model" if masked else "an encoder-decoder model"
        model_type = config["model_type"]
        raise UsageError(f"--model: {file} describes {kind} ({model_type}); trials need a causal one.", _WAYS)


# Kept, as everything that ranks thousands of configurations of one model asks for the same few.
@lru_cache(maxsize=64)
def partition_numels(numels: tuple[int, ...], world_size: int) -> tuple[int, ...]:
    """Elements of each parameter on one rank under ZeRO-3: padded to a multiple of `world_size`, then split.

    Source: Init._aligned_size and _partition_param in deepspeed/runtime/zero/partition_parameters.py, 0.19.8.
    """
    return tuple(-(-numel // world_size) for numel in numels)


@lru_cache(maxsize=1024)
def sub_group_numels(numels: tuple[int, ...], world_size: int, sub_group_size: int) -> tuple[int, ...]:
    """Elements per rank of each ZeRO-3 sub-group, for parameters in one optimizer group.

    A sub-group closes once it holds at least `sub_group_size` elements of the rank's partition. Source:
    _create_fp16_sub_groups in deepspeed/runtime/zero/stage3.py, 0.19.8.
    """
    groups: list[int] = []
    held = 0
    for numel in partition_numels(numels, world_size):
        held += numel
        if held >= sub_group_size:
            groups.append(held)
            held = 0
    return tuple([*groups, held] if held else groups)


def numel_up_to(numels: tuple[int, ...], limit: float) -> int:
    """Elements in those parameters that have no more than `limit` each."""
    sizes, sums = _by_size(numels)
    return sums[bisect_right(sizes, limit)]


@lru_cache(maxsize=64)
def _by_size(numels: tuple[int, ...]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The sizes in order, and how many elements the first n of them hold."""
    sizes = tuple(sorted(numels))
    return sizes, (0, *accumulate(sizes))


def resident_groups(ratio: float, n_groups: int) -> int:
    """Sub-groups whose optimizer state stays on the GPU: the expression in stage3.py (0.19.8), unchanged."""
    return int((1 - ratio) * n_groups)


def ratio_for(resident: int, n_groups: int) -> float:
    """The shortest ratio that keeps `resident` of `n_groups` sub-groups on the GPU; ValueError if none can.

    It is taken from the middle of the step, so that no rounding, theirs or ours, moves it to a neighbour.
    """
    if not 0 <= resident <= n_groups or n_groups < 1:
        raise ValueError(f"cannot keep {resident} of {n_groups} sub-groups on the GPU")
    if resident in (0, n_groups):
        return 1.0 if resident == 0 else 0.0
    middle = 1 - (resident + 0.5) / n_groups
    for decimals in range(1, 17):
        ratio = round(middle, decimals)
        if 0.1 <= (1 - ratio) * n_groups - resident <= 0.9:
            return ratio
    return middle


def max_positions(config: dict[str, Any]) -> int | None:
    """The longest sequence of a Hugging Face configuration, under whichever name it carries it."""
    for key in ("max_position_embeddings", "n_positions", "max_seq_len", "n_ctx"):
        if isinstance(config.get(key), int):
            return int(config[key])
    return None
