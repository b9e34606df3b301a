"""Made-up recordings: a training whose figures are known, sampled as a poller would."""

from __future__ import annotations

from dataclasses import dataclass, replace

from offtune.timeline import Mark, Series, Timeline, cores_key

GB = 1e9
# name, seconds, device bytes, D2H, H2D (bytes per second), GPU busy, CPU busy
Phase = tuple[str, float, float, float, float, float, float]
FORWARD: Phase = ("forward", 0.4, 26e9, 0.0, 0.1e9, 0.9, 0.1)
BACKWARD: Phase = ("backward", 2.0, 31e9, 12e9, 3e9, 0.55, 0.2)
UPDATE: Phase = ("update", 1.5, 24e9, 0.5e9, 4e9, 0.1, 0.95)
GAP: Phase = ("", 0.1, 24e9, 0.0, 0.0, 0.0, 0.1)
STEP: tuple[Phase, ...] = (FORWARD, BACKWARD, UPDATE, GAP)


@dataclass(frozen=True, slots=True, kw_only=True)
class _At:
    seconds: float
    phase: Phase


def make_timeline(
    steps: int = 3, interval_s: float = 0.02, phases: tuple[Phase, ...] = STEP, rank: int = 0
) -> Timeline:
    """`steps` equal steps; every sample is taken within one phase, the marks are exact."""
    marks, samples, at_s = [], [], 0.0
    for step in range(steps):
        start_s = at_s
        for phase in phases:
            count = round(phase[1] / interval_s)
            samples += [_At(seconds=at_s + (k + 1) * interval_s, phase=phase) for k in range(count)]
            if phase[0]:
                marks.append(Mark(name=phase[0], step=step, start_s=at_s, end_s=at_s + phase[1]))
            at_s += phase[1]
        marks.append(Mark(name="step", step=step, start_s=start_s, end_s=at_s))
    columns = (
        ("device_used_bytes", 2),
        ("d2h_bytes_per_s", 3),
        ("h2d_bytes_per_s", 4),
        ("gpu_busy_share", 5),
        ("cpu_busy_share", 6),
    )
    times = tuple(one.seconds for one in samples)
    series = tuple(
        Series(key=key, times_s=times, values=tuple(float(one.phase[column]) for one in samples))
        for key, column in columns
    )
    return Timeline(rank=rank, source="a made-up training", cores=16, series=series, marks=tuple(marks))


def with_cores(timeline: Timeline, **groups: tuple[int, float]) -> Timeline:
    """The same with groups of cores: name=(how many, the share that is busy all the time)."""
    times = timeline.series[0].times_s
    series = tuple(
        Series(key=cores_key(name), times_s=times, values=(busy,) * len(times), counted=True)
        for name, (_, busy) in groups.items()
    )
    counts = {name: count for name, (count, _) in groups.items()}
    return replace(timeline, core_groups=counts, series=(*timeline.series, *series))
