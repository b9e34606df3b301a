"""The shape of a model, as cost models need it: parameters by layer and the arithmetic of one sample.

Covered: exact parameter counts of known families, a guess for others, floating-point operations. Not
covered: bytes of activations (`activations`), time (which the hardware decides).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any, Literal

from offtune.decoder import Decoder, is_known, read_decoder
from offtune.errors import UsageError
from offtune.model_layers import Layers, Shapes, layers_of
from offtune.trial import Workload

# flash: no scores are kept (PyTorch's SDPA kernels, FlashAttention); eager: scores and weights are tensors.
Attention = Literal["flash", "eager"]
# A multiply and an add.
_FLOPS_PER_WEIGHT = 2
# A causal kernel skips the half of the scores that the mask would hide; eager attention computes them all.
_CAUSAL_SHARE = {"flash": 0.5, "eager": 1.0}
# Gradients with respect to input and to weight: twice the forward.
_BACKWARD_OVER_FORWARD = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Flops:
    """Floating-point operations of one sample; `recompute` is the second forward of checkpointed layers."""

    forward: float
    backward: float
    recompute: float

    @property
    def total(self) -> float:
        return self.forward + self.backward + self.recompute


@dataclass(frozen=True, kw_only=True)
class ModelShape:
    """Elements per trainable parameter, in `model.parameters()` order: before, in and after the layers.

    `layer_matmul_numels` are the weights one token is multiplied with in each layer (of experts only those
    that work on it), `head_numel` those of the output head, tied or not. `exact` is False for a guess.
    """

    decoder: Decoder
    before_numels: tuple[int, ...]
    layer_numels: tuple[tuple[int, ...], ...]
    after_numels: tuple[int, ...]
    layer_matmul_numels: tuple[float, ...]
    head_numel: int
    exact: bool = True

    @cached_property
    def parameter_numels(self) -> tuple[int, ...]:
        inner = (numel for layer in self.layer_numels for numel in layer)
        return (*self.before_numels, *inner, *self.after_numels)

    @cached_property
    def n_params(self) -> int:
        return sum(self.parameter_numels)

    @cached_property
    def layer_params(self) -> tuple[int, ...]:
        """Elements of each layer."""
        return tuple(sum(layer) for layer in self.layer_numels)

    @cached_property
    def largest_layer(self) -> int:
        """Elements of the largest layer; 0 for a model without."""
        return max(self.layer_params, default=0)

    def layer_forward_flops(self, seq_len: int, attention: Attention = "flash") -> tuple[float, ...]:
        """Operations of each layer's forward on one sample of `seq_len` tokens."""
        scores = _CAUSAL_SHARE[attention] * 2 * _FLOPS_PER_WEIGHT * seq_len * self.decoder.query
        return tuple(seq_len * (_FLOPS_PER_WEIGHT * weights + scores) for weights in self.layer_matmul_numels)

    def head_forward_flops(self, seq_len: int) -> float:
        """Operations of the output head's forward on one sample."""
        return float(_FLOPS_PER_WEIGHT * self.head_numel * seq_len)

    def flops(self, seq_len: int, checkpointing: bool, attention: Attention = "flash") -> Flops:
        """Operations on one sample of `seq_len` tokens; only layers are checkpointed, never the head."""
        layers = sum(self.layer_forward_flops(seq_len, attention))
        forward = layers + self.head_forward_flops(seq_len)
        return Flops(
            forward=forward,
            backward=_BACKWARD_OVER_FORWARD * forward,
            recompute=layers if checkpointing else 0.0,
        )


def shape_of(config: Mapping[str, Any], parameter_numels: Sequence[int] | None = None) -> ModelShape:
    """The shape behind a Hugging Face configuration.

    `parameter_numels`, where they were counted, correct it: a family that is not known, or a transformers
    version that orders parameters otherwise. Raises UsageError for an unknown family without them.
    """
    if parameter_numels is None or is_known(config):
        shape = _exact_shape(read_decoder(config))
        if parameter_numels is None or tuple(parameter_numels) == shape.parameter_numels:
            return shape
    return _guessed_shape(config, tuple(parameter_numels))


def _exact_shape(decoder: Decoder) -> ModelShape:
    layers = layers_of(decoder)
    return ModelShape(
        decoder=decoder,
        before_numels=_numels(layers.before),
        layer_numels=tuple(_numels(layer) for layer in layers.layers),
        after_numels=_numels(layers.after),
        layer_matmul_numels=_matmul_numels(decoder, layers),
        head_numel=decoder.vocab * decoder.embedding,
    )


def _numels(shapes: Shapes) -> tuple[int, ...]:
    return tuple(math.prod(shape) for shape in shapes)


def _matmul_numels(decoder: Decoder, layers: Layers) -> tuple[float, ...]:
    """Two-dimensional parameters are matrices every token meets, three-dimensional ones hold experts."""
    share = decoder.experts.per_token / decoder.experts.count if decoder.experts else 0.0
    use = {1: 0.0, 2: 1.0, 3: share}
    # Layers are alike but for experts, and a model may have a hundred.
    known = {shapes: sum(use[len(s)] * math.prod(s) for s in shapes) for shapes in set(layers.layers)}
    return tuple(known[shapes] for shapes in layers.layers)


def _guessed_shape(config: Mapping[str, Any], numels: tuple[int, ...]) -> ModelShape:
    """Counted parameters shared out evenly: the first is the token table, the last two follow the layers."""
    decoder = read_decoder(config if is_known(config) else {**config, "model_type": "llama"})
    inner = numels[1:-2] if len(numels) > 2 + decoder.layers else ()
    count = max(1, decoder.layers)
    cuts = [len(inner) * i // count for i in range(count + 1)]
    layers = tuple(inner[start:end] for start, end in pairwise(cuts))
    return ModelShape(
        decoder=decoder,
        before_numels=numels[:1] if inner else numels,
        layer_numels=layers,
        after_numels=numels[-2:] if inner else (),
        layer_matmul_numels=tuple(float(sum(layer)) for layer in layers),
        head_numel=decoder.vocab * decoder.hidden,
        exact=False,
    )


def seq_len_of(workload: Workload) -> int:
    """Tokens per sample. Raises UsageError for a person's own command, whose batches are its own affair."""
    if workload.seq_len is None:
        raise UsageError(
            "Nothing can be predicted for a command: how long its samples are is not known.",
            "Predictions need a model and a length: --model and --seq-len.",
        )
    return workload.seq_len
