"""Predictions per second on one core: a ds_config in, step time (and memory, where its model is there) out.

    python benchmarks/prediction_speed.py [--seconds S]

The model is llama-7b (32 layers, 291 parameters); every prediction is of another configuration. The goal is
500 a second, so that thousands of candidates can be ranked between two trials.
"""

from __future__ import annotations

import argparse
import importlib.util
import random
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

from offtune import hardware_profile
from offtune.model_shape import ModelShape, shape_of
from offtune.models import resolve_model
from offtune.step_work import step_work
from offtune.time_model import predict_time
from offtune.trial import DsConfig, Facts, Workload

_GOAL_PER_S = 500
_RANKS = 8
_Predict = Callable[[DsConfig, Facts, ModelShape], object]


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    options.add_argument("--seconds", type=float, default=3.0)
    seconds = float(options.parse_args().seconds)
    model = resolve_model("llama-7b")
    shape = shape_of(model.config)
    facts = _facts(model.config, shape)
    reached = [_rate("time", _time_only(), facts, shape, seconds)]
    both = _with_memory()
    if both is not None:
        reached.append(_rate("time and memory", both, facts, shape, seconds))
    return 0 if reached[-1] >= _GOAL_PER_S else 1


def _time_only() -> _Predict:
    hardware = hardware_profile.load("a100-80gb")
    return lambda ds_config, facts, shape: predict_time(step_work(ds_config, facts, shape), hardware)


def _with_memory() -> _Predict | None:
    if importlib.util.find_spec("published_memory") is None:
        return None
    from published_memory import predict_config

    hardware = hardware_profile.load("a100-80gb")

    def predict(ds_config: DsConfig, facts: Facts, shape: ModelShape) -> object:
        return predict_time(step_work(ds_config, facts, shape), hardware), predict_config(
            ds_config, facts, shape
        )

    return predict


def _rate(name: str, predict: _Predict, facts: Facts, shape: ModelShape, seconds: float) -> float:
    candidates = _candidates()
    predict(next(candidates), facts, shape)
    count, start = 0, time.process_time()
    while time.process_time() - start < seconds:
        predict(next(candidates), facts, shape)
        count += 1
    rate = count / (time.process_time() - start)
    print(f"{name}: {rate:.0f} predictions/s of processor time (goal: {_GOAL_PER_S})")
    return rate


def _candidates() -> Iterator[DsConfig]:
    draw = random.Random(0)
    while True:
        micro_steps = 2 ** draw.randrange(4)
        zero: dict[str, Any] = {
            "stage": 3,
            "sub_group_size": draw.randrange(10_000_000, 1_000_000_000),
            "reduce_bucket_size": draw.randrange(1_000_000, 500_000_000),
            "stage3_max_reuse_distance": draw.randrange(1_000_000_000),
            "stage3_param_persistence_threshold": draw.randrange(1_000_000),
            "offload_optimizer": {"device": "cpu", "pin_memory": True, "ratio": draw.random()},
        }
        yield {
            "train_micro_batch_size_per_gpu": 8 // micro_steps,
            "gradient_accumulation_steps": micro_steps,
            "bf16": {"enabled": True},
            "zero_optimization": zero,
        }


def _facts(config: dict[str, Any], shape: ModelShape) -> Facts:
    workload = Workload(
        model_name="llama-7b",
        model_config=config,
        seq_len=2048,
        global_batch=8 * _RANKS,
        world_size=_RANKS,
        precision="bf16",
        optimizer="adamw",
        activation_checkpointing=True,
        seed=0,
    )
    return Facts(
        workload=workload,
        device="cuda",
        parameter_numels=shape.parameter_numels,
        nvme_dir=None,
        ops=frozenset(),
        deepspeed_version="0.19.8",
    )


if __name__ == "__main__":
    sys.exit(main())
