"""Options become settings, or one message that names the option."""

import json
from dataclasses import replace
from typing import Any

import pytest

from offtune import config, hardware
from offtune.config import Options, resolve
from offtune.errors import UsageError
from offtune.hardware import Gpu, Machine

GB = 10**9
MACHINE = Machine(
    cpu_model="a processor",
    cores=8,
    memory_bytes=64 * GB,
    gpus=(),
    driver_version=None,
    hostname="host",
    boot_id="b",
)
CARDS = tuple(
    Gpu(index=i, name="A card", memory_bytes=size, uuid=f"GPU-{i}")
    for i, size in enumerate((40 * GB, 24 * GB))
)


@pytest.fixture(autouse=True)
def _cuda_torch(monkeypatch):
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr(config, "torch_has_cuda", lambda: True)


def resolved(machine: Machine = MACHINE, **options: Any) -> config.RunConfig:
    return resolve(Options(**{"budget": "2GB", **options}), machine)


def refused(match: str, machine: Machine = MACHINE, **options: Any) -> str:
    with pytest.raises(UsageError, match=match) as caught:
        resolved(machine, **options)
    assert caught.value.exit_code == 2
    return caught.value.hint


def test_without_cuda_one_cpu_rank_trains_the_small_model():
    settings = resolved()
    assert (settings.device, settings.gpus, settings.workload.world_size) == ("cpu", (), 1)
    assert settings.workload.model_name == "llama-5m"
    assert settings.workload.global_batch == 8
    assert settings.threads_per_rank == 7
    assert settings.limit_bytes == settings.budget_bytes == 2 * GB
    assert 0 < settings.host_limit_bytes <= 0.9 * hardware.available_host_bytes() * 1.1


def test_with_cuda_every_visible_card_is_a_rank():
    settings = resolved(replace(MACHINE, gpus=CARDS))
    assert (settings.device, settings.gpus) == ("cuda", (0, 1))
    assert settings.workload.model_name == "llama-1b"
    assert settings.workload.global_batch % 2 == 0


def test_without_a_budget_the_smallest_card_is_the_budget():
    assert resolved(replace(MACHINE, gpus=CARDS), budget=None).budget_bytes == 24 * GB
    assert "--budget 2GB" in refused("--budget is missing", budget=None)


def test_a_gpu_with_a_torch_that_cannot_use_it_is_said_not_worked_around(monkeypatch):
    monkeypatch.setattr(config, "torch_has_cuda", lambda: False)
    machine = replace(MACHINE, gpus=CARDS)
    assert "--device cpu" in refused("torch .* without CUDA", machine)
    assert resolved(machine, device="cpu").device == "cpu"


@pytest.mark.parametrize(
    ("headroom", "limit"), [("5%", 1_900_000_000), ("500MB", 1_500_000_000), ("0%", 2 * GB)]
)
def test_headroom_is_taken_off_the_budget(headroom, limit):
    assert resolved(headroom=headroom).limit_bytes == limit


@pytest.mark.parametrize("headroom", ["100%", "3GB", "x%", "5", "-1%"])
def test_headroom_that_leaves_nothing_or_means_nothing_is_refused(headroom):
    refused("--headroom", headroom=headroom)


@pytest.mark.parametrize(
    ("match", "options"),
    [
        ("--gpus 3: only 2 visible", {"gpus": 3, "machine": replace(MACHINE, gpus=CARDS)}),
        ("--gpus 0", {"gpus": 0}),
        ("--gpus 0", {"gpus": 0, "machine": replace(MACHINE, gpus=CARDS)}),
        ("--device", {"device": "tpu"}),
        ("no CUDA GPU", {"device": "cuda"}),
        ("--precision fp16", {"precision": "fp16"}),
        ("--precision", {"precision": "int8"}),
        ("--optimizer", {"optimizer": "muon"}),
        ("--global-batch 7", {"global_batch": 7, "gpus": 2}),
        ("--seq-len 5000", {"seq_len": 5000}),
        ("--seq-len 0", {"seq_len": 0}),
        ("--steps 0", {"steps": 0}),
        ("--warmup-steps -1", {"warmup_steps": -1}),
        ("--seed -1", {"seed": -1}),
        ("--time", {"time": "soon"}),
        ("--trial-timeout", {"trial_timeout": "later"}),
        ("--nvme-path", {"nvme_path": "/no/such/folder"}),
        ("--host-budget", {"host_budget": "12"}),
    ],
)
def test_bad_options_are_refused_by_name(match, options):
    assert refused(match, **options)


def test_a_models_longest_sequence_is_found_under_any_of_its_names(tmp_path):
    path = tmp_path / "config.json"
    path.write_text(json.dumps({"model_type": "gpt2", "n_positions": 64, "vocab_size": 100}))
    assert resolved(model=str(path)).workload.seq_len == 64


def test_settings_survive_the_way_into_a_study_and_back():
    from offtune.records import StudyRecord
    from offtune.session import stored_config
    from offtune.trial import as_dict

    settings = resolved(time="30m")
    record = StudyRecord(
        name="s",
        created_at="",
        settings={**as_dict(settings), "versions": {}},
        target_trials=40,
        model="m",
        device="cpu",
        budget_bytes=2 * GB,
    )
    assert stored_config(record) == settings
