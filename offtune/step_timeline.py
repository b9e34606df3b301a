"""The predicted course of one optimizer step: which phase when, and what each path carries in it.

Covered: micro-steps in their order, then the update, as stretches of even rates. Not covered: how a rate
changes within a phase, and memory (`memory_model` says it by phase).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields

from offtune.step_work import StepWork
from offtune.time_model import Phase, TimePrediction

# The same cap as for measured series: a page with two thousand points draws at once.
MAX_STRETCHES = 2000
_FP32_BYTES, _HALF_BYTES = 4, 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Stretch:
    """A phase of `micro_steps` micro-steps drawn as one; seconds count from the start of the step.

    Rates are one rank's; `collective_bytes_per_s` counts what reaches it.
    """

    phase: Phase
    micro_steps: int
    start_s: float
    end_s: float
    d2h_bytes_per_s: float
    h2d_bytes_per_s: float
    collective_bytes_per_s: float
    nvme_read_bytes_per_s: float
    nvme_write_bytes_per_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Volume:
    """Bytes of one rank over each path; `collective` is what reaches it."""

    d2h: float = 0.0
    h2d: float = 0.0
    collective: float = 0.0
    read: float = 0.0
    written: float = 0.0

    def __add__(self, other: Volume) -> Volume:
        return self._each(lambda path: getattr(self, path) + getattr(other, path))

    def __mul__(self, times: float) -> Volume:
        return self._each(lambda path: getattr(self, path) * times)

    def _each(self, value: Callable[[str], float]) -> Volume:
        return Volume(**{path.name: value(path.name) for path in fields(self)})


def step_volumes(work: StepWork) -> dict[Phase, Volume]:
    """What each phase of one optimizer step moves, all micro-steps together."""
    forward, backward = _micro_volumes(work)
    return {
        "forward": forward * work.micro_steps,
        "backward": backward * (work.micro_steps - 1) + _last_volume(work, backward),
        "update": _update_volume(work),
    }


def predicted_timeline(
    work: StepWork, prediction: TimePrediction, max_stretches: int = MAX_STRETCHES
) -> tuple[Stretch, ...]:
    """At most `max_stretches` (three or more) stretches; with more micro-steps, several share one."""
    forward, backward = _micro_volumes(work)
    micro = work.micro_steps
    before = micro - 1
    found: list[Stretch] = []
    each = prediction.forward_s / micro
    plain = (prediction.backward_s - prediction.last_backward_s) / before if before else 0.0
    pairs = max(1, (max_stretches - 3) // 2)
    for group in _groups(before, min(before, pairs)):
        found.append(_stretch("forward", group, found, each, forward))
        found.append(_stretch("backward", group, found, plain, backward))
    found.append(_stretch("forward", 1, found, each, forward))
    found.append(_stretch("backward", 1, found, prediction.last_backward_s, _last_volume(work, backward)))
    found.append(_stretch("update", 1, found, prediction.update_s, _update_volume(work)))
    return tuple(found)


def _groups(count: int, parts: int) -> list[int]:
    """`count` micro-steps shared out over `parts` groups, all but even."""
    return [count * (i + 1) // parts - count * i // parts for i in range(parts)]


def _micro_volumes(work: StepWork) -> tuple[Volume, Volume]:
    arriving = (work.ranks - 1) / work.ranks
    forward = Volume(
        h2d=work.forward_h2d_bytes,
        collective=work.forward_gather_bytes * arriving,
        read=work.forward_nvme_read_bytes,
    )
    backward = Volume(
        d2h=work.micro_d2h_bytes,
        h2d=work.micro_h2d_bytes + work.backward_h2d_bytes,
        collective=(work.backward_gather_bytes + work.micro_reduce_bytes) * arriving,
        read=work.backward_nvme_read_bytes,
    )
    return forward, backward


def _last_volume(work: StepWork, micro: Volume) -> Volume:
    """The last backward's: the gradient goes out once more, in 16 bit where the host converts it."""
    converted = (
        work.gradient_copy == "cast_on_host" and work.zero_stage == 3 and not work.last_nvme_write_bytes
    )
    width = _HALF_BYTES if converted else _FP32_BYTES
    return Volume(
        d2h=micro.d2h + width * work.last_numel,
        h2d=micro.h2d,
        collective=micro.collective + work.last_reduce_bytes * (work.ranks - 1) / work.ranks,
        read=micro.read,
        written=work.last_nvme_write_bytes,
    )


def _update_volume(work: StepWork) -> Volume:
    return Volume(
        d2h=work.update_d2h_bytes,
        h2d=work.update_h2d_bytes,
        collective=work.update_gather_bytes * (work.ranks - 1) / work.ranks,
        read=work.update_nvme_read_bytes,
        written=work.update_nvme_write_bytes + work.param_nvme_write_bytes,
    )


def _stretch(
    phase: Phase, micro_steps: int, before: list[Stretch], seconds: float, volume: Volume
) -> Stretch:
    """The next stretch: so many micro-steps of `seconds` and `volume` each."""
    start = before[-1].end_s if before else 0.0
    per_second = 1 / seconds if seconds else 0.0
    return Stretch(
        phase=phase,
        micro_steps=micro_steps,
        start_s=start,
        end_s=start + micro_steps * seconds,
        d2h_bytes_per_s=volume.d2h * per_second,
        h2d_bytes_per_s=volume.h2d * per_second,
        collective_bytes_per_s=volume.collective * per_second,
        nvme_read_bytes_per_s=volume.read * per_second,
        nvme_write_bytes_per_s=volume.written * per_second,
    )
