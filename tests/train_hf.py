"""A Hugging Face Trainer script as people have it: the ds_config comes in with --deepspeed."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import torch
from transformers import HfArgumentParser, LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments

LENGTH, VOCABULARY = 16, 64


def main() -> None:
    (arguments,) = HfArgumentParser(TrainingArguments).parse_args_into_dataclasses()
    samples = [{"input_ids": row, "labels": row} for row in torch.randint(VOCABULARY, (64, LENGTH))]
    config = LlamaConfig(
        vocab_size=VOCABULARY, hidden_size=32, num_hidden_layers=2, num_attention_heads=2,
        num_key_value_heads=2, intermediate_size=64, use_cache=False,
    )  # fmt: skip
    trainer = Trainer(model=LlamaForCausalLM(config), args=arguments, train_dataset=samples)
    outcome = trainer.train()
    engine = trainer.model_wrapped
    seen = {
        "steps": outcome.global_step,
        "loss": outcome.training_loss,
        "micro_batch": engine.train_micro_batch_size_per_gpu(),
        "accumulation": engine.gradient_accumulation_steps(),
        "clipping": engine.gradient_clipping(),
        "lr": engine.config.get("optimizer", {}).get("params", {}).get("lr"),
        "stage": engine.zero_optimization_stage(),
        "optimizer": type(getattr(engine.optimizer, "optimizer", engine.optimizer)).__name__,
        "bf16": engine.bfloat16_enabled(),
        "scheduler": type(engine.lr_scheduler).__name__,
    }
    if arguments.process_index == 0:
        Path(os.environ["SEEN"]).write_text(json.dumps(seen))


if __name__ == "__main__":
    sys.exit(main())
