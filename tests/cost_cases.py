"""What tests of the cost models share: a small llama on some ranks, and ds_configs for it."""

from typing import Any

from offtune.model_shape import ModelShape, shape_of
from offtune.step_work import StepWork, step_work
from offtune.trial import DsConfig, Facts, Workload

CONFIG: dict[str, Any] = {
    "model_type": "llama",
    "hidden_size": 4096,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 32,
    "intermediate_size": 11008,
    "vocab_size": 32000,
    "tie_word_embeddings": False,
}
SHAPE: ModelShape = shape_of(CONFIG)
P = SHAPE.n_params


def facts(ranks: int = 1, version: str = "0.19.8", device: Any = "cuda", shape: ModelShape = SHAPE) -> Facts:
    workload = Workload(
        model_name="test",
        model_config={},
        seq_len=2048,
        global_batch=8 * ranks,
        world_size=ranks,
        precision="bf16",
        optimizer="adamw",
        activation_checkpointing=True,
        seed=0,
    )
    return Facts(
        workload=workload,
        device=device,
        parameter_numels=shape.parameter_numels,
        nvme_dir="/nvme",
        ops=frozenset(),
        deepspeed_version=version,
    )


def ds_config(stage: int = 3, micro: int = 1, steps: int = 1, **zero: Any) -> DsConfig:
    return {
        "train_micro_batch_size_per_gpu": micro,
        "gradient_accumulation_steps": steps,
        "bf16": {"enabled": True},
        "zero_optimization": {"stage": stage, "overlap_comm": True, "sub_group_size": 100_000_000, **zero},
    }


def offloaded(device: str = "cpu", **more: Any) -> dict[str, Any]:
    return {"offload_optimizer": {"device": device, "pin_memory": True, **more}}


def work(config: DsConfig, ranks: int = 1, version: str = "0.19.8", **more: Any) -> StepWork:
    return step_work(config, facts(ranks, version), SHAPE, **more)
