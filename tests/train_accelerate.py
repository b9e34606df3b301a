"""An accelerate script as people have it: its own torch optimizer, a plain loop; nothing is offtune's."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import torch
from accelerate import Accelerator
from torch.utils.data import DataLoader
from transformers import LlamaConfig, LlamaForCausalLM

LENGTH, VOCABULARY, STEPS = 16, 64, 2


def main() -> None:
    micro_batch, accumulation = int(sys.argv[1]), int(sys.argv[2])
    accelerator = Accelerator(gradient_accumulation_steps=accumulation)
    config = LlamaConfig(
        vocab_size=VOCABULARY, hidden_size=32, num_hidden_layers=2, num_attention_heads=2,
        num_key_value_heads=2, intermediate_size=64, use_cache=False,
    )  # fmt: skip
    model = LlamaForCausalLM(config)
    loader = DataLoader(list(torch.randint(VOCABULARY, (64, LENGTH))), batch_size=micro_batch)
    model, optimizer, loader = accelerator.prepare(
        model, torch.optim.AdamW(model.parameters(), lr=1e-3), loader
    )
    losses = []
    for batch in loader:
        with accelerator.accumulate(model):
            loss = model(input_ids=batch, labels=batch).loss
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
        losses.append(float(loss))
        if model.global_steps == STEPS:
            break
    inner = model.optimizer
    seen = {
        "steps": model.global_steps,
        "loss": losses[-1],
        "micro_batch": model.train_micro_batch_size_per_gpu(),
        "accumulation": model.gradient_accumulation_steps(),
        "micro_steps": len(losses),
        "stage": model.zero_optimization_stage(),
        "optimizer": type(getattr(inner, "optimizer", inner)).__name__,
        "bf16": model.bfloat16_enabled(),
        # Without a GPU accelerate itself counts one process (state.py, 1.15) whatever it has launched.
        "processes": torch.distributed.get_world_size(),
    }
    if torch.distributed.get_rank() == 0:
        Path(os.environ["SEEN"]).write_text(json.dumps(seen))


if __name__ == "__main__":
    main()
