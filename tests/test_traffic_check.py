"""Measured bytes beside the formulas, and counters beside copies."""

import cost_cases
import pytest
from cost_cases import P
from profile_fakes import make_profiled

from offtune.close_look import CloseLook, Copies
from offtune.phase_analysis import Figure, PhaseFigures, StepAnalysis
from offtune.traffic_check import counter_checks, traffic_checks


def analysis(device="cpu", reasons=None, **update_rates):
    """One second of each phase; rates only in the update."""

    def phase(name, rates):
        figures = {key: Figure(mean=rate, peak=rate, samples=9) for key, rate in rates.items()}
        return PhaseFigures(name=name, seconds=1.0, share=1 / 3, figures=figures)

    none = dict.fromkeys(update_rates, 0.0)
    phases = (phase("forward", none), phase("backward", none), phase("update", update_rates))
    return StepAnalysis(steps=1, step_s=3.0, phases=phases, device=device, reasons=reasons or {})


def look_of(phase, direction, moved):
    kind = Copies(phase=phase, direction=direction, memory="pinned", streams=(7,), count=1,
                  moved_bytes=moved, copy_s=1.0, exposed_s=0.0)  # fmt: skip
    return CloseLook(rank=0, steps=1, step_s=3.0, copies=(kind,))


def by_place(checks):
    return {(one.phase, one.path): one for one in checks}


def test_nvme_bytes_are_held_against_16_read_and_12_written():
    work = cost_cases.work(cost_cases.ds_config(**cost_cases.offloaded("nvme", nvme_path="/nvme")))
    read, written = 16.8 * P, 12.0 * P
    measured = analysis(nvme_read_bytes_per_s=read, nvme_write_bytes_per_s=written)
    found = by_place(traffic_checks(work, measured, None))
    assert found["update", "NVMe read"].difference_share == pytest.approx(0.05, abs=1e-3)
    assert found["update", "NVMe write"].difference_share == pytest.approx(0.0, abs=1e-3)
    assert found["backward", "NVMe write"].difference_share == -1.0  # 4 P expected, nothing measured
    assert found["step", "NVMe write"].formula_bytes == pytest.approx(16 * P, rel=1e-3)


def test_what_was_not_measured_is_unknown_with_its_reason_never_zero():
    work = cost_cases.work(cost_cases.ds_config(**cost_cases.offloaded()))
    found = by_place(traffic_checks(work, analysis(), None))
    assert {one.measured_bytes for one in found.values()} == {None}
    assert all(one.reason for one in found.values())
    assert {path for _, path in found} == {"D2H", "H2D"}  # nothing goes to NVMe, so nothing is said of it


def test_the_link_is_held_against_the_copies_of_the_profiler():
    work = cost_cases.work(cost_cases.ds_config(2, **cost_cases.offloaded()))
    found = by_place(traffic_checks(work, analysis("cuda"), look_of("backward", "d2h", 4.1 * P)))
    assert found["backward", "D2H"].difference_share == pytest.approx(0.025, abs=1e-3)
    assert found["update", "H2D"].difference_share == -1.0


def test_without_formulas_the_measured_bytes_stand_alone():
    found = by_place(traffic_checks(None, analysis(nvme_read_bytes_per_s=5.0), None))
    assert found["update", "NVMe read"].measured_bytes == 5.0
    assert found["update", "NVMe read"].formula_bytes is None
    assert found["update", "NVMe read"].difference_share is None


def test_counters_run_above_the_copies():
    found = counter_checks(analysis("cuda", h2d_bytes_per_s=1.15e9), look_of("update", "h2d", 1e9))
    ratios = {(one.phase, one.direction): one.ratio for one in found}
    assert ratios["update", "h2d"] == pytest.approx(1.15)


def test_a_counter_that_is_missing_has_its_reason():
    reasons = {"h2d_bytes_per_s": "a virtual GPU"}
    found = counter_checks(analysis("cuda", reasons), look_of("update", "h2d", 1e9))
    update = next(one for one in found if (one.phase, one.direction) == ("update", "h2d"))
    assert (update.ratio, update.counter_bytes, update.reason) == (None, None, "a virtual GPU")


def test_a_whole_profile_compares_every_path_that_moves():
    found = make_profiled()
    checks = by_place(traffic_checks(found.expected.work, found.result.analysis, found.look))
    assert checks["backward", "D2H"].formula_bytes == pytest.approx((8 * 2 + 4) * P, rel=1e-3)
    assert checks["backward", "D2H"].measured_bytes == 1_000_000
