"""What was sampled of a training and when its phases were: plain records, JSON both ways with `trial.dump`.

Covered: samples of memory, traffic and utilisation over time, each series on times of its own; phase marks;
thinning to a bounded size; counters turned into rates. Not covered: taking samples (the child, or a trace of
somebody else's) and what they mean by phase (`phase_analysis.py`). Seconds count from any common zero.
"""

from __future__ import annotations

import bisect
import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Literal

MAX_POINTS = 2_000  # of a series: a plot shows no more, and a trial stays small enough to keep
MAX_MARKS = 2_000  # likewise; with many micro-steps or sub-groups one step can have hundreds

# Phases of an optimizer step at the top; what is left of the step between them is "other".
PHASES = ("forward", "backward", "update")
STEP = "step"
OTHER = "other"

# Keys of series, by what a sample is. A level holds at its moment; a rate and a share are means since the
# sample before.
LEVELS = (
    "device_used_bytes",  # by the driver; on the CPU accelerator, resident memory above its starting level
    "allocated_bytes",
    "reserved_bytes",
    "host_resident_bytes",
    "pinned_bytes",
    "nvme_footprint_bytes",
)
RATES = (
    "h2d_bytes_per_s",
    "d2h_bytes_per_s",
    "nvme_read_bytes_per_s",
    "nvme_write_bytes_per_s",
    "host_memory_bytes_per_s",
)
SHARES = ("gpu_busy_share", "cpu_busy_share")  # 0 to 1; of the cores the rank's computing threads may use
# Of a group of cores, everybody's work on them; its series are "core_group_busy_share.NAME", one a group.
CORE_GROUPS = "core_group_busy_share"
SERIES_KEYS = (*LEVELS, *RATES, *SHARES, CORE_GROUPS)

# A poller that stalls says nothing about the time it missed: a sample stands for at most so many usual gaps.
LONGEST_SPAN_GAPS = 5.0


def cores_key(group: str) -> str:
    """The series of that group of cores."""
    return f"{CORE_GROUPS}.{group}"


def is_of_cores(key: str) -> bool:
    """Whether a series is of a group of cores."""
    return key.startswith(f"{CORE_GROUPS}.")


@dataclass(frozen=True, slots=True, kw_only=True)
class Mark:
    """A stretch of time with a name: "step", a phase, or a part of one ("update.cpu_optimizer").

    `step` counts optimizer steps, `micro_step` the passes within one.
    """

    name: str
    step: int
    start_s: float
    end_s: float
    micro_step: int | None = None

    def __post_init__(self) -> None:
        if self.end_s < self.start_s:
            raise ValueError(f"Mark.end_s: '{self.name}' of step {self.step} ends before it starts")

    @property
    def length_s(self) -> float:
        """How long it took."""
        return self.end_s - self.start_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """One figure over time: `values[i]` was read at `times_s[i]`, times going up.

    `key` is one of `SERIES_KEYS`, or of a group of cores.
    `counted` values come from a counter that misses nothing, so each stands for all the time since the last.
    """

    key: str
    times_s: tuple[float, ...]
    values: tuple[float, ...]
    counted: bool = False

    def __post_init__(self) -> None:
        if self.key not in SERIES_KEYS and not is_of_cores(self.key):
            raise ValueError(f"Series.key: '{self.key}' is none of {', '.join(SERIES_KEYS)}")
        if len(self.times_s) != len(self.values):
            raise ValueError(
                f"Series.values: {self.key} has {len(self.values)} for {len(self.times_s)} times"
            )
        if any(later < earlier for earlier, later in pairwise(self.times_s)):
            raise ValueError(f"Series.times_s: {self.key} goes back in time")

    @property
    def usual_gap_s(self) -> float:
        """The median time between samples; 0 with fewer than two."""
        gaps = sorted(later - earlier for earlier, later in pairwise(self.times_s))
        return gaps[len(gaps) // 2] if gaps else 0.0

    def spans(self) -> list[tuple[float, float]]:
        """For each sample the time it stands for: since the one before, but not long beyond the usual gap.

        A sample of a counter stands for all of that time.
        """
        gap_s = self.usual_gap_s
        longest_s = math.inf if self.counted else LONGEST_SPAN_GAPS * gap_s
        befores = [self.times_s[0] - gap_s, *self.times_s[:-1]] if self.times_s else []
        return [
            (max(before, now - longest_s), now) for before, now in zip(befores, self.times_s, strict=True)
        ]


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeline:
    """What one rank did over some steps. `source` says how it was recorded.

    `reasons` has a sentence for each key of `SERIES_KEYS` that could not be recorded and whose absence needs
    one. `cores` is how many the rank may use, `core_groups` how many there are in each group of the host.
    """

    rank: int = 0
    device: Literal["cpu", "cuda"] = "cuda"
    source: str = ""
    cores: int | None = None
    core_groups: dict[str, int] = field(default_factory=dict)
    series: tuple[Series, ...] = ()
    marks: tuple[Mark, ...] = ()
    reasons: dict[str, str] = field(default_factory=dict)

    def find(self, key: str) -> Series | None:
        """The series of that key, where it was recorded."""
        return next((one for one in self.series if one.key == key and one.times_s), None)

    def steps(self) -> list[Mark]:
        """The whole optimizer steps, in order."""
        return sorted((mark for mark in self.marks if mark.name == STEP), key=lambda mark: mark.start_s)

    def bounded(self, most: int = MAX_POINTS) -> Timeline:
        """The same with at most `most` points a series: analyse first, for short peaks of rates go.

        Of too many marks the steps in the middle are kept.
        """
        series = tuple(thinned(one, most) for one in self.series)
        return replace(self, series=series, marks=_middle_marks(self.marks, MAX_MARKS))

    def between(self, start_s: float, end_s: float) -> Timeline:
        """Samples and marks of a stretch of time, with its start as the new zero."""
        series = tuple(_cut(one, start_s, end_s) for one in self.series)
        marks = tuple(
            replace(mark, start_s=mark.start_s - start_s, end_s=mark.end_s - start_s)
            for mark in self.marks
            if mark.start_s >= start_s and mark.end_s <= end_s
        )
        return replace(self, series=series, marks=marks)

    def of_step(self, step: int) -> Timeline:
        """One optimizer step with its start as zero, and the sample after it. Raises KeyError without it."""
        for mark in self.steps():
            if mark.step == step:
                return self.between(mark.start_s, mark.end_s)
        raise KeyError(f"step {step}")


def _cut(series: Series, start_s: float, end_s: float) -> Series:
    """Samples whose time lies within, and those beside them that a line needs to reach the edges."""
    first = max(0, bisect.bisect_right(series.times_s, start_s) - 1)
    last = bisect.bisect_left(series.times_s, end_s) + 1
    times = tuple(time - start_s for time in series.times_s[first:last])
    return replace(series, times_s=times, values=series.values[first:last])


def thinned(series: Series, most: int = MAX_POINTS) -> Series:
    """At most `most` points: neighbours become one, with the maximum of levels and the mean of rates."""
    count = len(series.times_s)
    if count <= most:
        return series
    edges = [index * count // most for index in range(most + 1)]
    level = series.key in LEVELS
    spans = series.spans()
    values = []
    for start, end in pairwise(edges):
        values.append(max(series.values[start:end]) if level else _mean(series, spans, start, end))
    times = tuple(series.times_s[end - 1] for end in edges[1:])
    return replace(series, times_s=times, values=tuple(values))


def _mean(series: Series, spans: Sequence[tuple[float, float]], start: int, end: int) -> float:
    lengths = [spans[index][1] - spans[index][0] for index in range(start, end)]
    total_s = sum(lengths)
    if total_s <= 0:
        return series.values[end - 1]
    return sum(a * b for a, b in zip(lengths, series.values[start:end], strict=True)) / total_s


def _middle_marks(marks: tuple[Mark, ...], most: int) -> tuple[Mark, ...]:
    """The marks of as many steps around the middle one as fit into `most`; of a huge one only phases."""
    if len(marks) <= most:
        return marks
    by_step: dict[int, list[Mark]] = {}
    for mark in marks:
        by_step.setdefault(mark.step, []).append(mark)
    middle = sorted(by_step)[len(by_step) // 2]
    kept = by_step[middle]
    if len(kept) > most:
        kept = [mark for mark in kept if mark.name in (STEP, *PHASES)][:most]
    for step in sorted(set(by_step) - {middle}, key=lambda step: abs(step - middle)):
        if len(kept) + len(by_step[step]) > most:
            break
        kept = kept + by_step[step]
    return tuple(sorted(kept, key=lambda mark: (mark.start_s, -mark.end_s)))


def rates_of_counter(key: str, times_s: Sequence[float], counts: Sequence[float]) -> Series:
    """A rate from a counter that only grows (bytes read so far): one sample less than readings."""
    pairs = list(zip(times_s, counts, strict=True))
    kept_times, kept_rates = [], []
    for (before_s, before), (now_s, now) in pairwise(pairs):
        if now_s > before_s:
            kept_times.append(now_s)
            kept_rates.append(max(0.0, (now - before) / (now_s - before_s)))
    return Series(key=key, times_s=tuple(kept_times), values=tuple(kept_rates), counted=True)
