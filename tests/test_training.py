"""Real trainings on the CPU accelerator: stages, offload devices, ranks, warm against cold."""

import os
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import Any

import psutil
import pytest
from conftest import workload
from disks import is_in_memory

from offtune import ds_config, ops, scratch
from offtune.launch import ColdRanks
from offtune.recording import read_timelines
from offtune.runner import TrialRunner, run_trial
from offtune.timeline import CORE_GROUPS
from offtune.trial import Facts, Status, StopRule, TrialResult
from offtune.worker.memory import private_resident_bytes

pytestmark = pytest.mark.train

PLACEMENTS = (
    "zero1",
    "zero1 opt=cpu",
    "zero2",
    "zero2 opt=cpu",
    "zero3",
    "zero3 opt=cpu",
    "zero3 param=cpu",
    "zero3 opt=cpu param=cpu",
)
NVME_PLACEMENTS = (
    "zero3 opt=nvme",
    "zero3 opt=nvme param=cpu",
    "zero3 opt=cpu param=nvme",
    "zero3 opt=nvme param=nvme",
)
# Agreement of bf16 losses over placements, seen over 12 steps (3e-4 there; a little more for other batches).
LOSS_TOLERANCE = 2e-3


@pytest.fixture(scope="module")
def ready_ops() -> tuple[str, ...]:
    names = ops.needed_ops("cpu", "adamw", PLACEMENTS + NVME_PLACEMENTS, nvme=True)
    states = ops.prepare(names, "cpu", print)
    lacking = [f"{state.op}: {state.error}" for state in states.values() if state.state != "ready"]
    assert not lacking, lacking
    return names


@pytest.fixture(scope="module")
def runner(ready_ops: tuple[str, ...]) -> Iterator[TrialRunner]:
    with TrialRunner("cpu", 1, ready_ops, "llama", print) as runner:
        yield runner


@pytest.fixture
def make_trial(make_spec, ready_ops, tmp_path):
    """A spec for a placement, as the search would build it."""
    counter = iter(range(1000))

    def make(placement: str, world_size: int = 1, point: dict[str, Any] | None = None, **changes: Any):
        number = next(counter)
        work = changes.pop("workload", workload(world_size=world_size))
        swap = str(scratch.make_swap_dir(str(tmp_path), "test", number)) if "nvme" in placement else None
        facts = Facts(
            workload=work,
            device="cpu",
            parameter_numels=(4096 * 256,) * 2 + (256 * 688,) * 12,
            nvme_dir=swap,
            ops=frozenset(ready_ops),
            deepspeed_version="0.19.8",
        )
        config = ds_config.build({}, {"placement": placement, "micro_batch": 2, **(point or {})}, facts, swap)
        return make_spec(config, number=number, workload=work, ops=ready_ops, swap_dir=swap, **changes)

    return make


def assert_trained(result: TrialResult, steps: int = 3) -> None:
    assert result.status is Status.OK, (result.reason, result.log_tail)
    assert len(result.step_s) == len(result.losses) == steps
    assert result.samples_per_s == pytest.approx(4 / median(result.step_s))
    assert result.memory.used_device_bytes is not None and result.memory.used_device_bytes > 10**7
    assert result.phases is not None and result.phases.forward_s > 0 and result.phases.backward_s > 0
    assert result.traffic.h2d_bytes_per_s is None
    assert "CPU accelerator" in result.traffic.pcie_reason


def test_every_placement_trains_to_the_same_losses(runner, make_trial):
    losses = {}
    for placement in PLACEMENTS:
        result = runner(make_trial(placement))
        assert_trained(result)
        losses[placement] = result.losses
    for placement, curve in losses.items():
        assert curve == pytest.approx(losses["zero2"], abs=LOSS_TOLERANCE), placement


def test_nvme_placements_train_write_to_disk_and_leave_no_swap_file(runner, make_trial, tmp_path):
    reference = runner(make_trial("zero2")).losses
    for placement in NVME_PLACEMENTS:
        spec = make_trial(placement)
        result = runner(spec)
        assert_trained(result)
        assert result.losses == pytest.approx(reference, abs=LOSS_TOLERANCE), placement
        assert not Path(spec.swap_dir).exists()
        if "opt=nvme" in placement:
            assert_recorded_nvme(result, tmp_path)


def assert_recorded_nvme(result: TrialResult, folder: Path) -> None:
    """Bytes by phase sum to what the kernel counted, and the update waited for both directions."""
    analysis = result.analysis
    assert analysis is not None
    assert analysis.find("update.nvme_read") is not None
    assert analysis.find("update.nvme_write") is not None
    if is_in_memory(folder):
        return
    # At least 12 bytes a parameter and step: master, momentum, variance (5.3 M parameters).
    assert result.traffic.nvme_write_bytes > 3 * 12 * 4_000_000
    for key, counted in (
        ("nvme_read_bytes_per_s", result.traffic.nvme_read_bytes),
        ("nvme_write_bytes_per_s", result.traffic.nvme_write_bytes),
    ):
        moved = sum(phase.moved_bytes(key) for phase in analysis.phases)
        assert analysis.steps * moved == pytest.approx(counted, rel=0.1), key


def test_every_trial_carries_what_each_phase_did_and_leaves_its_timeline(runner, make_trial):
    spec = make_trial("zero3 opt=cpu")
    result = runner(spec)
    assert_trained(result)
    analysis = result.analysis
    assert analysis is not None and analysis.steps == 3
    assert [phase.name for phase in analysis.phases] == ["forward", "backward", "update", "other"]
    assert analysis.step_s == pytest.approx(sum(result.step_s) / 3, rel=1e-4)
    assert sum(phase.seconds for phase in analysis.phases) == pytest.approx(analysis.step_s, rel=0.03)
    assert {part.name for part in analysis.parts} >= {"update.cpu_optimizer", "update.copy_back"}
    for phase in analysis.phases[:3]:
        assert 0 < phase.peak("device_used_bytes") <= 1.0001 * result.memory.used_device_bytes  # rounded
        assert phase.mean("cpu_busy_share") > 0
    (timeline,) = read_timelines(spec.trial_dir)
    assert {mark.micro_step for mark in timeline.marks if mark.name == "backward"} == {0, 1}
    assert "no link" in timeline.reasons["h2d_bytes_per_s"]
    assert analysis.core_groups or CORE_GROUPS in analysis.reasons


def test_without_recording_there_is_no_analysis_and_nothing_else_is_missing(runner, make_trial):
    spec = make_trial("zero2", record=False)
    result = runner(spec)
    assert_trained(result)
    assert result.analysis is None
    assert read_timelines(spec.trial_dir) == ()


@pytest.mark.parametrize("placement", ["zero2 opt=cpu", "zero3 opt=cpu param=cpu"])
def test_two_ranks_train_as_one_trial(runner, make_trial, placement):
    spec = make_trial(placement, world_size=2)
    result = runner(spec)
    assert_trained(result)
    assert result.exit_codes == (0, 0)
    assert result.analysis is not None and result.analysis.devices == 2
    assert "backward.collective" in {part.name for part in result.analysis.parts}
    # The first rank reads the host's cores for both.
    first, second = read_timelines(spec.trial_dir)
    assert result.analysis.core_groups == first.core_groups
    assert second.core_groups == {}


def test_warm_and_cold_trials_tell_the_same(runner, make_trial):
    warm = runner(make_trial("zero3 opt=cpu"))
    spec = make_trial("zero3 opt=cpu")
    cold = run_trial(spec, ColdRanks, "cold")
    assert_trained(warm)
    assert_trained(cold)
    assert (warm.start, cold.start) == ("warm", "cold")
    assert warm.losses == cold.losses
    assert warm.memory.used_device_bytes == pytest.approx(cold.memory.used_device_bytes, rel=0.25)
    # A cold start loads all of torch and DeepSpeed; one warm one may have been held up by somebody else.
    first_step_s = [warm.first_step_s, *(runner(make_trial("zero3 opt=cpu")).first_step_s for _ in range(2))]
    assert min(first_step_s) < cold.first_step_s


def test_the_ratio_reaches_deepspeed_and_sub_groups_are_counted(runner, make_trial):
    result = runner(make_trial("zero3 opt=cpu", point={"sub_groups": 16}))
    assert_trained(result)
    assert result.sub_groups is not None and result.sub_groups > 8
    assert result.effective_ratio == 1.0


@pytest.mark.parametrize(("placement", "ratio"), [("zero2", 0.0), ("zero2 opt=cpu", 1.0), ("zero3", 0.0)])
def test_the_effective_ratio_says_where_the_optimizer_is(runner, make_trial, placement, ratio):
    assert runner(make_trial(placement)).effective_ratio == ratio


def test_what_deepspeed_refuses_is_invalid_with_its_words(runner, make_trial):
    spec = make_trial("zero2")
    spec.ds_config["zero_optimization"]["no_such_key"] = 1
    result = runner(spec)
    assert result.status is Status.INVALID
    assert "no_such_key" in result.reason


def test_a_loss_that_is_not_finite_is_diverged(runner, make_trial):
    spec = make_trial("zero2")
    spec.ds_config["optimizer"]["params"]["lr"] = 1e30
    spec.ds_config["bf16"]["check_grad_overflow"] = False
    result = runner(spec)
    assert result.status is Status.DIVERGED


def test_activation_checkpointing_saves_memory(runner, make_trial):
    big = {"global_batch": 16, "seq_len": 256}
    point = {"micro_batch": 16}
    plain = runner(make_trial("zero2", workload=workload(**big), point=point))
    saving = runner(make_trial("zero2", workload=workload(**big, activation_checkpointing=True), point=point))
    assert plain.status is saving.status is Status.OK
    assert saving.memory.used_device_bytes < 0.9 * plain.memory.used_device_bytes
    assert saving.losses == pytest.approx(plain.losses, abs=LOSS_TOLERANCE)


@pytest.mark.parametrize("precision", ["bf16", "fp32"])
def test_a_gpt2_with_its_tied_head_trains_cold_in_both_precisions(make_trial, precision):
    config = {
        "model_type": "gpt2", "n_embd": 64, "n_layer": 2, "n_head": 4, "vocab_size": 512, "n_positions": 128,
        "resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0,
    }  # fmt: skip
    work = workload(model_name="tiny", model_config=config, precision=precision)
    result = run_trial(make_trial("zero3 opt=cpu", workload=work), ColdRanks, "cold")
    assert result.status is Status.OK, (result.reason, result.log_tail)


def test_a_dead_server_is_replaced_and_the_trial_run(runner, make_trial):
    assert runner.server is not None
    before = runner.server.wait_ready()["pid"]
    psutil.Process(before).kill()
    assert_trained(runner(make_trial("zero2")))
    assert runner.server.wait_ready()["pid"] != before


def test_trials_leave_no_process_no_shared_memory_and_no_environment_behind(runner, make_trial):
    server = psutil.Process(runner.server.wait_ready()["pid"])
    specs = [make_trial("zero2"), make_trial("zero3", world_size=2)]
    before = (server.num_threads(), server.num_fds(), server.environ())
    for spec in specs:
        assert_trained(runner(spec))
        assert server.children(recursive=True) == []
        assert scratch.shm_files(spec.token) == []
    assert (server.num_threads(), server.num_fds(), server.environ()) == before


def test_the_server_is_single_threaded_so_that_forks_are_whole(runner):
    assert runner.server.wait_ready()["threads"] == 1


def test_resident_memory_counts_what_is_touched():
    before = private_resident_bytes()
    hoard = bytearray(os.urandom(50_000_000))
    assert private_resident_bytes() - before > 45_000_000
    del hoard


def test_ranks_that_measure_until_it_is_known_stop_together(runner, make_trial):
    rule = StopRule(accuracy_share=0.5, least_steps=2)
    result = runner(make_trial("zero2", world_size=2, steps=20, stop=rule))
    assert result.status is Status.OK, result.reason + result.log_tail
    # Of the machine's noise nothing is known: steps that grow and grow are told as such.
    assert result.stopped in ("tight", "drift", "most")
    assert 2 <= len(result.step_s) <= 20
    if result.stopped == "most":
        assert len(result.step_s) == 20
    assert len(result.losses) == len(result.step_s)
    low, high = result.step_interval_s
    assert 0 <= low <= high > 0


def test_a_trial_over_its_budget_is_over_after_as_many_steps_as_are_wanted(runner, make_trial):
    rule = StopRule(accuracy_share=1e-9, over_steps=2)
    result = runner(make_trial("zero2", steps=20, stop=rule, limit_bytes=10 * 2**20))
    assert result.status is Status.OVER_BUDGET
    assert (result.stopped, len(result.step_s)) == ("over", 2)
