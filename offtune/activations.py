"""Activations: bytes that a forward keeps for its backward, and what a pass needs while it runs.

Covered: one layer and the output head of a decoder, 16-bit or fp32, by attention implementation. Not
covered: parameters and gradients (`memory_device`). The counts are what autograd saves in the code of
transformers 5.24; tests/test_activations.py measures them with saved-tensor hooks.
"""

from __future__ import annotations

from dataclasses import dataclass

from offtune.decoder import Decoder
from offtune.model_shape import Attention

FP32_BYTES = 4
# Families whose attention in transformers 5.24 has no SDPA path (modeling_gemma2.py, modeling_gpt_neo.py).
_EAGER_ONLY = frozenset({"gemma2", "gpt_neo"})
# gelu_new is written out in elementwise steps, five of whose results are kept (transformers/activations.py);
# relu keeps its result, other activations their input and their result.
_KEPT_BY_ACTIVATION = {"gelu_new": 5, "gelu_fast": 5, "relu": 1}
_KEPT_BY_OTHERS = 2
# Softmax results: eager attention computes them in fp32 and casts (both kept), older families in one dtype.
_ONE_SOFTMAX = frozenset({"gpt2"})
# Families that turn a part of each head: the parts are joined again into new tensors.
_PARTIAL_ROTARY = frozenset({"phi", "phi3", "gpt_neox"})
_FUSED_QKV = frozenset({"gpt2", "gpt_neox", "phi3"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Stack:
    """The code that runs a model, where it decides about memory.

    `attention` None is what the model library picks. `score_bytes` are kept per attention score by eager
    attention (None: as Hugging Face), `held_score_bytes` stay allocated between steps, `lingering_tables`
    is how many gathered token tables ZeRO-3 cannot release within a step, `loss_backward_bytes` what the
    loss's backward needs per logit (None: as Hugging Face).
    """

    attention: Attention | None = None
    score_bytes: int | None = None
    held_score_bytes: int = 0
    lingering_tables: int = 0
    loss_backward_bytes: int | None = None


HUGGING_FACE = Stack()
# Megatron-DeepSpeed of the published logs: constant part of the allocator's level before a forward is
# 2 B per score over 7B to 100B models with 32 to 256 heads, and after a backward it is two token tables
# higher than before wherever there are two or more ranks. Its cross entropy turns probabilities into
# gradients where they are, then casts them.
MEGATRON = Stack(
    attention="eager", score_bytes=2, held_score_bytes=2, lingering_tables=2, loss_backward_bytes=6
)


def attention_of(decoder: Decoder, stack: Stack) -> Attention:
    """The attention implementation that runs."""
    if stack.attention is not None:
        return stack.attention
    return "eager" if decoder.family in _EAGER_ONLY else "flash"


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerBytes:
    """One layer, for one micro-batch: kept by its attention half and its MLP half, and needed while it runs.

    `forward` and `backward` are the largest sums of short-lived tensors in either direction.
    """

    attention: int
    mlp: int
    forward: int
    backward: int

    @property
    def kept(self) -> int:
        return self.attention + self.mlp


def layer_bytes(
    decoder: Decoder, index: int, seq_len: int, micro_batch: int, element: int, stack: Stack = HUGGING_FACE
) -> LayerBytes:
    """Bytes of layer `index` for `micro_batch` samples; `element` is the bytes of an activation."""
    tokens = seq_len * micro_batch
    scores = _score_bytes(decoder, element, stack) * decoder.heads * seq_len
    attention = _half_norm_bytes(decoder, element) + _attention_bytes(decoder, element, stack) + scores
    mlp = _half_norm_bytes(decoder, element) + _mlp_bytes(decoder, index, element)
    inner = _mlp_working(decoder, index, element)
    # Eager attention masks and normalises whole score matrices: one more lives beside what is kept.
    scoring = scores + element * decoder.heads * seq_len if scores else 0.0
    return LayerBytes(
        attention=int(tokens * attention),
        mlp=int(tokens * mlp),
        forward=int(tokens * max(inner, scoring)),
        backward=int(tokens * max(inner, scores)),
    )


def checkpoint_bytes(decoder: Decoder, seq_len: int, micro_batch: int, element: int) -> int:
    """The input of one layer, all that a checkpointed layer keeps."""
    return seq_len * micro_batch * decoder.hidden * element


def _norm_bytes(d: Decoder, element: int) -> int:
    """Per token, one norm and the residual before it.

    RMS norms keep the input in fp32 and the normed tensor (Gemma in fp32 too); both keep their result, as
    the input of the next matrix.
    """
    if d.norm == "layer":
        return 2 * d.hidden * element
    return d.hidden * (FP32_BYTES + _normed_element(d, element) + element)


def _normed_element(d: Decoder, element: int) -> int:
    return FP32_BYTES if d.family.startswith("gemma") else element


# One norm feeds both halves of Phi; two norms of one residual those of GPT-NeoX.
_SHARED_NORMS = {"phi": 0.5, "gpt_neox": 0.75}


def _half_norm_bytes(d: Decoder, element: int) -> float:
    """Per token, the norms of one half of a layer."""
    kept = _SHARED_NORMS.get(d.family, 1.0) * _norm_bytes(d, element)
    # Gemma 2 and 3 norm a half's result once more, and nothing keeps what comes of it.
    twice = d.family in ("gemma2", "gemma3_text")
    return kept + (d.hidden * (FP32_BYTES + _normed_element(d, element)) if twice else 0)


def _attention_bytes(d: Decoder, element: int, stack: Stack) -> float:
    """Per token: queries, keys, values and the attention's result, without scores."""
    eager = attention_of(d, stack) == "eager"
    # Eager attention repeats grouped keys and values for every query head.
    key_value = d.query if eager and stack.score_bytes is None else d.key_value
    kept = element * (2 * d.query + 2 * key_value)
    if d.head_norms and d.norm == "rms":
        kept += (FP32_BYTES + _normed_element(d, element)) * (d.query + d.key_value)
    if d.family in _FUSED_QKV and d.family != "gpt2" and not eager:
        # The value is a view: the joint result of all three stays.
        kept += element * (d.query + d.key_value)
    if d.family in _PARTIAL_ROTARY and not eager:
        kept += element * d.query
    if d.family == "gpt_neo":
        # Its scores are computed from fp32 queries and keys.
        kept += (FP32_BYTES - element) * (d.query + d.key_value)
    return kept if eager else kept + FP32_BYTES * d.heads


def _score_bytes(d: Decoder, element: int, stack: Stack) -> int:
    """Per head and pair of tokens."""
    if attention_of(d, stack) == "flash":
        return 0
    if stack.score_bytes is not None:
        return stack.score_bytes
    capped = element if d.softcap else 0
    cast = element if element < FP32_BYTES else 0
    return capped + (element if d.family in _ONE_SOFTMAX else FP32_BYTES + cast)


def _mlp_bytes(d: Decoder, index: int, element: int) -> float:
    if d.experts is not None and index in d.experts.layers:
        # Each of a token's experts keeps a copy of it and of its own result; router scores are small.
        experts = d.experts.per_token * (4 * d.experts.width + 2 * d.hidden)
        shared = 4 * d.experts.shared_width + 2 * d.hidden if d.experts.shared_width else 0
        return element * (experts + shared)
    if d.gated:
        # Both projections, the activation's result and the product.
        extra = _KEPT_BY_ACTIVATION.get(d.activation, _KEPT_BY_OTHERS) - _KEPT_BY_OTHERS
        return element * d.ffn * (4 + max(0, extra))
    return element * d.ffn * _KEPT_BY_ACTIVATION.get(d.activation, _KEPT_BY_OTHERS)


def _mlp_working(d: Decoder, index: int, element: int) -> float:
    """Per token: gradients of the MLP's inner tensors, three alive at a time, and of the residual."""
    width = d.ffn
    if d.experts is not None and index in d.experts.layers:
        width = d.experts.per_token * d.experts.width + d.experts.shared_width
    return element * (3 * width + 2 * d.hidden)


@dataclass(frozen=True, slots=True, kw_only=True)
class HeadBytes:
    """Logits and loss of one micro-batch: at the end of the forward, kept, and as the backward starts.

    `logits` is the part of `forward` in the model's own dtype, before any cast.
    """

    logits: int
    forward: int
    kept: int
    backward: int


def head_bytes(
    decoder: Decoder, seq_len: int, micro_batch: int, element: int, stack: Stack = HUGGING_FACE
) -> HeadBytes:
    """Bytes for cross entropy over the vocabulary as Hugging Face computes it (loss/loss_utils.py).

    Forward: logits, their fp32 copy, log-probabilities. Kept: the last. Backward: the last, the gradient of
    the loss and that of the log-probabilities, all fp32 and of full size.
    """
    tokens = seq_len * micro_batch
    final_norm = tokens * _norm_bytes(decoder, element)
    upcast = FP32_BYTES if element < FP32_BYTES else 0
    capped = element if decoder.softcap else 0
    logits = tokens * decoder.vocab
    backward = 3 * FP32_BYTES if stack.loss_backward_bytes is None else stack.loss_backward_bytes
    return HeadBytes(
        logits=logits * element,
        forward=int(final_norm + logits * (2 * capped + element + upcast + FP32_BYTES)),
        kept=int(final_norm + logits * (capped + FP32_BYTES)),
        backward=int(final_norm + logits * (capped + backward)),
    )
