"""The built-in workload: a language model with random weights and synthetic, maximum-length batches.

Covered: building the model the way DeepSpeed wants it for each stage, weights and data that depend only on
the seed (so that losses of different configurations can be compared). Not covered: training it.
"""

from __future__ import annotations

import contextlib
import zlib
from collections.abc import Iterator
from contextlib import AbstractContextManager
from typing import Any

import deepspeed
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from offtune.trial import DsConfig, Workload

# The usual scale of language-model initialisation (GPT-2, Llama): keeps the first losses near ln(vocabulary).
_INIT_STD = 0.02
_DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}


def build_model(workload: Workload, ds_config: DsConfig, device: torch.device) -> torch.nn.Module:
    """The model on `device` (stages 0 to 2) or partitioned as it is built (stage 3), weights seeded."""
    config = dict(workload.model_config)
    hf_config = AutoConfig.for_model(config.pop("model_type"), **config)
    hf_config.use_cache = False  # a key/value cache is for generation; it would only cost memory here
    dtype = _DTYPES[workload.precision]
    with _no_hf_init(), _placement(ds_config, device), _default_dtype(dtype):
        model = AutoModelForCausalLM.from_config(hf_config)
    # The library ties when it initialises, which `_no_hf_init` skips.
    model.tie_weights()
    _seed_weights(model, workload.seed)
    if workload.activation_checkpointing:
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    trained: torch.nn.Module = model.train()
    return trained


def _placement(ds_config: DsConfig, device: torch.device) -> AbstractContextManager[Any]:
    if ds_config["zero_optimization"]["stage"] == 3:
        # Without zero.Init every rank would first hold the whole model (DeepSpeed issue 7021).
        context: AbstractContextManager[Any] = deepspeed.zero.Init(config_dict_or_path=ds_config)
        return context
    on_device: AbstractContextManager[Any] = device
    return on_device


@contextlib.contextmanager
def _default_dtype(dtype: torch.dtype) -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


@contextlib.contextmanager
def _no_hf_init() -> Iterator[None]:
    """Skip the library's own initialisation: ours replaces it, and under zero.Init it sees empty shards."""
    try:
        from transformers.initialization import no_init_weights
    except ImportError:  # before transformers 5
        from transformers.modeling_utils import no_init_weights
    with no_init_weights():
        yield


def _seed_weights(model: torch.nn.Module, seed: int) -> None:
    """Fill each parameter from its own generator, so that the values depend on name and seed only."""
    for name, parameter in model.named_parameters():
        with deepspeed.zero.GatheredParameters([parameter], modifier_rank=0), torch.no_grad():
            if parameter.numel() > 0:
                _fill(name, parameter, seed)


def _fill(name: str, parameter: torch.Tensor, seed: int) -> None:
    if parameter.dim() < 2:
        parameter.fill_(0.0 if name.endswith("bias") else 1.0)
        return
    generator = torch.Generator(device=parameter.device)
    generator.manual_seed(zlib.crc32(f"{seed}/{name}".encode()))
    parameter.normal_(0.0, _INIT_STD, generator=generator)


def micro_batches(
    workload: Workload, step: int, rank: int, micro_batch: int, device: torch.device
) -> list[torch.Tensor]:
    """Token ids of one optimizer step for one rank: tensors [micro_batch, seq_len], int64.

    Sample `i` of the global batch is the same whatever the split into micro-batches and ranks.
    """
    per_rank = workload.global_batch // workload.world_size
    first = step * workload.global_batch + rank * per_rank
    samples = torch.stack([_sample(workload, first + i) for i in range(per_rank)])
    return list(samples.to(device).split(micro_batch))


def _sample(workload: Workload, index: int) -> torch.Tensor:
    assert workload.seq_len is not None  # only a person's command has none
    generator = torch.Generator().manual_seed((workload.seed << 32) + index)
    vocabulary = int(workload.model_config["vocab_size"])
    return torch.randint(0, vocabulary, (workload.seq_len,), generator=generator)
