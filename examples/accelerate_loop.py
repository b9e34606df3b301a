"""Train a small language model in a loop of one's own with Hugging Face accelerate and its DeepSpeed plugin.

    accelerate launch --use_deepspeed --deepspeed_config_file ds_config.json examples/accelerate_loop.py \
        --micro-batch 4
    offtune search --budget 2GB -- accelerate launch --use_deepspeed --deepspeed_config_file {ds_config} \
        examples/accelerate_loop.py --micro-batch {micro_batch}

The optimizer is built here; accelerate exchanges it for DeepSpeed's CPU Adam where its state is offloaded.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
from accelerate import Accelerator
from text_data import Bytes, small_model


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--micro-batch", type=int, default=4)
    parser.add_argument("--steps", type=int, default=50, help="optimizer steps")
    parser.add_argument("--output", type=Path, default=Path("output"))
    options = parser.parse_args()
    torch.manual_seed(0)
    accelerator = Accelerator()
    model = small_model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    loader = torch.utils.data.DataLoader(
        Bytes(length=128, samples=512), batch_size=options.micro_batch, shuffle=True
    )
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    step = 0
    while step < options.steps:
        for batch in loader:
            with accelerator.accumulate(model):
                loss = model(**batch).loss
                accelerator.backward(loss)
                optimizer.step()
                optimizer.zero_grad()
            if accelerator.sync_gradients:
                step += 1
                accelerator.print(f"step {step}: loss {loss.item():.3f}")
            if step >= options.steps:
                break
    accelerator.save_state(str(options.output))


if __name__ == "__main__":
    main()
