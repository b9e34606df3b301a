"""What happens in each phase of an optimizer step: seconds, rates, bytes moved, memory, utilisation, idling.

Covered: figures by phase from a Timeline, whoever recorded it; the same over several devices. Not covered:
what they mean (`bounds.py`) and recording.

A sample stands for the time since the one before it. It counts for a phase with the part of that time that
lies in the phase; its value can be a phase's peak when at least half of it does.
"""

from __future__ import annotations

import bisect
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from offtune.timeline import OTHER, PHASES, RATES, STEP, Mark, Series, Timeline, is_of_cores

_PASSES = ("forward", "backward")
PEAK_OVERLAP = 0.5  # of a sample's time, to count for the peak of a phase
# A phase shorter than this many samples is described by its neighbours as much as by itself.
FEW_SAMPLES = 3

Stretch = tuple[float, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """One series within one phase: mean over time, peak, and how many samples they rest on."""

    mean: float
    peak: float
    samples: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PhaseFigures:
    """One phase, or a part of one ("update.cpu_optimizer"), over all steps looked at.

    `seconds` is the mean per optimizer step, all micro-steps included; `share` that of the step.
    """

    name: str
    seconds: float
    share: float
    figures: dict[str, Figure] = field(default_factory=dict)

    def moved_bytes(self, key: str) -> float | None:
        """Bytes per optimizer step of a series of rates: mean rate x seconds; None where not recorded."""
        if key not in RATES or key not in self.figures:
            return None
        return self.figures[key].mean * self.seconds

    def mean(self, key: str) -> float | None:
        """The mean of a series, None where it was not recorded."""
        return self.figures[key].mean if key in self.figures else None

    def peak(self, key: str) -> float | None:
        """The peak of a series, None where it was not recorded."""
        return self.figures[key].peak if key in self.figures else None

    @property
    def outside_allocator_bytes(self) -> float | None:
        """What only the driver sees (context, collectives' buffers): between the peaks of both; or None."""
        used, reserved = self.peak("device_used_bytes"), self.peak("reserved_bytes")
        return None if used is None or reserved is None else used - reserved

    def micro_step_s(self, micro_steps: int | None) -> float | None:
        """Seconds per micro-step of a forward or backward; None for what happens once a step."""
        return self.seconds / micro_steps if micro_steps and self.name in _PASSES else None

    @property
    def gpu_idle_s(self) -> float | None:
        """Seconds per step in which no kernel ran, by the driver's utilisation; None where not recorded."""
        busy = self.mean("gpu_busy_share")
        return None if busy is None else self.seconds * (1.0 - busy)


@dataclass(frozen=True, slots=True, kw_only=True)
class StepAnalysis:
    """The essence of a recording: every phase of the mean step.

    `phases` are forward, backward, update and other, as far as there are any, in this order; they sum to
    `step_s`. `parts` are named stretches inside of phases. `core_groups` are the host's, with how many cores
    each has; their figures count everybody's work. `micro_steps` is how many a step has, None where unmarked.
    """

    steps: int
    step_s: float
    phases: tuple[PhaseFigures, ...]
    parts: tuple[PhaseFigures, ...] = ()
    device: Literal["cpu", "cuda"] = "cuda"
    devices: int = 1
    source: str = ""
    cores: int | None = None
    core_groups: dict[str, int] = field(default_factory=dict)
    reasons: dict[str, str] = field(default_factory=dict)
    micro_steps: int | None = None

    def find(self, name: str) -> PhaseFigures | None:
        """The phase or part of that name."""
        return next((one for one in (*self.phases, *self.parts) if one.name == name), None)

    def peak(self, key: str) -> float | None:
        """The peak of a series over the whole step, None where it was not recorded."""
        peaks = [peak for phase in self.phases if (peak := phase.peak(key)) is not None]
        return max(peaks, default=None)


def analyse(timeline: Timeline, steps: Iterable[int] | None = None) -> StepAnalysis | None:
    """The analysis of the given steps, by default of all; None where no step was marked."""
    wanted = None if steps is None else set(steps)
    whole = [mark for mark in timeline.steps() if wanted is None or mark.step in wanted]
    total_s = sum(mark.length_s for mark in whole)
    if not whole or total_s <= 0:
        return None
    numbers = {mark.step for mark in whole}
    inside: dict[str, list[Stretch]] = {}
    watched: set[int] = set()
    for mark in timeline.marks:
        if mark.step in numbers and mark.name != STEP:
            inside.setdefault(mark.name, []).append((mark.start_s, mark.end_s))
            if mark.name not in PHASES:
                watched.add(mark.step)
    inside[OTHER] = _left_over(whole, [stretch for name in PHASES for stretch in inside.get(name, ())])
    prepared = [(series, series.spans()) for series in timeline.series if series.times_s]

    # Parts are not timed in every step; their figures are those of a step in which they are.
    closely = [mark for mark in whole if mark.step in watched]

    def figures(name: str, of: Sequence[Mark]) -> PhaseFigures:
        stretches = joined(inside[name])
        seconds = sum(end - start for start, end in stretches)
        found = {one.key: figure for one, spans in prepared if (figure := _figure(one, spans, stretches))}
        share = seconds / sum(mark.length_s for mark in of)
        return PhaseFigures(name=name, seconds=seconds / len(of), share=share, figures=found)

    return StepAnalysis(
        steps=len(whole),
        step_s=total_s / len(whole),
        phases=tuple(figures(name, whole) for name in (*PHASES, OTHER) if inside.get(name)),
        parts=tuple(figures(name, closely) for name in inside if name not in (*PHASES, OTHER)),
        device=timeline.device,
        source=timeline.source,
        cores=timeline.cores,
        core_groups=timeline.core_groups,
        reasons=timeline.reasons,
        micro_steps=_micro_steps(timeline, numbers),
    )


def _micro_steps(timeline: Timeline, steps: set[int]) -> int | None:
    """How many micro-steps each of the steps has; None where they are not told apart."""
    found = {(mark.step, mark.micro_step) for mark in timeline.marks if mark.name in _PASSES}
    counts = Counter(step for step, micro in found if step in steps and micro is not None)
    return max(counts.values(), default=None)


def essence(analysis: StepAnalysis) -> StepAnalysis:
    """What a trial carries of it: parts by their time only, numbers to six figures.

    A study keeps thousands of them, and listing it reads them all; the timeline has the rest.
    """
    return replace(
        analysis,
        step_s=_short(analysis.step_s),
        phases=tuple(_short_phase(phase, phase.figures) for phase in analysis.phases),
        parts=tuple(_short_phase(part, {}) for part in analysis.parts),
    )


def _short_phase(phase: PhaseFigures, figures: dict[str, Figure]) -> PhaseFigures:
    short = {
        key: replace(figure, mean=_short(figure.mean), peak=_short(figure.peak))
        for key, figure in figures.items()
    }
    return replace(phase, seconds=_short(phase.seconds), share=_short(phase.share), figures=short)


def _short(value: float) -> float:
    return float(f"{value:.6g}")


def joined(stretches: Iterable[Stretch]) -> list[Stretch]:
    """The stretches in order, those that touch or overlap as one: no second counts twice."""
    found: list[Stretch] = []
    for start, end in sorted(stretches):
        if found and start <= found[-1][1]:
            found[-1] = (found[-1][0], max(end, found[-1][1]))
        else:
            found.append((start, end))
    return found


def _left_over(whole: Sequence[Mark], taken: Iterable[Stretch]) -> list[Stretch]:
    """What of the steps lies in no phase."""
    busy = joined(taken)
    gaps: list[Stretch] = []
    for step in whole:
        at_s = step.start_s
        for start, end in busy:
            if end <= step.start_s or start >= step.end_s:
                continue
            if start > at_s:
                gaps.append((at_s, start))
            at_s = max(at_s, end)
        if at_s < step.end_s:
            gaps.append((at_s, step.end_s))
    return gaps


def _figure(series: Series, spans: Sequence[Stretch], stretches: Sequence[Stretch]) -> Figure | None:
    """Mean, peak and count of the samples in the stretches; None where no sample reaches into them."""
    weight_s = total = 0.0
    inside: list[float] = []
    touching: list[tuple[float, float]] = []
    for start, end in stretches:
        index = bisect.bisect_left(series.times_s, start)
        while index < len(spans) and spans[index][0] < end:
            low, high = spans[index]
            overlap_s = min(high, end) - max(low, start)
            if overlap_s > 0:
                weight_s += overlap_s
                total += overlap_s * series.values[index]
                touching.append((overlap_s, series.values[index]))
                if overlap_s >= PEAK_OVERLAP * (high - low):
                    inside.append(series.values[index])
            index += 1
    if weight_s <= 0:
        return None
    # A phase shorter than half a sample has no sample of its own: the one that overlaps most speaks for it.
    peak = max(inside) if inside else max(touching)[1]
    return Figure(mean=total / weight_s, peak=peak, samples=len(inside))


def combined(analyses: Sequence[StepAnalysis]) -> StepAnalysis | None:
    """Several devices of one run as one: mean of means, peak of peaks; None of none."""
    if len(analyses) < 2:
        return analyses[0] if analyses else None
    first = analyses[0]

    def over_devices(of_one: Callable[[StepAnalysis], Sequence[PhaseFigures]]) -> tuple[PhaseFigures, ...]:
        by_name: dict[str, list[PhaseFigures]] = {}
        for phase in (phase for one in analyses for phase in of_one(one)):
            by_name.setdefault(phase.name, []).append(phase)
        return tuple(_combined_phase(group) for group in by_name.values())

    return StepAnalysis(
        steps=first.steps,
        step_s=sum(one.step_s for one in analyses) / len(analyses),
        phases=over_devices(lambda one: one.phases),
        parts=over_devices(lambda one: one.parts),
        device=first.device,
        devices=len(analyses),
        source=first.source,
        cores=first.cores,
        core_groups={name: count for one in analyses for name, count in one.core_groups.items()},
        reasons={key: text for one in analyses for key, text in one.reasons.items()},
        micro_steps=first.micro_steps,
    )


def _combined_phase(group: Sequence[PhaseFigures]) -> PhaseFigures:
    found: dict[str, list[Figure]] = {}
    for key, figure in (pair for one in group for pair in one.figures.items()):
        found.setdefault(key, []).append(figure)
    return PhaseFigures(
        name=group[0].name,
        seconds=sum(one.seconds for one in group) / len(group),
        share=sum(one.share for one in group) / len(group),
        # Cores are read by one rank of a host; of the rest, what one device lacks is not known of all.
        figures={
            key: _combined_figure(figures)
            for key, figures in found.items()
            if len(figures) == len(group) or is_of_cores(key)
        },
    )


def _combined_figure(figures: Sequence[Figure]) -> Figure:
    return Figure(
        mean=sum(one.mean for one in figures) / len(figures),
        peak=max(one.peak for one in figures),
        samples=sum(one.samples for one in figures),
    )
