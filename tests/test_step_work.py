"""The work of a step: bytes by path as DeepSpeed moves them, operations, and its versions."""

import pytest
from cost_cases import SHAPE, P, ds_config, offloaded, work

from offtune.step_work import gradient_copy_of


@pytest.mark.parametrize(
    ("version", "copy"),
    [
        ("0.13.3", "cast_on_host"),
        ("0.15.3", "cast_on_host"),
        ("0.15.4", "bounce"),
        ("0.16.2", "bounce"),
        ("0.16.3", "blocking"),
        ("0.19.4", "blocking"),
        ("0.19.5", "overlapped"),
        ("0.19.8+abc", "overlapped"),
        ("1.0", "overlapped"),
        ("main", "overlapped"),
    ],
)
def test_each_release_has_its_copy_of_the_last_gradient(version, copy):
    assert gradient_copy_of(version) == copy


def test_stage_3_sends_every_gradient_to_the_host_and_back():
    found = work(ds_config(steps=4, **offloaded()))
    assert found.micro_d2h_bytes == found.micro_h2d_bytes == 2 * P
    assert found.last_numel == found.cpu_numel == P
    assert found.update_h2d_bytes == 2 * P and not found.update_h2d_pinned
    assert found.device_numel == 0


def test_the_ratio_spares_the_optimizer_not_the_round_trip():
    whole, half = (work(ds_config(**offloaded(ratio=ratio))) for ratio in (1.0, 0.5))
    assert half.micro_d2h_bytes == whole.micro_d2h_bytes
    assert half.cpu_numel == half.last_numel == pytest.approx(P / 2, rel=0.05)
    assert half.cpu_numel + half.device_numel == P
    assert half.update_h2d_bytes == 2 * half.cpu_numel


def test_nearby_ratios_on_one_step_of_the_staircase_are_the_same_work():
    config = [ds_config(sub_group_size=2_000_000_000, **offloaded(ratio=ratio)) for ratio in (0.55, 0.7)]
    assert work(config[0]) == work(config[1])


def test_ranks_share_the_partition_and_gather_the_whole():
    found = work(ds_config(**offloaded()), ranks=4)
    assert found.cpu_numel == pytest.approx(P / 4, rel=1e-3)
    assert found.micro_reduce_bytes == 2 * P
    assert 1.9 * P < found.forward_gather_bytes <= 2 * P
    assert found.backward_gather_bytes < found.forward_gather_bytes


def test_one_rank_has_nobody_to_gather_from():
    found = work(ds_config(**offloaded()))
    assert found.forward_gather_bytes == found.micro_reduce_bytes == 0


def test_a_long_reuse_distance_keeps_what_the_forward_gathered():
    found = work(ds_config(stage3_max_reuse_distance=3 * P, **offloaded()), ranks=2)
    assert found.backward_gather_bytes == 0


def test_persistent_parameters_are_never_gathered():
    found = work(ds_config(stage3_param_persistence_threshold=P, **offloaded()), ranks=2)
    assert found.forward_gather_bytes == 0


@pytest.mark.parametrize("stage", [1, 2])
def test_stages_1_and_2_copy_fp32_gradients_once_from_pinned_buffers(stage):
    found = work(ds_config(stage, **offloaded()), ranks=2)
    assert found.last_numel == found.cpu_numel == P // 2
    assert found.micro_d2h_bytes == 0
    assert found.update_h2d_pinned and found.update_h2d_bytes == 2 * found.cpu_numel
    assert found.update_gather_bytes == 2 * P


def test_stage_2_accumulates_on_the_host_and_waits():
    found = work(ds_config(2, steps=2, **offloaded()))
    assert found.micro_copies_block and found.micro_d2h_bytes == 2 * P


def test_stage_1_reduces_once_and_stage_2_every_time():
    one, two = (work(ds_config(stage, steps=4), ranks=2) for stage in (1, 2))
    assert (one.last_reduce_bytes, one.micro_reduce_bytes) == (2 * P, 0)
    assert (two.last_reduce_bytes, two.micro_reduce_bytes) == (0, 2 * P)


def test_nvme_reads_16_and_writes_12_bytes_in_the_update_and_4_before():
    found = work(ds_config(**offloaded("nvme", nvme_path="/nvme")))
    assert found.update_nvme_write_bytes == 12 * P
    # Gradients of the norms are below DeepSpeed's floor of 1 MiB and stay in memory.
    assert found.update_nvme_read_bytes == pytest.approx(16 * P, rel=1e-4)
    assert 0.9999 * 4 * P < found.last_nvme_write_bytes < 4 * P
    assert not found.nvme_overlapped


def test_only_parameters_beyond_max_in_cpu_cross_to_the_disk():
    zero = {**offloaded(), "stage3_max_reuse_distance": 0}
    param = {"device": "nvme", "nvme_path": "/nvme", "buffer_size": P}
    held, half, none = (
        work(ds_config(**zero, offload_param={**param, "max_in_cpu": most})) for most in (P, P // 2, 0)
    )
    assert (held.forward_nvme_read_bytes, held.param_nvme_write_bytes) == (0, 0)
    assert none.param_nvme_write_bytes == pytest.approx(2 * P, rel=1e-3)
    assert half.param_nvme_write_bytes == pytest.approx(P, rel=0.05)
    assert none.forward_nvme_read_bytes == pytest.approx(2 * P, rel=1e-3)


def test_offloaded_parameters_come_back_for_every_pass():
    zero = {**offloaded(), "offload_param": {"device": "cpu"}, "stage3_max_reuse_distance": 0}
    found = work(ds_config(**zero))
    assert found.forward_h2d_bytes == found.backward_h2d_bytes == pytest.approx(2 * P, rel=1e-3)
    assert found.update_h2d_bytes == 0


def test_operations_follow_micro_batch_and_recomputation():
    one, four = work(ds_config(micro=1)), work(ds_config(micro=4))
    assert four.forward_flops == pytest.approx(4 * one.forward_flops)
    # Two operations a weight and token; the token table is looked up, not multiplied.
    assert one.forward_flops == pytest.approx(2 * 2048 * (P - 32000 * 4096), rel=1e-3)
    assert one.backward_flops == pytest.approx(2 * one.forward_flops)
    head = SHAPE.head_forward_flops(2048)
    assert one.recompute_flops == pytest.approx(one.forward_flops - head)


def test_eager_attention_keeps_scores_and_flash_does_not():
    flash, eager = (work(ds_config(), attention=kind) for kind in ("flash", "eager"))
    assert flash.score_bytes == 0 and flash.attention_flops > 0
    assert eager.score_bytes == 2 * 32 * 32 * 2048**2 and eager.attention_flops == 0
    assert eager.forward_flops == pytest.approx(flash.forward_flops + 2 * flash.attention_flops)
