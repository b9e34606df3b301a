"""Memory of the work itself: activations, logits and loss, by phase.

Covered: one micro-batch through a decoder, with and without checkpointing. Not covered: states of the model
(`memory_zero12`, `memory_zero3`).
"""

from __future__ import annotations

from functools import lru_cache

from offtune.activations import HeadBytes, LayerBytes, Stack, checkpoint_bytes, head_bytes, layer_bytes
from offtune.decoder import Decoder
from offtune.memory_case import FORWARD, STEADY, Block, Case, Moment

_EARLY: frozenset[Moment] = frozenset({"loss", "layer"})
_AT_LOSS: frozenset[Moment] = frozenset({"loss"})
_AT_LAYER: frozenset[Moment] = frozenset({"layer"})
_AT_REDUCTION: frozenset[Moment] = frozenset({"reduction"})


def blocks(case: Case) -> list[Block]:
    """What a forward keeps, and the most that each moment needs on top of it."""
    decoder, element = case.shape.decoder, case.param_bytes
    kept, widest = _layers(decoder, case.seq_len, case.micro_batch, element, case.stack)
    head = head_bytes(decoder, case.seq_len, case.micro_batch, element, case.stack)
    inputs = checkpoint_bytes(decoder, case.seq_len, case.micro_batch, element)
    if case.checkpointing:
        kept = decoder.layers * inputs
    held = case.stack.held_score_bytes * decoder.heads * case.seq_len**2 * case.micro_batch
    tensor, logits = _tensor_bytes(case), _logit_bytes(case)
    ahead, back = widest.forward, widest.backward + (widest.kept if case.checkpointing else 0)
    return [
        Block("activations", "device", kept + inputs, FORWARD | _EARLY, piece=tensor),
        Block("activations", "device", int(_share_left(case) * kept), _AT_REDUCTION, piece=tensor),
        # A layer is over when the logits come.
        Block("working layer", "device", ahead if ahead > head.forward else 0, FORWARD, piece=tensor),
        *_end_of_forward(case, head if ahead <= head.forward else None),
        Block("logits and loss", "device", head.backward, _AT_LOSS, piece=logits),
        # A checkpointed layer is made again, and then worked on.
        Block("working layer", "device", back, _AT_LAYER, piece=tensor),
        Block("working layer", "device", _unfinished(case, widest), _AT_REDUCTION, piece=tensor),
        Block("held scores", "device", held, STEADY),
    ]


def _end_of_forward(case: Case, head: HeadBytes | None) -> list[Block]:
    """Logits in the model's dtype and what is computed from them in fp32; None where layers need more."""
    if head is None:
        return []
    in_fp32 = head.forward - head.logits
    return [
        Block("logits and loss", "device", head.logits, FORWARD, piece=head.logits),
        Block("logits and loss", "device", in_fp32, FORWARD, piece=_logit_bytes(case)),
    ]


def _unfinished(case: Case, widest: LayerBytes) -> int:
    """A layer's gradients of the MLP come first, when its attention half is still there."""
    return widest.attention if case.checkpointing else 0


def _share_left(case: Case) -> float:
    """Share of the activations still kept when the first bucket is full."""
    return 1 - case.bucket / case.numel


def _tensor_bytes(case: Case) -> int:
    width = max(case.shape.decoder.ffn, 2 * case.shape.decoder.hidden)
    return case.seq_len * case.micro_batch * width * case.param_bytes


def _logit_bytes(case: Case) -> int:
    return case.seq_len * case.micro_batch * case.shape.decoder.vocab * 4


@lru_cache(maxsize=512)
def _layers(
    decoder: Decoder, seq_len: int, micro_batch: int, element: int, stack: Stack
) -> tuple[int, LayerBytes]:
    """Bytes that all layers keep, and the layer that needs most; layers differ by their experts only."""
    dense_index = next((i for i in range(decoder.layers) if not _is_mixture(decoder, i)), None)
    mixture_index = next((i for i in range(decoder.layers) if _is_mixture(decoder, i)), None)
    mixtures = sum(_is_mixture(decoder, i) for i in range(decoder.layers))
    found: list[tuple[int, LayerBytes]] = []
    for index, count in ((dense_index, decoder.layers - mixtures), (mixture_index, mixtures)):
        if index is not None:
            found.append((count, layer_bytes(decoder, index, seq_len, micro_batch, element, stack)))
    widest = max((layer for _, layer in found), key=lambda layer: layer.kept + layer.backward)
    return sum(count * layer.kept for count, layer in found), widest


def _is_mixture(decoder: Decoder, index: int) -> bool:
    return decoder.experts is not None and index in decoder.experts.layers
