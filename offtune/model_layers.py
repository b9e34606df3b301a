"""The parameters of a decoder, shape by shape, in the order in which `model.parameters()` gives them.

Covered: the families of `decoder_families`, as transformers 5.24 builds them; experts are one tensor a
matrix there, in older versions one module each (same elements, other order). Not covered: what the
parameters cost.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from offtune.decoder import Decoder, Experts

Shape = tuple[int, ...]
Shapes = tuple[Shape, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Layers:
    """Shapes of what comes before the layers, of each layer, and of what comes after them.

    A tied head is not among them: `model.parameters()` gives it once, as the token table.
    """

    before: Shapes
    layers: tuple[Shapes, ...]
    after: Shapes


def layers_of(decoder: Decoder) -> Layers:
    """Every trainable parameter of the decoder."""
    build = _LAYERS.get(decoder.family, _rms_layer)
    layers = tuple(build(decoder, index) for index in range(decoder.layers))
    if decoder.family == "opt":
        return Layers(before=_opt_before(decoder), layers=layers, after=_head(decoder))
    tables = ((decoder.vocab, decoder.hidden), (decoder.positions, decoder.hidden))
    return Layers(
        before=tables if decoder.positions else tables[:1],
        layers=layers,
        after=_norm(decoder) + _head(decoder),
    )


def _opt_before(d: Decoder) -> Shapes:
    """OPT registers its projections and its last norm before its layers (modeling_opt.py)."""
    shapes: Shapes = ((d.vocab, d.embedding), (d.positions, d.hidden))
    if d.embedding != d.hidden:
        shapes += ((d.embedding, d.hidden), (d.hidden, d.embedding))
    return shapes + (_norm(d) if d.final_norm else ())


def _head(d: Decoder) -> Shapes:
    weight: Shapes = () if d.tied else ((d.vocab, d.embedding),)
    bias: Shapes = ((d.vocab,),) if d.head_bias else ()
    return weight + bias


def _norm(d: Decoder, width: int | None = None) -> Shapes:
    if not d.norm_weights:
        return ()
    vector = (d.hidden if width is None else width,)
    return (vector,) if d.norm == "rms" else (vector, vector)


def _linear(out: int, into: int, bias: bool) -> Shapes:
    return ((out, into), (out,)) if bias else ((out, into),)


def _head_norms(d: Decoder) -> Shapes:
    return 2 * _norm(d, d.head_dim) if d.head_norms else ()


def _qkv_apart(d: Decoder) -> Shapes:
    """Query, key and value projections, then the output projection and the norms of single heads."""
    key_value = _linear(d.key_value, d.hidden, d.qkv_bias)
    query = _linear(d.query, d.hidden, d.qkv_bias)
    return query + key_value + key_value + _linear(d.hidden, d.query, d.out_bias) + _head_norms(d)


def _gated_mlp(d: Decoder, width: int, bias: bool = False) -> Shapes:
    return 2 * _linear(width, d.hidden, bias) + _linear(d.hidden, width, bias)


def _plain_mlp(d: Decoder) -> Shapes:
    return _linear(d.ffn, d.hidden, d.mlp_bias) + _linear(d.hidden, d.ffn, d.mlp_bias)


def _rms_layer(d: Decoder, index: int) -> Shapes:
    """Llama, Mistral, Qwen2, Qwen3, Gemma."""
    return _qkv_apart(d) + _gated_mlp(d, d.ffn, d.mlp_bias) + 2 * _norm(d)


def _four_norm_layer(d: Decoder, index: int) -> Shapes:
    """Gemma 2 and 3 normalise before and after each half."""
    return _rms_layer(d, index) + 2 * _norm(d)


def _phi3_layer(d: Decoder, index: int) -> Shapes:
    qkv = (d.query + 2 * d.key_value, d.hidden)
    return ((d.hidden, d.query), qkv, (2 * d.ffn, d.hidden), (d.hidden, d.ffn), *(2 * _norm(d)))


def _phi_layer(d: Decoder, index: int) -> Shapes:
    return _qkv_apart(d) + _plain_mlp(d) + _norm(d)


def _gpt2_layer(d: Decoder, index: int) -> Shapes:
    # GPT-2's Conv1D holds its matrices transposed; the elements are the same.
    attention = _linear(3 * d.hidden, d.hidden, True) + _linear(d.hidden, d.hidden, True)
    return _norm(d) + attention + _norm(d) + _plain_mlp(d)


def _gpt_neo_layer(d: Decoder, index: int) -> Shapes:
    return _norm(d) + _qkv_apart(d) + _norm(d) + _plain_mlp(d)


def _gpt_neox_layer(d: Decoder, index: int) -> Shapes:
    qkv = _linear(3 * d.hidden, d.hidden, d.qkv_bias)
    return 2 * _norm(d) + qkv + _linear(d.hidden, d.hidden, d.out_bias) + _plain_mlp(d)


def _opt_layer(d: Decoder, index: int) -> Shapes:
    return _qkv_apart(d) + _norm(d) + _plain_mlp(d) + _norm(d)


def _expert_tensors(d: Decoder, experts: Experts) -> Shapes:
    count, width = experts.count, experts.width
    return ((count, 2 * width, d.hidden), (count, d.hidden, width))


def _mixtral_layer(d: Decoder, index: int) -> Shapes:
    if d.experts is None or index not in d.experts.layers:
        return _rms_layer(d, index)
    router: Shapes = ((d.experts.count, d.hidden),)
    return _qkv_apart(d) + router + _expert_tensors(d, d.experts) + 2 * _norm(d)


def _qwen2_moe_layer(d: Decoder, index: int) -> Shapes:
    if d.experts is None or index not in d.experts.layers:
        return _rms_layer(d, index)
    router: Shapes = ((d.experts.count, d.hidden),)
    shared = (*_gated_mlp(d, d.experts.shared_width), (1, d.hidden))
    return _qkv_apart(d) + router + _expert_tensors(d, d.experts) + shared + 2 * _norm(d)


def _qwen3_moe_layer(d: Decoder, index: int) -> Shapes:
    if d.experts is None or index not in d.experts.layers:
        return _rms_layer(d, index)
    router: Shapes = ((d.experts.count, d.hidden),)
    return _qkv_apart(d) + _expert_tensors(d, d.experts) + router + 2 * _norm(d)


_LAYERS: dict[str, Callable[[Decoder, int], Shapes]] = {
    "gemma2": _four_norm_layer,
    "gemma3_text": _four_norm_layer,
    "phi3": _phi3_layer,
    "phi": _phi_layer,
    "gpt2": _gpt2_layer,
    "gpt_neo": _gpt_neo_layer,
    "gpt_neox": _gpt_neox_layer,
    "opt": _opt_layer,
    "mixtral": _mixtral_layer,
    "qwen2_moe": _qwen2_moe_layer,
    "qwen3_moe": _qwen3_moe_layer,
}
