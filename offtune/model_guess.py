"""A dense decoder guessed from the shapes of matrices, for a model that says nothing of itself.

Covered: width, MLP, layers and vocabulary of what is built like a decoder. Not covered: checking the guess; a
shape made of it counts as not exact (`model_shape`), and the first trial of a study corrects it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from offtune.decoder import is_known

# A model_type that no Hugging Face configuration has.
GUESSED = "guessed"
# Elements of an attention head where nothing shows them: GPT-2 to Llama 3 have 64 or 128.
_HEAD_DIM = 64

Matrix = tuple[int, int]


def described(config: dict[str, Any], matrices: Sequence[Matrix]) -> dict[str, Any]:
    """The configuration to predict by: the model's own where its family is known, else a guess or nothing."""
    return config if is_known(config) else guessed_config(matrices) or {}


def guessed_config(matrices: Sequence[Matrix]) -> dict[str, Any] | None:
    """A configuration of a decoder with these matrices, in order; None where they do not look like one.

    The width is the side that most matrices share, the first of them is the token table, and every layer
    leads once from the width to that of the MLP and back.
    """
    sides = Counter(side for matrix in matrices for side in set(matrix))
    hidden = sides.most_common(1)[0][0] if sides else 0
    wide = [matrix for matrix in matrices if hidden in matrix]
    if len(wide) < 2:
        return None
    vocab = _other(wide[0], hidden)
    pairs = {ffn: _pairs(Counter(wide), hidden, ffn) for ffn in sides if ffn not in (hidden, vocab)}
    layers = {ffn: count for ffn, count in pairs.items() if count}
    if not layers:
        return None
    ffn = max(layers, key=lambda width: (layers[width], width))
    return {
        "model_type": GUESSED,
        "hidden_size": hidden,
        "num_hidden_layers": layers[ffn],
        "num_attention_heads": max(1, hidden // _HEAD_DIM),
        "intermediate_size": ffn,
        "vocab_size": vocab,
        "tie_word_embeddings": sum(vocab in matrix for matrix in wide) == 1,
    }


def _pairs(count: Counter[Matrix], hidden: int, ffn: int) -> int:
    """How often the matrices lead from one width to the other and back; gate and way up may be one matrix."""
    rows = min(count[hidden, ffn], count[ffn, hidden] + count[2 * ffn, hidden])
    columns = min(count[ffn, hidden], count[hidden, ffn] + count[hidden, 2 * ffn])
    return max(rows, columns)


def _other(matrix: Matrix, side: int) -> int:
    return matrix[1] if matrix[0] == side else matrix[0]
