"""Somebody else's trace: phases where memory says they are, and the published averages of the public ones."""

from __future__ import annotations

from pathlib import Path

import pytest

from offtune.errors import UsageError
from offtune.nvml_trace import MIB, place_phases, read_trace, steady_steps
from offtune.phase_analysis import PhaseFigures, StepAnalysis, analyse, combined

TRACES = Path(__file__).parent.parent / ".." / "shared" / "traces"
GIB = 2**30
START_NS = 1_700_000_000_000_000_000
POLL_MS = 40
# phase, ms, D2H and H2D in MiB/s, memory in GiB; the gaps before each phase are 100 ms of silence
PHASES = (("forward", 400, 0, 10, 26), ("backward", 2000, 6000, 2700, 31), ("step", 1200, 300, 3000, 24))
GAP_MS = 100


def write_trace(folder: Path, iterations: int = 6, devices: int = 2) -> tuple[Path, Path]:
    """A trace by the rules of the public ones: samples by poll and device, phases only as durations."""
    rows, ends, now_ms = [], [], 0
    for _ in range(iterations):
        for _, length_ms, d2h, h2d, memory in PHASES:
            stretch = [(0, 0, 24)] * (GAP_MS // POLL_MS) + [(d2h, h2d, memory)] * (length_ms // POLL_MS)
            now_ms += GAP_MS % POLL_MS  # the poller is late once
            for sample in stretch:
                now_ms += POLL_MS
                rows += [(device, now_ms, *sample) for device in range(devices)]
        ends.append(now_ms)
    nvml, phases = folder / "own_nvml.csv", folder / "own_phases.csv"
    nvml.write_text(
        "device_id,timestamp,txpci,rxpci,gpu_util,mem_util,mem_used,mem_free\n"
        + "".join(
            f"{device},{START_NS + ms * 10**6},{d2h}.0,{h2d}.0,50,0,{memory * GIB},0\n"
            for device, ms, d2h, h2d, memory in rows
        )
    )
    whole_ms = sum(length for _, length, *_ in PHASES) + 3 * GAP_MS
    phases.write_text(
        "end_of_step_unix_ns,forward_ms,backward_ms,step_ms,iteration_ms\n"
        + "".join(f"{START_NS + end * 10**6},400,2000,1200,{whole_ms}\n" for end in ends)
    )
    return nvml, phases


def analysed(nvml: Path, phases: Path) -> StepAnalysis:
    timelines = read_trace(nvml, phases)
    found = combined([one for line in timelines if (one := analyse(line, steady_steps(line)))])
    assert found is not None
    return found


@pytest.mark.parametrize("phase", PHASES)
def test_a_trace_of_known_figures_gives_them_back(
    tmp_path: Path, phase: tuple[str, int, int, int, int]
) -> None:
    name, length_ms, d2h, h2d, memory = phase
    found = analysed(*write_trace(tmp_path)).find("update" if name == "step" else name)
    assert found is not None
    assert found.seconds == pytest.approx(length_ms / 1000, rel=0.01)
    assert found.mean("d2h_bytes_per_s") == pytest.approx(d2h * MIB, rel=0.03)
    assert found.mean("h2d_bytes_per_s") == pytest.approx(h2d * MIB, rel=0.03)
    assert found.peak("device_used_bytes") == memory * GIB


def test_every_device_has_its_timeline_and_the_steady_iterations_are_chosen(tmp_path: Path) -> None:
    timelines = read_trace(*write_trace(tmp_path, iterations=8, devices=3))
    assert [line.rank for line in timelines] == [0, 1, 2]
    assert steady_steps(timelines[0]) == (4, 5, 6, 7)
    assert "cpu_busy_share" in timelines[0].reasons


def test_the_time_of_no_phase_is_split_before_each_and_the_update_ends_the_iteration() -> None:
    rows = [
        {"end_of_step_unix_ns": end * 1e9, "forward_ms": 400.0, "backward_ms": 2000.0, "step_ms": 1200.0,
         "iteration_ms": 3900.0}
        for end in (10.0, 13.9)
    ]  # fmt: skip
    marks = {mark.name: mark for mark in place_phases(rows, 0.0) if mark.step == 2}
    assert (marks["step"].start_s, marks["step"].end_s) == (pytest.approx(10.0), pytest.approx(13.9))
    assert (marks["forward"].start_s, marks["forward"].end_s) == (pytest.approx(10.1), pytest.approx(10.5))
    assert (marks["backward"].start_s, marks["backward"].end_s) == (pytest.approx(10.6), pytest.approx(12.6))
    assert (marks["update"].start_s, marks["update"].end_s) == (pytest.approx(12.7), pytest.approx(13.9))


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (lambda text: text.replace("txpci", "tx"), "no column txpci"),
        (lambda text: text.splitlines()[0] + "\n", "no rows"),
        (lambda text: text.replace(",50,", ",much,", 1), "much"),
    ],
)
def test_a_file_that_is_no_trace_is_refused_with_what_it_lacks(tmp_path: Path, spoil, words: str) -> None:
    nvml, phases = write_trace(tmp_path)
    nvml.write_text(spoil(nvml.read_text()))
    with pytest.raises(UsageError, match=words):
        read_trace(nvml, phases)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="nowhere"):
        read_trace(tmp_path / "nowhere.csv", tmp_path / "nothing.csv")


# The published averages of iterations 4 to n-1: D2H and H2D mean, D2H and H2D peak in GiB/s, GPU busy in %,
# memory peak in GiB.
PUBLISHED = {
    ("13B_ratio1", "forward"): (0.003, 0.012, 0.008, 0.015, 50.6, 26.842),
    ("13B_ratio1", "backward"): (5.752, 2.725, 23.809, 26.067, 47.7, 31.504),
    ("13B_ratio1", "update"): (0.338, 3.027, 2.051, 18.262, 15.2, 24.688),
    ("20B_ratio0.5", "forward"): (0.195, 1.681, 0.985, 8.908, 77.7, 49.330),
    ("20B_ratio0.5", "backward"): (4.963, 3.891, 19.898, 23.409, 42.3, 55.281),
    ("20B_ratio0.5", "update"): (0.294, 3.273, 0.998, 11.677, 16.0, 45.209),
}
# One poll more or less at either end is 0.5 % of the 13B backward, 7 % of the 20B update, 20 % of a forward.
MEAN_TOLERANCE = {"13B_ratio1": 0.02, "20B_ratio0.5": 0.07}
FORWARD_TOLERANCE = 0.2
# Utilisation is refreshed every fifth poll, 0.2 s; a forward takes 0.2 to 0.4 s.
BUSY_TOLERANCE_POINTS = {"forward": 6.0, "backward": 1.0, "update": 1.0}


def figures(phase: PhaseFigures) -> tuple[float, ...]:
    d2h, h2d = phase.figures["d2h_bytes_per_s"], phase.figures["h2d_bytes_per_s"]
    rates = tuple(value / GIB for value in (d2h.mean, h2d.mean, d2h.peak, h2d.peak))
    return (*rates, 100 * phase.figures["gpu_busy_share"].mean, phase.figures["device_used_bytes"].peak / GIB)


@pytest.mark.skipif(
    not TRACES.is_dir(), reason="the public traces are not beside the checkout (../shared/traces)"
)
@pytest.mark.parametrize(("run", "name"), sorted(PUBLISHED))
def test_the_public_traces_agree_with_the_published_averages(run: str, name: str) -> None:
    phase = analysed(TRACES / f"{run}_nvml.csv", TRACES / f"{run}_phases.csv").find(name)
    assert phase is not None
    ours, published = figures(phase), PUBLISHED[run, name]
    tolerance = FORWARD_TOLERANCE if name == "forward" else MEAN_TOLERANCE[run]
    assert ours[:2] == pytest.approx(published[:2], rel=tolerance, abs=0.01)
    assert ours[2:4] == pytest.approx(published[2:4], rel=0.08 if name == "forward" else 1e-3)
    assert ours[4] == pytest.approx(published[4], abs=BUSY_TOLERANCE_POINTS[name])
    assert ours[5] == pytest.approx(published[5], abs=0.001)


@pytest.mark.skipif(
    not TRACES.is_dir(), reason="the public traces are not beside the checkout (../shared/traces)"
)
def test_the_phase_split_of_the_public_13b_run_is_the_published_one() -> None:
    found = analysed(TRACES / "13B_ratio1_nvml.csv", TRACES / "13B_ratio1_phases.csv")
    seconds = [phase.seconds for phase in found.phases if phase.name != "other"]
    assert seconds == pytest.approx([0.355, 8.67, 7.99], rel=0.005)
    assert found.step_s == pytest.approx(17.46, rel=0.002)
    assert round(100 * found.find("update").share) == 46  # type: ignore[union-attr]
    assert round(100 * found.find("forward").share) == 2  # type: ignore[union-attr]
