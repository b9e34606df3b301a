"""ds_configs: what a point becomes, over a person's own file and without one, and DeepSpeed's own verdict."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from space_samples import any_facts, facts, points

from offtune import ds_config, models
from offtune.ds_keys import STRICT_BLOCKS
from offtune.errors import ConfigError
from offtune.space import load_space

SPACES = {name: load_space(name) for name in ("default", "changes-training")}


def built(placement: str, base: dict[str, Any] | None = None, **more: Any) -> dict[str, Any]:
    machine = facts(
        **{key: more.pop(key) for key in list(more) if key in ("device", "world_size", "optimizer")}
    )
    point = SPACES["default"].fit(machine).complete({"placement": placement, **more})
    return ds_config.build(base or {}, point, machine, "/scratch/1")


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_every_point_of_a_fitted_space_may_run(data: st.DataObject) -> None:
    machine = data.draw(any_facts())
    space = SPACES[data.draw(st.sampled_from(sorted(SPACES)))].fit(machine)
    config = ds_config.build({}, data.draw(points(space)), machine, "/scratch/1")
    assert ds_config.problems(config, machine) == ()
    assert json.loads(json.dumps(config, allow_nan=False)) == config
    assert '"auto"' not in json.dumps(config)


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_the_wanted_share_of_sub_groups_is_what_the_ratio_leaves_on_the_gpu(data: st.DataObject) -> None:
    machine = facts(
        parameter_numels=tuple(data.draw(st.lists(st.integers(1, 10**6), min_size=16, max_size=99)))
    )
    groups, sixteenths = data.draw(st.sampled_from([16, 32, 64])), data.draw(st.integers(0, 16))
    point = {"placement": "zero3 opt=cpu", "sub_groups": groups, "resident_sixteenths": sixteenths}
    zero = ds_config.build({}, point, machine, None)["zero_optimization"]
    sizes = models.sub_group_numels(machine.parameter_numels, 1, zero["sub_group_size"])
    resident = models.resident_groups(zero["offload_optimizer"]["ratio"], len(sizes))
    wanted = sixteenths / 16 * len(sizes)
    assert abs(resident - wanted) <= 0.5 if len(sizes) > 1 else resident == 0


def test_batch_keys_agree_and_keep_the_global_batch() -> None:
    config = built("zero2", micro_batch=2, world_size=2)
    assert config["train_batch_size"] == 8
    assert config["train_micro_batch_size_per_gpu"] == 2
    assert config["gradient_accumulation_steps"] == 2


def test_keys_whose_default_drifts_between_versions_are_written_out() -> None:
    config = built("zero3 opt=cpu param=cpu")
    assert config["gradient_clipping"] == 1.0
    assert config["bf16"]["check_grad_overflow"] is True
    zero = config["zero_optimization"]
    assert zero["overlap_comm"] is True
    assert zero["offload_optimizer"]["pin_memory"] is True
    assert zero["offload_param"]["pin_memory"] is True


def test_a_knob_missing_from_a_space_is_written_with_deepspeeds_default() -> None:
    machine = facts()
    config = ds_config.build({}, load_space("ladder").complete({"placement": "zero3"}), machine, None)
    assert config["zero_optimization"]["reduce_bucket_size"] == 500_000_000
    assert config["zero_optimization"]["sub_group_size"] == 1_000_000_000
    assert config["zero_optimization"]["stage3_prefetch_bucket_size"] == 50_000_000


def test_there_is_an_aio_block_only_with_nvme() -> None:
    assert "aio" not in built("zero3 opt=cpu")
    assert built("zero3 opt=nvme", aio_queue_depth=32)["aio"]["queue_depth"] == 32


@pytest.mark.parametrize(("read", "write", "count"), [(False, False, 4), (True, False, 8), (True, True, 12)])
def test_nvme_buffers_follow_from_pipelining(read: bool, write: bool, count: int) -> None:
    config = built("zero3 opt=nvme", pipeline_read=read, pipeline_write=write, spare_buffers=2)
    assert config["zero_optimization"]["offload_optimizer"]["buffer_count"] == count + 2


def test_parameters_on_nvme_get_the_settings_known_to_train() -> None:
    zero = built("zero3 opt=cpu param=nvme")["zero_optimization"]
    assert zero["stage3_prefetch_bucket_size"] == zero["stage3_max_live_parameters"] == 0
    assert zero["stage3_max_reuse_distance"] == 0
    assert zero["offload_param"]["buffer_count"] >= 5
    assert zero["offload_param"]["buffer_size"] >= max(facts().parameter_numels)
    assert zero["offload_param"]["nvme_path"] == "/scratch/1"


def test_a_buffer_for_swapped_parameters_is_raised_to_the_largest_one() -> None:
    machine = facts(parameter_numels=(1_000_001, 700_000))
    point = {"placement": "zero3 opt=cpu param=nvme", "param_buffer_size": 2**19}
    config = ds_config.build({}, point, machine, "/scratch/1")
    assert config["zero_optimization"]["offload_param"]["buffer_size"] == 1_000_001


@pytest.mark.parametrize("optimizer", ["adamw", "adam", "lion", "adagrad"])
def test_the_optimizer_is_the_workloads(optimizer: str) -> None:
    block = built("zero2", optimizer=optimizer)["optimizer"]
    assert block["type"].lower() == optimizer
    assert block["params"]["lr"] > 0
    assert block["params"].get("adam_w_mode") == {"adamw": True, "adam": False}.get(optimizer)


def test_a_base_keeps_what_a_point_does_not_say() -> None:
    base = {
        "optimizer": {"type": "AdamW", "params": {"lr": 3e-5, "betas": "auto"}},
        "gradient_clipping": "auto",
        "communication_data_type": "fp32",
        "zero_optimization": {
            "stage": 2,
            "max_reuse_distance": 5e8,
            "cpu_offload": True,
            "stage3_gather_16bit_weights_on_model_save": True,
        },
    }
    config = built("zero3", base, reduce_bucket_size=2**20)
    assert config["optimizer"]["params"]["lr"] == 3e-5
    assert config["optimizer"]["params"]["betas"] == [0.9, 0.999]
    assert config["gradient_clipping"] == 1.0
    assert config["communication_data_type"] == "fp32"
    zero = config["zero_optimization"]
    assert zero["stage"] == 3
    assert zero["stage3_gather_16bit_weights_on_model_save"] is True
    assert zero["reduce_bucket_size"] == 2**20
    assert "cpu_offload" not in zero
    assert "offload_optimizer" not in zero


def test_a_base_alone_is_built_as_its_owner_meant_it() -> None:
    base = {
        "train_micro_batch_size_per_gpu": 2,
        "zero_optimization": {
            "stage": 3,
            "sub_group_size": 3e5,
            "offload_optimizer": {"device": "cpu", "ratio": 0.5, "pin_memory": False},
        },
    }
    config = ds_config.build(base, {}, facts(), None)
    zero = config["zero_optimization"]
    assert config["gradient_accumulation_steps"] == 4
    assert zero["sub_group_size"] == 300_000
    assert zero["offload_optimizer"] == {"device": "cpu", "ratio": 0.5, "pin_memory": False}
    assert ds_config.problems(config, facts()) == ()


def test_the_old_offload_flag_of_a_base_becomes_the_block_it_stood_for() -> None:
    config = ds_config.build({"zero_optimization": {"stage": 2, "cpu_offload": True}}, {}, facts(), None)
    assert config["zero_optimization"]["offload_optimizer"]["device"] == "cpu"


def test_a_base_with_keys_that_deepspeed_refuses_stops_at_once() -> None:
    with pytest.raises(ConfigError, match="mics_shard_size"):
        ds_config.build({"zero_optimization": {"mics_shard_size": 2}}, {}, facts(), None)
    with pytest.raises(ConfigError, match="write reduce_bucket_size"):
        ds_config.build({"zero_optimization": {"reduce_buckets_size": 2}}, {}, facts(), None)


_CHECK = """
import json, sys
import deepspeed
from deepspeed.runtime import config as runtime
from deepspeed.runtime.precision_config import DeepSpeedBF16Config, DeepSpeedFP16Config
from deepspeed.runtime.zero import config as zero, offload_config
from deepspeed.runtime.zenflow.zenflow_config import ZenFlowConfig
from deepspeed.compile.config import CompileConfig

class Ranks:
    def __init__(self, count): self.count = count
    def get_data_parallel_world_size(self): return self.count

runtime.dist.get_rank = lambda *_: 0
asked = json.load(sys.stdin)
for world_size, config in asked["configs"]:
    seen = runtime.DeepSpeedConfig(config, mpu=Ranks(world_size))
    assert seen.train_batch_size == config["train_batch_size"]
    assert seen.world_size == world_size
blocks = {
    "zero_optimization": zero.DeepSpeedZeroConfig,
    "zero_optimization.offload_optimizer": offload_config.DeepSpeedZeroOffloadOptimizerConfig,
    "zero_optimization.offload_param": offload_config.DeepSpeedZeroOffloadParamConfig,
    "zero_optimization.zenflow": ZenFlowConfig,
    "bf16": DeepSpeedBF16Config, "fp16": DeepSpeedFP16Config, "compile": CompileConfig,
}
def defaults(model):
    return {field.alias or name: field.get_default() for name, field in model.model_fields.items()}
fields = {path: defaults(model) for path, model in blocks.items()}
answer = {"version": deepspeed.__version__, "fields": fields}
json.dump(answer, open(sys.argv[1], "w"), default=str)
"""


def ask_deepspeed(configs: list[tuple[int, dict[str, Any]]], answer: Path) -> dict[str, Any]:
    """DeepSpeed's own classes over `configs`; its version and the fields it has come back."""
    done = subprocess.run(
        [sys.executable, "-c", _CHECK, str(answer)],
        input=json.dumps({"configs": configs}),
        capture_output=True,
        text=True,
        timeout=300,
        env={**os.environ, "DS_ACCELERATOR": "cpu"},
    )
    assert done.returncode == 0, done.stderr[-3000:]
    found: dict[str, Any] = json.loads(answer.read_text())
    return found


@pytest.mark.train
def test_deepspeeds_own_configuration_class_takes_every_config_and_knows_our_keys(tmp_path: Path) -> None:
    draw = random.Random(0)
    configs = []
    for number in range(240):
        machine = facts(world_size=1 + number % 2, precision=("bf16", "fp16", "fp32")[number % 3])
        space = SPACES["default" if number % 4 else "changes-training"].fit(machine)
        point = space.suggest(lambda knob: draw.choice(knob.values))
        configs.append((machine.workload.world_size, ds_config.build({}, point, machine, "/scratch/1")))
    found = ask_deepspeed(configs, tmp_path / "answer.json")
    if found["version"] != "0.19.8":
        pytest.skip(f"key tables are compared with DeepSpeed 0.19.8, not {found['version']}")
    for path, fields in found["fields"].items():
        ours = STRICT_BLOCKS[path]
        plain = {key: value for key, value in fields.items() if key in ours and ours[key] is not None}
        assert plain == {key: ours[key] for key in plain}, path
        assert {key for key in ours if key not in fields} <= {
            "mics_shard_size",
            "mics_hierarchical_params_gather",
            "zeropp_loco_param",
        }
        assert set(fields) - set(ours) <= {
            "cpu_offload",
            "cpu_offload_param",
            "cpu_offload_use_pin_memory",
            "stage3_gather_fp16_weights_on_model_save",
        }
