"""What bounds each phase, with the evidence, and which knobs act on it: a reading of a StepAnalysis.

Covered: the busiest resource by share of time or of peak rate; the time the phase would take without it; time
in which nothing that was measured is busy. Not covered: measuring peaks; what only an experiment can tell:
the times are estimates from shares, not predictions of another configuration.

The rule. A resource's share is the part of the phase it was busy (GPU, CPU cores, named parts) or its mean
rate over its peak (links, storage, host memory). At half the phase or more, the largest share bounds it.
Below that nothing measured does: with GPU, both link directions and CPU all known it is Python and launches
(about one core is busy) or waiting (none is); with one of them unknown it is "not known". On the CPU
accelerator the cores compute, and there is no link: what is not busy there waits.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from offtune.bound_knobs import KNOBS_FOR, NOT_KNOWN, Resource
from offtune.phase_analysis import FEW_SAMPLES, PhaseFigures, StepAnalysis
from offtune.records import StudyRecord
from offtune.timeline import OTHER
from offtune.trial import Point

# From here on a resource bounds a phase: it was busy for at least half of it.
BOUND_SHARE = 0.5
# One core busy with Python, give or take the autograd thread beside it.
PYTHON_CORES = (0.6, 1.6)
# Parts of a phase that a recording may name, as "update.cpu_optimizer".
_PARTS: tuple[tuple[str, Resource], ...] = (
    ("cpu_optimizer", "CPU optimizer"),
    ("collective", "collective"),
    ("wait", "waiting"),
    ("nvme_read", "NVMe read"),
    ("nvme_write", "NVMe write"),
)

KNOBS_SHOWN = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Peaks:
    """What a machine can do at best, per rank, as measured or given; None: not known."""

    h2d_bytes_per_s: float | None = None
    d2h_bytes_per_s: float | None = None
    nvme_read_bytes_per_s: float | None = None
    nvme_write_bytes_per_s: float | None = None
    host_memory_bytes_per_s: float | None = None


def peaks_of(study: StudyRecord) -> Peaks | None:
    """The machine's peaks, where the study knows them: `settings["peaks"]`, names as in `Peaks`."""
    known = study.settings.get("peaks")
    if not isinstance(known, dict):
        return None
    return Peaks(**{name: known.get(name) for name in Peaks.__dataclass_fields__})


@dataclass(frozen=True, slots=True, kw_only=True)
class Use:
    """How much of a phase a resource was in use: `share` of time or of its peak rate, 0 to 1.

    `samples` is how many it rests on, None where it was timed.
    """

    resource: Resource
    share: float
    samples: int | None = None
    rate_bytes_per_s: float | None = None
    peak_bytes_per_s: float | None = None
    moved_bytes: float | None = None

    @property
    def enough(self) -> bool:
        """Whether it rests on enough samples; what was timed (None) always does."""
        return self.samples is None or self.samples >= FEW_SAMPLES


@dataclass(frozen=True, slots=True, kw_only=True)
class PhaseBound:
    """What bounds one phase. `free_s` is the time it would take if that resource took none, at best.

    `cpu_cores` is how many cores the rank kept busy, `missing` what one would have to know to say more.
    """

    phase: str
    seconds: float
    resource: Resource
    uses: tuple[Use, ...]
    free_s: float | None
    cpu_cores: float | None
    missing: tuple[str, ...]
    knobs: tuple[str, ...]

    @property
    def gain_s(self) -> float:
        """Seconds per step that would go at most; 0 when not known."""
        return 0.0 if self.free_s is None else self.seconds - self.free_s


@dataclass(frozen=True, slots=True, kw_only=True)
class StepBound:
    """What bounds the step: its phases, and the time in which nothing measured was busy.

    The unused time lies between `unused_low_s` (what is busy never overlaps) and `unused_high_s` (it always
    does); None where a phase has no measured resource.
    """

    phases: tuple[PhaseBound, ...]
    unused_low_s: float | None
    unused_high_s: float | None
    knobs: tuple[str, ...]


def bound(analysis: StepAnalysis, peaks: Peaks | None = None, point: Point | None = None) -> StepBound:
    """What bounds each phase of the step; with a `point` that has any, only its knobs are named.

    A person's own file has none: any knob may act on it.
    """
    peaks = peaks or Peaks()
    phases = tuple(_bound_phase(phase, analysis, peaks, point) for phase in analysis.phases)
    low, high = _unused(phases)
    slowest = sorted(phases, key=lambda one: (-one.gain_s, -one.seconds))
    names = [name for one in slowest for name in one.knobs]
    return StepBound(
        phases=phases,
        unused_low_s=low,
        unused_high_s=high,
        knobs=tuple(dict.fromkeys(names))[:KNOBS_SHOWN],
    )


def _bound_phase(
    phase: PhaseFigures, analysis: StepAnalysis, peaks: Peaks, point: Point | None
) -> PhaseBound:
    all_uses = [*_busy_uses(phase, analysis), *_rate_uses(phase, peaks), *_part_uses(phase, analysis)]
    # A resource may be known twice, by its rate and by a part that waits for it: the larger share counts.
    largest: dict[Resource, Use] = {}
    for use in sorted((use for use in all_uses if use.enough), key=lambda use: -use.share):
        largest.setdefault(use.resource, use)
    uses = list(largest.values())
    missing = _missing(phase, analysis, peaks)
    missing += tuple(
        f"{use.resource} from so few samples ({use.samples})" for use in all_uses if not use.enough
    )
    resource = _resource(phase, uses, missing, analysis)
    return PhaseBound(
        phase=phase.name,
        seconds=phase.seconds,
        resource=resource,
        uses=tuple(uses),
        free_s=None if resource == NOT_KNOWN else _free_s(phase.seconds, resource, uses),
        cpu_cores=_cpu_cores(phase, analysis),
        missing=missing,
        knobs=_knobs(phase.name, resource, point),
    )


def _busy_uses(phase: PhaseFigures, analysis: StepAnalysis) -> Iterator[Use]:
    on_cpu = analysis.device == "cpu"
    figure = phase.figures.get("cpu_busy_share" if on_cpu else "gpu_busy_share")
    if figure is not None:
        # All of an update on the CPU accelerator is the optimizer at work.
        computing: Resource = "CPU optimizer" if phase.name == "update" else "CPU compute"
        resource: Resource = computing if on_cpu else "GPU compute"
        yield Use(resource=resource, share=_clipped(figure.mean), samples=figure.samples)


def _rate_uses(phase: PhaseFigures, peaks: Peaks) -> Iterator[Use]:
    rates: tuple[tuple[str, Resource, float | None], ...] = (
        ("h2d_bytes_per_s", "H2D", peaks.h2d_bytes_per_s),
        ("d2h_bytes_per_s", "D2H", peaks.d2h_bytes_per_s),
        ("nvme_read_bytes_per_s", "NVMe read", peaks.nvme_read_bytes_per_s),
        ("nvme_write_bytes_per_s", "NVMe write", peaks.nvme_write_bytes_per_s),
        ("host_memory_bytes_per_s", "host memory bandwidth", peaks.host_memory_bytes_per_s),
    )
    for key, resource, peak in rates:
        figure = phase.figures.get(key)
        if figure is not None and peak:
            yield Use(
                resource=resource,
                share=_clipped(figure.mean / peak),
                samples=figure.samples,
                rate_bytes_per_s=figure.mean,
                peak_bytes_per_s=peak,
                moved_bytes=phase.moved_bytes(key),
            )


def _part_uses(phase: PhaseFigures, analysis: StepAnalysis) -> Iterator[Use]:
    for suffix, resource in _PARTS:
        part = analysis.find(f"{phase.name}.{suffix}")
        if part is not None and phase.seconds > 0:
            yield Use(resource=resource, share=_clipped(part.seconds / phase.seconds))


def _cpu_cores(phase: PhaseFigures, analysis: StepAnalysis) -> float | None:
    share = phase.mean("cpu_busy_share")
    return None if share is None or analysis.cores is None else share * analysis.cores


def _clipped(share: float) -> float:
    return min(1.0, max(0.0, share))


def _missing(phase: PhaseFigures, analysis: StepAnalysis, peaks: Peaks) -> tuple[str, ...]:
    """What one would have to know to say that nothing is busy."""
    needed = [("CPU utilisation", "cpu_busy_share" in phase.figures and analysis.cores is not None)]
    if analysis.device == "cuda":
        needed += [
            ("GPU utilisation", "gpu_busy_share" in phase.figures),
            ("H2D rate", "h2d_bytes_per_s" in phase.figures),
            ("D2H rate", "d2h_bytes_per_s" in phase.figures),
            ("the link's peak", peaks.h2d_bytes_per_s is not None and peaks.d2h_bytes_per_s is not None),
        ]
    return tuple(name for name, known in needed if not known)


def _resource(
    phase: PhaseFigures, uses: Sequence[Use], missing: Sequence[str], analysis: StepAnalysis
) -> Resource:
    if uses and uses[0].share >= BOUND_SHARE:
        return uses[0].resource
    busy_cores = _cpu_cores(phase, analysis)
    if missing or busy_cores is None:
        return NOT_KNOWN
    if PYTHON_CORES[0] <= busy_cores <= PYTHON_CORES[1]:
        return "Python/launch overhead"
    if busy_cores < PYTHON_CORES[0]:
        return "waiting"
    # Many cores, but under half of them: in the update that is an optimizer that does not reach them all.
    return "CPU optimizer" if phase.name == "update" else NOT_KNOWN


def _free_s(seconds: float, resource: Resource, uses: Sequence[Use]) -> float:
    """What is left when a resource takes no time: the time it was not in use, or what the next one needs.

    A phase without resource of its own (waiting, Python) shrinks to its busiest resource.
    """
    own = next((use.share for use in uses if use.resource == resource), None)
    others = max((use.share for use in uses if use.resource != resource), default=0.0)
    return seconds * (others if own is None else max(others, 1.0 - own))


def _unused(phases: Sequence[PhaseBound]) -> tuple[float | None, float | None]:
    low = high = 0.0
    for one in phases:
        if one.phase == OTHER and not one.uses:
            high += one.seconds
            continue
        if not one.uses:
            return None, None
        shares = [use.share for use in one.uses if use.resource != "waiting"]
        high += one.seconds * (1.0 - max(shares, default=0.0))
        low += one.seconds * (1.0 - min(1.0, sum(shares)))
    return low, high


def _knobs(phase: str, resource: Resource, point: Point | None) -> tuple[str, ...]:
    names = KNOBS_FOR.get((phase, resource), ())
    return tuple(name for name in names if not point or name in point)[:KNOBS_SHOWN]
