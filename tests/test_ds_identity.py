"""Sameness of ds_configs: what acts the same has one fingerprint, what does not has another."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from space_samples import any_facts, facts, points

from offtune import ds_config, models
from offtune.ds_layout import layout
from offtune.space import load_space
from offtune.trial import Facts

DEFAULT = load_space("default")
GPU, CPU = facts(), facts(device="cpu")


def built(machine: Facts, placement: str, **more: Any) -> dict[str, Any]:
    point = DEFAULT.fit(machine).complete({"placement": placement, **more})
    return ds_config.build({}, point, machine, "/scratch/1")


def with_zero(config: dict[str, Any], **changes: Any) -> dict[str, Any]:
    """A copy with changes in zero_optimization; a key `block__key` goes into that block."""
    changed = copy.deepcopy(config)
    for key, value in changes.items():
        block, _, inner = key.rpartition("__")
        (changed["zero_optimization"][block] if block else changed["zero_optimization"])[inner] = value
    return changed


def same(one: dict[str, Any], other: dict[str, Any], machine: Facts = GPU) -> bool:
    return ds_config.fingerprint(one, machine) == ds_config.fingerprint(other, machine)


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_the_canonical_form_is_its_own_and_has_the_same_fingerprint(data: st.DataObject) -> None:
    machine = data.draw(any_facts())
    space = DEFAULT.fit(machine)
    one, two = (ds_config.build({}, data.draw(points(space)), machine, "/scratch/1") for _ in range(2))
    canonical = ds_config.canonical(one, machine)
    assert ds_config.canonical(canonical, machine) == canonical
    assert ds_config.fingerprint(canonical, machine) == ds_config.fingerprint(one, machine)
    assert same(one, two, machine) == (canonical == ds_config.canonical(two, machine))


@settings(max_examples=100, deadline=None)
@given(st.data())
def test_the_canonical_form_cuts_and_keeps_the_same_parameters(data: st.DataObject) -> None:
    machine = data.draw(any_facts())
    one = ds_config.build({}, data.draw(points(DEFAULT.fit(machine))), machine, "/scratch/1")
    two = ds_config.canonical(one, machine)
    before, after = layout(one, machine), layout(two, machine)
    assert (before.stage, before.optimizer_device, before.param_device) == (
        after.stage,
        after.optimizer_device,
        after.param_device,
    )
    if before.stage == 3:
        assert before.sub_groups == after.sub_groups
        assert before.resident_sub_groups == after.resident_sub_groups


@settings(max_examples=200, deadline=None)
@given(st.lists(st.integers(1, 2000), min_size=1, max_size=40), st.integers(0, 9000), st.integers(0, 9000))
def test_tile_sizes_are_the_same_exactly_when_they_cut_the_same(
    numels: list[int], one: int, other: int
) -> None:
    machine = facts(parameter_numels=tuple(numels))
    configs = [{"zero_optimization": {"stage": 3, "sub_group_size": size}} for size in (one, other)]
    first, second = (layout(config, machine).sub_groups for config in configs)
    assert same(configs[0], configs[1], machine) == (first == second)
    assert layout(ds_config.canonical(configs[0], machine), machine).sub_groups == first


@pytest.mark.parametrize("step", range(16))
def test_every_ratio_of_a_step_is_one_configuration_and_the_next_step_another(step: int) -> None:
    numels = facts(parameter_numels=(1000,) * 16)
    point = {"placement": "zero3 opt=cpu", "sub_groups": 16, "resident_sixteenths": step}
    config = ds_config.build({}, point, numels, None)
    assert len(layout(config, numels).sub_groups) == 16
    ratio = config["zero_optimization"]["offload_optimizer"]["ratio"]
    for other in range(101):
        shifted = with_zero(config, offload_optimizer__ratio=other / 100)
        on_the_step = models.resident_groups(other / 100, 16) == models.resident_groups(ratio, 16)
        assert same(config, shifted, numels) == on_the_step


def test_what_has_no_effect_makes_no_other_configuration() -> None:
    offloaded = built(GPU, "zero3 opt=cpu")
    assert same(offloaded, with_zero(offloaded, round_robin_gradients=True))
    assert same(offloaded, with_zero(offloaded, allgather_bucket_size=2))
    assert same(offloaded, with_zero(offloaded, offload_optimizer__buffer_count=9))
    assert same(offloaded, with_zero(offloaded, offload_param={"device": "none", "buffer_count": 9}))
    assert same(offloaded, {**offloaded, "steps_per_print": 1, "aio": {"queue_depth": 1}})
    below = built(GPU, "zero2")
    assert same(below, with_zero(below, stage3_max_live_parameters=7, sub_group_size=7))
    assert same(below, with_zero(below, round_robin_gradients=True))
    assert same(
        below, with_zero(below, reduce_bucket_size=float(below["zero_optimization"]["reduce_bucket_size"]))
    )
    swapped = built(GPU, "zero3 opt=nvme")
    assert same(swapped, with_zero(swapped, offload_optimizer__nvme_path="/scratch/2"))


def test_what_has_an_effect_makes_another_configuration() -> None:
    offloaded = built(GPU, "zero3 opt=cpu")
    for changes in (
        {"reduce_bucket_size": 12345},
        {"overlap_comm": False},
        {"stage3_max_reuse_distance": 0},
        {"stage3_param_persistence_threshold": 0},
        {"sub_group_size": 300_000},
        {"offload_optimizer__pin_memory": False},
    ):
        assert not same(offloaded, with_zero(offloaded, **changes)), changes
    assert not same(offloaded, built(GPU, "zero3 opt=cpu param=cpu"))
    assert not same(offloaded, built(GPU, "zero3 opt=cpu", micro_batch=1))
    swapped = built(GPU, "zero3 opt=nvme")
    assert not same(swapped, with_zero(swapped, offload_optimizer__buffer_count=9))
    assert not same(swapped, {**swapped, "aio": {**swapped["aio"], "queue_depth": 64}})
    ranks = facts(world_size=2)
    below = built(ranks, "zero2 opt=cpu")
    assert not same(below, with_zero(below, round_robin_gradients=True), ranks)


def test_on_the_cpu_accelerator_ratio_pinning_and_stage_3_overlap_are_inert() -> None:
    config = with_zero(built(CPU, "zero3 opt=cpu"), sub_group_size=300_000)
    for changes in (
        {"offload_optimizer__ratio": 0.5},
        {"offload_optimizer__pin_memory": False},
        {"overlap_comm": False},
    ):
        assert same(config, with_zero(config, **changes), CPU)
        assert not same(config, with_zero(config, **changes), GPU)


def test_aliases_and_defaults_are_the_same_as_what_they_stand_for() -> None:
    config = {"train_batch_size": 8, "zero_optimization": {"stage": 3, "stage3_prefetch_bucket_size": 1000}}
    assert same(
        config, {"train_batch_size": 8, "zero_optimization": {"stage": 3, "prefetch_bucket_size": 1000}}
    )
    assert same(config, with_zero(config, overlap_comm=None, memory_efficient_linear=True))
    assert same(config, with_zero(config, overlap_comm=True))


def test_the_live_limit_counts_only_where_something_is_prefetched() -> None:
    config = built(GPU, "zero3", prefetch_bucket_size=2**20)
    assert not same(config, with_zero(config, stage3_max_live_parameters=0))
    idle = with_zero(config, stage3_prefetch_bucket_size=0)
    assert same(idle, with_zero(idle, stage3_max_live_parameters=0))


def test_the_effective_ratio_is_the_share_of_elements_updated_on_the_cpu() -> None:
    numels = facts(parameter_numels=(3000, 1000, 1000, 1000))
    config = {
        "zero_optimization": {
            "stage": 3,
            "sub_group_size": 1000,
            "offload_optimizer": {"device": "cpu", "ratio": 0.75},
        }
    }
    assert ds_config.effective_ratio(config, numels) == 0.5
    assert ds_config.effective_ratio(built(GPU, "zero2"), GPU) == 0.0
    assert ds_config.effective_ratio(built(GPU, "zero2 opt=cpu"), GPU) == 1.0
    assert ds_config.effective_ratio(built(GPU, "zero3 opt=nvme"), GPU) == 1.0
    assert ds_config.effective_ratio(built(CPU, "zero2"), CPU) is None
