"""Models: what a person may type, and the arithmetic DeepSpeed's ZeRO-3 does with parameter sizes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from huggingface_hub import errors as hub_errors
from hypothesis import given
from hypothesis import strategies as st

from offtune import hub, models
from offtune.errors import UsageError

NUMELS = st.lists(st.integers(1, 5000), min_size=1, max_size=60)


def write_config(folder: Path, **fields: Any) -> Path:
    file = folder / "config.json"
    file.write_text(json.dumps({"model_type": "llama", "hidden_size": 8, **fields}))
    return file


def deepspeed_sub_groups(partitions: list[int], sub_group_size: int) -> list[int]:
    """The loop of _create_fp16_sub_groups (stage3.py, 0.19.8), written independently of ours."""
    if sub_group_size >= sum(partitions):
        return [sum(partitions)]
    groups, group = [], []
    for index, numel in enumerate(partitions):
        group.append(numel)
        if sum(group) >= sub_group_size or index == len(partitions) - 1:
            groups.append(sum(group))
            group = []
    return groups


@pytest.mark.parametrize("name", models.PRESETS)
def test_every_preset_resolves_to_a_complete_configuration_of_its_own(name: str) -> None:
    model = models.resolve_model(name)
    assert model.name == name
    assert model.config["model_type"] in {"llama", "gpt2"}
    assert model.config["vocab_size"] > model.config["eos_token_id"]
    model.config["vocab_size"] = 1
    assert models.resolve_model(name).config["vocab_size"] > 1


def test_defaults_per_device_are_presets() -> None:
    assert models.default_preset("cpu") == "llama-5m"
    assert models.default_preset("cuda") == "llama-1b"
    assert {models.default_preset("cpu"), models.default_preset("cuda")} <= set(models.PRESETS)


def test_gpt2_means_the_small_one() -> None:
    assert models.resolve_model("gpt2").name == "gpt2-124m"


def test_a_file_and_its_folder_resolve_to_the_same_configuration(tmp_path: Path) -> None:
    file = write_config(tmp_path)
    assert models.resolve_model(str(file)).config == models.resolve_model(str(tmp_path)).config


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("lama-7b", "llama-7b"),
        ("GPT2-XL", "gpt2-xl"),
        ("./nowhere/config.json", "no './nowhere/config.json'"),
        ("something", "a preset: llama-5m"),
    ],
)
def test_an_unknown_model_says_what_would_be_known(text: str, words: str) -> None:
    with pytest.raises(UsageError) as caught:
        models.resolve_model(text)
    assert words in f"{caught.value.message} {caught.value.hint}"


def test_a_folder_without_config_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot read"):
        models.resolve_model(str(tmp_path))


@pytest.mark.parametrize("text", ["{", "[1]", '{"hidden_size": 8}'])
def test_a_file_that_is_no_configuration_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(UsageError, match=r"not JSON|no 'model_type'"):
        models.resolve_model(str(tmp_path))


@pytest.mark.parametrize("fields", [{"is_encoder_decoder": True}, {"architectures": ["BertForMaskedLM"]}])
def test_models_that_are_not_causal_are_refused(tmp_path: Path, fields: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match="causal"):
        models.resolve_model(str(write_config(tmp_path, **fields)))


def test_a_cached_hub_configuration_needs_no_network(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = write_config(tmp_path)
    monkeypatch.setattr("huggingface_hub.try_to_load_from_cache", lambda repo, name: str(file))
    monkeypatch.setattr(
        "huggingface_hub.hf_hub_download", lambda *_, **__: pytest.fail("went to the network")
    )
    assert models.resolve_model("owner/name").config["hidden_size"] == 8


def test_offline_is_said_at_once_with_what_else_can_be_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.try_to_load_from_cache", lambda repo, name: None)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(UsageError, match="cannot be reached") as caught:
        models.resolve_model("owner/name")
    assert "llama-5m" in caught.value.hint


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        (hub_errors.GatedRepoError, "hf auth login"),
        (hub_errors.RepositoryNotFoundError, "no model 'owner/name'"),
        (hub_errors.RemoteEntryNotFoundError, "no config.json"),
        (hub_errors.LocalEntryNotFoundError, "cannot be reached"),
        (ConnectionError, "could not be fetched"),
    ],
)
def test_each_failure_of_the_hub_is_named(
    kind: type[OSError], words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> str:
        raise kind.__new__(kind)

    monkeypatch.setattr("huggingface_hub.try_to_load_from_cache", lambda repo, name: None)
    monkeypatch.setattr("huggingface_hub.hf_hub_download", fail)
    monkeypatch.setattr(hub, "_reachable", lambda: True)
    with pytest.raises(UsageError) as caught:
        models.resolve_model("owner/name")
    assert words in f"{caught.value.message} {caught.value.hint}"


@given(NUMELS, st.integers(1, 16))
def test_partitions_cover_the_parameters_with_less_than_a_rank_of_padding(
    numels: list[int], world: int
) -> None:
    partitions = models.partition_numels(tuple(numels), world)
    assert all(numel <= part * world < numel + world for numel, part in zip(numels, partitions, strict=True))


@given(NUMELS, st.floats(0, 40_000))
def test_parameters_up_to_a_size_hold_so_many_elements(numels: list[int], limit: float) -> None:
    assert models.numel_up_to(tuple(numels), limit) == sum(n for n in numels if n <= limit)


@given(NUMELS, st.integers(1, 8), st.integers(0, 40_000))
def test_sub_groups_are_those_of_deepspeed(numels: list[int], world: int, size: int) -> None:
    partitions = list(models.partition_numels(tuple(numels), world))
    assert list(models.sub_group_numels(tuple(numels), world, size)) == deepspeed_sub_groups(partitions, size)


@given(st.integers(1, 3000).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n))))
def test_a_ratio_keeps_exactly_the_sub_groups_it_was_made_for(case: tuple[int, int]) -> None:
    resident, n_groups = case
    ratio = models.ratio_for(resident, n_groups)
    assert 0.0 <= ratio <= 1.0
    assert models.resident_groups(ratio, n_groups) == resident
    assert models.resident_groups(json.loads(json.dumps(ratio)), n_groups) == resident


@pytest.mark.parametrize("case", [(-1, 4), (5, 4), (0, 0)])
def test_impossible_splits_have_no_ratio(case: tuple[int, int]) -> None:
    with pytest.raises(ValueError, match="cannot keep"):
        models.ratio_for(*case)


def test_ratios_are_short_enough_to_read() -> None:
    assert models.ratio_for(7, 10) == 0.25
    assert models.ratio_for(5, 10) == 0.45
    assert models.ratio_for(10, 10) == 0.0
