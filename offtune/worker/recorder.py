"""Memory, traffic and utilisation of one rank over time, and when its phases were, while it trains.

Covered: readings on a clock and at the edges of phases, so that short phases have theirs; marks; the timeline
and its analysis. Not covered: peaks of the whole trial (`memory.py`), copies one by one (`offtune profile`).

Everything read here is kept by the kernel, the driver or torch anyway. On CUDA phases are timed by events on
the device, and the host runs ahead of it: the allocator, which follows the host, is read at the edges of its
phases and placed at those of the device; other readings carry the host's clock.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch

from offtune import hardware
from offtune.core_groups import CoreGroup
from offtune.phase_analysis import StepAnalysis, analyse, essence
from offtune.recording import write_timeline
from offtune.timeline import CORE_GROUPS, SERIES_KEYS, STEP, Mark, Timeline, cores_key
from offtune.trial import TrialSpec
from offtune.worker.allocator import AllocatorMemory
from offtune.worker.cores import CoreWatch, is_first_here
from offtune.worker.looks import Looks
from offtune.worker.memory import DriverMemory, LinkTraffic, ResidentMemory
from offtune.worker.parts import PartClock, Turns, watch_parts
from offtune.worker.phases import Moment, PhaseClock, Timed, do_nothing
from offtune.worker.readings import Readings, rounded

# Edges of phases nearer than this share a reading: where one phase ends the next begins.
_EDGE_GAP_S = 0.0005
# Of a rank. With many micro-steps and sub-groups only the first steps are marked, whole ones.
_MOST_MARKS = 20_000

_ON_CPU = "CPU accelerator: no link to cross, no allocator of its own, nothing pinned"
_ABSENT_ON_CPU = (
    "allocated_bytes", "reserved_bytes", "pinned_bytes", "h2d_bytes_per_s", "d2h_bytes_per_s",
    "gpu_busy_share",
)  # fmt: skip
_ABSENT = {
    "device_used_bytes": "the driver does not tell device memory here",
    "h2d_bytes_per_s": "the driver has no PCIe counters for this GPU",
    "d2h_bytes_per_s": "the driver has no PCIe counters for this GPU",
    "gpu_busy_share": "the driver does not tell this GPU's utilisation",
    "pinned_bytes": "this version of torch does not count pinned memory",
    "host_memory_bytes_per_s": "no counter of memory traffic is open to an ordinary process",
}
_WITH_NVME = ("nvme_read_bytes_per_s", "nvme_write_bytes_per_s", "nvme_footprint_bytes")


# To time a part takes a microsecond or two, and a step of stage 3 has a thousand; to walk the swap folder
# takes a millisecond. So both are done in one of so many steps; the first is one, so that the shortest
# training shows them, too.
CLOSE_EVERY = 8


class _Step(NamedTuple):
    """A measured step: seconds of `time.perf_counter`, its phases, and their parts where those were timed."""

    start_s: float
    end_s: float
    phases: Sequence[Timed]
    turns: Turns | None


class Recorder:
    """Records from its creation on. `zero_s` is where the timeline begins, on `time.perf_counter`."""

    def __init__(
        self, spec: TrialSpec, rank: int, gpu: int, clock: PhaseClock, resident: ResidentMemory
    ) -> None:
        self._spec, self._rank, self._gpu = spec, rank, gpu
        self._resident = resident
        self._readings = Readings()
        self._looks = Looks(resident, with_io=spec.swap_dir is not None)
        self._steps: list[_Step] = []
        self._marks = 0  # of the steps so far; beyond the most no step is kept
        self._last_edge_s = 0.0
        self.zero_s: float | None = None
        self.allocator = AllocatorMemory() if spec.device == "cuda" else None
        self._clock = clock
        self._held: list[tuple[Moment, tuple[int, int]]] = []  # by the allocator, at edges of this step
        self._cores: CoreWatch | None = None
        self._begun = 0  # steps
        self._parts: PartClock | None = None  # while they are watched
        self._watch: Callable[[], PartClock] | None = None
        self._stop: Callable[[], object] = do_nothing

    def begin(self, engine: Any, driver: DriverMemory | None, link: LinkTraffic | None) -> None:
        """Listen to the samplers that run anyway, and time the parts of the engine's phases, until `stop`."""
        ranks = self._spec.workload.world_size
        self._watch = partial(watch_parts, engine, self._clock, self._spec.device, ranks)
        if self.allocator is not None:
            self.allocator.peaks()  # the warm-up's belong to no phase
        self._cores = CoreWatch(self._on_cores) if is_first_here() else None
        self._clock.edge = self._edge
        self._resident.listen(self._on_resident)
        if driver is not None:
            driver.listen(self._on_driver)
        if link is not None:
            link.listen(self._on_link)
        self._stop = partial(self._let_go, driver, link)

    def stop(self) -> None:
        """Let go of engine and samplers, which go on as if never listened to; between two steps."""
        self._stop()
        self._stop = do_nothing

    def _let_go(self, driver: DriverMemory | None, link: LinkTraffic | None) -> None:
        if self._parts is not None:
            self._parts.release()
        self._clock.edge = do_nothing
        for sampler in (self._resident, driver, link):
            if sampler is not None:
                sampler.listen(None)
        if self._cores is not None:
            self._cores.stop()

    def begin_step(self) -> None:
        """Before the clock of a step starts: slow readings; its parts are watched when it is their turn."""
        closely = self._begun % CLOSE_EVERY == 0
        if closely and self._watch is not None and self._parts is None:
            self._parts = self._watch()
        self._begun += 1
        self._between_steps(closely)

    def _between_steps(self, closely: bool) -> None:
        """Read what changes little, and `closely` what takes long to read."""
        now = time.perf_counter()
        if self._looks.are_many:
            self._take_looks_apart()
        self._readings.bound()
        if closely and self._spec.swap_dir is not None:
            self._readings.value("nvme_footprint_bytes", now, _bytes_below(self._spec.swap_dir))
        pinned = pinned_bytes("current") if self._spec.device == "cuda" else None
        if pinned is not None:
            self._readings.value("pinned_bytes", now, pinned)
        self._looks.edge(now)
        if self.allocator is not None:
            self._held.append((now, self.allocator.peaks()))

    def end_step(self, phases: Sequence[Timed], step_s: float, ended_s: float) -> None:
        """The step that took `step_s` ended at `ended_s`, with these phases."""
        self._place_held()
        self._looks.read_edges()
        turns = self._parts.take() if self._parts is not None else None
        if self._parts is not None and self._parts.is_on_top():
            self._parts.release()
            self._parts = None
        if self.zero_s is None:
            self.zero_s = ended_s - step_s
        self._marks += 1 + len(phases) + (turns.most if turns is not None else 0)
        if self._marks <= _MOST_MARKS or not self._steps:
            # Marks are made of it at the end: three microseconds each, and some steps have a thousand.
            self._steps.append(_Step(ended_s - step_s, ended_s, phases, turns))

    def finish(self) -> StepAnalysis | None:
        """Leave the timeline in the trial's folder; its essence, None where no step was marked."""
        if self.zero_s is None:
            return None
        self._between_steps(closely=True)
        self._place_held()
        self._looks.read_edges()
        self.stop()
        self._take_looks_apart()
        timeline = self._timeline(self.zero_s)
        write_timeline(self._spec.trial_dir, timeline)
        found = analyse(timeline)
        return essence(found) if found is not None else None

    def _on_link(self, rates: tuple[float, float] | None) -> None:
        """The driver's PCIe counters have been read, in the thread that does so."""
        now = time.perf_counter()
        if rates is not None:
            self._readings.value("h2d_bytes_per_s", now, rates[0])
            self._readings.value("d2h_bytes_per_s", now, rates[1])
        busy = hardware.gpu_busy_share(self._gpu)
        if busy is not None:
            self._readings.value("gpu_busy_share", now, busy)

    def _edge(self) -> None:
        """Beside a phase, in the training thread."""
        now = time.perf_counter()
        if now - self._last_edge_s < _EDGE_GAP_S:
            return
        self._last_edge_s = now
        self._looks.edge(now)
        if self.allocator is not None:
            self._held.append((self._clock.on_device(), self.allocator.peaks()))

    def _on_driver(self, used_bytes: float) -> None:
        self._readings.value("device_used_bytes", time.perf_counter(), used_bytes)

    def _on_resident(self, resident_bytes: float) -> None:
        """By the clock, in the sampling thread."""
        now = time.perf_counter()
        self._looks.tick(now, resident_bytes)
        if self._cores is not None:
            self._cores.look(now)

    def _take_looks_apart(self) -> None:
        # On the CPU accelerator the memory used is the rank's own above its level.
        level_bytes = self._resident.level_bytes if self._spec.device == "cpu" else None
        self._looks.take_apart(self._readings, self._spec.threads_per_rank, level_bytes)

    def _on_cores(self, group: CoreGroup, at_s: float, busy_s: float) -> None:
        self._readings.counter(cores_key(group.name), at_s, busy_s, len(group.cores))

    def _place_held(self) -> None:
        """What the allocator held, at the moments the device came to; it must have finished the step."""
        host_s = self._clock.host_s
        for moment, (allocated, reserved) in self._held:
            at_s = host_s(moment)
            self._readings.value("allocated_bytes", at_s, allocated)
            self._readings.value("reserved_bytes", at_s, reserved)
        self._held.clear()

    def _timeline(self, zero_s: float) -> Timeline:
        series = self._readings.series(zero_s)
        return Timeline(
            rank=self._rank,
            device=self._spec.device,
            source="the rank itself, every 10 ms and at the edges of phases",
            cores=self._spec.threads_per_rank,
            core_groups=self._cores.sizes if self._cores is not None else {},
            series=series,
            marks=tuple(mark for step in range(len(self._steps)) for mark in self._marks_of(step, zero_s)),
            reasons=self._reasons({one.key for one in series if one.times_s}),
        )

    def _marks_of(self, number: int, zero_s: float) -> Iterator[Mark]:
        """The marks of a step, with `zero_s` as time zero."""
        step = self._steps[number]
        yield Mark(name=STEP, step=number, start_s=rounded(step.start_s - zero_s),
                   end_s=rounded(step.end_s - zero_s))  # fmt: skip
        for one in (*(step.turns.parts() if step.turns is not None else ()), *step.phases):
            yield Mark(name=one.name, step=number, micro_step=one.micro_step,
                       start_s=rounded(one.start_s - zero_s), end_s=rounded(one.end_s - zero_s))  # fmt: skip

    def _reasons(self, recorded: set[str]) -> dict[str, str]:
        """Why a series is not there; without NVMe offload its counters need no excuse."""
        needless = () if self._spec.swap_dir is not None else _WITH_NVME
        wanted = [key for key in SERIES_KEYS if key != CORE_GROUPS and key not in needless]
        absent = [key for key in wanted if key not in recorded]
        on_cpu = dict.fromkeys(_ABSENT_ON_CPU, _ON_CPU) if self._spec.device == "cpu" else {}
        reasons = {**_ABSENT, **on_cpu}
        if self._cores is not None and self._cores.reason:  # other ranks leave the host's cores to the first
            absent.append(CORE_GROUPS)
            reasons[CORE_GROUPS] = self._cores.reason
        return {key: reasons.get(key, "nothing was read") for key in absent}


def pinned_bytes(which: str) -> int | None:
    """Bytes of torch's pinned-host allocator, "current" or "peak"; None where torch cannot tell."""
    if not hasattr(torch.cuda, "host_memory_stats"):
        return None
    value = torch.cuda.host_memory_stats().get(f"allocated_bytes.{which}")
    return None if value is None else int(value)


def _bytes_below(folder: str) -> int:
    """Size of all files in a folder; one that is just being replaced counts nothing."""
    total = 0
    with os.scandir(folder) as entries:
        for entry in entries:
            try:
                inside = entry.is_dir(follow_symlinks=False)
                total += _bytes_below(entry.path) if inside else entry.stat(follow_symlinks=False).st_size
            except FileNotFoundError:
                continue
    return total
