"""Train a small language model with the Hugging Face Trainer and `--deepspeed`.

    torchrun examples/hf_trainer.py --output_dir output --deepspeed ds_config.json \
        --per_device_train_batch_size 4 --gradient_accumulation_steps 2 --bf16
    offtune search --budget 2GB -- torchrun examples/hf_trainer.py --output_dir {trial_dir}/output \
        --deepspeed {ds_config} --per_device_train_batch_size {micro_batch} \
        --gradient_accumulation_steps {grad_accum} --bf16

The Trainer refuses a ds_config whose batch sizes are not those of its arguments; the placeholders keep them
alike.
"""

from __future__ import annotations

from text_data import Bytes, small_model
from transformers import HfArgumentParser, Trainer, TrainingArguments, set_seed


def main() -> None:
    (arguments,) = HfArgumentParser(TrainingArguments).parse_args_into_dataclasses()
    set_seed(arguments.seed)  # the Trainer does so itself, but only once it has the model
    trainer = Trainer(
        model=small_model(),
        args=arguments,
        train_dataset=Bytes(length=128, samples=512),
        eval_dataset=Bytes(length=128, samples=8),
    )
    trainer.train()


if __name__ == "__main__":
    main()
