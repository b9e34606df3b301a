"""A few kilobytes of real text, as bytes, for the example scripts: nothing is downloaded."""

from __future__ import annotations

import pydoc_data.topics
from typing import Any

import torch
from torch.utils.data import Dataset

VOCABULARY = 256  # byte values


class Bytes(Dataset[dict[str, torch.Tensor]]):
    """Windows of `length` bytes of Python's own manual, each a sample of a byte-level language model."""

    def __init__(self, length: int, samples: int) -> None:
        text = "\n".join(str(topic) for topic in pydoc_data.topics.topics.values()).encode()
        self._tokens = torch.tensor(list(text[: length * samples]), dtype=torch.long).view(samples, length)

    def __len__(self) -> int:
        return len(self._tokens)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        window = self._tokens[index]
        return {"input_ids": window, "labels": window}


def small_model(hidden: int = 128, layers: int = 3) -> Any:
    """A Llama of about a million parameters with random weights."""
    from transformers import LlamaConfig, LlamaForCausalLM

    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=VOCABULARY,
            hidden_size=hidden,
            intermediate_size=3 * hidden,
            num_hidden_layers=layers,
            num_attention_heads=4,
            num_key_value_heads=4,
            max_position_embeddings=512,
            use_cache=False,
        )
    )
