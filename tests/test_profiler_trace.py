"""Reading torch's profiler: copies by phase, exposed time, host operations, events on the rank's clock."""

import pytest
from profile_fakes import COPY_BYTES, copy, event, exported_trace, taken

from offtune.trial import dump, load
from offtune.worker import profiler_trace
from offtune.worker.profiler_trace import NO_DEVICE, OUTSIDE_TORCH, CloseLook, copy_kind, read_profile


@pytest.fixture
def look():
    return read_profile(exported_trace(), taken())


def test_bytes_count_for_the_phase_and_direction_in_which_they_moved(look):
    assert look.moved_bytes("forward", "h2d") == COPY_BYTES
    assert look.moved_bytes("backward", "d2h") == COPY_BYTES
    assert look.moved_bytes("update", "h2d") == 3 * COPY_BYTES
    assert look.moved_bytes("backward", "h2d") == 0


def test_a_kind_of_copy_has_its_memory_streams_and_rate(look):
    update = next(one for one in look.copies if one.phase == "update")
    assert (update.memory, update.count, update.streams) == ("pageable", 2, (20,))
    assert update.copy_s == pytest.approx(150e-6)
    assert update.bytes_per_s == pytest.approx(3 * COPY_BYTES / 150e-6)


def test_what_no_kernel_covers_is_exposed(look):
    exposed = {(one.phase, one.direction): one.exposed_s for one in look.copies}
    assert exposed["forward", "h2d"] == pytest.approx(10e-6)
    assert exposed["backward", "d2h"] == pytest.approx(80e-6)
    assert exposed["update", "h2d"] == pytest.approx(150e-6)


def test_an_operation_counts_without_what_it_called_and_the_rest_is_named(look):
    forward = {op.name: op for op in look.ops if op.phase == "forward"}
    assert forward["aten::linear"].own_s == pytest.approx(40e-6)
    assert forward["aten::mm"].own_s == pytest.approx(60e-6)
    assert forward[OUTSIDE_TORCH].own_s == pytest.approx(100e-6)
    assert {op.name for op in look.ops if op.phase == "backward"} == {"autograd", OUTSIDE_TORCH}
    for phase, seconds in look.phase_s.items():
        assert sum(op.own_s for op in look.ops if op.phase == phase) == pytest.approx(seconds)


def test_events_are_on_the_clock_of_the_rank_and_go_by_tracks(look):
    first = next(one for one in look.events if one.name == "aten::linear")
    assert (first.track, first.start_s) == ("host thread 1", pytest.approx(12.0 + 100e-6))
    assert {one.track for one in look.events} == {
        "host thread 1",
        "host thread 2",
        "stream 7",
        "stream 20",
        "stream 21",
    }
    assert "aten::mm" not in {one.name for one in look.events}  # inside aten::linear
    assert sum(one.moved_bytes or 0 for one in look.events) == 2 * 6 * COPY_BYTES


def test_of_too_many_events_the_shortest_go_and_are_counted(monkeypatch):
    monkeypatch.setattr(profiler_trace, "MAX_EVENTS", 4)
    look = read_profile(exported_trace(), taken())
    assert len(look.events) == 4 and look.events_dropped == 2 * 10 - 4
    assert min(one.end_s - one.start_s for one in look.events) == pytest.approx(200e-6)


def test_without_a_device_copies_are_unknown_with_the_reason():
    look = read_profile(exported_trace(), taken(has_device=False))
    assert look.copies is None and look.copies_reason == NO_DEVICE
    assert look.moved_bytes("update", "h2d") is None


def test_a_copy_between_phases_is_other_and_one_beside_the_profile_raises():
    trace = exported_trace()
    trace["traceEvents"].append(copy("HtoD (Pageable -> Device)", 950, 10))
    look = read_profile(trace, taken())
    assert look.moved_bytes("other", "h2d") == COPY_BYTES / 2
    with pytest.raises(ValueError, match=r"offtune\.zero"):
        read_profile({"traceEvents": [event("cpu_op", "aten::mm", 0, 1)]}, taken())


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("Memcpy HtoD (Pinned -> Device)", ("h2d", "pinned")),
        ("Memcpy DtoH (Device -> Pageable)", ("d2h", "pageable")),
        ("Memcpy HtoD (Managed -> Device)", ("h2d", "unknown")),
        ("Memcpy DtoD (Device -> Device)", None),
        ("Memset (Device)", None),
    ],
)
def test_the_name_of_a_copy_says_its_way_and_its_memory(name, kind):
    assert copy_kind(name) == kind


def test_a_look_survives_its_file(look):
    assert load(CloseLook, dump(look)) == look
