"""Decoders: the dimensions of a causal language model, read from its Hugging Face configuration.

Covered: the families of `decoder_families`. Not covered: encoders, vision towers, code from the hub; how the
dimensions become parameters (`model_layers`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from offtune.decoder_families import FAMILIES, LEARNED_POSITIONS, Family
from offtune.errors import UsageError

Norm = Literal["rms", "layer"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Experts:
    """The experts of a mixture layer: `per_token` of `count` work on one token; widths are elements.

    `shared_width` is that of an expert all tokens pass through, 0 for none. `layers` are those that have
    experts; the others have the decoder's usual MLP.
    """

    count: int
    per_token: int
    width: int
    shared_width: int
    layers: frozenset[int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Decoder:
    """Dimensions, in elements: width `hidden`, MLP width `ffn`, `positions` rows of a learned table (or 0).

    `embedding` is the width of the token table, `hidden` but for some OPT models. `max_positions` is the
    longest sequence the model was made for, None when the configuration sets none.
    """

    family: str
    hidden: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    ffn: int
    vocab: int
    embedding: int
    positions: int
    max_positions: int | None
    tied: bool
    norm: Norm
    gated: bool
    qkv_bias: bool
    out_bias: bool
    mlp_bias: bool
    head_bias: bool
    head_norms: bool
    norm_weights: bool
    final_norm: bool
    activation: str
    softcap: bool
    experts: Experts | None = None

    @property
    def query(self) -> int:
        """Elements of all query heads of one token."""
        return self.heads * self.head_dim

    @property
    def key_value(self) -> int:
        """Elements of all key heads (or value heads) of one token."""
        return self.kv_heads * self.head_dim


def is_known(config: Mapping[str, Any]) -> bool:
    """Whether `read_decoder` knows the family of this configuration."""
    return config.get("model_type") in FAMILIES


def read_decoder(config: Mapping[str, Any]) -> Decoder:
    """The dimensions in a Hugging Face configuration. Raises UsageError if it cannot use them."""
    name = str(config.get("model_type"))
    family = FAMILIES.get(name)
    if family is None:
        raise UsageError(
            f"The shape of a '{name}' model is not known here.",
            f"Predictions know {', '.join(sorted(FAMILIES))}; trials run any causal model.",
        )
    return _decoder(name, _Fields(_named(config, family), family))


def _named(config: Mapping[str, Any], family: Family) -> dict[str, Any]:
    """The configuration under the names used here, over the family's defaults."""
    own = {family.other_names.get(key, key): value for key, value in config.items()}
    return {**family.defaults, **own}


class _Fields:
    """Typed reading of one configuration's values."""

    def __init__(self, values: Mapping[str, Any], family: Family) -> None:
        self._values, self._fixed = values, family.fixed

    def count(self, key: str, otherwise: int | None = None, least: int = 0) -> int:
        """A whole number of at least `least`; null or a missing key is `otherwise`."""
        value = self._values.get(key)
        value = otherwise if value is None else value
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            above = f" above {least - 1}" if least else ""
            raise UsageError(
                f"The model configuration has {key} = {value!r}.", f"Give {key} a whole number{above} there."
            )
        return value

    def flag(self, name: str, *keys: str, otherwise: bool = False) -> bool:
        """What the family fixes under `name`, else the first of `keys` the configuration has."""
        if name in self._fixed:
            return bool(self._fixed[name])
        return bool(next((self._values[key] for key in keys if key in self._values), otherwise))

    def text(self, *keys: str) -> str:
        return str(next((self._values[key] for key in keys if self._values.get(key)), ""))

    def has(self, key: str) -> bool:
        return self._values.get(key) is not None

    def numbers(self, key: str) -> tuple[int, ...]:
        return tuple(int(number) for number in self._values.get(key) or ())

    def fixed(self, name: str) -> Any:
        return self._fixed[name]


def _decoder(name: str, fields: _Fields) -> Decoder:
    hidden = fields.count("hidden_size", least=1)
    heads = fields.count("num_attention_heads", least=1)
    positions = fields.count("max_position_embeddings", 0)
    grouped = fields.flag("grouped", otherwise=True)
    return Decoder(
        family=name,
        hidden=hidden,
        layers=fields.count("num_hidden_layers", least=1),
        heads=heads,
        kv_heads=fields.count("num_key_value_heads", heads) if grouped else heads,
        head_dim=fields.count("head_dim", hidden // heads) if grouped else hidden // heads,
        ffn=fields.count("intermediate_size", 4 * hidden),
        vocab=fields.count("vocab_size", least=1),
        embedding=fields.count("word_embed_proj_dim", hidden),
        positions=positions + LEARNED_POSITIONS[name] if name in LEARNED_POSITIONS else 0,
        max_positions=positions or None,
        tied=fields.flag("tied", "tie_word_embeddings"),
        norm=fields.fixed("norm"),
        gated=fields.fixed("gated"),
        qkv_bias=fields.flag("qkv_bias", "qkv_bias", "attention_bias", "enable_bias"),
        out_bias=fields.flag("out_bias", "attention_bias", "enable_bias"),
        mlp_bias=fields.flag("mlp_bias", "mlp_bias", "enable_bias"),
        head_bias=fields.flag("head_bias"),
        head_norms=fields.flag("head_norms", "qk_layernorm"),
        norm_weights=fields.flag("norm_weights", "layer_norm_elementwise_affine", otherwise=True),
        final_norm=_has_final_norm(fields),
        activation=fields.text("hidden_act"),
        softcap=fields.has("final_logit_softcapping"),
        experts=_experts(fields) if fields.has("num_local_experts") else None,
    )


def _has_final_norm(fields: _Fields) -> bool:
    """OPT leaves it out where layers normalise after (modeling_opt.py, transformers 5.24)."""
    return fields.flag("final_norm", "do_layer_norm_before", otherwise=True) and not fields.flag(
        "no_final_norm", "_remove_final_layer_norm"
    )


def _experts(fields: _Fields) -> Experts | None:
    count, every = fields.count("num_local_experts"), max(1, fields.count("decoder_sparse_step", 1))
    dense = fields.numbers("mlp_only_layers")
    layers = range(fields.count("num_hidden_layers"))
    return Experts(
        count=count,
        per_token=min(count, fields.count("num_experts_per_tok", 1)),
        width=fields.count("moe_intermediate_size", fields.count("intermediate_size")),
        shared_width=fields.count("shared_expert_intermediate_size", 0),
        layers=frozenset(i for i in layers if count and i not in dense and (i + 1) % every == 0),
    )
