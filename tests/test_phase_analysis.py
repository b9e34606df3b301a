"""Figures by phase: against a made-up training whose figures are known, and laws that hold for any."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from timeline_fakes import BACKWARD, FORWARD, UPDATE, make_timeline, with_cores

from offtune.bounds import Peaks
from offtune.phase_analysis import Figure, StepAnalysis, analyse, combined, essence
from offtune.report.phase_table import phase_table
from offtune.timeline import Mark, Series, Timeline, cores_key
from offtune.trial import Status, TrialResult, dump, load


def analysed(**changes: object) -> StepAnalysis:
    found = analyse(make_timeline(**changes))  # type: ignore[arg-type]
    assert found is not None
    return found


@pytest.mark.parametrize("phase", [FORWARD, BACKWARD, UPDATE])
def test_every_figure_of_a_known_training_comes_out(phase: tuple[object, ...]) -> None:
    name, seconds, memory, d2h, h2d, gpu, cpu = phase
    found = analysed().find(str(name))
    assert found is not None
    assert found.seconds == pytest.approx(seconds)
    assert found.share == pytest.approx(seconds / 4.0)  # type: ignore[operator]
    assert found.peak("device_used_bytes") == memory
    assert found.mean("d2h_bytes_per_s") == pytest.approx(d2h)
    assert found.moved_bytes("h2d_bytes_per_s") == pytest.approx(h2d * seconds)  # type: ignore[operator]
    assert found.mean("gpu_busy_share") == pytest.approx(gpu)
    assert found.mean("cpu_busy_share") == pytest.approx(cpu)
    assert found.gpu_idle_s == pytest.approx(seconds * (1 - gpu))  # type: ignore[operator]


def test_what_belongs_to_no_phase_is_other_and_the_phases_sum_to_the_step() -> None:
    found = analysed()
    assert found.find("other").seconds == pytest.approx(0.1)  # type: ignore[union-attr]
    assert sum(phase.seconds for phase in found.phases) == pytest.approx(found.step_s)
    assert sum(phase.share for phase in found.phases) == pytest.approx(1.0)
    assert [phase.name for phase in found.phases] == ["forward", "backward", "update", "other"]


def test_micro_steps_are_counted_and_a_micro_step_has_its_time() -> None:
    assert analysed().micro_steps is None
    two = [
        Mark(name=name, step=0, micro_step=micro, start_s=3.0 * micro + start, end_s=3.0 * micro + end)
        for micro in (0, 1)
        for name, start, end in (("forward", 0.0, 1.0), ("backward", 1.0, 3.0))
    ]
    whole = Mark(name="step", step=0, start_s=0.0, end_s=6.0)
    found = analyse(Timeline(marks=(*two, whole)))
    assert found is not None and found.micro_steps == 2
    backward = found.find("backward")
    assert backward is not None and backward.micro_step_s(found.micro_steps) == pytest.approx(2.0)
    rows = {row[0]: row[1:] for row in phase_table(found).rows}
    assert rows["each of 2 micro-steps"][:2] == ("1.00 s", "2.00 s")
    assert load(StepAnalysis, dump(found)).micro_steps == 2


def test_what_only_the_driver_sees_lies_between_both_peaks() -> None:
    (phase, *_) = analysed().phases
    assert phase.outside_allocator_bytes is None
    reserved = {"reserved_bytes": Figure(mean=20e9, peak=24e9, samples=9)}
    known = replace(phase, figures={**phase.figures, **reserved})
    assert known.outside_allocator_bytes == FORWARD[2] - 24e9
    table = phase_table(StepAnalysis(steps=1, step_s=1.0, phases=(known,)))
    assert ("outside the allocator", "2.00 GB") in table.rows


def test_a_rate_stands_beside_what_the_link_can_do() -> None:
    rows = {row[0]: row[1:] for row in phase_table(analysed(), peaks=Peaks(d2h_bytes_per_s=24e9)).rows}
    assert rows["D2H, mean of its peak 24.0 GB/s"][:2] == ("0 %", "50 %")
    assert not any("of its peak" in row[0] for row in phase_table(analysed()).rows)


def test_a_sample_across_a_boundary_counts_for_both_by_its_part_and_for_the_peak_of_one() -> None:
    marks = (
        Mark(name="forward", step=0, start_s=0.0, end_s=1.75),
        Mark(name="backward", step=0, start_s=1.75, end_s=3.0),
        Mark(name="step", step=0, start_s=0.0, end_s=3.0),
    )
    rate = Series(key="d2h_bytes_per_s", times_s=(1.0, 2.0, 3.0), values=(0.0, 8.0, 4.0))
    found = analyse(Timeline(series=(rate,), marks=marks))
    assert found is not None
    forward, backward = found.find("forward"), found.find("backward")
    assert forward is not None
    assert backward is not None
    assert forward.mean("d2h_bytes_per_s") == pytest.approx(0.75 * 8 / 1.75)
    assert backward.mean("d2h_bytes_per_s") == pytest.approx((0.25 * 8 + 4) / 1.25)
    assert (forward.peak("d2h_bytes_per_s"), backward.peak("d2h_bytes_per_s")) == (8.0, 4.0)


def test_micro_steps_add_up_and_parts_are_kept_apart() -> None:
    marks = (
        Mark(name="step", step=0, start_s=0.0, end_s=4.0),
        Mark(name="forward", step=0, start_s=0.0, end_s=1.0, micro_step=0),
        Mark(name="forward", step=0, start_s=2.0, end_s=3.0, micro_step=1),
        Mark(name="update", step=0, start_s=3.0, end_s=4.0),
        Mark(name="update.cpu_optimizer", step=0, start_s=3.25, end_s=3.75),
    )
    found = analyse(Timeline(marks=marks))
    assert found is not None
    assert {phase.name: phase.seconds for phase in found.phases} == {
        "forward": 2.0,
        "update": 1.0,
        "other": 1.0,
    }
    assert [(part.name, part.seconds) for part in found.parts] == [("update.cpu_optimizer", 0.5)]


def test_only_the_steps_asked_for_are_looked_at() -> None:
    found = analyse(make_timeline(steps=5), steps=[2, 3])
    assert found is not None
    assert found.steps == 2
    assert found.step_s == pytest.approx(4.0)


def test_without_steps_there_is_no_analysis_and_without_samples_no_figure() -> None:
    assert analyse(Timeline()) is None
    assert analyse(make_timeline(), steps=[99]) is None
    bare = analyse(Timeline(marks=make_timeline(steps=1).marks))
    assert bare is not None
    assert all(phase.figures == {} for phase in bare.phases)
    assert bare.find("forward").moved_bytes("d2h_bytes_per_s") is None  # type: ignore[union-attr]
    assert bare.peak("device_used_bytes") is None


def test_devices_are_joined_by_mean_of_means_and_peak_of_peaks() -> None:
    slow = (FORWARD, (*BACKWARD[:2], 33e9, 6e9, *BACKWARD[4:]), UPDATE)
    both = combined([analysed(), analysed(phases=slow, rank=1)])
    assert both is not None
    backward = both.find("backward")
    assert backward is not None
    assert backward.mean("d2h_bytes_per_s") == pytest.approx(9e9)
    assert backward.peak("device_used_bytes") == 33e9
    assert both.devices == 2
    assert combined([]) is None


def test_cores_are_those_of_the_rank_that_read_them_and_of_several_hosts_the_mean() -> None:
    first = analyse(with_cores(make_timeline(), node0=(16, 0.75)))
    beside = analysed(rank=1)
    elsewhere = analyse(with_cores(make_timeline(rank=2), node0=(16, 0.25), node1=(8, 0.5)))
    assert first is not None and elsewhere is not None
    alone, both = combined([first, beside]), combined([first, beside, elsewhere])
    assert alone is not None and both is not None
    assert alone.core_groups == {"node0": 16}
    assert alone.phases[2].mean(cores_key("node0")) == pytest.approx(0.75)
    assert both.core_groups == {"node0": 16, "node1": 8}
    assert both.phases[2].mean(cores_key("node0")) == pytest.approx(0.5)
    assert both.phases[2].mean(cores_key("node1")) == pytest.approx(0.5)
    text = dump(essence(first))
    assert load(StepAnalysis, text) == essence(first)
    # A group of cores costs a trial little: some 400 bytes with four phases.
    assert len(text) - len(dump(essence(analysed()))) < 500


def test_the_essence_keeps_phases_to_six_figures_and_of_parts_their_time() -> None:
    part = Mark(name="update.flush", step=0, start_s=2.5, end_s=2.6)
    timeline = make_timeline()
    whole = analyse(replace(timeline, marks=(*timeline.marks, part)))
    assert whole is not None and whole.parts[0].figures
    short = essence(whole)
    assert [phase.name for phase in short.phases] == [phase.name for phase in whole.phases]
    for before, after in zip(whole.phases, short.phases, strict=True):
        assert after.seconds == pytest.approx(before.seconds, rel=1e-5)
        assert after.moved_bytes("h2d_bytes_per_s") == pytest.approx(
            before.moved_bytes("h2d_bytes_per_s"), rel=1e-5
        )
    assert [(one.name, one.figures) for one in short.parts] == [("update.flush", {})]
    assert len(dump(short)) < len(dump(whole))


def test_an_analysis_travels_within_a_result() -> None:
    result = TrialResult(status=Status.OK, analysis=analysed())
    assert load(TrialResult, dump(result)) == result


@given(
    st.lists(st.floats(0.01, 3.0), min_size=3, max_size=3),
    st.lists(st.floats(0.0, 1e11), min_size=5, max_size=60),
    st.floats(0.005, 0.4),
)
def test_bytes_by_phase_sum_to_the_bytes_of_the_step(
    lengths: list[float], rates: list[float], gap_s: float
) -> None:
    edges = [0.0, lengths[0], lengths[0] + lengths[1], sum(lengths)]
    names = ("forward", "backward", "update")
    marks = [Mark(name=n, step=0, start_s=edges[i], end_s=edges[i + 1]) for i, n in enumerate(names)]
    times = tuple(gap_s * (k + 1) for k in range(len(rates)))
    step = Mark(name="step", step=0, start_s=0.0, end_s=edges[3])
    series = Series(key="h2d_bytes_per_s", times_s=times, values=tuple(rates))
    found = analyse(Timeline(series=(series,), marks=(*marks, step)))
    assert found is not None
    covered = [max(0.0, min(time, edges[3]) - (time - gap_s)) for time in times]
    whole = sum(max(0.0, seconds) * rate for seconds, rate in zip(covered, rates, strict=True))
    # A phase is its mean times its length also where samples end early: compare only what samples cover.
    if times[-1] >= edges[3]:
        moved = sum(phase.moved_bytes("h2d_bytes_per_s") or 0.0 for phase in found.phases)
        assert moved == pytest.approx(whole, rel=1e-6, abs=1.0)
