"""Hardware profiles: packaged ones are whole and sourced, files of one's own fail with a remedy."""

from pathlib import Path

import pytest

from offtune import hardware_profile
from offtune.errors import UsageError

EXPECTED = {
    "a100-40gb",
    "a100-80gb",
    "h100-80gb",
    "h200",
    "rtx4090",
    "rtx3090",
    "l4",
    "a10g",
    "v100-32gb",
    "gh200",
}


def write(folder: Path, text: str, name: str = "mine.yaml") -> str:
    path = folder / name
    path.write_text(text)
    return str(path)


def test_the_promised_machines_are_packaged():
    assert set(hardware_profile.names()) >= EXPECTED


@pytest.mark.parametrize("name", hardware_profile.names())
def test_every_packaged_number_has_a_source_and_a_plausible_size(name):
    found = hardware_profile.load(name)
    assert found.name == name and found.about
    wanted = {*hardware_profile.NUMBERS, *(f"matrix_{p}" for p in found.matrix_flops_per_s)}
    assert set(found.sources) == wanted
    assert all(len(source) > 10 for source in found.sources.values())
    assert 0 < found.matrix_efficiency <= 1 and 0 < found.attention_efficiency <= 1
    assert found.pageable_d2h_bytes_per_s <= found.d2h_bytes_per_s
    assert found.device_memory_bytes > found.context_bytes


def test_a_profile_takes_over_what_it_does_not_say_and_says_from_where():
    h200, h100 = hardware_profile.load("h200"), hardware_profile.load("h100-80gb")
    assert h200.adam_elements_per_s == h100.adam_elements_per_s
    assert h200.device_bytes_per_s > h100.device_bytes_per_s
    assert h200.sources["adam_elements_per_s"].startswith("as h100-80gb: ")
    assert h100.is_own("adam_elements_per_s") and not h200.is_own("adam_elements_per_s")


def test_a_number_taken_over_twice_names_the_machine_it_is_of():
    assert hardware_profile.load("rtx3090").sources["h2d_bytes_per_s"].startswith("as rtx4090: ")
    assert hardware_profile.load("rtx3090").sources["duplex_share"].startswith("as a100-40gb: ")


def test_ones_own_file_may_build_on_a_packaged_one(tmp_path):
    text = "like: h100-80gb\nabout: ours\nnumbers:\n  h2d_bytes_per_s: {value: 4e10, source: measured}\n"
    found = hardware_profile.load(write(tmp_path, text))
    assert (found.name, found.h2d_bytes_per_s, found.gpus_per_node) == ("mine", 4e10, 4)


def test_an_unknown_name_is_refused_with_the_nearest_ones():
    with pytest.raises(UsageError) as caught:
        hardware_profile.load("a100-41gb")
    assert "a100-40gb" in caught.value.hint


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("- 1\n", "not a hardware profile"),
        ("numbers: [1\n", "not YAML"),
        ("numbers: 3\n", "'numbers' is not a mapping"),
        ("colour: red\n", "unknown key 'colour'"),
        (
            "like: h100-80gb\nnumbers:\n  h2d_byte_per_s: {value: 1, source: x}\n",
            "unknown key 'h2d_byte_per_s'",
        ),
        ("like: h100-80gb\nnumbers:\n  h2d_bytes_per_s: 5e10\n", "does not say both value and source"),
        (
            "like: h100-80gb\nnumbers:\n  h2d_bytes_per_s: {value: 5e10, source: ' '}\n",
            "both value and source",
        ),
        (
            "like: h100-80gb\nnumbers:\n  h2d_bytes_per_s: {value: fast, source: x}\n",
            "is fast, which is no amount",
        ),
        (
            "like: h100-80gb\nnumbers:\n  h2d_bytes_per_s: {value: -1, source: x}\n",
            "is -1, which is no amount",
        ),
        ("like: h100-80gb\nnumbers:\n  h2d_bytes_per_s: {value: true, source: x}\n", "which is no amount"),
        ("like: h100-80gb\ndevice: tpu\n", "device 'tpu' is not known"),
        ("like: mine.yaml\n", "like itself"),
        ("like: nothing-such\n", "no hardware profile 'nothing-such'"),
        ("numbers:\n  h2d_bytes_per_s: {value: 5e10, source: x}\n", "no matrix_efficiency"),
    ],
)
def test_a_wrong_file_is_refused_in_words(tmp_path, text, said):
    with pytest.raises(UsageError, match=said) as caught:
        hardware_profile.load(write(tmp_path, text))
    assert caught.value.hint


def test_a_circle_of_files_is_refused(tmp_path):
    write(tmp_path, "like: two.yaml\n", "one.yaml")
    write(tmp_path, "like: one.yaml\n", "two.yaml")
    with pytest.raises(UsageError, match="like itself"):
        hardware_profile.load(str(tmp_path / "one.yaml"))


@pytest.mark.parametrize(
    ("text", "name"),
    [("RTX 4090", "rtx4090"), ("rtx-4090", "rtx4090"), ("h100", "h100-80gb"), ("A100_80GB", "a100-80gb")],
)
def test_a_packaged_profile_is_found_however_its_name_is_written(text, name):
    assert hardware_profile.load(text).name == name


def test_a_name_that_could_be_two_is_refused_with_both():
    with pytest.raises(UsageError) as caught:
        hardware_profile.load("a100")
    assert "a100-40gb" in caught.value.hint and "a100-80gb" in caught.value.hint
