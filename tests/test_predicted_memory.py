"""Predicted memory over a step: its course lies on the phases, is labelled, its peaks stand in the table."""

import cost_cases
import pytest
from profile_fakes import make_profiled
from timeline_fakes import make_timeline

from offtune.memory_model import predict_memory
from offtune.phase_analysis import analyse
from offtune.report.phase_table import phase_table
from offtune.report.predicted_memory import predicted_peaks, predicted_series, with_memory
from offtune.report.profile_html import expected_course
from offtune.report.profile_page import predicted_blocks
from offtune.report.step_plots import timeline_plot
from offtune.timeline import Mark
from offtune.trace_events import trace_document
from offtune.units import format_bytes

MICRO_STEPS = (
    Mark(name="forward", step=0, micro_step=0, start_s=0.0, end_s=1.0),
    Mark(name="backward", step=0, micro_step=0, start_s=1.0, end_s=3.0),
    Mark(name="forward", step=0, micro_step=1, start_s=3.0, end_s=4.0),
    Mark(name="backward", step=0, micro_step=1, start_s=4.0, end_s=6.0),
    Mark(name="update.gradients", step=0, start_s=6.0, end_s=6.1),
    Mark(name="update", step=0, start_s=6.0, end_s=7.0),
)


def memory_of(device="cuda", **zero):
    config = cost_cases.ds_config(**{"stage": 2, "reduce_bucket_size": 200_000_000, **zero})
    return predict_memory(config, cost_cases.facts(device=device), cost_cases.SHAPE)


@pytest.fixture(scope="module")
def plot():
    return timeline_plot("x", "A step", make_timeline(), 1, memory=memory_of())


def at(series, time_s):
    return [value for time, value in zip(series.times_s, series.values, strict=True) if time == time_s]


def test_every_micro_step_has_the_course_and_the_update_ends_it():
    memory = memory_of("cpu")
    (series,) = predicted_series(memory, "cpu", MICRO_STEPS)
    peaks = memory.peak_by_phase
    assert series.key == "device_used_bytes" and series.times_s[-1] == 7.0
    assert at(series, 1.0)[0] == at(series, 4.0)[0] == peaks["forward"]
    assert max(series.values) == memory.used_device_bytes or peaks["start"] == memory.used_device_bytes
    assert at(series, 7.0) == [peaks["update"]]


def test_activations_come_in_forward_and_go_in_backward():
    (series,) = predicted_series(memory_of("cpu", micro=8), "cpu", MICRO_STEPS)
    assert at(series, 0.0)[0] < at(series, 1.0)[0]
    assert at(series, 3.0)[0] < max(series.values[:-2])


def test_on_a_gpu_the_drivers_figure_is_flat_and_the_allocators_is_not():
    memory = memory_of()
    device, allocated = predicted_series(memory, "cuda", MICRO_STEPS)
    assert set(device.values) == {memory.used_device_bytes} and allocated.key == "allocated_bytes"
    assert len(set(allocated.values)) > 2 and max(allocated.values) < memory.used_device_bytes
    peaks = predicted_peaks(memory, "cuda")
    assert peaks["device_used_bytes"]["update"] > peaks["allocated_bytes"]["update"]


def test_without_phases_nothing_is_drawn():
    assert predicted_series(memory_of(), "cuda", MICRO_STEPS[4:5]) == ()


def test_the_plot_tells_it_from_what_was_measured(plot):
    names = {line["name"]: line["line"]["dash"] for line in plot.data}
    assert names["device memory"] == "solid" and names["device memory, predicted"] == "dash"
    assert names["allocated, predicted"] == "dot"
    assert "device memory, predicted" in [entry.text for entry in plot.legend]
    assert f"(predicted {format_bytes(memory_of().used_device_bytes)})" in plot.alt


def test_the_table_has_predicted_peaks_by_phase_and_none_of_what_is_between(plot):
    memory = memory_of()
    rows = {row[0]: row[1:] for row in plot.table.rows}
    expected = [format_bytes(memory.peak_by_phase[name]) for name in ("forward", "backward", "update")]
    assert rows["allocated, predicted peak"] == (*expected, "-")
    analysis = analyse(make_timeline())
    assert analysis is not None
    assert not any("predicted" in row[0] for row in phase_table(analysis).rows)


def test_a_profile_holds_predicted_peaks_against_measured_ones():
    found = make_profiled()
    analysis = found.result.analysis
    assert analysis is not None and found.expected.prediction is not None
    _, table, note = predicted_blocks(found, analysis)
    used = found.expected.prediction.memory.used_device_bytes
    rows = {row[0]: row[1:] for row in table.rows}
    assert rows["memory peak, predicted"][1] == format_bytes(used)
    assert table.rows[2][2] == f"{used / 31e9:.2f}" and "for memory" in note.text


def test_the_trace_has_it_in_the_predicted_process_only():
    found = make_profiled()
    course, prediction = expected_course(found), found.expected.prediction
    assert course is not None and prediction is not None
    document = trace_document(found.timelines, (), with_memory(course, prediction.memory), "x")
    counters = {(event["pid"], event["name"]) for event in document["traceEvents"] if event["ph"] == "C"}
    assert {(2, "device_used GiB"), (2, "allocated GiB")} <= counters
    assert (1, "allocated GiB") not in counters
