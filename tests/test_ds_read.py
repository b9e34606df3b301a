"""Reading any ds_config: each kind of fault by a small file of its own, with the line where it stands."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import hjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from offtune.ds_change import BaseRefused, Draft
from offtune.ds_read import read_draft
from offtune.ds_text import parse
from offtune.errors import ConfigError

DATA = Path(__file__).parent / "data" / "ds_configs"
VERSION = "0.19.8"


def read(name: str, version: str = VERSION) -> Draft:
    return read_draft(DATA / name, version)


def write(folder: Path, text: str) -> Path:
    path = folder / "ds_config.json"
    path.write_text(text, encoding="utf-8")
    return path


def refusals(path: Path, version: str = VERSION) -> list[tuple[int | None, str, str]]:
    """Line, key path and sentence of every reason against a file."""
    with pytest.raises(BaseRefused) as refused:
        read_draft(path, version)
    assert path.name in refused.value.message
    return [(c.line, c.path, c.text) for c in refused.value.changes if c.kind == "refused"]


def has(draft: Draft, kind: str, line: int | None, path: str, *words: str) -> bool:
    return any(
        (change.kind, change.line, change.path) == (kind, line, path)
        and all(word in change.text for word in words)
        for change in draft.changes
    )


def test_comments_of_every_style_are_read_over_and_said_with_their_lines() -> None:
    draft = read("comments.json")
    assert draft.content == {
        "train_batch_size": 8,
        "zero_optimization": {"stage": 2, "overlap_comm": True},
    }
    assert has(draft, "understood", 1, "", "comments", "lines 1, 3, 4, 5, 7")


def test_commas_too_many_or_too_few_are_read_over() -> None:
    draft = read("commas.json")
    assert draft.content["zero_optimization"] == {"stage": 2, "overlap_comm": True}
    assert has(draft, "understood", 5, "", "no comma", "line 5")
    assert has(draft, "understood", 5, "", "trailing commas", "line 5")
    assert has(draft, "understood", 6, "", "commas too many")


@pytest.mark.parametrize(
    ("name", "word", "stage"),
    [("crlf.json", "CR LF", 2), ("bom.json", "byte order mark", 1), ("utf16.json", "UTF-16", 1)],
)
def test_encodings_and_line_ends_of_other_systems_change_nothing(name: str, word: str, stage: int) -> None:
    draft = read(name)
    assert draft.content["zero_optimization"]["stage"] == stage
    assert any(word in change.text and change.line is None for change in draft.changes)


def test_lines_are_counted_the_same_with_crlf() -> None:
    assert has(
        read("crlf.json"), "understood", 5, "zero_optimization.reduce_bucket_size", "2e+08", "200000000"
    )


def test_of_a_key_written_twice_the_last_counts_and_both_lines_are_named() -> None:
    draft = read("duplicates.json")
    assert draft.content["zero_optimization"]["stage"] == 3
    assert has(
        draft, "changed", 6, "zero_optimization.stage", "lines 4 and 6", "2 of line 4 is ignored", "3 counts"
    )
    assert has(draft, "understood", 9, "gradient_clipping", "both say the same")


def test_hjson_without_braces_quotes_and_commas_is_read() -> None:
    draft = read("bare.hjson")
    assert draft.content["optimizer"] == {"type": "AdamW", "params": {"lr": 1e-4, "weight_decay": 0.1}}
    zero = draft.content["zero_optimization"]
    assert zero["offload_optimizer"] == {"device": "cpu", "pin_memory": True}
    assert zero["sub_group_size"] == 1_000_000
    assert has(draft, "understood", 10, "zero_optimization.sub_group_size", "1_000_000")
    assert has(draft, "understood", 9, "", "as Python writes them")


def test_quoted_scalars_and_floats_become_what_their_keys_take() -> None:
    draft = read("quoted.json")
    assert draft.content == {
        "train_batch_size": 16,
        "gradient_clipping": 0.3,
        "bf16": {"enabled": True},
        "zero_optimization": {
            "stage": 3,
            "overlap_comm": True,
            "reduce_bucket_size": 500_000_000,
            "stage3_prefetch_bucket_size": 50_000_000,
            "offload_param": {"device": "cpu"},
        },
    }
    zero = draft.content["zero_optimization"]
    assert isinstance(zero["stage3_prefetch_bucket_size"], int)
    assert has(draft, "understood", 8, "zero_optimization.reduce_bucket_size", '"5e8"', "500000000")
    assert has(draft, "understood", 4, "bf16.enabled", '"True"', "true")


def test_blocks_written_as_a_scalar_become_blocks() -> None:
    draft = read("old_blocks.json")
    assert draft.content == {
        "train_batch_size": 8,
        "zero_optimization": {"stage": 1, "allgather_bucket_size": 200_000},
        "fp16": {"enabled": True},
        "optimizer": {"type": "Adam"},
    }
    assert has(draft, "understood", 4, "zero_optimization", "true", '"stage": 1')
    assert has(draft, "changed", 3, "allgather_size", "allgather_bucket_size")


def test_deprecated_keys_become_what_replaced_them() -> None:
    draft = read("deprecated.json")
    pinned = {"device": "cpu", "pin_memory": False}
    assert draft.content == {
        "bf16": {"enabled": True},
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-4}},
        "gradient_clipping": 0.7,
        "zero_optimization": {
            "stage": 3,
            "offload_optimizer": pinned,
            "offload_param": pinned,
            "stage3_gather_16bit_weights_on_model_save": True,
        },
        "aio": {"intra_op_parallelism": 2},
    }
    assert has(draft, "changed", 9, "zero_optimization.cpu_offload", "offload_optimizer")
    assert has(draft, "changed", 10, "zero_optimization.cpu_offload_params", "offload_param")
    assert has(draft, "changed", 5, "optimizer.params.max_grad_norm", "gradient_clipping")


def test_an_old_flag_beside_the_new_block_gives_way_and_that_is_said(tmp_path: Path) -> None:
    text = '{"zero_optimization": {\n"cpu_offload": true,\n"offload_optimizer": {"device": "nvme"}}}'
    draft = read_draft(write(tmp_path, text), VERSION)
    assert draft.content["zero_optimization"] == {"offload_optimizer": {"device": "nvme"}}
    assert has(draft, "ignored", 2, "zero_optimization.cpu_offload", "is there already")


def test_misspelt_keys_are_read_as_meant_and_asked_about() -> None:
    draft = read("typos.json")
    assert draft.content == {
        "train_batch_size": 8,
        "gradient_accumulation_steps": 2,
        "zero_optimization": {
            "stage": 3,
            "stage3_max_reuse_distance": 100_000_000,
            "offload_optimizer": {"device": "cpu", "pin_memory": False},
        },
        "my_notes": {"run": 7},
    }
    assert has(draft, "changed", 6, "zero_optimization.stage3_max_reuse_distance", "did you mean")
    assert has(draft, "changed", 4, "zero_optimization", "zero_optimisation")
    assert has(draft, "changed", 10, "zero_optimization.offload_optimizer.pin_memory", "pin_memmory")


def test_unknown_keys_are_kept_where_deepspeed_ignores_them_and_left_out_where_it_refuses() -> None:
    draft = read("typos.json")
    assert has(draft, "ignored", 14, "my_notes", "Kept in the export")
    assert has(draft, "ignored", 7, "zero_optimization.stage3_max_live", "left out", "refuses")
    assert has(draft, "ignored", 11, "zero_optimization.offload_optimizer.buffer_size", "5 is left out")


def test_lists_of_alternatives_count_with_their_first_value() -> None:
    draft = read("alternatives.json")
    assert draft.content["train_micro_batch_size_per_gpu"] == 1
    assert draft.content["zero_optimization"] == {"stage": 2, "overlap_comm": False}
    assert has(draft, "changed", 5, "zero_optimization.stage", "[2, 3]", "first")
    assert has(draft, "understood", 6, "zero_optimization.overlap_comm", "a list of one")


def test_unfilled_placeholders_are_refused_each_with_its_line() -> None:
    found = refusals(DATA / "shell_template.json")
    assert [(line, path) for line, path, _ in found] == [
        (2, "train_batch_size"),
        (4, "zero_optimization.stage"),
        (5, "zero_optimization.offload_optimizer.nvme_path"),
    ]
    assert "$GLOBAL_BATCH" in found[0][2]
    assert "${USER}" in found[2][2]
    assert [line for line, _, _ in refusals(DATA / "jinja_template.json")] == [2, 3, 4, 5, 6, 6]


@pytest.mark.parametrize(
    "placeholder",
    [
        *(
            "CONFIG_MBSIZE",
            "${A}",
            "$A",
            "$(A)",
            "{{ a }}",
            "{a}",
            "<a>",
            "%(a)s",
            "%A%",
            "@A@",
            "__A__",
            "???",
        ),
        *("[[a]]", "...", "TODO", "FILL_ME", '"{{a}}"', '"<your batch>"', '"${A}"', '"BATCH_SIZE"'),
    ],
)
def test_placeholders_of_every_template_language_are_known(placeholder: str, tmp_path: Path) -> None:
    lines = ("{", '"zero_optimization": {"stage": 2},', f'"train_batch_size": {placeholder},', '"aio": {}}')
    text = "\n".join(lines)
    found = refusals(write(tmp_path, text))
    assert [(line, path) for line, path, _ in found] == [(3, "train_batch_size")]
    assert "placeholder" in found[0][2]


def test_keys_that_deepspeed_no_longer_has_are_left_out_when_nothing_hangs_on_them() -> None:
    draft = read("removed.json")
    assert draft.content == {"zero_optimization": {"stage": 3}}
    assert has(draft, "ignored", 2, "amp", "it was off")
    assert has(draft, "ignored", 3, "elasticity", "it was off")
    assert has(draft, "ignored", 6, "zero_optimization.mics_shard_size", "trained as usual")


def test_a_removed_feature_in_use_is_refused() -> None:
    [(line, path, text)] = refusals(DATA / "removed_in_use.json")
    assert (line, path) == (3, "progressive_layer_drop")
    assert "older DeepSpeed" in text


def test_a_removed_feature_without_a_switch_counts_as_in_use(tmp_path: Path) -> None:
    text = '{"zero_optimization": {"stage": 2},\n"sparse_attention": {"mode": "fixed"}}'
    [(line, path, _)] = refusals(write(tmp_path, text))
    assert (line, path) == (2, "sparse_attention")
    off = '{"zero_optimization": {"stage": 2}, "compression_training": {"a": {"b": {"enabled": false}}}}'
    assert list(read_draft(write(tmp_path, off), VERSION).content) == ["zero_optimization"]


def test_what_is_removed_depends_on_the_version() -> None:
    draft = read("removed.json", "0.19.6")
    assert draft.content["zero_optimization"] == {"stage": 3, "mics_shard_size": 8}
    assert "progressive_layer_drop" in read("removed_in_use.json", "0.19.6").content


@pytest.mark.parametrize(
    ("text", "line", "word"),
    [
        ('{\n"stage": 3,\n"zero_optimization": {"stage": 2}', 1, "never closed"),
        ('{\n"zero_optimization": {\n"stage": 2\n}}\n}', 5, "goes on after its end"),
        ('{\n"zero_optimization": {"stage": 2},\n"gradient_clipping": \n}', 4, "Not a value"),
        ('{\n"zero_optimization": {"stage": 2},\n"gradient_clipping" 1.0}', 3, "No colon"),
        ('{\n"zero_optimization": {"stage: 2}\n}', 2, "quote"),
        ('{\n/* open\n"zero_optimization": {"stage": 2}}', 2, "never closed"),
        ("", 1, "empty"),
        ("[1, 2]", 1, "one JSON object"),
        ("zero_optimization:\n  stage: 3\n  offload: cpu\n", 1, "YAML"),
        ("compute_environment: LOCAL_MACHINE\ndeepspeed_config:\n  zero_stage: 3\n", 1, "YAML"),
        ("zero_optimization: {stage: 2}\nfp16:\n  enabled: true\n", 3, "Not a value"),
        ('{"zero_optimization": {"stage": 2},\n"${KEY}": 1}', 2, "${KEY}"),
        ('{"a": 1, "b": 2}', None, "no key that DeepSpeed knows"),
        ('{"run": 1,\n"deepspeed": {"zero_optimization": {"stage": 2}}}', 2, "seems to be in here"),
    ],
)
def test_what_cannot_be_read_is_refused_at_the_right_line(
    text: str, line: int | None, word: str, tmp_path: Path
) -> None:
    [(found, _, sentence)] = refusals(write(tmp_path, text))
    assert (found, word in sentence) == (line, True), sentence


@pytest.mark.parametrize(
    ("zero", "path", "word"),
    [
        ('"stage": 4', "zero_optimization.stage", "0 to 3"),
        ('"stage": "two"', "zero_optimization.stage", "not a whole number"),
        ('"reduce_bucket_size": -1', "zero_optimization.reduce_bucket_size", "below 0"),
        ('"overlap_comm": "maybe"', "zero_optimization.overlap_comm", "true or false"),
        ('"offload_optimizer": {"device": "cpi"}', "zero_optimization.offload_optimizer.device", "mean cpu"),
        ('"offload_optimizer": {"ratio": 1.5}', "zero_optimization.offload_optimizer.ratio", "from 0"),
        ('"offload_param": 3', "zero_optimization.offload_param", "block of keys"),
        ('"sub_group_size": 1e999', "zero_optimization.sub_group_size", "too large"),
        ('"sub_group_size": NaN', "zero_optimization.sub_group_size", "not a whole number"),
    ],
)
def test_values_that_mean_nothing_are_refused(zero: str, path: str, word: str, tmp_path: Path) -> None:
    [(line, where, text)] = refusals(write(tmp_path, f'{{\n"zero_optimization": {{\n{zero}\n}}}}'))
    assert (line, where) == (3, path)
    assert word in text


def test_a_missing_file_a_folder_and_bytes_that_are_no_text_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read"):
        read_draft(tmp_path / "none.json", VERSION)
    with pytest.raises(ConfigError, match="cannot be read"):
        read_draft(tmp_path, VERSION)
    (tmp_path / "x.json").write_bytes(b'{\n"zero_optimization": "\xff"}')
    assert refusals(tmp_path / "x.json")[0][0] == 2


NUMBERS = st.integers(-(2**53), 2**53) | st.floats(allow_nan=False, allow_infinity=False)
TEXTS = st.text("abcXYZ _-.:/#'\"\\\n\u00e4{}[],", max_size=12)
JSON = st.recursive(
    st.none() | st.booleans() | NUMBERS | TEXTS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=6), inner, max_size=4),
    max_leaves=20,
)
CONFIGS = st.dictionaries(st.text(max_size=8), JSON, max_size=6)


def without_placeholders(text: str) -> Any:
    """The content, or None where a text in it happens to look like a placeholder."""
    try:
        return parse(text, "x").content
    except BaseRefused as refused:
        reasons = [change.text for change in refused.changes if change.kind == "refused"]
    if not all("placeholder" in reason for reason in reasons):
        pytest.fail(f"{reasons}")
    return None


@given(CONFIGS, st.sampled_from([None, 1, 2, 4]))
def test_any_json_object_reads_back_as_it_is(config: dict[str, Any], indent: int | None) -> None:
    found = without_placeholders(json.dumps(config, indent=indent))
    assert found is None or found == config
    assert found is None or json.dumps(found) == json.dumps(config)


@given(CONFIGS)
def test_comments_commas_and_line_ends_do_not_change_the_meaning(config: dict[str, Any]) -> None:
    lines = json.dumps(config, indent=1).split("\n")
    # A comment after every line, and a comma before every closing bracket.
    for index, line in enumerate(lines[:-1]):
        closes = lines[index + 1].strip().startswith(("}", "]")) and not line.rstrip().endswith(("{", "["))
        lines[index] = line + ("," if closes else "") + "  // remark"
    found = without_placeholders("\n".join(lines))
    assert found is None or found == config


WORDS = st.text("abcdefgh", min_size=1, max_size=6)
SIMPLE = st.dictionaries(WORDS, st.integers() | st.booleans() | WORDS | st.dictionaries(WORDS, st.booleans()))


@given(SIMPLE)
def test_hjson_is_read_as_its_own_library_reads_it(config: dict[str, Any]) -> None:
    text = hjson.dumps(config)
    assert parse(text, "x").content == json.loads(json.dumps(hjson.loads(text)))


@given(st.dictionaries(WORDS, st.dictionaries(WORDS, st.integers(), min_size=1), min_size=1))
def test_every_key_has_the_line_it_stands_in(config: dict[str, dict[str, int]]) -> None:
    text = json.dumps(config, indent=2)
    lines = text.split("\n")
    draft = parse(text, "x")
    for path, line in draft.lines.items():
        assert lines[line - 1].strip().startswith(f'"{path[-1]}":')
    assert len(draft.lines) == sum(1 + len(block) for block in config.values())
