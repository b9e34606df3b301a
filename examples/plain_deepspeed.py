"""Train a small language model with a plain `deepspeed.initialize` loop.

    deepspeed examples/plain_deepspeed.py --deepspeed_config ds_config.json
    offtune search --budget 2GB -- deepspeed examples/plain_deepspeed.py --deepspeed_config {ds_config}

The optimizer, the batch size and the precision come from the ds_config; the script has none of its own.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import deepspeed
import torch
from text_data import Bytes, small_model


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--deepspeed_config", required=True)
    parser.add_argument("--local_rank", type=int, default=0, help="set by the deepspeed launcher")
    parser.add_argument("--steps", type=int, default=50, help="optimizer steps")
    parser.add_argument("--eval-every", type=int, default=10)
    parser.add_argument("--save-every", type=int, default=25)
    parser.add_argument("--output", type=Path, default=Path("output"))
    return parser.parse_args()


def evaluate(engine: deepspeed.DeepSpeedEngine, samples: Bytes) -> float:
    """Mean loss over a few batches."""
    engine.eval()
    losses = []
    with torch.no_grad():
        for batch in torch.utils.data.DataLoader(samples, batch_size=4):
            batch = {name: tensor.to(engine.device) for name, tensor in batch.items()}
            losses.append(engine(**batch).loss.item())
    engine.train()
    return sum(losses) / len(losses)


def main() -> None:
    options = arguments()
    torch.manual_seed(0)
    model = small_model()
    engine, _, loader, _ = deepspeed.initialize(
        model=model,
        model_parameters=model.parameters(),
        training_data=Bytes(length=128, samples=512),
        config=options.deepspeed_config,
    )
    held_out = Bytes(length=128, samples=8)
    while engine.global_steps < options.steps:
        for batch in loader:
            batch = {name: tensor.to(engine.device) for name, tensor in batch.items()}
            loss = engine(**batch).loss
            engine.backward(loss)
            last_of_step = engine.is_gradient_accumulation_boundary()
            engine.step()
            if not last_of_step:
                continue
            step = engine.global_steps
            print(f"step {step}: loss {loss.item():.3f}", flush=True)
            if step % options.eval_every == 0:
                print(f"step {step}: held-out loss {evaluate(engine, held_out):.3f}", flush=True)
            if step % options.save_every == 0:
                engine.save_checkpoint(str(options.output))
            if step >= options.steps:
                break


if __name__ == "__main__":
    main()
