"""Spaces: the files offtune brings and how a machine narrows them; points drawn from them."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from space_samples import any_facts, facts, points

from offtune.errors import SpaceError
from offtune.knobs import CHANGES_RESULT, KNOBS, PLACEMENTS, Knob, describe, parse_placement, tuned_difference
from offtune.space import Space, load_space, space_names

DEFAULT = load_space("default")


def knob_of(space: Space, name: str) -> Knob:
    return next(knob for knob in space.knobs if knob.name == name)


def names_of(space: Space) -> list[str]:
    return [knob.name for knob in space.knobs]


def said(space: Space, *words: str) -> bool:
    return any(all(word in note for word in words) for note in space.notes)


def test_the_packaged_spaces_are_the_documented_ones() -> None:
    names = ["buckets", "changes-training", "checkpointing", "default", "ladder", "nvme", "partial"]
    assert space_names() == names


@pytest.mark.parametrize("name", space_names())
def test_every_knob_of_a_packaged_space_says_in_one_sentence_what_it_trades(name: str) -> None:
    for knob in load_space(name).knobs:
        assert knob.about.startswith("Trades "), knob.name
        assert knob.about.endswith("."), knob.name
        assert knob.holds(knob.default), knob.name


def test_the_default_space_joins_the_others() -> None:
    parts = [load_space(name) for name in ("ladder", "checkpointing", "partial", "buckets", "nvme")]
    assert set(names_of(DEFAULT)) == {name for part in parts for name in names_of(part)}


def test_only_the_space_that_says_so_changes_the_training_result() -> None:
    assert [name for name in space_names() if load_space(name).changes_result] == ["changes-training"]
    assert CHANGES_RESULT & set(names_of(load_space("changes-training"))) == CHANGES_RESULT
    assert not CHANGES_RESULT & set(names_of(DEFAULT))


def test_every_known_knob_is_in_a_packaged_space() -> None:
    assert {name for space in space_names() for name in names_of(load_space(space))} == set(KNOBS)


def test_only_narrows_a_space_but_not_one_that_includes_it() -> None:
    assert all("nvme" in placement for placement in knob_of(load_space("nvme"), "placement").choices)
    assert knob_of(DEFAULT, "placement").choices == PLACEMENTS


def test_without_an_nvme_path_nothing_of_nvme_is_left_and_that_is_said() -> None:
    fitted = DEFAULT.fit(facts(nvme_dir=None))
    assert not any("nvme" in placement for placement in knob_of(fitted, "placement").choices)
    assert not any(name.startswith(("aio_", "param_buffer", "pipeline_")) for name in names_of(fitted))
    assert "NVMe offload left out: no --nvme-path given." in fitted.notes


def test_a_missing_op_leaves_out_its_placements_with_the_remedy() -> None:
    fitted = DEFAULT.fit(facts(ops=frozenset({"cpu_adam", "fused_adam"})))
    assert said(fitted, "NVMe offload left out", "async_io", "libaio")
    fitted = DEFAULT.fit(facts(ops=frozenset({"fused_adam"})))
    assert knob_of(fitted, "placement").choices == ("zero1", "zero2", "zero3", "zero3 param=cpu")
    assert said(fitted, "Optimizer offload left out", "cpu_adam", "doctor")


def test_a_space_of_which_nothing_can_run_is_refused_with_the_reason() -> None:
    with pytest.raises(SpaceError, match="no --nvme-path given"):
        load_space("nvme").fit(facts(nvme_dir=None))


def test_partial_offload_is_for_gpus_and_adam() -> None:
    assert "resident_sixteenths" in names_of(DEFAULT.fit(facts()))
    for changed in (facts(device="cpu"), facts(optimizer="lion")):
        fitted = DEFAULT.fit(changed)
        assert "resident_sixteenths" not in names_of(fitted)
        assert said(fitted, "Partial offload left out")


def test_partial_offload_exists_only_beside_optimizer_offload_to_cpu_at_stage_3() -> None:
    knob = knob_of(DEFAULT, "resident_sixteenths")
    assert knob.when["placement"] == ("zero3 opt=cpu", "zero3 opt=cpu param=cpu")


def test_micro_batches_that_do_not_divide_the_global_batch_are_left_out() -> None:
    fitted = DEFAULT.fit(facts(global_batch=24, world_size=2))
    assert knob_of(fitted, "micro_batch").values == (1, 2, 4)
    assert said(fitted, "Micro-batch 8, 16, 32, 64 left out")


def test_a_global_batch_that_ranks_cannot_share_is_refused() -> None:
    with pytest.raises(SpaceError, match="global batch of 9 over 2 ranks"):
        DEFAULT.fit(facts(global_batch=9, world_size=2))


def test_round_robin_gradients_need_several_ranks() -> None:
    assert "round_robin_gradients" in names_of(DEFAULT.fit(facts(world_size=2)))
    assert "round_robin_gradients" not in names_of(DEFAULT.fit(facts(world_size=1)))


def test_sizes_end_at_the_model() -> None:
    fitted = DEFAULT.fit(facts())
    assert knob_of(fitted, "reduce_bucket_size").values[-1] == 2**23
    assert knob_of(fitted, "max_reuse_distance").values[0] == 0
    assert knob_of(fitted, "param_buffer_size").values == (2**20,)
    assert said(fitted, "cut to the model", "--dry-run")


def test_a_model_larger_than_deepspeeds_tile_is_not_offered_coarser_ones() -> None:
    fitted = DEFAULT.fit(facts(parameter_numels=(100_000_000,) * 300))
    assert knob_of(fitted, "sub_groups").values == (16, 32, 64)
    assert knob_of(fitted, "sub_groups").default == 16


def test_the_cpu_accelerator_has_no_pinning_and_no_overlap_at_stage_3() -> None:
    fitted = DEFAULT.fit(facts(device="cpu"))
    assert "pin_memory" not in names_of(fitted)
    stages = {parse_placement(text).stage for text in knob_of(fitted, "overlap_comm").when["placement"]}
    assert stages == {1, 2}


@pytest.mark.parametrize("zero", [0, "none"])
def test_of_choices_only_sizes_are_cut_to_the_model(tmp_path: Path, zero: object) -> None:
    path = tmp_path / "own.yaml"
    knob = f"{{about: 'Trades.', choices: [2^30, {zero}, 2^20, 2^2], default: {zero}}}"
    path.write_text(f"about: 'Own.'\nknobs:\n  prefetch_bucket_size: {knob}\n")
    fitted = load_space(str(path)).fit(facts())
    assert knob_of(fitted, "prefetch_bucket_size").choices == (2**30, zero, 2**20, 2**2)
    large = load_space(str(path)).fit(facts(parameter_numels=(2**28, 2**28)))
    assert knob_of(large, "prefetch_bucket_size").choices == (2**30, zero, 2**20)
    assert knob_of(large, "prefetch_bucket_size").default == zero


def test_number_formats_are_searched_only_where_they_exist() -> None:
    space = load_space("changes-training")
    assert set(names_of(space.fit(facts()))) >= CHANGES_RESULT
    assert not CHANGES_RESULT & set(names_of(space.fit(facts(precision="fp32"))))
    assert "bf16_optimizer_states" not in names_of(space.fit(facts(optimizer="lion")))


def test_baselines_climb_the_ladder_as_far_as_the_space_has_it() -> None:
    labels = [label for label, _ in DEFAULT.fit(facts()).baselines()]
    assert labels == [
        "stage 2",
        "stage 2 + optimizer offload",
        "stage 3",
        "stage 3 + optimizer offload",
        "stage 3 + both",
    ]
    assert [label for label, _ in load_space("partial").baselines()] == labels[-2:]
    assert [label for label, _ in load_space("nvme").baselines()] == ["defaults"]


def test_completing_keeps_what_is_given_and_drops_what_is_inactive() -> None:
    point = DEFAULT.complete({"placement": "zero2", "micro_batch": 2, "aio_queue_depth": 16})
    assert point["micro_batch"] == 2
    assert "aio_queue_depth" not in point


@pytest.mark.parametrize("wrong", [{"micro_batch": 3}, {"micro_batches": 2}, {"overlap_comm": 1}])
def test_completing_refuses_unknown_knobs_and_values(wrong: dict[str, Any]) -> None:
    with pytest.raises(SpaceError, match=next(iter(wrong))):
        DEFAULT.complete(wrong)


def test_the_size_counts_every_point_once() -> None:
    for name in ("partial", "ladder"):
        space = load_space(name)
        domains = [knob.values for knob in space.knobs]
        combinations = (
            dict(zip(names_of(space), values, strict=True)) for values in itertools.product(*domains)
        )
        distinct = {tuple(sorted(space.complete(point).items())) for point in combinations}
        assert space.size() == len(distinct)


def test_the_digest_sees_domains_but_not_notes() -> None:
    one, two = DEFAULT.fit(facts()), DEFAULT.fit(facts(nvme_dir=None))
    assert one.digest() == DEFAULT.fit(facts()).digest()
    assert one.digest() != two.digest()
    assert Space(name="x", about="Y.", knobs=one.knobs).digest() == one.digest()


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_points_of_a_fitted_space_obey_its_conditions_and_stay_as_they_are(data: st.DataObject) -> None:
    space = load_space(data.draw(st.sampled_from(["default", "changes-training"])))
    space = space.fit(data.draw(any_facts()))
    point = data.draw(points(space))
    for knob in space.knobs:
        allowed = all(point.get(name) in values for name, values in knob.when.items())
        assert (knob.name in point) == allowed
    assert space.complete(point) == point
    assert {
        name: knob_of(space, name).value(knob_of(space, name).raw(point[name])) for name in point
    } == point


def test_conditions_of_a_fitted_space_name_only_values_that_are_left() -> None:
    fitted = DEFAULT.fit(facts(nvme_dir=None))
    for knob in fitted.knobs:
        for name, values in knob.when.items():
            assert set(values) <= set(knob_of(fitted, name).values), knob.name


@settings(max_examples=30, deadline=None)
@given(any_facts())
def test_fitting_twice_is_fitting_once(machine: Any) -> None:
    fitted = DEFAULT.fit(machine)
    assert fitted.fit(machine).digest() == fitted.digest()


def test_a_point_is_described_in_one_short_line() -> None:
    point = {
        "placement": "zero3 opt=cpu",
        "micro_batch": 4,
        "reduce_bucket_size": 2**22,
        "overlap_comm": False,
    }
    assert (
        describe(point, {**point, "micro_batch": 1, "overlap_comm": True})
        == "zero3 opt=cpu, micro 4, overlap off"
    )
    assert describe(point, {}) == "zero3 opt=cpu, micro 4, bucket 2^22, overlap off"
    assert tuned_difference(point, {**point, "micro_batch": 1}) == {"micro_batch": (4, 1)}


def test_placements_are_parsed_into_stage_and_devices() -> None:
    placement = parse_placement("zero3 opt=nvme param=cpu")
    assert (placement.stage, placement.optimizer, placement.param) == (3, "nvme", "cpu")
    with pytest.raises(SpaceError, match="zero4"):
        parse_placement("zero4")
