"""What bounds a phase: one made-up phase for each answer, and "not known" when the evidence is thin."""

from __future__ import annotations

from dataclasses import replace

import pytest
from timeline_fakes import make_timeline

from offtune import hardware_profile
from offtune.bound_knobs import KNOBS_FOR
from offtune.bound_peaks import machine_peaks
from offtune.bounds import Peaks, PhaseBound, StepBound, bound
from offtune.calibrated_machine import NAME
from offtune.config import Options, resolve
from offtune.hardware import Machine
from offtune.knobs import KNOBS
from offtune.phase_analysis import Figure, PhaseFigures, StepAnalysis, analyse
from offtune.report.bounds_page import evidence, step_sentences

PEAKS = Peaks(
    h2d_bytes_per_s=25e9, d2h_bytes_per_s=25e9, nvme_read_bytes_per_s=6e9, nvme_write_bytes_per_s=4e9,
    host_memory_bytes_per_s=200e9,
)  # fmt: skip
IDLE = {"gpu_busy_share": 0.1, "h2d_bytes_per_s": 0.0, "d2h_bytes_per_s": 0.0, "cpu_busy_share": 0.0}


def one_phase(
    name: str = "backward", *, parts: dict[str, float] | None = None, samples: int = 50, device: str = "cuda",
    cores: int | None = 16, **means: float,
) -> StepAnalysis:  # fmt: skip
    figures = {key: Figure(mean=mean, peak=mean, samples=samples) for key, mean in means.items()}
    return StepAnalysis(
        steps=3,
        step_s=2.0,
        phases=(PhaseFigures(name=name, seconds=2.0, share=1.0, figures=figures),),
        parts=tuple(
            PhaseFigures(name=f"{name}.{part}", seconds=seconds, share=seconds / 2)
            for part, seconds in (parts or {}).items()
        ),
        device=device,  # type: ignore[arg-type]
        cores=cores,
    )


def only(analysis: StepAnalysis, peaks: Peaks | None = PEAKS) -> PhaseBound:
    return bound(analysis, peaks).phases[0]


@pytest.mark.parametrize(
    ("resource", "means"),
    [
        ("GPU compute", {"gpu_busy_share": 0.9}),
        ("H2D", {"h2d_bytes_per_s": 20e9}),
        ("D2H", {"d2h_bytes_per_s": 20e9}),
        ("NVMe read", {"nvme_read_bytes_per_s": 5e9}),
        ("NVMe write", {"nvme_write_bytes_per_s": 3.5e9}),
        ("host memory bandwidth", {"host_memory_bytes_per_s": 150e9}),
        ("Python/launch overhead", {"cpu_busy_share": 1 / 16}),
        ("waiting", {"cpu_busy_share": 0.2 / 16}),
    ],
)
def test_the_busiest_resource_bounds_the_phase(resource: str, means: dict[str, float]) -> None:
    assert only(one_phase(**{**IDLE, **means})).resource == resource


@pytest.mark.parametrize(
    ("resource", "name", "parts"),
    [
        ("CPU optimizer", "update", {"cpu_optimizer": 1.5}),
        ("collective", "backward", {"collective": 1.2}),
        ("waiting", "backward", {"wait": 1.8}),
    ],
)
def test_a_timed_part_bounds_the_phase_it_fills(resource: str, name: str, parts: dict[str, float]) -> None:
    assert only(one_phase(name, parts=parts, **IDLE)).resource == resource


def test_many_busy_cores_in_the_update_are_the_cpu_optimizer_and_elsewhere_nobody_knows() -> None:
    busy = {**IDLE, "cpu_busy_share": 0.4}
    assert only(one_phase("update", **busy)).resource == "CPU optimizer"
    assert only(one_phase("backward", **busy)).resource == "not known"


def test_on_the_cpu_accelerator_the_cores_compute() -> None:
    assert only(one_phase("forward", device="cpu", cpu_busy_share=0.97)).resource == "CPU compute"
    assert only(one_phase("update", device="cpu", cpu_busy_share=0.97)).resource == "CPU optimizer"
    assert only(one_phase("forward", device="cpu", cpu_busy_share=0.01)).resource == "waiting"


@pytest.mark.parametrize("missing", sorted(IDLE))
def test_nothing_busy_is_not_known_while_something_was_not_measured(missing: str) -> None:
    found = only(one_phase(**{key: value for key, value in IDLE.items() if key != missing}))
    assert (found.resource, found.free_s) == ("not known", None)
    assert found.missing
    assert "not known: " in evidence(found)


def test_a_link_without_a_known_peak_is_not_known() -> None:
    found = only(one_phase(**{**IDLE, "d2h_bytes_per_s": 24e9}), None)
    assert found.resource == "not known"
    assert "the link's peak" in found.missing


def test_two_samples_are_thin_evidence() -> None:
    found = only(one_phase(samples=2, **{**IDLE, "gpu_busy_share": 1.0}))
    assert (found.resource, found.uses) == ("not known", ())


def test_without_its_resource_a_phase_shrinks_to_the_rest_or_to_the_next_resource() -> None:
    assert only(one_phase(**{**IDLE, "gpu_busy_share": 0.9})).free_s == pytest.approx(0.2)
    next_one = {**IDLE, "gpu_busy_share": 0.9, "d2h_bytes_per_s": 0.8 * 25e9}
    assert only(one_phase(**next_one)).free_s == pytest.approx(1.6)
    assert only(one_phase(**{**IDLE, "cpu_busy_share": 0.0})).free_s == pytest.approx(0.2)


def test_the_unused_time_lies_between_no_overlap_and_full_overlap() -> None:
    found = bound(one_phase(**{**IDLE, "gpu_busy_share": 0.5, "d2h_bytes_per_s": 0.25 * 25e9}), PEAKS)
    assert (found.unused_low_s, found.unused_high_s) == (pytest.approx(0.5), pytest.approx(1.0))
    assert "busy for 500 ms to 1.00 s" in step_sentences(found)[0]
    nothing = bound(one_phase(), PEAKS)
    assert (nothing.unused_low_s, nothing.unused_high_s) == (None, None)


def test_the_knobs_exist_act_on_the_slowest_and_are_those_of_the_point() -> None:
    assert {name for names in KNOBS_FOR.values() for name in names} <= set(KNOBS)
    busy = {**IDLE, "d2h_bytes_per_s": 24e9}
    assert bound(one_phase(**busy), PEAKS).knobs == ("resident_sixteenths", "micro_batch")
    assert bound(one_phase(**busy), PEAKS, {"micro_batch": 4}).knobs == ("micro_batch",)


def test_a_file_without_knobs_hears_of_all_and_a_search_without_a_fitting_one_is_told_so() -> None:
    found = one_phase("update", device="cpu", cpu_busy_share=0.9)
    assert bound(found, PEAKS, {}).knobs == bound(found, PEAKS).knobs == KNOBS_FOR["update", "CPU optimizer"]
    other = bound(found, PEAKS, {"pin_memory": True})
    assert other.knobs == () and step_sentences(other)[-1] == "No knob that can be turned here acts on it."


def test_every_phase_of_a_recording_gets_an_answer_with_evidence() -> None:
    analysis = analyse(make_timeline())
    assert analysis is not None
    found: StepBound = bound(analysis, PEAKS)
    assert [(one.phase, one.resource) for one in found.phases[:3]] == [
        ("forward", "GPU compute"), ("backward", "GPU compute"), ("update", "CPU optimizer"),
    ]  # fmt: skip
    assert "D2H 48 % (12.0 GB/s of 25.0 GB/s)" in evidence(found.phases[1])
    assert "15.2 CPU cores" in evidence(found.phases[2])


def test_a_resource_known_by_its_rate_and_by_a_part_counts_once_with_the_larger_share() -> None:
    found = only(one_phase("update", parts={"nvme_read": 1.6}, **{**IDLE, "nvme_read_bytes_per_s": 3e9}))
    reads = [use for use in found.uses if use.resource == "NVMe read"]
    assert [use.share for use in reads] == [pytest.approx(0.8)]
    assert found.resource == "NVMe read"


@pytest.mark.parametrize(
    ("device", "calibrated", "known"),
    [
        ("cuda", True, {"h2d_bytes_per_s", "d2h_bytes_per_s"}),
        ("cuda", False, {"h2d_bytes_per_s", "d2h_bytes_per_s"}),
        ("cpu", True, {"nvme_read_bytes_per_s", "nvme_write_bytes_per_s"}),
        ("cpu", False, set()),
    ],
)
def test_only_the_machines_own_numbers_are_peaks(device: str, calibrated: bool, known: set[str]) -> None:
    machine = Machine(cpu_model="p", cores=4, memory_bytes=10**11, gpus=(), driver_version=None,
                      hostname="h", boot_id="b")  # fmt: skip
    config = replace(resolve(Options(budget="4GB", device="cpu", gpus=2), machine), device=device)
    profile = hardware_profile.load("a100-40gb" if device == "cuda" else "cpu")
    profile = replace(profile, name=NAME) if calibrated else profile
    peaks = machine_peaks(profile, config)
    found = {name for name in Peaks.__dataclass_fields__ if getattr(peaks, name) is not None}
    assert known <= found
    assert calibrated or found == known
    if device == "cpu" and calibrated:  # two ranks share what the node has
        assert peaks.nvme_read_bytes_per_s == profile.nvme_read_bytes_per_s / 2
