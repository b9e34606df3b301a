"""The same machinery on CUDA: the cap, NVML against torch, memory given back, warm forks before CUDA."""

import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from conftest import workload

from offtune import ds_config, hardware, ops, scratch
from offtune.models import PRESETS
from offtune.runner import TrialRunner
from offtune.trial import Facts, Status

pytestmark = [pytest.mark.gpu, pytest.mark.train]

PLACEMENTS = ("zero2", "zero2 opt=cpu", "zero3", "zero3 opt=cpu", "zero3 opt=cpu param=cpu")
MODEL = "llama-160m"
# 162 M parameters at 18 bytes are 2.9 GB without offload; the context and activations come on top.
ROOMY_BYTES = 20 * 10**9
TIGHT_BYTES = 2 * 10**9


@pytest.fixture(scope="module")
def ready_ops() -> tuple[str, ...]:
    states = ops.prepare(ops.needed_ops("cuda", "adamw", PLACEMENTS, nvme=False), "cuda", print)
    return tuple(op for op, state in states.items() if state.state == "ready")


@pytest.fixture(scope="module")
def gpu() -> int:
    return hardware.cuda_gpus(hardware.detect())[0].index


@pytest.fixture(scope="module")
def runner(ready_ops) -> Iterator[TrialRunner]:
    with TrialRunner("cuda", 4, ready_ops, "llama", print) as runner:
        yield runner


@pytest.fixture
def make_trial(make_spec, ready_ops, gpu):
    counter = iter(range(100))

    def make(
        placement: str, limit_bytes: int = ROOMY_BYTES, point: dict[str, Any] | None = None, **changes: Any
    ):
        if " opt=" not in placement and "fused_adam" not in ready_ops:
            pytest.skip("fused_adam cannot be built here: no CUDA toolkit (nvcc)")
        work = workload(model_name=MODEL, model_config=PRESETS[MODEL].config, seq_len=256, global_batch=4)
        facts = Facts(workload=work, device="cuda", parameter_numels=_numels(), nvme_dir=None,
                      ops=frozenset(ready_ops), deepspeed_version="0.19.8")  # fmt: skip
        config = ds_config.build({}, {"placement": placement, "micro_batch": 2, **(point or {})}, facts, None)
        fields = {"workload": work, "device": "cuda", "gpus": (gpu,), "ops": ready_ops, "deadline_s": 60.0}
        limits = {"limit_bytes": limit_bytes, "host_limit_bytes": 60 * 10**9}
        return make_spec(config, number=next(counter), **fields, **limits, **changes)

    return make


def _numels() -> tuple[int, ...]:
    layer = (768 * 768,) * 4 + (768 * 3072,) * 3 + (768, 768)
    return (32000 * 768, *layer * 12, 768, 32000 * 768)


@pytest.mark.parametrize("placement", PLACEMENTS)
def test_a_placement_trains_and_nvml_sees_at_least_what_torch_reserved(runner, make_trial, placement):
    result = runner(make_trial(placement))
    assert result.status is Status.OK, (result.reason, result.log_tail)
    assert result.start == "warm", "the server must not touch CUDA before the fork"
    memory = result.memory
    assert memory.reserved_bytes >= memory.allocated_bytes > 10**8
    # The context and NCCL lie outside the allocator: 0.3 to 4 GB.
    assert memory.reserved_bytes <= memory.used_device_bytes <= memory.reserved_bytes + 5 * 10**9


def test_a_large_card_behaves_like_the_budgeted_one(runner, make_trial):
    result = runner(make_trial("zero2", limit_bytes=TIGHT_BYTES))
    assert result.status in (Status.OOM_GPU, Status.OVER_BUDGET), (result.status, result.reason)


def test_offload_fits_where_the_whole_does_not(runner, make_trial):
    result = runner(make_trial("zero3 opt=cpu param=cpu", limit_bytes=TIGHT_BYTES))
    assert result.status is Status.OK, (result.reason, result.log_tail)
    assert result.memory.used_device_bytes <= TIGHT_BYTES


@pytest.mark.parametrize("sixteenths", [0, 8, 15])
def test_resident_sub_groups_are_what_deepspeed_really_keeps(runner, make_trial, sixteenths):
    spec = make_trial("zero3 opt=cpu", point={"sub_groups": 16, "resident_sixteenths": sixteenths})
    facts_ratio = spec.ds_config["zero_optimization"]["offload_optimizer"]["ratio"]
    result = runner(spec)
    assert result.status is Status.OK, (result.reason, result.log_tail)
    assert result.effective_ratio == pytest.approx(facts_ratio, abs=0.25)
    assert (result.effective_ratio < 1.0) == (sixteenths > 0)


def test_device_memory_returns_to_its_level_after_a_killed_trial(runner, make_trial, gpu):
    before = hardware.device_used_bytes(gpu)
    result = runner(make_trial("zero2 opt=cpu", steps=100_000))
    assert result.status is Status.TIMEOUT
    assert hardware.device_used_bytes(gpu) <= before + 64 * 2**20


def test_pcie_rates_are_measured_or_the_reason_is_given(runner, make_trial):
    traffic = runner(make_trial("zero2 opt=cpu")).traffic
    measured = traffic.h2d_bytes_per_s is not None and traffic.d2h_bytes_per_s is not None
    assert measured != bool(traffic.pcie_reason)


def test_the_search_works_from_end_to_end(tmp_path):
    done = subprocess.run(
        [sys.executable, "-m", "offtune", "search", "--budget", "8GB", "--model", MODEL, "--seq-len", "256",
         "--global-batch", "8", "--gpus", "1", "--trials", "8", "--steps", "3", "--json"],
        cwd=tmp_path, capture_output=True, text=True, timeout=900, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert scratch.shm_files("*") == []
