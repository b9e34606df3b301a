"""Seconds of an optimizer step: the work of `step_work` on the resources of a hardware profile.

Covered: forward, backward and update of a GPU node as DeepSpeed schedules them; the CPU accelerator, where
nothing overlaps. Not covered: pipeline parallelism, activation offload, and time outside of DeepSpeed (data,
logging), which the caller adds. How long each resource takes by itself is in `step_rates`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal

from offtune.hardware_profile import HardwareProfile
from offtune.step_rates import Rates
from offtune.step_work import StepWork

Phase = Literal["forward", "backward", "update"]
Resource = Literal["compute", "launch", "link", "collective", "host", "cpu_adam", "nvme"]
PHASES: tuple[Phase, ...] = ("forward", "backward", "update")

# Two resources that run side by side take (a^q + b^q)^(1/q): nearly the longer one, a third more where both
# are as long. Fitted to run C2 (7B on one A100, gradient copy overlapped), where 1.9 and 1.9 make 2.5 s.
_OVERLAP = 2.45
# The host issues kernels ahead of the GPU with little waste. Fitted to forwards of 7B to 100B on four H100.
_LAUNCH_OVERLAP = 3.4
_FP32_BYTES, _HALF_BYTES = 4, 2


@dataclass(frozen=True, slots=True)
class Part:
    """A stretch of a phase, `count` times: lanes run side by side, what is in one lane runs in turn.

    `serial` is work for which everything else waits.
    """

    count: float
    lanes: tuple[Mapping[Resource, float], ...]
    serial: Mapping[Resource, float]


@dataclass(frozen=True, kw_only=True)
class TimePrediction:
    """Predicted seconds of one optimizer step, whose `parts` are the work of each phase on `hardware`.

    `last_backward_s` is the part of the backward in the last micro-step. `error_share` is what nine of ten
    steps of this kind stay within, as far as known.
    """

    forward_s: float
    backward_s: float
    update_s: float
    step_s: float
    last_backward_s: float
    error_share: float
    parts: Mapping[Phase, tuple[Part, ...]]
    hardware: HardwareProfile

    # The rest is worked out when somebody asks: a ranking of thousands only wants the seconds.
    @cached_property
    def alone(self) -> Mapping[Phase, Mapping[Resource, float]]:
        """Seconds a resource is busy in each phase."""
        return {phase: _busy(parts) for phase, parts in self.parts.items()}

    @cached_property
    def bound(self) -> Mapping[Phase, Resource]:
        """What each phase mostly waits for."""
        return {phase: max(busy, key=lambda name: busy[name]) for phase, busy in self.alone.items()}

    @cached_property
    def exposed(self) -> Mapping[Resource, float]:
        """Seconds the step would be shorter by if that resource took no time; the sum says nothing."""
        used = {name for busy in self.alone.values() for name, seconds in busy.items() if seconds}
        found: dict[Resource, float] = {}
        for name in sorted(used):
            without = (_without(parts, name) for parts in self.parts.values())
            rest = sum(_phase_s(parts, self.hardware) for parts in without)
            found[name] = max(0.0, self.step_s - rest)
        return found


# Nine of ten published runs are closer than this, on machines with figures of their own (docs/accuracy.md).
_ERROR_SHARE = 0.10
# Runs on a machine whose figures are another's: 28 % off without offload, 56 % with it (DeepSpeed PR 8186).
_BORROWED_MATRIX_SHARE, _BORROWED_HOST_SHARE = 0.3, 0.5
# 49 random configurations on two quiet cores: predicted / measured 0.86 to 1.28; docs/accuracy.md.
_CPU_ERROR_SHARE = 0.3


def predict_time(work: StepWork, hardware: HardwareProfile) -> TimePrediction:
    """Phase times of one optimizer step of `work`, all micro-steps included."""
    rates = Rates(work, hardware)
    phases = {phase: _parts(phase, work, rates) for phase in PHASES}
    times = {phase: _phase_s(phases[phase], hardware) for phase in PHASES}
    return TimePrediction(
        forward_s=times["forward"],
        backward_s=times["backward"],
        update_s=times["update"],
        step_s=sum(times.values()),
        last_backward_s=_phase_s(phases["backward"][1:], hardware),
        error_share=_error_share(work, hardware),
        parts=phases,
        hardware=hardware,
    )


def _error_share(work: StepWork, hardware: HardwareProfile) -> float:
    if hardware.device == "cpu":
        return _CPU_ERROR_SHARE
    if work.cpu_numel and not hardware.is_own("adam_elements_per_s"):
        return _BORROWED_HOST_SHARE
    return _ERROR_SHARE if hardware.is_own("matrix_efficiency") else _BORROWED_MATRIX_SHARE


def phase_seconds(phase: Phase, work: StepWork, hardware: HardwareProfile) -> float:
    """Seconds of one phase, as `predict_time` has them: for who tries many rates."""
    return _phase_s(_parts(phase, work, Rates(work, hardware)), hardware)


def _parts(phase: Phase, work: StepWork, rates: Rates) -> tuple[Part, ...]:
    if phase == "backward":
        return _backward(work, rates)
    return (_forward(work, rates) if phase == "forward" else _update(work, rates),)


def _forward(work: StepWork, rates: Rates) -> Part:
    lanes = _forward_lanes(work, rates)
    if not work.overlap_comm:
        # Gathers and computing share the default stream (stage3.py, 0.19.8).
        return Part(float(work.micro_steps), (*lanes[:2], *lanes[3:]), lanes[2])
    return Part(float(work.micro_steps), lanes, {})


def _forward_lanes(work: StepWork, rates: Rates) -> tuple[Mapping[Resource, float], ...]:
    compute: dict[Resource, float] = {"compute": rates.compute(work.forward_flops, 1.0, 0.0)}
    host: dict[Resource, float] = {"launch": rates.launch(1.0) + rates.calls(work.micro_calls / 2)}
    fetch: dict[Resource, float] = {
        "collective": rates.collective(work.forward_gather_bytes),
        "link": rates.copies(0.0, work.forward_h2d_bytes),
    }
    return compute, host, fetch, {"nvme": rates.nvme(work.forward_nvme_read_bytes, 0.0)}


def _backward(work: StepWork, rates: Rates) -> tuple[Part, ...]:
    """All micro-steps but the last, and the last, which also hands its gradients to the optimizer."""
    lanes, serial = _backward_lanes(work, rates, last=False)
    last_lanes, last_serial = _backward_lanes(work, rates, last=True)
    return Part(work.micro_steps - 1.0, lanes, serial), Part(1.0, last_lanes, last_serial)


def _backward_lanes(
    work: StepWork, rates: Rates, *, last: bool
) -> tuple[tuple[Mapping[Resource, float], ...], dict[Resource, float]]:
    # Recomputation is a second forward of the layers, and scores are made again with it.
    forwards = 1.0 if work.recompute_flops else 0.0
    flops = work.recompute_flops + work.backward_flops
    compute: dict[Resource, float] = {"compute": rates.compute(flops, forwards, 1.0)}
    host: dict[Resource, float] = {"launch": rates.launch(1.0 + forwards) + rates.calls(work.micro_calls / 2)}
    fetch: dict[Resource, float] = {
        "collective": rates.collective(work.backward_gather_bytes),
        "link": rates.copies(0.0, work.backward_h2d_bytes),
    }
    reduced = rates.collective(work.micro_reduce_bytes + (work.last_reduce_bytes if last else 0.0))
    stream: dict[Resource, float] = {"collective": reduced}
    serial: dict[Resource, float] = {}
    _round_trip(work, rates, stream, serial)
    if last and work.last_numel:
        _to_optimizer(work, rates, stream, serial)
    written = work.last_nvme_write_bytes if last else 0.0
    nvme: dict[Resource, float] = {"nvme": rates.nvme(work.backward_nvme_read_bytes, written)}
    if not work.overlap_comm:
        return (compute, host, nvme), _added(serial, _added(fetch, stream))
    return (compute, host, *_streams(fetch, stream, work, rates), nvme), serial


def _streams(
    fetch: dict[Resource, float], stream: dict[Resource, float], work: StepWork, rates: Rates
) -> tuple[Mapping[Resource, float], ...]:
    """What fetches parameters and what reduces gradients, as far as they can run side by side."""
    if rates.hardware.collectives_over_link:
        # One link carries all of it.
        return (_added(fetch, stream),)
    if work.ranks > work.ranks_per_node:
        # One network carries what is gathered and what is reduced.
        fetch["collective"] += stream.pop("collective")
    both_ways = min(fetch["link"], stream.get("link", 0.0))
    if both_ways:
        stream["link"] += both_ways * (1 / rates.hardware.duplex_share - 1)
    return fetch, stream


def _added(one: Mapping[Resource, float], other: Mapping[Resource, float]) -> dict[Resource, float]:
    return {name: one.get(name, 0.0) + other.get(name, 0.0) for name in {**one, **other}}


def _round_trip(
    work: StepWork, rates: Rates, stream: dict[Resource, float], serial: dict[Resource, float]
) -> None:
    """The gradient's way to the host and back in every micro-step; pageable copies always block."""
    copy = rates.copies if work.pinned else rates.pageable
    lane = stream if work.pinned and not work.micro_copies_block else serial
    lane["link"] = copy(work.micro_d2h_bytes, work.micro_h2d_bytes)


def _to_optimizer(
    work: StepWork, rates: Rates, stream: dict[Resource, float], serial: dict[Resource, float]
) -> None:
    """The last gradient's copy into the optimizer's fp32 gradient, as this DeepSpeed does it."""
    size = _FP32_BYTES * work.last_numel
    kind = work.gradient_copy
    if work.zero_stage < 3 or work.last_nvme_write_bytes:
        # Stages 1 and 2 never blocked (PR 8207); NVMe offload hands fp32 gradients to the swapper.
        kind = "overlapped"
    copy = rates.copies if work.pinned or kind == "bounce" else rates.pageable
    lane = stream if work.pinned and kind == "overlapped" else serial
    if kind == "cast_on_host":
        copy, size = rates.pageable, _HALF_BYTES * work.last_numel
    lane["link"] = lane.get("link", 0.0) + copy(size, 0.0)
    if kind in ("cast_on_host", "bounce"):
        serial["host"] = rates.host_copy(_FP32_BYTES * work.last_numel)


def _update(work: StepWork, rates: Rates) -> Part:
    """Sub-groups one after the other: states from NVMe, Adam, upload of the 16-bit copy (stage3.py, step)."""
    upload = rates.copies if work.update_h2d_pinned else rates.pageable
    chain: dict[Resource, float] = {
        "compute": rates.device_adam(work.device_numel),
        "cpu_adam": rates.cpu_adam(work.cpu_numel),
        "link": upload(0.0, work.update_h2d_bytes) + rates.pageable(work.update_d2h_bytes, 0.0),
        "collective": rates.collective(work.update_gather_bytes),
    }
    chain["launch"] = rates.calls(work.update_calls)
    storage = rates.nvme(
        work.update_nvme_read_bytes, work.update_nvme_write_bytes + work.param_nvme_write_bytes
    )
    if work.nvme_overlapped:
        return Part(1.0, (chain, {"nvme": storage}), {})
    return Part(1.0, (), {**chain, "nvme": storage})


def _phase_s(parts: tuple[Part, ...], hardware: HardwareProfile) -> float:
    return sum(part.count * _part_s(part, hardware) for part in parts if part.count)


def _part_s(part: Part, hardware: HardwareProfile) -> float:
    waited = sum(part.serial.values())
    lanes = [sum(lane.values()) for lane in part.lanes]
    if hardware.device == "cpu":
        # One memory, one set of cores: nothing runs beside anything.
        return waited + sum(lanes)
    if len(part.lanes) > 2:
        lanes = [_side_by_side(lanes[:2], _LAUNCH_OVERLAP), *lanes[2:]]
    return waited + _side_by_side(lanes, _OVERLAP)


def _side_by_side(lanes: list[float], sharpness: float) -> float:
    longest = max(lanes, default=0.0)
    if not longest:
        return 0.0
    total: float = sum((lane / longest) ** sharpness for lane in lanes) ** (1 / sharpness)
    return longest * total


def _busy(parts: tuple[Part, ...]) -> dict[Resource, float]:
    found: dict[Resource, float] = {}
    for part in parts:
        for lane in (*part.lanes, part.serial):
            for name, seconds in lane.items():
                found[name] = found.get(name, 0.0) + part.count * seconds
    return found


def _without(parts: tuple[Part, ...], name: Resource) -> tuple[Part, ...]:
    def drop(lane: Mapping[Resource, float]) -> Mapping[Resource, float]:
        return {key: value for key, value in lane.items() if key != name}

    return tuple(
        replace(p, lanes=tuple(drop(lane) for lane in p.lanes), serial=drop(p.serial)) for p in parts
    )
