"""Step times: what must follow from what, published runs met, and the CPU accelerator's order."""

from dataclasses import replace
from itertools import pairwise

import pytest
from cost_cases import CONFIG, ds_config, facts, offloaded, work
from hypothesis import given, settings
from hypothesis import strategies as st

from offtune import hardware_profile
from offtune.errors import UsageError
from offtune.model_shape import shape_of
from offtune.step_work import step_work
from offtune.time_model import PHASES, predict_time

A100 = hardware_profile.load("a100-80gb")
H100 = hardware_profile.load("h100-80gb")
ORDER = ("0.13.3", "0.16.2", "0.16.3", "0.19.8")


def seconds(config, hardware=A100, **more):
    return predict_time(work(config, **more), hardware)


@settings(max_examples=60, deadline=None)
@given(
    st.integers(0, 3),
    st.sampled_from(["none", "cpu", "nvme"]),
    st.floats(0, 1),
    st.integers(1, 8),
    st.integers(1, 8),
    st.sampled_from([1, 2, 8]),
    st.booleans(),
    st.sampled_from(ORDER),
)
def test_every_prediction_is_finite_and_adds_up(stage, device, ratio, micro, steps, ranks, overlap, version):
    zero = {} if device == "none" else offloaded(device, **({"ratio": ratio} if device == "cpu" else {}))
    found = seconds(
        ds_config(stage, micro, steps, **{**zero, "overlap_comm": overlap}), ranks=ranks, version=version
    )
    assert 0 < found.step_s < float("inf")
    assert found.step_s == pytest.approx(found.forward_s + found.backward_s + found.update_s)
    assert 0 < found.last_backward_s <= found.backward_s * (1 + 1e-9)
    assert all(0 <= exposed <= found.step_s for exposed in found.exposed.values())
    for phase in PHASES:
        assert found.alone[phase][found.bound[phase]] == max(found.alone[phase].values())


def test_time_is_a_straight_line_in_the_ratio_with_blocking_copies():
    times = [
        seconds(ds_config(**offloaded(ratio=r)), ranks=4, version="0.13.3").step_s for r in (0.2, 0.5, 0.8)
    ]
    assert times[2] - times[1] == pytest.approx(times[1] - times[0], rel=0.1)
    assert times[0] < times[1]


def test_newer_releases_only_shorten_the_backward():
    times = [seconds(ds_config(**offloaded()), ranks=4, version=version, hardware=H100) for version in ORDER]
    assert all(later.backward_s < earlier.backward_s for earlier, later in pairwise(times))
    assert len({round(time.update_s, 9) for time in times}) == 1


def test_accumulation_repeats_passes_and_not_the_update():
    one, eight = (seconds(ds_config(steps=steps, **offloaded())) for steps in (1, 8))
    assert eight.update_s == one.update_s
    assert eight.forward_s == pytest.approx(8 * one.forward_s)
    assert one.backward_s < eight.backward_s <= 8 * one.backward_s


def test_pageable_memory_makes_the_step_longer():
    zero = {"offload_optimizer": {"device": "cpu", "pin_memory": False}}
    assert seconds(ds_config(**zero)).backward_s > 2 * seconds(ds_config(**offloaded())).backward_s


def test_bound_cores_shorten_the_update_of_several_ranks():
    bound, free = (seconds(ds_config(**offloaded()), ranks=4, cores_bound=kept) for kept in (True, False))
    assert 1.2 < free.update_s / bound.update_s < 1.8


def test_gpus_on_one_node_share_the_cpu_update():
    one, four = (seconds(ds_config(**offloaded()), ranks=ranks) for ranks in (1, 4))
    assert four.alone["update"]["cpu_adam"] == pytest.approx(one.alone["update"]["cpu_adam"], rel=0.01)


def test_gpus_behind_one_switch_share_its_rate():
    shared = replace(A100, shared_link_bytes_per_s=A100.d2h_bytes_per_s)
    config = ds_config(**offloaded())
    ratio = (
        seconds(config, shared, ranks=4).alone["backward"]["link"]
        / seconds(config, ranks=4).alone["backward"]["link"]
    )
    assert ratio == pytest.approx(4)


def test_collectives_on_the_copies_link_add_up():
    slow = replace(A100, collectives_over_link=True, collective_bytes_per_s=1.5e10)
    found = seconds(ds_config(**offloaded()), slow, ranks=4)
    assert found.bound["backward"] == found.bound["forward"] == "collective"
    assert found.backward_s > sum(found.alone["backward"][name] for name in ("collective", "link"))


def test_pipelined_nvme_hides_the_optimizer():
    plain, piped = (
        seconds(ds_config(**offloaded("nvme", pipeline_read=on, pipeline_write=on))) for on in (False, True)
    )
    assert plain.bound["update"] == piped.bound["update"] == "nvme"
    assert piped.update_s < plain.update_s


def test_without_overlap_copies_wait_for_computing():
    apart, beside = (
        seconds(ds_config(**{**offloaded(), "overlap_comm": on}), ranks=4) for on in (False, True)
    )
    assert apart.backward_s > beside.backward_s and apart.forward_s > beside.forward_s


def test_a_second_node_is_reached_through_the_fabric():
    one, two = (seconds(ds_config(**offloaded()), ranks=8, ranks_per_node=n) for n in (8, 4))
    assert two.forward_s > 2 * one.forward_s
    assert two.update_s < one.update_s


def test_a_card_without_the_precision_is_refused_in_words():
    with pytest.raises(UsageError, match="no matrix rate for bf16") as caught:
        seconds(ds_config(), hardware_profile.load("v100-32gb"))
    assert "fp16" in caught.value.hint


def test_borrowed_figures_are_trusted_less():
    config = ds_config(**offloaded())
    assert seconds(config, H100).error_share < seconds(config, hardware_profile.load("h200")).error_share


# Our own medians of DeepSpeed 0.19.8 on the CPU accelerator of a quiet machine, one thread, 5.3 M parameters,
# 8 samples a step, states (and at stage 3 parameters) offloaded to the CPU: stage, micro-batch -> seconds.
MEASURED = {
    (1, 1): 0.36, (1, 2): 0.30, (1, 8): 0.28,
    (2, 1): 0.43, (2, 2): 0.33, (2, 8): 0.27,
    (3, 1): 0.556, (3, 2): 0.39, (3, 8): 0.287,
}  # fmt: skip


def on_cpu(stage: int, micro: int) -> float:
    small = {**CONFIG, "hidden_size": 256, "num_hidden_layers": 4, "num_attention_heads": 4}
    shape = shape_of({**small, "num_key_value_heads": 4, "intermediate_size": 688, "vocab_size": 4096})
    told = facts(device="cpu", shape=shape)
    told = replace(told, workload=replace(told.workload, seq_len=128, activation_checkpointing=False))
    parameters = {"offload_param": {"device": "cpu"}} if stage == 3 else {}
    config = ds_config(stage, micro, 8 // micro, **offloaded(), **parameters)
    return predict_time(step_work(config, told, shape), hardware_profile.load("cpu")).step_s


@pytest.mark.parametrize(("case", "measured"), MEASURED.items())
def test_steps_on_the_cpu_accelerator_are_met_on_a_quiet_machine(case, measured):
    assert on_cpu(*case) == pytest.approx(measured, rel=0.25)
