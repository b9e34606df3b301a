"""The recorder in a rank: phases and parts on one clock, readings in order, a timeline that adds up."""

from __future__ import annotations

import itertools
import mmap
import os
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from conftest import workload

from offtune.phase_analysis import StepAnalysis
from offtune.recording import read_timelines
from offtune.timeline import CORE_GROUPS, OTHER, STEP, cores_key
from offtune.worker.looks import Looks
from offtune.worker.memory import ResidentMemory, ResidentReader, io_bytes_of
from offtune.worker.parts import PartClock, watch_parts
from offtune.worker.phases import PhaseClock
from offtune.worker.readings import Readings
from offtune.worker.recorder import CLOSE_EVERY, Recorder

PAUSE_S = 0.002
MAPPED_BYTES = 32 * 2**20


class Optimizer:
    """As DeepSpeed's stage 1 and 2 are built: timers within the step, the real optimizer within those."""

    def __init__(self) -> None:
        self.bit16_groups: list[Any] = []
        self.optimizer = Inner()
        self.timers = Timers()

    def step(self) -> None:
        self.timers("optimizer_gradients").start()
        self.unscale_and_clip_grads()
        self.timers("optimizer_gradients").stop()
        self.timers("optimizer_step").start()
        self.optimizer.step()
        time.sleep(PAUSE_S)
        self.timers("optimizer_step").stop()

    def unscale_and_clip_grads(self) -> None:
        time.sleep(PAUSE_S)


class Inner:
    def step(self) -> None:
        time.sleep(PAUSE_S)


class Timers:
    def __init__(self) -> None:
        self.stopped: list[str] = []

    def __call__(self, name: str) -> Any:
        return SimpleNamespace(start=lambda: None, stop=lambda: self.stopped.append(name))


def one_step(clock: PhaseClock, optimizer: Optimizer, micro_steps: int = 2) -> tuple[float, float]:
    """The seconds it took, and when it ended."""
    start_s = time.perf_counter()
    for micro in range(micro_steps):
        with clock.phase("forward"):
            time.sleep(PAUSE_S)
        with clock.phase("backward"):
            time.sleep(PAUSE_S)
        with clock.phase("update"):
            if micro == micro_steps - 1:
                optimizer.step()
    ended_s = time.perf_counter()
    return ended_s - start_s, ended_s


def test_parts_of_the_update_follow_each_other_and_the_timers_still_work():
    clock, optimizer = PhaseClock("cpu"), Optimizer()
    original = optimizer.timers
    watched = watch_parts(SimpleNamespace(optimizer=optimizer), clock, "cpu", 1)
    phases = clock.next_step(one_step(clock, optimizer)[0])
    parts = watched.take().parts()
    assert watched.take().parts() == []
    assert {one.name for one in parts} == {"update.flush", "update.cpu_optimizer", "update.copy_back"}
    for earlier, later in itertools.pairwise(parts):
        assert earlier.end_s <= later.start_s
    update = phases[-1]
    assert (update.name, update.micro_step) == ("update", 1)
    inside_s = sum(one.end_s - one.start_s for one in parts)
    assert 3 * PAUSE_S <= inside_s <= update.end_s - update.start_s
    assert original.stopped == ["optimizer_gradients", "optimizer_step"]


def test_what_was_watched_is_let_go_again():
    optimizer = Optimizer()
    before = dict(vars(optimizer))
    optimizer.unscale_and_clip_grads = unscale = lambda: None  # somebody else's, in the object itself
    parts = watch_parts(SimpleNamespace(optimizer=optimizer), PhaseClock("cpu"), "cpu", 1)
    assert optimizer.unscale_and_clip_grads is not unscale
    assert "step" in vars(optimizer.optimizer)
    parts.release()
    assert vars(optimizer) == {**before, "unscale_and_clip_grads": unscale}
    assert vars(optimizer.optimizer) == {}


def test_what_was_put_around_a_watched_method_meanwhile_stays():
    optimizer = Optimizer()
    parts = watch_parts(SimpleNamespace(optimizer=optimizer), PhaseClock("cpu"), "cpu", 1)
    inner: Any = optimizer.optimizer
    inner.step = around = lambda: None
    parts.release()
    assert inner.step is around


def test_a_watched_step_stays_a_method_of_its_optimizer():
    """torch's learning-rate schedulers replace `optimizer.step.__func__`."""
    optimizer = Optimizer()
    watch_parts(SimpleNamespace(optimizer=optimizer), PhaseClock("cpu"), "cpu", 1)
    step: Any = optimizer.optimizer.step
    assert step.__self__ is optimizer.optimizer
    assert callable(step.__func__)


def test_a_part_that_fails_is_over_too():
    clock = PhaseClock("cpu")
    parts = PartClock(clock)
    owner = SimpleNamespace(fail=lambda: 1 / 0)
    parts.around(owner, "fail", "flush")
    with clock.phase("update"):
        with pytest.raises(ZeroDivisionError):
            owner.fail()
        parts.note("copy_back")
        parts.note(None)
    assert [one.name for one in parts.take().parts()] == ["update.flush", "update.copy_back"]


def test_a_part_within_a_part_interrupts_it():
    clock = PhaseClock("cpu")
    parts = PartClock(clock)
    with clock.phase("update"):
        for turn in ("copy_back", "cpu_optimizer", None, None):
            parts.note(turn)
    told = parts.take()
    found = told.parts()
    assert [one.name for one in found] == ["update.copy_back", "update.cpu_optimizer", "update.copy_back"]
    assert found[0].end_s == found[1].start_s
    assert found[1].end_s == found[2].start_s
    assert len(found) <= told.most


def test_what_runs_in_two_threads_at_once_is_told_apart():
    clock = PhaseClock("cpu")
    parts = PartClock(clock)
    with clock.phase("backward"):
        parts.note("gather")
        other = threading.Thread(target=lambda: [parts.note(turn) for turn in ("flush", None)])
        other.start()
        other.join()
        parts.note(None)
    gather, flush = parts.take().parts()
    assert (gather.name, flush.name) == ("backward.gather", "backward.flush")
    assert gather.start_s < flush.start_s < flush.end_s < gather.end_s


def test_a_part_outside_of_every_phase_is_none():
    parts = PartClock(PhaseClock("cpu"))
    parts.note("flush")
    parts.note(None)
    assert parts.take().parts() == []


def test_parts_of_the_host_and_of_the_device_interrupt_each_other_by_clocks_of_their_own():
    clock = PhaseClock("cpu")
    device = itertools.count(100)
    clock.has_device, clock.on_device = True, lambda: float(next(device))
    parts = PartClock(clock)
    clock.inside = "update"
    for turn in ("copy_back", "cpu_optimizer", None, None):
        parts.note(turn)
    before, within, after = parts.take().parts()
    assert (before.start_s, before.end_s, after.start_s, after.end_s) == (100.0, 101.0, 102.0, 103.0)
    assert abs(within.end_s - time.perf_counter()) < within.end_s - 103.0


def test_what_this_deepspeed_lacks_is_no_part():
    clock = PhaseClock("cpu")
    parts = watch_parts(SimpleNamespace(optimizer=object()), clock, "cpu", 2)
    with clock.phase("forward"):
        pass
    assert [one.name for one in clock.next_step(1.0)] == ["forward"]
    assert parts.take().parts() == []


def test_readings_of_two_threads_are_put_in_order_and_counters_become_rates():
    readings = Readings()
    for at_s, count in ((11.0, 10.0), (10.0, 0.0), (13.0, 29.0), (12.0, 30.0)):
        readings.counter("nvme_read_bytes_per_s", at_s, count, per=2.0)
        readings.value("host_resident_bytes", at_s, count)
    levels, rates = readings.series(10.0)
    assert levels.times_s == (0.0, 1.0, 2.0, 3.0)
    # The last count was read before the one that carries the earlier time: nothing is lost or invented.
    assert rates.values == (5.0, 10.0, 0.0)
    assert rates.counted


def test_too_many_readings_are_halved_with_their_peak_and_their_sum():
    readings = Readings()
    for index in range(20_002):
        readings.value("allocated_bytes", float(index), float(index == 5))
        readings.counter("nvme_write_bytes_per_s", float(index), 3.0 * index)
    readings.bound()
    levels, rates = readings.series(0.0)
    assert len(levels.values) == 10_001
    assert max(levels.values) == 1.0
    assert set(rates.values) == {3.0}
    assert rates.times_s[-1] == 20_001.0


def test_the_kernels_accounting_is_read_from_its_text():
    assert io_bytes_of(b"rchar: 7\nread_bytes: 65536\nwrite_bytes: 0\ncancelled_write_bytes: 5\n") == (
        65536,
        0,
    )
    there = Path("/proc/self/io").read_bytes()
    by_name = dict(line.split(b": ") for line in there.splitlines())
    assert io_bytes_of(there) == (int(by_name[b"read_bytes"]), int(by_name[b"write_bytes"]))


def test_bytes_moved_are_read_at_each_edge_and_at_some_ticks_memory_at_all():
    resident = ResidentMemory()
    looks, readings = Looks(resident, with_io=True), Readings()
    for at_s in range(9):
        looks.tick(float(at_s), 5.0)
    looks.edge(10.0)
    looks.edge(11.0)
    looks.read_edges()
    looks.take_apart(readings, threads=1, level_bytes=None)
    resident.stop()
    found = {one.key: one for one in readings.series(0.0)}
    assert len(found["host_resident_bytes"].times_s) == 11
    # Counted at the fourth and the eighth tick and at both edges; a rate reaches from one count to the next.
    assert found["nvme_read_bytes_per_s"].times_s == (7.0, 10.0, 11.0)


def test_shared_memory_counts_as_soon_as_it_is_there_and_files_do_not(tmp_path):
    reader = ResidentReader()
    first = reader.read()
    with mmap.mmap(-1, MAPPED_BYTES) as shared:  # as DeepSpeed's buffers in /dev/shm
        shared.write(bytes(MAPPED_BYTES))
        with_shared = reader.read()
        path = tmp_path / "pages"
        path.write_bytes(bytes(MAPPED_BYTES))
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
            assert len(mapped[:]) == MAPPED_BYTES
            with_file = reader.read()
    reader.close()
    assert with_shared - first > MAPPED_BYTES / 2
    assert abs(with_file - with_shared) < MAPPED_BYTES / 2


@pytest.fixture
def recorded(make_spec, tmp_path):
    """A rank that makes some steps without a model, by default three: its spec and analysis."""

    def record(swap: bool = False, allocator: Any = None, steps: int = 3) -> tuple[Any, StepAnalysis | None]:
        folder = tmp_path / "swap"
        folder.mkdir()
        (folder / "states").write_bytes(bytes(4096))
        spec = make_spec({}, swap_dir=str(folder) if swap else None, workload=workload())
        clock, resident, optimizer = PhaseClock("cpu"), ResidentMemory(), Optimizer()
        recorder = Recorder(spec, 0, 0, clock, resident)
        recorder.allocator = allocator
        recorder.begin(SimpleNamespace(optimizer=optimizer), None, None)
        for _ in range(steps):
            recorder.begin_step()
            step_s, ended_s = one_step(clock, optimizer)
            recorder.end_step(clock.next_step(step_s), step_s, ended_s)
        analysis = recorder.finish()
        resident.stop()
        return spec, analysis

    return record


@pytest.mark.parametrize(("steps", "closely"), [(1, {0}), (3, {0}), (CLOSE_EVERY + 1, {0, CLOSE_EVERY})])
def test_parts_are_timed_in_the_first_step_of_a_few_and_averaged_over_those(recorded, steps, closely):
    spec, analysis = recorded(steps=steps)
    (timeline,) = read_timelines(spec.trial_dir)
    parts = [mark for mark in timeline.marks if "." in mark.name]
    assert {mark.step for mark in parts} == closely
    updating = sum(mark.length_s for mark in parts if mark.name == "update.cpu_optimizer")
    mean_s = updating / len(closely)
    assert analysis.find("update.cpu_optimizer").seconds == pytest.approx(mean_s, rel=1e-3)


def test_what_somebody_has_wrapped_meanwhile_is_not_on_top():
    optimizer = Optimizer()
    parts = watch_parts(SimpleNamespace(optimizer=optimizer), PhaseClock("cpu"), "cpu", 1)
    assert parts.is_on_top()
    ours = optimizer.optimizer.step
    optimizer.optimizer.step = lambda: ours()
    assert not parts.is_on_top()


def test_a_recording_begins_at_zero_and_its_phases_fill_the_step(recorded):
    spec, analysis = recorded()
    (timeline,) = read_timelines(spec.trial_dir)
    steps = timeline.steps()
    assert steps[0].start_s == pytest.approx(0.0, abs=1e-9)
    assert [mark.step for mark in steps] == [0, 1, 2]
    assert {mark.micro_step for mark in timeline.marks if mark.name == "forward"} == {0, 1}
    assert all(mark.micro_step is None for mark in steps)
    assert analysis is not None
    assert [phase.name for phase in analysis.phases] == ["forward", "backward", "update", OTHER]
    assert sum(phase.seconds for phase in analysis.phases) == pytest.approx(analysis.step_s, rel=1e-4)
    forward = analysis.find("forward")
    assert forward is not None
    assert forward.seconds >= 2 * PAUSE_S
    assert analysis.find("update.cpu_optimizer") is not None
    assert STEP not in {part.name for part in analysis.parts}


def test_short_phases_have_samples_of_their_own(recorded):
    """Two milliseconds are a fifth of the sampler's pace: the edges of phases make up for it."""
    _, analysis = recorded()
    assert analysis is not None
    for phase in analysis.phases[:3]:
        assert phase.figures["host_resident_bytes"].samples >= 3, phase.name
        assert phase.figures["cpu_busy_share"].samples >= 3, phase.name


def test_the_allocators_peak_of_a_phase_is_read_where_it_ends(recorded):
    """Peaks between two looks: 1 for the warm-up, which belongs to no phase, then 2, 3, ..."""
    looks = itertools.count(1)
    allocator = SimpleNamespace(peaks=lambda: (next(looks), 10**6))
    spec, analysis = recorded(allocator=allocator)
    (timeline,) = read_timelines(spec.trial_dir)
    held = timeline.find("allocated_bytes")
    assert held is not None
    assert list(held.values) == [float(k + 2) for k in range(len(held.values))]
    assert "allocated_bytes" not in timeline.reasons
    assert analysis is not None
    forward, backward = analysis.find("forward"), analysis.find("backward")
    assert forward is not None and backward is not None
    assert 0 < (forward.peak("allocated_bytes") or 0) < (backward.peak("allocated_bytes") or 0)
    assert analysis.peak("reserved_bytes") == 10**6


def test_what_cannot_be_recorded_here_says_why_and_is_not_zero(recorded):
    spec, _ = recorded()
    (timeline,) = read_timelines(spec.trial_dir)
    assert timeline.find("h2d_bytes_per_s") is None
    assert "no link" in timeline.reasons["h2d_bytes_per_s"]
    assert "no counter" in timeline.reasons["host_memory_bytes_per_s"]
    assert "nvme_read_bytes_per_s" not in timeline.reasons  # nobody offloads to NVMe


def test_the_hosts_cores_are_told_by_group_where_the_kernel_counts_them(recorded):
    spec, analysis = recorded()
    (timeline,) = read_timelines(spec.trial_dir)
    assert analysis is not None
    assert analysis.core_groups == timeline.core_groups
    if CORE_GROUPS in timeline.reasons:
        pytest.skip(timeline.reasons[CORE_GROUPS])
    for name in timeline.core_groups:
        series = timeline.find(cores_key(name))
        assert series is not None and series.counted and min(series.values) >= 0.0
    assert sum(timeline.core_groups.values()) >= len(os.sched_getaffinity(0))


def test_a_rank_beside_the_first_leaves_the_cores_to_that(recorded, monkeypatch):
    monkeypatch.setenv("OFFTUNE_LOCAL_RANK", "1")
    spec, _ = recorded()
    (timeline,) = read_timelines(spec.trial_dir)
    assert timeline.core_groups == {}
    assert CORE_GROUPS not in timeline.reasons


def test_why_the_cores_are_not_known_is_kept(recorded, monkeypatch):
    monkeypatch.setattr("offtune.worker.cores.CoreTimes", Path("/proc/stat-of-another-kernel").read_bytes)
    spec, _ = recorded()
    (timeline,) = read_timelines(spec.trial_dir)
    assert timeline.core_groups == {}
    assert "cannot be read: No such file" in timeline.reasons[CORE_GROUPS]


def test_with_nvme_offload_its_traffic_and_footprint_are_recorded(recorded):
    spec, analysis = recorded(swap=True)
    (timeline,) = read_timelines(spec.trial_dir)
    footprint = timeline.find("nvme_footprint_bytes")
    assert footprint is not None
    assert set(footprint.values) == {4096.0}
    assert timeline.find("nvme_read_bytes_per_s") is not None
    assert analysis is not None
    assert analysis.peak("nvme_footprint_bytes") == 4096.0


def test_a_long_training_takes_its_readings_apart_on_the_way_and_loses_none(recorded, monkeypatch):
    monkeypatch.setattr("offtune.worker.looks._MOST", 5)
    spec, _ = recorded(swap=True)
    (timeline,) = read_timelines(spec.trial_dir)
    resident, read = timeline.find("host_resident_bytes"), timeline.find("nvme_read_bytes_per_s")
    assert resident is not None and read is not None
    edges = 3 * 7  # a step has six phases, whose edges are 2 ms apart
    assert len(resident.values) >= edges
    # A rate is that between two counts, which are at each edge but not at each tick between them.
    assert edges - 1 <= len(read.values) < len(resident.values)


def test_a_folder_without_recordings_has_none(tmp_path):
    assert read_timelines(tmp_path) == ()
    (tmp_path / "timeline0.json").write_text('{"rank": 0, "ser')
    assert read_timelines(tmp_path) == ()
