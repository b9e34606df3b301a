"""The trace for Perfetto: strict JSON, in order, nothing negative, everything on its row."""

import json

import pytest
from profile_fakes import STEP_S, make_profiled, with_parts
from timeline_fakes import make_timeline

from offtune.report.profile_html import expected_course
from offtune.trace_events import trace_document


@pytest.fixture(scope="module")
def document():
    found = make_profiled()
    return json.loads(json.dumps(trace_document(found.timelines, found.looks, expected_course(found), "x"),
                                 allow_nan=False))  # fmt: skip


def named(document, kind):
    return [event for event in document["traceEvents"] if event["ph"] == kind]


def test_events_are_in_order_and_nothing_is_negative(document):
    timed = [event for event in document["traceEvents"] if event["ph"] != "M"]
    assert [event["ts"] for event in timed] == sorted(event["ts"] for event in timed)
    assert min(event["ts"] for event in timed) >= 0
    assert all(event["dur"] >= 0 for event in named(document, "X"))
    assert all({"name", "ph", "pid", "tid", "ts"} <= event.keys() for event in document["traceEvents"])


def test_every_row_has_a_name_and_measured_is_told_from_predicted(document):
    names = {
        (e["pid"], e["tid"]): e["args"]["name"] for e in named(document, "M") if e["name"] == "thread_name"
    }
    processes = {e["pid"]: e["args"]["name"] for e in named(document, "M") if e["name"] == "process_name"}
    assert processes == {0: "rank 0 (measured)", 1: "predicted, not measured"}
    assert {(event["pid"], event["tid"]) for event in named(document, "X")} <= names.keys()
    assert {"steps", "phases", "update.cpu_optimizer", "stream 7 (under the profiler)"} <= set(names.values())


def test_events_of_one_row_lie_apart_or_inside_each_other(document):
    rows = {}
    for event in named(document, "X"):
        rows.setdefault((event["pid"], event["tid"]), []).append(event)
    for events in rows.values():
        ends: list[float] = []
        for event in events:
            while ends and ends[-1] <= event["ts"] + 0.002:  # to the nanosecond, twice rounded
                ends.pop()
            assert not ends or event["ts"] + event["dur"] <= ends[-1] + 0.002, event
            ends.append(event["ts"] + event["dur"])


def test_steps_phases_and_bytes_are_those_of_the_recording(document):
    steps = [e for e in named(document, "X") if e["name"] == "step" and e["pid"] == 0]
    assert [event["dur"] for event in steps] == pytest.approx([STEP_S * 1e6] * 3)
    assert sum(e["args"].get("bytes", 0) for e in named(document, "X")) == 12_000_000


def test_counters_carry_their_unit(document):
    memory = [event for event in named(document, "C") if event["name"] == "device_used GiB"]
    assert max(event["args"]["value"] for event in memory) == pytest.approx(31e9 / 2**30)
    assert {event["name"] for event in named(document, "C") if event["pid"] == 0} == {
        "device_used GiB", "d2h GiB/s", "h2d GiB/s", "gpu_busy %", "cpu_busy %",
    }  # fmt: skip


def test_a_recording_that_begins_before_its_zero_is_shifted():
    timeline = with_parts(make_timeline(steps=2)).between(2.0, 8.0)
    found = trace_document((timeline,), (), None, "x")
    assert min(event["ts"] for event in found["traceEvents"]) == 0


def test_without_anything_recorded_the_trace_is_empty_but_valid():
    assert trace_document((), (), None, "x")["traceEvents"] == []
