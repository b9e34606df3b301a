"""The trace for Perfetto: strict JSON, in order, nothing negative, everything on its row."""

import json
from itertools import pairwise

import pytest
from profile_fakes import STEP_S, make_profiled, with_parts
from timeline_fakes import make_timeline

from offtune.report.profile_html import expected_course
from offtune.timeline import CORE_GROUPS, Mark, Series, Timeline
from offtune.trace_events import trace_document


@pytest.fixture(scope="module")
def document():
    found = make_profiled()
    return json.loads(json.dumps(trace_document(found.timelines, found.looks, expected_course(found), "x"),
                                 allow_nan=False))  # fmt: skip


def named(document, kind):
    return [event for event in document["traceEvents"] if event["ph"] == kind]


def nanoseconds(value):
    """As Perfetto's importer of JSON takes a time: multiplied, then cut off."""
    return int(value * 1000)


def crossings(document):
    """Events that begin inside another one of their row and end after it: what a viewer cannot draw."""
    rows, found = {}, []
    for event in named(document, "X"):
        rows.setdefault((event["pid"], event["tid"]), []).append(event)
    for events in rows.values():
        ends: list[int] = []
        for event in events:
            start = nanoseconds(event["ts"])
            end = start + nanoseconds(event["dur"])
            while ends and ends[-1] <= start:
                ends.pop()
            found += [event] if ends and end > ends[-1] else []
            ends.append(end)
    return found


def test_events_are_in_order_and_nothing_is_negative(document):
    timed = [event for event in document["traceEvents"] if event["ph"] != "M"]
    assert [event["ts"] for event in timed] == sorted(event["ts"] for event in timed)
    assert min(event["ts"] for event in timed) >= 0
    assert all(event["dur"] >= 0 for event in named(document, "X"))
    assert all({"name", "ph", "pid", "tid", "ts"} <= event.keys() for event in document["traceEvents"])


def test_every_event_has_what_the_format_asks_of_its_kind(document):
    assert {event["ph"] for event in document["traceEvents"]} == {"M", "X", "C"}
    kinds = {"process_name": str, "process_sort_index": int, "thread_name": str, "thread_sort_index": int}
    for event in named(document, "M"):
        (value,) = event["args"].values()
        assert isinstance(value, kinds[event["name"]])
    for event in document["traceEvents"]:
        assert all(isinstance(event[key], int) for key in ("pid", "tid"))
        assert None not in event["args"].values()
    assert all(isinstance(event["args"]["value"], (int, float)) for event in named(document, "C"))


def test_every_row_has_a_name_and_measured_is_told_from_predicted(document):
    names = {
        (e["pid"], e["tid"]): e["args"]["name"] for e in named(document, "M") if e["name"] == "thread_name"
    }
    processes = {e["pid"]: e["args"]["name"] for e in named(document, "M") if e["name"] == "process_name"}
    assert processes == {1: "rank 0 (measured)", 2: "predicted, not measured"}
    timed = [*named(document, "X"), *named(document, "C")]
    assert {(event["pid"], event["tid"]) for event in timed} <= names.keys()
    assert {"steps", "phases", "update.cpu_optimizer", "stream 7 (under the profiler)"} <= set(names.values())


def test_rows_stand_in_our_order_and_no_number_means_two_rows(document):
    rows = [e for e in named(document, "M") if e["name"] == "thread_name"]
    assert len({row["tid"] for row in rows}) == len(rows)
    assert min(event["pid"] for event in rows) == 1  # 0 is the idle process to Perfetto
    order = {
        e["tid"]: e["args"]["sort_index"] for e in named(document, "M") if e["name"] == "thread_sort_index"
    }
    first = sorted((row for row in rows if row["pid"] == 1), key=lambda row: order[row["tid"]])
    assert [row["args"]["name"] for row in first[:2]] == ["steps", "phases"]


def test_events_of_one_row_lie_apart_or_inside_each_other(document):
    assert crossings(document) == []


def test_what_crosses_another_event_of_its_row_gets_a_row_beside_it():
    part = {"name": "update.flush", "step": 0}
    marks = (
        Mark(**part, start_s=0.0, end_s=2.0),
        Mark(**part, start_s=1.0, end_s=3.0),
        Mark(**part, start_s=1.5, end_s=2.5),
        Mark(**part, start_s=2.0, end_s=2.2),
    )
    found = trace_document((Timeline(marks=marks),), (), None, "x")
    names = {e["tid"]: e["args"]["name"] for e in named(found, "M") if e["name"] == "thread_name"}
    assert [names[event["tid"]] for event in named(found, "X")] == [
        "update.flush", "update.flush (2)", "update.flush (2)", "update.flush",
    ]  # fmt: skip
    assert crossings(found) == []


def test_ends_that_meet_go_on_meeting_in_whole_nanoseconds():
    """Thirds of microseconds, in which no end is a decimal number."""
    edges = [index / 3e6 for index in range(301)]
    marks = [Mark(name="step", step=0, start_s=edges[0], end_s=edges[-1])]
    marks += [Mark(name="step", step=0, start_s=a, end_s=b) for a, b in pairwise(edges)]
    found = trace_document((Timeline(marks=tuple(marks)),), (), None, "x")
    events = named(found, "X")
    assert crossings(found) == [] and len({event["tid"] for event in events}) == 1
    assert [nanoseconds(event["ts"]) for event in events[1:]] == [round(edge * 1e9) for edge in edges[:-1]]


def test_steps_phases_and_bytes_are_those_of_the_recording(document):
    steps = [e for e in named(document, "X") if e["name"] == "step" and e["pid"] == 1]
    assert [event["dur"] for event in steps] == pytest.approx([STEP_S * 1e6] * 3)
    assert sum(e["args"].get("bytes", 0) for e in named(document, "X")) == 12_000_000


def test_counters_carry_their_unit(document):
    memory = [event for event in named(document, "C") if event["name"] == "device_used GiB"]
    assert max(event["args"]["value"] for event in memory) == pytest.approx(31e9 / 2**30)
    assert {event["name"] for event in named(document, "C") if event["pid"] == 1} == {
        "device_used GiB", "d2h GiB/s", "h2d GiB/s", "gpu_busy %", "cpu_busy %",
    }  # fmt: skip


def test_the_cores_of_a_group_have_their_unit_too():
    cores = Series(key=f"{CORE_GROUPS}.node0", times_s=(1.0,), values=(0.5,))
    (event,) = named(trace_document((Timeline(series=(cores,)),), (), None, "x"), "C")
    assert (event["name"], event["args"]) == ("core_group_busy of node0 %", {"value": 50.0})


def test_a_recording_that_begins_before_its_zero_is_shifted():
    timeline = with_parts(make_timeline(steps=2)).between(2.0, 8.0)
    found = trace_document((timeline,), (), None, "x")
    assert min(nanoseconds(event["ts"]) for event in found["traceEvents"]) == 0


def test_without_anything_recorded_the_trace_is_empty_but_valid():
    assert trace_document((), (), None, "x")["traceEvents"] == []
