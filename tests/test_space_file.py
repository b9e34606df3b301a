"""Space files: what a person may write, and what each mistake is answered with."""

from __future__ import annotations

from pathlib import Path

import pytest

from offtune.errors import SpaceError
from offtune.space import Space, load_space

KNOB = """
about: "A space of one's own."
knobs:
  micro_batch:
    about: "Trades memory against time."
    pow2: {low: 1, high: 2^4}
    default: 4
"""
MORE = """
  sub_groups:
    about: "Trades this against that."
    choices: [1, 16]
    default: 1
"""


def write(folder: Path, text: str, name: str = "own.yaml") -> str:
    path = folder / name
    path.write_text(text)
    return str(path)


def refusal(folder: Path, text: str) -> str:
    with pytest.raises(SpaceError) as caught:
        load_space(write(folder, text))
    assert caught.value.hint, "an error without a remedy"
    assert "own.yaml" in caught.value.message
    return f"{caught.value.message} {caught.value.hint}"


def test_a_space_of_ones_own_is_found_by_path(tmp_path: Path) -> None:
    space = load_space(write(tmp_path, KNOB))
    assert isinstance(space, Space)
    assert space.name == "own"
    assert space.knobs[0].values == (1, 2, 4, 8, 16)


def test_a_space_of_ones_own_may_include_packaged_ones_and_neighbours(tmp_path: Path) -> None:
    write(tmp_path, 'about: "Near."\ninclude: [partial]\n', "near.yaml")
    space = load_space(write(tmp_path, 'about: "Own."\ninclude: [near.yaml, ladder]\n'))
    assert [knob.name for knob in space.knobs][:2] == ["placement", "micro_batch"]


def test_an_unknown_space_is_answered_with_the_nearest_name() -> None:
    with pytest.raises(SpaceError, match="no space 'laddr'") as caught:
        load_space("laddr")
    assert "Did you mean 'ladder'?" in caught.value.hint


def test_zero_is_one_more_value_below_a_range_of_powers(tmp_path: Path) -> None:
    text = KNOB.replace("{low: 1, high: 2^4}", "{low: 4, high: 16, zero: true}")
    knob = load_space(write(tmp_path, text)).knobs[0]
    assert knob.values == (0, 4, 8, 16)
    assert [knob.raw(value) for value in knob.values] == [1, 2, 3, 4]
    assert knob.domain == "[0, 4..16]"


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("default: 4", "default: 4\n   when: {}", "line 8"),
        ("default: 4", "default: [4", "line 8"),
        ("default: 4", "default: 4\n    default: 8", "'default' is written twice"),
        ("default: 4", "", "no default"),
        ("default: 4", "default: 3", "not in [1..16]"),
        ("default: 4", "default: 4\n    whem: {}", "unknown key 'whem'. Did you mean 'when'?"),
        ("default: 4", "default: 4\n    when: {placement: zero3}", "'placement' comes later"),
        ("default: 4", "default: 4\n    when: {colour: red}", "'colour' is no knob"),
        ("default: 4", "default: 4\n    int: {low: 1, high: 2}", "2 domains"),
        ("micro_batch:", "micro_batches:", "unknown knob 'micro_batches'. Did you mean 'micro_batch'?"),
        ("knobs:", "nobs:", "unknown key 'nobs'. Did you mean 'knobs'?"),
        ('about: "Trades memory against time."', "", "about: missing"),
        ("high: 2^4", "high: 12", "12 is not a power of two. The nearest below is 8"),
        ("high: 2^4", "high: 1e6", "'1e6' is not a whole number"),
        ("low: 1", "low: 32", "low 32, high 16"),
        ("high: 2^4", "hihg: 16", "unknown key 'hihg'. Did you mean 'high'?"),
        ("pow2: {low: 1, high: 2^4}", "pow2: 7", "7 is not a block of keys"),
        ("pow2: {low: 1, high: 2^4}", "int: {low: 0, high: 4, step: 3}", "does not lead from 0 to 4"),
        ("pow2: {low: 1, high: 2^4}", "int: {low: 0, high: 1000000000}", "more than 10000 values"),
        ("pow2: {low: 1, high: 2^4}", "choices: []", "not a list of values"),
        ("pow2: {low: 1, high: 2^4}", "choices: [4, 4]", "twice"),
        ("knobs:", "include: [default]\nknobs:", "in an included space already"),
        ("knobs:", "include: ladder\nknobs:", "not a list of names"),
        ("knobs:", "include: [changes-training]\nknobs:", "changes the training result"),
        ("knobs:", "include: [own.yaml]\nknobs:", "includes itself"),
        ("knobs:", "changes_result: perhaps\nknobs:", "not true or false"),
        ("knobs:", "only: {micro_batch: [4]}\nknobs:", "is a range"),
        ("knobs:", "only: {placement: [zero3]}\nknobs:", "unknown knob 'placement'"),
    ],
)
def test_a_mistake_is_named_with_file_key_and_remedy(tmp_path: Path, old: str, new: str, said: str) -> None:
    assert old in KNOB
    assert said in refusal(tmp_path, KNOB.replace(old, new, 1))


def test_a_condition_on_a_value_that_does_not_exist_is_refused(tmp_path: Path) -> None:
    text = KNOB + MORE + "    when: {micro_batch: [3]}\n"
    assert "3 is no value of micro_batch" in refusal(tmp_path, text)


def test_an_unknown_placement_is_refused_with_the_nearest(tmp_path: Path) -> None:
    text = KNOB.replace("micro_batch:", "placement:").replace(
        "pow2: {low: 1, high: 2^4}", "choices: [zero3 opt=gpu]"
    )
    assert "unknown placement 'zero3 opt=gpu'. Did you mean 'zero3 opt=cpu'?" in refusal(tmp_path, text)


def test_a_knob_that_changes_the_result_needs_a_space_that_says_so(tmp_path: Path) -> None:
    text = KNOB + MORE.replace("sub_groups", "grad_accum_dtype").replace("[1, 16]", "[model, fp32]")
    text = text.replace("default: 1", "default: model")
    assert "changes_result: true" in refusal(tmp_path, text)
    assert load_space(write(tmp_path, "changes_result: true\n" + text)).changes_result


def test_a_file_that_is_no_mapping_is_refused(tmp_path: Path) -> None:
    assert "not a space" in refusal(tmp_path, "- placement\n")
    assert "no knobs" in refusal(tmp_path, 'about: "Nothing."\n')
