"""Rules across keys: every configuration that DeepSpeed refuses, aborts on or silently ignores is told so."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from space_samples import facts

from offtune import ds_config
from offtune.space import load_space
from offtune.trial import Facts

DEFAULT = load_space("default")


def good(placement: str, machine: Facts, **more: Any) -> dict[str, Any]:
    point = DEFAULT.fit(machine).complete({"placement": placement, **more})
    return ds_config.build({}, point, machine, "/scratch/1")


def changed(config: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    """A copy with values set at dotted paths; zero. stands for zero_optimization."""
    config = copy.deepcopy(config)
    for path, value in changes.items():
        *blocks, key = path.replace("zero.", "zero_optimization.").split(".")
        place = config
        for block in blocks:
            place = place.setdefault(block, {})
        place[key] = value
    return config


# Placement to start from, changes to facts, changes to the ds_config, and words of the sentence.
BROKEN: list[tuple[str, dict[str, Any], dict[str, Any], str]] = [
    ("zero2", {}, {"zero.stage": 4}, "stages 0 to 3"),
    ("zero2", {}, {"zero.offload_param": {"device": "cpu"}}, "does nothing there"),
    ("zero2", {}, {"zero.offload_optimizer": {"device": "nvme"}}, "taken for cpu"),
    ("zero2", {}, {"zero.offload_optimizer": {"device": "disk"}}, "none, cpu and nvme"),
    ("zero2 opt=cpu", {}, {"zero.stage": 0}, "CPUAdam wants"),
    ("zero2", {}, {"zero.legacy_stage1": True}, "legacy_stage1"),
    ("zero2 opt=cpu", {}, {"zero.cpu_offload": True}, "keep offload_optimizer"),
    ("zero2 opt=cpu", {}, {"zero.offload_optimizer.ratio": 0.5}, "only stage 3 has partial offload"),
    ("zero2", {}, {"zero.offload_optimizer": {"device": "none", "ratio": 0.5}}, "only stage 3"),
    ("zero3 opt=nvme", {}, {"zero.offload_optimizer.ratio": 0.5}, "beside NVMe"),
    ("zero3 opt=cpu param=nvme", {}, {"zero.offload_optimizer.ratio": 0.5}, "beside NVMe"),
    ("zero3 opt=cpu", {"optimizer": "lion"}, {"zero.offload_optimizer.ratio": 0.5}, "DeepSpeedCPUAdam"),
    (
        "zero3 opt=cpu",
        {},
        {"zero.offload_optimizer.ratio": 0.5, "optimizer.params.torch_adam": True, "zero.sub_group_size": 9},
        "DeepSpeedCPUAdam",
    ),
    ("zero3 opt=cpu", {}, {"zero.offload_optimizer.ratio": 0.5}, "one sub-group"),
    ("zero3 opt=cpu", {}, {"zero.offload_optimizer.ratio": 1.5}, "between 0 and 1"),
    ("zero2", {}, {"optimizer.params.max_grad_norm": 1.0}, "gradient_clipping"),
    ("zero2", {}, {"optimizer.params.amsgrad": True}, "amsgrad"),
    ("zero2", {"device": "cpu"}, {"optimizer.type": "Lamb"}, "no Lamb"),
    ("zero3", {}, {"optimizer.type": "Muon"}, "reduce_scatter"),
    ("zero2", {}, {"zero.reduce_bucket_size": 0}, "needs a bucket"),
    ("zero3", {}, {"zero.stage3_max_live_parameters": -1}, "below 0"),
    ("zero2", {}, {"zero.allgather_bucket_size": 3}, "odd"),
    ("zero3", {}, {"prescale_gradients": True}, "reduce_scatter"),
    ("zero2", {}, {"gradient_predivide_factor": 2.0}, "reduce_scatter"),
    ("zero1", {}, {"managed_gradient_accumulation": False}, "overlap_comm"),
    ("zero3", {}, {"gradient_allreduce_op": "sum"}, "mean"),
    ("zero2", {}, {"zero.compute_grad_norm": False}, "no clipping"),
    ("zero2", {}, {"train_batch_size": 9}, "asserts that they agree"),
    ("zero2", {"world_size": 2}, {"gradient_accumulation_steps": 3}, "2 ranks"),
    ("zero2", {}, {"train_micro_batch_size_per_gpu": 0}, "above 0"),
    ("zero2", {}, {"fp16.enabled": True}, "both enabled"),
    ("zero2", {"device": "cpu", "precision": "fp32"}, {"fp16.enabled": True}, "does not support fp16"),
    ("zero2", {}, {"data_types.param_dtype": "fp32"}, "param_dtype"),
    ("zero2", {}, {"zero.stage": 0, "data_types.grad_accum_dtype": "fp32"}, "not implemented"),
    ("zero2", {}, {"bf16.bf16_master_weights_and_grads": True}, "AdamW offloaded"),
    ("zero2", {}, {"bf16.bf16_optimizer_states": True}, "set both"),
    ("zero2", {}, {"zero.stage": 0, "bf16.bf16_master_weights_and_grads": True}, "stage 0"),
    ("zero2", {"precision": "fp16"}, {"fp16.fp16_master_weights_and_grads": True}, "CPUAdam"),
    ("zero2 opt=cpu", {}, {"zero.offload_optimizer.super_offload": True}, "needs CUDA and stage 3"),
    ("zero3 opt=cpu", {"device": "cpu"}, {"zero.offload_optimizer.super_offload": True}, "needs CUDA"),
    ("zero3", {"device": "cpu"}, {"zero.zero_quantized_weights": True}, "quantizer"),
    ("zero3", {"device": "cpu"}, {"compile.deepcompile": True}, "CPU accelerator"),
    ("zero2 opt=cpu", {}, {"compile": {"deepcompile": True, "offload_opt_states": True}}, "keep one"),
    (
        "zero3",
        {},
        {"compile": {"deepcompile": True, "offload_activation": True, "offload_parameters": True}},
        "excludes offload_parameters",
    ),
    ("zero2", {}, {"zero.zenflow": {"update_interval": 1}}, "without optimizer offload"),
    ("zero2 opt=cpu", {}, {"zero.zenflow": {"update_interval": 7}}, "overwrites gradient_accumulation"),
    ("zero2 opt=cpu", {}, {"zero.zenflow": {"select_interval": 4}}, "name a strategy"),
    (
        "zero2 opt=cpu",
        {},
        {"zero.zenflow": {"select_strategy": "step", "select_interval": 1, "update_interval": 4}},
        "raise it to 4",
    ),
    ("zero3 opt=cpu", {"device": "cpu"}, {"zero.zenflow": {"update_interval": 1}}, "asks for CUDA"),
    ("zero2 opt=cpu", {}, {"zero.zenflow": {"offload": True}}, "overlap_step"),
    ("zero3 opt=nvme", {}, {"zero.offload_optimizer.nvme_path": None}, "name a folder"),
    ("zero3 opt=cpu param=nvme", {}, {"zero.offload_param.nvme_path": None}, "name a folder"),
    ("zero3 opt=nvme", {}, {"zero.offload_optimizer.buffer_count": 3}, "write 4"),
    ("zero3 opt=nvme", {}, {"bf16.bf16_master_weights_and_grads": True}, "cannot be swapped"),
    ("zero3 opt=nvme", {}, {"aio.queue_depth": 0}, "above 0"),
    ("zero3 opt=nvme", {}, {"aio.block_size": 1000}, "multiple of 1024"),
    ("zero3 opt=nvme", {"device": "cpu"}, {"aio.use_gds": True}, "needs CUDA"),
    ("zero3 opt=nvme", {"memlock_bytes": 65536}, {}, "ulimit -l unlimited"),
    ("zero3 opt=cpu param=nvme", {"memlock_bytes": 65536}, {}, "ulimit -l unlimited"),
    ("zero3 opt=cpu param=nvme", {}, {"zero.offload_param.buffer_size": 9}, "write 1048576"),
    (
        "zero3 opt=nvme param=nvme",
        {},
        {"zero.offload_optimizer.fast_init": True},
        "largest sub-group",
    ),
    (
        "zero3 opt=cpu param=nvme",
        {},
        {"zero.offload_param.max_in_cpu": 0, "zero.stage3_prefetch_bucket_size": 1000},
        "runs out of buffers",
    ),
    (
        "zero3 opt=cpu param=nvme",
        {},
        {"zero.offload_param.max_in_cpu": 0, "zero.offload_param.buffer_count": 1},
        "runs out of buffers",
    ),
    ("zero2", {}, {"gradient_clipping": "auto"}, '"auto" means nothing'),
    ("zero2", {}, {"zero.reduce_bucket_size": 1.5}, "whole number"),
    ("zero2", {}, {"zero.reduce_bucket_size": "5e8"}, "whole number"),
    ("zero2", {}, {"zero.overlap_com": True}, "write overlap_comm"),
    ("zero2 opt=cpu", {}, {"zero.offload_optimizer.buffer_size": 7}, "no such key"),
    ("zero2", {}, {"zero.contiguous_gradients": 3}, "true or false"),
    ("zero2", {}, {"zero.offload_optimizer": "cpu"}, "not a block of keys"),
    ("zero2", {}, {"zero.mics_shard_size": 2}, "refuses this key"),
    ("zero2", {}, {"amp": {}}, "refuses this key"),
]


@pytest.mark.parametrize(("placement", "machine", "changes", "said"), BROKEN)
def test_a_broken_rule_is_told_with_its_reason(
    placement: str, machine: dict[str, Any], changes: dict[str, Any], said: str
) -> None:
    judged = facts(**machine)
    config = good(
        placement, facts(**{key: value for key, value in machine.items() if key != "memlock_bytes"})
    )
    before = ds_config.problems(config, judged)
    found = ds_config.problems(changed(config, changes), judged)
    assert any(said in sentence for sentence in found), found
    assert not any(said in sentence for sentence in before) or not changes
    assert all(sentence.endswith(".") for sentence in found)


def test_a_missing_op_is_told() -> None:
    config = good("zero3 opt=nvme", facts())
    found = ds_config.problems(config, facts(ops=frozenset()))
    assert any("async_io" in sentence for sentence in found)
    assert any("cpu_adam" in sentence for sentence in found)
    assert any(
        "fused_adam" in line for line in ds_config.problems(good("zero2", facts()), facts(ops=frozenset()))
    )


@pytest.mark.parametrize(
    ("read", "write", "needed"), [(False, False, 4), (True, False, 8), (False, True, 8), (True, True, 12)]
)
def test_pipelining_needs_buffers_by_the_formula(read: bool, write: bool, needed: int) -> None:
    config = good("zero3 opt=nvme", facts(), sub_groups=16, pipeline_read=read, pipeline_write=write)
    # Tiles of 16 sub-groups of this model are above the 1 MiB from which DeepSpeed swaps.
    path = "zero.offload_optimizer.buffer_count"
    assert ds_config.problems(changed(config, {path: needed}), facts()) == ()
    assert ds_config.problems(changed(config, {path: needed - 1}), facts()) != ()


def test_with_one_swapped_sub_group_four_buffers_are_enough() -> None:
    config = good("zero3 opt=nvme", facts(), sub_groups=1, pipeline_read=True, pipeline_write=True)
    assert ds_config.problems(changed(config, {"zero.offload_optimizer.buffer_count": 4}), facts()) == ()


def test_parameters_on_nvme_may_have_a_buffer_each_instead_of_no_reuse() -> None:
    config = good("zero3 opt=cpu param=nvme", facts(), param_max_in_cpu=0)
    reused = {"zero.stage3_max_reuse_distance": 10**9, "zero.stage3_max_live_parameters": 10**9}
    # Only embedding and head reach the 1 MiB from which parameters are swapped.
    assert (
        ds_config.problems(changed(config, {**reused, "zero.offload_param.buffer_count": 2}), facts()) == ()
    )
    assert (
        ds_config.problems(changed(config, {**reused, "zero.offload_param.buffer_count": 1}), facts()) != ()
    )


def test_keys_are_judged_by_the_version_that_reads_them() -> None:
    def refused(version: str, **zero: Any) -> bool:
        config = changed(good("zero2", facts()), {f"zero.{key}": value for key, value in zero.items()})
        return bool(ds_config.problems(config, facts(deepspeed_version=version)))

    assert not refused("0.19.6", mics_shard_size=2)
    assert refused("0.19.7", mics_shard_size=2)
    assert not refused("0.19.7", zeropp_loco_param={})
    assert refused("0.19.8", zeropp_loco_param={})
    assert refused("0.19.6", parameter_alignment=True)
    assert not refused("0.19.8+cu128", parameter_alignment=True)
    assert not refused("0.20.0", parameter_alignment=True)


def test_missing_batch_keys_are_derived_as_deepspeed_derives_them() -> None:
    config = good("zero2", facts())
    for dropped in ("gradient_accumulation_steps", "train_batch_size", "train_micro_batch_size_per_gpu"):
        rest = {key: value for key, value in config.items() if key != dropped}
        assert ds_config.problems(rest, facts()) == (), dropped
    assert ds_config.problems({"train_batch_size": 7}, facts(world_size=2)) != ()
    assert any("missing" in line for line in ds_config.problems({}, facts()))
