"""Measures what one layer's forward costs the host under ZeRO-3: launches, hooks, fetch and release.

Covered: a small Llama trained for some steps by the real engine, one rank. Not covered: collectives between
ranks, and what large layers compute.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import deepspeed
import torch

from offtune.calibration import SECONDS, Figure, Task
from offtune.trial import DsConfig, Workload
from offtune.worker import workload
from offtune.worker.stopwatch import timed, timing

_LAYERS = 8
_TOKENS = 16
# So narrow that computing is nothing beside Python.
_MODEL: dict[str, Any] = {
    "model_type": "llama", "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": _LAYERS,
    "num_attention_heads": 4, "num_key_value_heads": 4, "vocab_size": 128, "max_position_embeddings": 64,
}  # fmt: skip
_DS_CONFIG: DsConfig = {
    "train_batch_size": 1,
    "train_micro_batch_size_per_gpu": 1,
    "bf16": {"enabled": True},
    "optimizer": {"type": "AdamW", "params": {"lr": 1e-5, "torch_adam": True}},  # needs no compiled op
    # At the default threshold parameters this small would never be fetched or released.
    "zero_optimization": {"stage": 3, "stage3_param_persistence_threshold": 0},
}


def layers(task: Task) -> Iterator[Figure]:
    """Forward of the inner layers, first and last left out, divided by their number."""
    torch.set_num_threads(task.threads)
    engine = _engine(task)
    inner = engine.module.model.layers
    moments: list[float] = []
    # Processor time of this thread: on two cores with a load of 10 a wall clock showed three times as much.
    for layer in (inner[1], inner[-1]):
        layer.register_forward_pre_hook(lambda *_: moments.append(time.thread_time()))
    tokens = torch.zeros(1, _TOKENS, dtype=torch.long, device=task.device)

    def step() -> None:
        engine.backward(engine(input_ids=tokens, labels=tokens).loss)
        engine.step()

    step()  # the first one records the order in which parameters are fetched
    timed(step, task.budget_s)
    spans = [(end - begin) / (_LAYERS - 2) for begin, end in zip(moments[4::2], moments[5::2], strict=True)]
    found = timing(spans)
    yield Figure(
        key="launch.layer", value=found.median_s, unit=SECONDS, spread=found.spread, count=found.count,
        detail=f"processor time of one Llama layer's forward (width 64, {_TOKENS} tokens) under ZeRO-3",
    )  # fmt: skip


def _engine(task: Task) -> Any:
    os.environ.update(
        RANK="0", LOCAL_RANK="0", WORLD_SIZE="1", LOCAL_WORLD_SIZE="1", MASTER_ADDR="127.0.0.1",
        MASTER_PORT=task.token,
    )  # fmt: skip
    meeting = Path(task.scratch_dir) / "layers-meeting"
    deepspeed.init_distributed(
        auto_mpi_discovery=False, verbose=False, init_method=f"file://{meeting}", rank=0, world_size=1
    )
    model = workload.build_model(_workload(), _DS_CONFIG, torch.device(task.device))
    engine, *_ = deepspeed.initialize(
        model=model, model_parameters=list(model.parameters()), config=dict(_DS_CONFIG)
    )
    return engine


def _workload() -> Workload:
    return Workload(
        model_name="launch", model_config=_MODEL, seq_len=_TOKENS, global_batch=1, world_size=1,
        precision="bf16", optimizer="adamw", activation_checkpointing=False, seed=0,
    )  # fmt: skip
