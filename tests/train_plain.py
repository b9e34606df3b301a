"""A plain DeepSpeed loop as people have it: the ds_config's path is its one argument."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import deepspeed
import torch
from transformers import LlamaConfig, LlamaForCausalLM

LENGTH, VOCABULARY, STEPS = 16, 64, 2


def main() -> None:
    config = LlamaConfig(
        vocab_size=VOCABULARY, hidden_size=32, num_hidden_layers=2, num_attention_heads=2,
        num_key_value_heads=2, intermediate_size=64, use_cache=False,
    )  # fmt: skip
    model = LlamaForCausalLM(config)
    engine, *_ = deepspeed.initialize(model=model, model_parameters=model.parameters(), config=sys.argv[1])
    while engine.global_steps < STEPS:
        batch = torch.randint(VOCABULARY, (engine.train_micro_batch_size_per_gpu(), LENGTH))
        engine.backward(engine(input_ids=batch, labels=batch).loss)
        engine.step()
    inner = engine.optimizer
    seen = {
        "steps": engine.global_steps,
        "stage": engine.zero_optimization_stage(),
        "optimizer": type(getattr(inner, "optimizer", inner)).__name__,
    }
    Path(os.environ["SEEN"]).write_text(json.dumps(seen))


if __name__ == "__main__":
    main()
