"""The public ds_configs that are laid beside the checkout: each loads, or is refused for the right reason."""

from __future__ import annotations

import csv
import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from space_samples import facts

from offtune import ds_config
from offtune.base_check import fit_to_base
from offtune.config import OPTIMIZERS
from offtune.ds_change import BaseRefused, Change
from offtune.ds_settle import Settled, Wishes, settle_file
from offtune.export import deepspeed_text, portable
from offtune.models import PRESETS
from offtune.space import load_space
from offtune.trial import DeviceKind

CORPUS = Path(__file__).parent.parent.parent / "shared" / "corpus" / "ds_configs"
pytestmark = pytest.mark.skipif(
    not CORPUS.is_dir(), reason="the public files are not beside this checkout (../shared/corpus/ds_configs)"
)
FILES = sorted(path.name for path in CORPUS.glob("*.json"))
REFUSED = "megatron_ds_twinflow_template.json"
ZERO = "zero_optimization"


@cache
def settled(name: str, device: DeviceKind = "cuda") -> Settled:
    wishes = Wishes(
        device=device, world_size=1, model_config=PRESETS["llama-5m"].config, optimizers=OPTIMIZERS,
        default_batch=8,
    )  # fmt: skip
    return settle_file(CORPUS / name, "0.19.8", wishes)


def manifest() -> list[dict[str, str]]:
    with (CORPUS / "manifest.csv").open(newline="") as file:
        return list(csv.DictReader(file))


def usable() -> list[dict[str, str]]:
    """All rows but that of the one file that is refused, which has a test of its own."""
    return [row for row in manifest() if row["file"] != REFUSED]


def changed(name: str) -> dict[str, list[Change]]:
    found: dict[str, list[Change]] = {}
    for change in settled(name).base.changes:
        found.setdefault(change.path, []).append(change)
    return found


def test_the_manifest_names_the_files_that_are_there() -> None:
    assert sorted(row["file"] for row in manifest()) == FILES


@pytest.mark.parametrize("device", ["cuda", "cpu"])
@pytest.mark.parametrize("name", [name for name in FILES if name != REFUSED])
def test_a_file_loads_is_built_and_is_exported_strictly(name: str, device: DeviceKind) -> None:
    found = settled(name, device)
    ops = frozenset({"cpu_adam", "fused_adam", "cpu_lion", "fused_lion", "cpu_adagrad"})
    here = facts(
        device=device, precision=found.precision, optimizer=found.optimizer, nvme_dir=None,
        global_batch=found.global_batch, ops=ops,
    )  # fmt: skip
    base = found.base.ds_config
    space = fit_to_base(load_space("default").fit(here), found.base, here)
    for point in ({}, *(point for _, point in space.baselines())):
        built = ds_config.build(base, point, here, None)
        swaps = "nvme" in json.dumps(built[ZERO])
        assert swaps or ds_config.problems(built, here) == ()
        if not swaps:
            json.loads(deepspeed_text(portable(built, None, base)))


@pytest.mark.parametrize("name", [name for name in FILES if name != REFUSED])
def test_the_line_of_every_entry_names_its_key(name: str) -> None:
    """A part of the path stands in the line; a renamed key stands in the sentence of an entry for it."""
    lines = (CORPUS / name).read_text(encoding="utf-8").splitlines()
    changes = settled(name).base.changes
    for change in changes:
        if change.line is None or not change.path:
            continue
        here = lines[change.line - 1]
        written = [part for part in change.path.split(".") if f'"{part}"' in here]
        said = " ".join(other.text for other in changes if other.line == change.line)
        assert written or any(word.strip("',.") in here for word in said.split() if "_" in word), change


def test_the_template_is_refused_with_a_line_for_each_placeholder() -> None:
    with pytest.raises(BaseRefused) as refused:
        settled(REFUSED)
    reasons = [(c.line, c.path) for c in refused.value.changes if c.kind == "refused"]
    assert reasons == [
        (2, "train_batch_size"),
        (3, "train_micro_batch_size_per_gpu"),
        (4, "steps_per_print"),
        (19, "fp16.enabled"),
        (28, "bf16.enabled"),
    ]


@pytest.mark.parametrize("row", usable() if CORPUS.is_dir() else [], ids=lambda row: str(row["file"]))
def test_the_stage_and_the_devices_are_those_of_the_manifest(row: dict[str, str]) -> None:
    zero = settled(row["file"]).base.ds_config[ZERO]
    stages: dict[str, Any] = {"true": 1, "[0, 1, 2, 3]": 0}
    stage = row["stage"].strip('"')
    assert zero["stage"] == stages.get(stage, int(stage) if stage.isdigit() else None)
    where = {key: (zero.get(f"offload_{key}") or {}).get("device", "none") for key in ("optimizer", "param")}
    expected = {"optimizer": "none", "param": "none"}
    for item in row["offload_devices"].split(";"):
        key, _, device = item.replace("cpu_offload_params=true", "param:cpu").replace(
            "cpu_offload=true", "optimizer:cpu").partition(":")  # fmt: skip
        if device:
            expected[key] = "none" if device == "auto" else device
    if zero["stage"] < 3:
        expected["param"] = "none"
    assert where == expected


@pytest.mark.parametrize(
    ("name", "path", "kind", "word"),
    [
        ("llamafactory_z3_fp8_duplicate_keys.json", "steps_per_print", "changed", "lines 33 and 38"),
        ("deepspeed_bert_boolean_zero.json", ZERO, "understood", "true"),
        ("dse_megatron_stage3_release_deprecated.json",
         f"{ZERO}.cpu_offload_params", "changed", "deprecated"),
        ("dse_megatron_zero_infinity_nvme.json",
         f"{ZERO}.stage3_param_persistence_threshold", "changed", "persitence"),
        ("neox_autotune_stage_list.json", f"{ZERO}.stage", "changed", "[0, 1, 2, 3]"),
        ("trlx_summarize_stage2_offload_param.json", f"{ZERO}.offload_param", "ignored", "stage 2"),
        ("vila_zero3_mics.json", f"{ZERO}.mics_shard_size", "ignored", "no longer"),
        ("dalio_offload_device_auto.json", f"{ZERO}.offload_optimizer.device", "filled", "none"),
        ("openassistant_rl_quoted_scalars.json", "fp16.enabled", "understood", '"true"'),
        ("deep_optimizer_states_13b_ratio_unknown_keys.json",
         f"{ZERO}.offload_optimizer.prefetch_optimizer_gap", "ignored", "unknown"),
    ],
)  # fmt: skip
def test_what_is_odd_about_a_file_is_in_its_log(name: str, path: str, kind: str, word: str) -> None:
    assert any(change.kind == kind and word in change.text for change in changed(name)[path])
