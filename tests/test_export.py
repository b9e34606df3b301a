"""Exported text and the file it goes into."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from report_fakes import DS_CONFIG, make_run, make_study

from offtune.errors import ConfigError, OfftuneError, UsageError
from offtune.export import deepspeed_text, portable, provenance, write_export

SCALARS = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text("xyz")
)
TREES = st.recursive(
    SCALARS, lambda inner: st.lists(inner) | st.dictionaries(st.text("abc"), inner), max_leaves=12
)


def nvme_config() -> dict[str, Any]:
    offload = {"device": "nvme", "nvme_path": "/scratch/trial-7", "buffer_count": 4}
    return {
        "zero_optimization": {"stage": 3, "offload_optimizer": offload, "offload_param": {"device": "cpu"}}
    }


def test_text_reads_back_as_the_same_configuration() -> None:
    assert json.loads(deepspeed_text(DS_CONFIG)) == DS_CONFIG


@given(st.dictionaries(st.text("abc"), TREES))
def test_text_is_strict_json_for_any_plain_values(tree: dict[str, Any]) -> None:
    assert json.loads(deepspeed_text(tree), parse_constant=pytest.fail) == tree


def test_key_order_does_not_depend_on_the_order_of_insertion() -> None:
    backwards = dict(reversed(DS_CONFIG.items()))
    assert deepspeed_text(backwards) == deepspeed_text(DS_CONFIG)
    assert list(json.loads(deepspeed_text(backwards)))[:2] == [
        "train_batch_size",
        "train_micro_batch_size_per_gpu",
    ]


def test_whole_numbers_become_integers_where_deepspeed_wants_them() -> None:
    text = deepspeed_text(
        {"zero_optimization": {"reduce_bucket_size": 5e8, "offload_optimizer": {"ratio": 1.0}}}
    )
    assert '"reduce_bucket_size": 500000000' in text
    assert '"ratio": 1.0' in text


@pytest.mark.parametrize(
    ("value", "key"),
    [
        ({"train_batch_size": "auto"}, "train_batch_size"),
        ({"zero_optimization": {"reduce_bucket_size": "auto"}}, "zero_optimization.reduce_bucket_size"),
        ({"aio": {"queue_depth": 1.5}}, "aio.queue_depth"),
        ({"gradient_clipping": float("nan")}, "gradient_clipping"),
    ],
)
def test_a_value_deepspeed_does_not_have_is_refused_by_its_key(value: dict[str, Any], key: str) -> None:
    with pytest.raises(ConfigError) as caught:
        deepspeed_text(value)
    assert caught.value.message.startswith(f"{key}:")


def test_the_swap_folder_of_the_trial_becomes_that_of_the_person() -> None:
    original = nvme_config()
    exported = portable(original, "/mnt/nvme")
    assert exported["zero_optimization"]["offload_optimizer"]["nvme_path"] == "/mnt/nvme"
    assert "nvme_path" not in exported["zero_optimization"]["offload_param"]
    assert original == nvme_config()


def test_a_swapping_configuration_without_a_folder_is_refused() -> None:
    with pytest.raises(OfftuneError, match="NVMe"):
        portable(nvme_config(), None)


def test_a_configuration_without_zero_stays_as_it_is() -> None:
    assert portable({"train_batch_size": 8}, None) == {"train_batch_size": 8}


def test_provenance_is_strict_json_with_null_for_unknown() -> None:
    known = provenance(make_study(), make_run(3, samples_per_s=10.0, used_gb=30))
    assert (known["trial"], known["samples_per_s"], known["used_device_bytes"]) == (3, 10.0, 30 * 10**9)
    unknown = provenance(make_study(), make_run(4, None))
    assert unknown["samples_per_s"] is None
    assert json.loads(json.dumps(unknown, allow_nan=False)) == unknown


def test_an_existing_file_is_kept_unless_forced(tmp_path: Path) -> None:
    target = tmp_path / "ds_config.json"
    target.write_text("mine")
    with pytest.raises(UsageError) as caught:
        write_export("{}", target)
    assert "--force" in caught.value.hint
    assert target.read_text() == "mine"
    write_export("{}", target, force=True)
    assert target.read_text() == "{}"
    assert [file.name for file in tmp_path.iterdir()] == ["ds_config.json"]


def test_a_symbolic_link_stays_one(tmp_path: Path) -> None:
    real, link = tmp_path / "real.json", tmp_path / "link.json"
    real.write_text("old")
    link.symlink_to(real)
    write_export("new", link, force=True)
    assert link.is_symlink()
    assert real.read_text() == "new"


@pytest.mark.parametrize("where", ["missing/ds_config.json", "file/ds_config.json"])
def test_a_path_that_cannot_be_written_is_said(tmp_path: Path, where: str) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(OfftuneError, match="cannot be written") as caught:
        write_export("{}", tmp_path / where)
    assert "-o" in caught.value.hint


@pytest.mark.parametrize("where", ["/dev/null", "."])
def test_what_is_no_ordinary_file_is_never_replaced(where: str) -> None:
    with pytest.raises(UsageError, match="is not a file"):
        write_export("{}", Path(where), force=True)


def test_a_failed_write_leaves_the_old_file_and_no_draft(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = tmp_path / "ds_config.json"
    target.write_text("old")

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OfftuneError, match="No space left"):
        write_export("new", target, force=True)
    assert [file.name for file in tmp_path.iterdir()] == ["ds_config.json"]
    assert target.read_text() == "old"
