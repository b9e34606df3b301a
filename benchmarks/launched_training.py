"""A plain DeepSpeed training as a person would write it, for `start_up.py` and the `deepspeed` launcher.

    deepspeed --num_gpus 1 benchmarks/launched_training.py MODEL_CONFIG DS_CONFIG STEPS SEQ_LEN OUT

The model is a Hugging Face configuration with random weights, the tokens are random. Rank 0 writes the moment
of the end of its first step (seconds since the epoch) and the seconds of each step to OUT, as JSON.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import deepspeed
import torch
from transformers import AutoConfig, AutoModelForCausalLM


def main(model_config: str, ds_config: str, steps: str, seq_len: str, out: str) -> None:
    config = json.loads(Path(model_config).read_text())
    settings = json.loads(Path(ds_config).read_text())
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(config.pop("model_type"), **config))
    engine, *_ = deepspeed.initialize(model=model, config=settings)
    micro = settings["train_micro_batch_size_per_gpu"]
    tokens = torch.randint(0, model.config.vocab_size, (micro, int(seq_len)), device=engine.device)
    step_s: list[float] = []
    first_step_at = None
    for _ in range(int(steps)):
        start = time.perf_counter()
        for _ in range(settings["gradient_accumulation_steps"]):
            engine.backward(engine(input_ids=tokens, labels=tokens).loss)
            engine.step()
        step_s.append(time.perf_counter() - start)
        first_step_at = first_step_at or time.time()
    if engine.global_rank == 0:
        Path(out).write_text(json.dumps({"first_step_at": first_step_at, "step_s": step_s}))


if __name__ == "__main__":
    main(*[word for word in sys.argv[1:] if not word.startswith("--local_rank")])
