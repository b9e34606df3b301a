"""Seconds of an optimizer step: the work of `step_work` on the resources of a hardware profile.

Covered: forward, backward and update of a GPU node as DeepSpeed schedules them; the CPU accelerator, where
nothing overlaps. Not covered: pipeline parallelism, activation offload, and time outside of DeepSpeed (data,
logging), which the caller adds. Constants without a profile are below, each with what fixed it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal

from offtune.hardware_profile import HardwareProfile
from offtune.step_work import StepWork

Phase = Literal["forward", "backward", "update"]
Resource = Literal["compute", "launch", "link", "collective", "host", "cpu_adam", "nvme"]
PHASES: tuple[Phase, ...] = ("forward", "backward", "update")

# Two resources that run side by side take (a^q + b^q)^(1/q): nearly the longer one, a third more where both
# are as long. Fitted to run C2 (7B on one A100, gradient copy overlapped), where 1.9 and 1.9 make 2.5 s.
_OVERLAP = 2.2
# The host issues kernels ahead of the GPU with little waste. Fitted to forwards of 7B to 100B on four H100.
_LAUNCH_OVERLAP = 3.8
# Tokens at which matrix products reach half of their best rate: micro-batch 1 against 4 on one A100.
_HALF_RATE_TOKENS = 500
# Times the scores of eager attention cross device memory: product, mask, softmax, dropout, product.
_SCORE_TOUCHES = 6
_BACKWARD_SCORES = 2
# Times element-wise work of a layer (norms, activation, residuals) crosses a tensor of the model's width.
_STATE_TOUCHES = 85
# Backward of an attention kernel makes the scores again: five products for two.
_BACKWARD_ATTENTION = 2.5
_BACKWARD_STATES = 2.0
# Share of a layer's forward launch time that stages below 3 need: no fetch and release hooks.
_LAUNCH_SHARE_BELOW_3 = 0.36
# One hook, bucket or tile costs the host this share of a layer's launch. On the CPU accelerator, 5 M parameters:
# 8 micro-steps for one cost 11, 23 and 38 ms each at stage 1, 2 and 3, for 0, 39 and 78 of them.
_CALL_SHARE = 0.2
# Copies beside collectives on one link: 1.25 to 1.95 times the sum of both (Mist, A10G without NVLink).
_COPY_BESIDE_COLLECTIVE = 2.0
# Ranks whose threads run on all cores get in each other's way: 7B on 1, 2 and 4 ranks of one node (A100).
_UNBOUND_SHARE, _UNBOUND_ONE_RANK = 0.57, 0.36
# A GPU Adam step reads and writes master, both moments, gradient and the 16-bit copy.
_DEVICE_ADAM_BYTES = 34
_FP32_BYTES, _HALF_BYTES = 4, 2


@dataclass(frozen=True, slots=True, kw_only=True)
class TimePrediction:
    """Predicted seconds of one optimizer step. `bound` names what each phase mostly waits for.

    `exposed` is what the step would be shorter by if that resource took no time; the sum says nothing.
    `alone` are the seconds a resource is busy in each phase. `error_share` is the median error that
    benchmarks/accuracy.py finds for steps of this kind.
    """

    forward_s: float
    backward_s: float
    update_s: float
    step_s: float
    exposed: Mapping[Resource, float]
    bound: Mapping[Phase, Resource]
    alone: Mapping[Phase, Mapping[Resource, float]]
    error_share: float


# What benchmarks/accuracy.py finds over published GPU runs, and benchmarks/accuracy_cpu.py on the CPU.
_ERROR_SHARE = {"cuda": 0.08, "cpu": 0.15}


def predict_time(work: StepWork, hardware: HardwareProfile) -> TimePrediction:
    """Phase times of one optimizer step of `work`, all micro-steps included."""
    phases = _phases(work, hardware)
    times = {phase: _phase_s(phases[phase], hardware) for phase in PHASES}
    total = sum(times.values())
    alone = {phase: _busy(phases[phase]) for phase in PHASES}
    return TimePrediction(
        forward_s=times["forward"],
        backward_s=times["backward"],
        update_s=times["update"],
        step_s=total,
        exposed=_exposed(phases, total, hardware),
        bound={phase: max(alone[phase], key=lambda name: alone[phase][name]) for phase in PHASES},
        alone=alone,
        error_share=_ERROR_SHARE[hardware.device],
    )


@dataclass(frozen=True, slots=True)
class Part:
    """A stretch of a phase, `count` times: lanes run side by side, what is in one lane runs in turn.

    `serial` is work for which everything else waits.
    """

    count: float
    lanes: tuple[Mapping[Resource, float], ...]
    serial: Mapping[Resource, float]


def _phases(work: StepWork, hardware: HardwareProfile) -> dict[Phase, tuple[Part, ...]]:
    rates = _Rates(work, hardware)
    forward = Part(float(work.micro_steps), _forward_lanes(work, rates), {})
    return {
        "forward": (forward,),
        "backward": _backward(work, rates),
        "update": (_update(work, rates),),
    }


class _Rates:
    """Seconds for volumes on this machine, with this many ranks at once."""

    def __init__(self, work: StepWork, hardware: HardwareProfile) -> None:
        self.work, self.hardware = work, hardware
        peak = hardware.matrix_flops_per_s.get(work.precision, 0.0)
        saturated = work.tokens / (work.tokens + _HALF_RATE_TOKENS) if hardware.device == "cuda" else 1.0
        self.flops_per_s = peak * hardware.matrix_efficiency * saturated
        self.attention_flops_per_s = peak * hardware.attention_efficiency
        share = hardware.shared_link_bytes_per_s / max(1, work.ranks_per_node)
        self.h2d = min(hardware.h2d_bytes_per_s, share)
        self.d2h = min(hardware.d2h_bytes_per_s, share)
        self.pageable_h2d = min(hardware.pageable_h2d_bytes_per_s, share)
        self.pageable_d2h = min(hardware.pageable_d2h_bytes_per_s, share)
        # A rank alone, or ranks bound to their cores, get all of the host that they can use.
        unbound = _UNBOUND_SHARE + _UNBOUND_ONE_RANK / work.ranks_per_node
        self.host_share = 1.0 if work.cores_bound else unbound

    def compute(self, flops: float, forwards: float, backwards: float) -> float:
        """Matrix products of `flops`, and what goes with so many forwards and backwards of the layers."""
        work = self.work
        scores = _SCORE_TOUCHES * work.score_bytes * (forwards + _BACKWARD_SCORES * backwards)
        states = _STATE_TOUCHES * work.state_bytes * (forwards + _BACKWARD_STATES * backwards)
        attention = work.attention_flops * (forwards + _BACKWARD_ATTENTION * backwards)
        return (
            flops / self.flops_per_s
            + _over(attention, self.attention_flops_per_s)
            + _over(scores + states, self.hardware.device_bytes_per_s)
        )

    def launch(self, share: float) -> float:
        hooked = self.work.zero_stage == 3 or self.hardware.device == "cpu"
        stage = 1.0 if hooked else _LAUNCH_SHARE_BELOW_3
        return share * stage * self.work.layers * self.hardware.layer_launch_s

    def calls(self, count: float) -> float:
        """What DeepSpeed's Python costs beside the layers; on a GPU it is in the launch time already."""
        return _CALL_SHARE * count * self.hardware.layer_launch_s if self.hardware.device == "cpu" else 0.0

    def collective(self, size: float) -> float:
        """Ring: inside a node each rank moves (n-1)/n of it; between nodes all of it enters each node."""
        work, hardware = self.work, self.hardware
        if not size or work.ranks == 1:
            return 0.0
        inside = size * (work.ranks - 1) / work.ranks / hardware.collective_bytes_per_s
        if work.ranks == work.ranks_per_node:
            return inside
        return max(inside, size * (work.ranks - 1) / work.ranks / hardware.fabric_bytes_per_s)

    def nvme(self, read: float, written: float) -> float:
        node = self.work.ranks_per_node
        reading = node * read / self.hardware.nvme_read_bytes_per_s if read else 0.0
        return reading + (node * written / self.hardware.nvme_write_bytes_per_s if written else 0.0)

    def copies(self, d2h: float, h2d: float) -> float:
        """Pinned copies of one stream, one after the other."""
        slower = 1.0
        if self.hardware.collectives_over_link and self.work.ranks > 1:
            slower = _COPY_BESIDE_COLLECTIVE
        return slower * (_over(d2h, self.d2h) + _over(h2d, self.h2d))

    def pageable(self, d2h: float, h2d: float) -> float:
        """The host copies every byte into or out of a pinned buffer, with the cores it has."""
        return (_over(d2h, self.pageable_d2h) + _over(h2d, self.pageable_h2d)) / self.host_share

    def host_copy(self, size: float) -> float:
        return _over(size, self.hardware.host_copy_bytes_per_s * self.host_share)

    def adam(self, numel: float) -> float:
        return _over(numel * self.work.ranks_per_node, self.hardware.adam_elements_per_s * self.host_share)


def _over(amount: float, rate: float) -> float:
    return amount / rate if amount else 0.0


def _forward_lanes(work: StepWork, rates: _Rates) -> tuple[Mapping[Resource, float], ...]:
    compute: dict[Resource, float] = {"compute": rates.compute(work.forward_flops, 1.0, 0.0)}
    host: dict[Resource, float] = {"launch": rates.launch(1.0) + rates.calls(work.micro_calls / 2)}
    gathered = rates.collective(work.forward_gather_bytes)
    fetch: dict[Resource, float] = {"collective": gathered, "link": rates.copies(0.0, work.forward_h2d_bytes)}
    return compute, host, fetch, {"nvme": rates.nvme(work.forward_nvme_read_bytes, 0.0)}


def _backward(work: StepWork, rates: _Rates) -> tuple[Part, ...]:
    """All micro-steps but the last, and the last, which also hands its gradients to the optimizer."""
    lanes, serial = _backward_lanes(work, rates, last=False)
    last_lanes, last_serial = _backward_lanes(work, rates, last=True)
    return Part(work.micro_steps - 1.0, lanes, serial), Part(1.0, last_lanes, last_serial)


def _backward_lanes(
    work: StepWork, rates: _Rates, *, last: bool
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
    if work.ranks > work.ranks_per_node:
        # One network carries what is gathered and what is reduced.
        fetch["collective"] += stream.pop("collective")
    if rates.hardware.collectives_over_link:
        # One link carries all of it: nothing in it runs beside anything else in it.
        merged = {name: fetch.get(name, 0.0) + stream.get(name, 0.0) for name in {*fetch, *stream}}
        fetch, stream = merged, {}
    written = work.last_nvme_write_bytes if last else 0.0
    nvme: dict[Resource, float] = {"nvme": rates.nvme(work.backward_nvme_read_bytes, written)}
    return (compute, host, fetch, stream, nvme), serial


def _round_trip(
    work: StepWork, rates: _Rates, stream: dict[Resource, float], serial: dict[Resource, float]
) -> None:
    """The gradient's way to the host and back in every micro-step; pageable copies block whatever is asked."""
    if work.pinned and not work.micro_copies_block:
        stream["link"] = rates.copies(work.micro_d2h_bytes, work.micro_h2d_bytes)
    elif work.pinned:
        serial["link"] = rates.copies(work.micro_d2h_bytes, work.micro_h2d_bytes)
    else:
        serial["link"] = rates.pageable(work.micro_d2h_bytes, work.micro_h2d_bytes)


def _to_optimizer(
    work: StepWork, rates: _Rates, stream: dict[Resource, float], serial: dict[Resource, float]
) -> None:
    """The last gradient's copy into the optimizer's fp32 gradient, as this DeepSpeed does it."""
    fp32 = _FP32_BYTES * work.last_numel
    copy = work.gradient_copy
    if work.last_nvme_write_bytes or (work.zero_stage < 3 and work.pinned) or (copy == "overlapped" and work.pinned):
        # Stages 1 and 2 never blocked (PR 8207); NVMe offload hands fp32 gradients to the swapper.
        stream["link"] = stream.get("link", 0.0) + rates.copies(fp32, 0.0)
    elif copy == "cast_on_host" and work.zero_stage == 3:
        half = _HALF_BYTES * work.last_numel
        serial["link"] = serial.get("link", 0.0) + rates.pageable(half, 0.0)
        serial["host"] = rates.host_copy(fp32)
    elif copy == "bounce" and work.zero_stage == 3:
        serial["link"] = serial.get("link", 0.0) + rates.copies(fp32, 0.0)
        serial["host"] = rates.host_copy(fp32)
    elif work.pinned:
        serial["link"] = serial.get("link", 0.0) + rates.copies(fp32, 0.0)
    else:
        serial["link"] = serial.get("link", 0.0) + rates.pageable(fp32, 0.0)


def _update(work: StepWork, rates: _Rates) -> Part:
    """Sub-groups one after the other: states from NVMe, Adam, upload of the 16-bit copy (stage3.py, step)."""
    upload = rates.copies if work.update_h2d_pinned else rates.pageable
    chain: dict[Resource, float] = {
        "compute": _over(work.device_numel * _DEVICE_ADAM_BYTES, rates.hardware.device_bytes_per_s),
        "cpu_adam": rates.adam(work.cpu_numel),
        "link": upload(0.0, work.update_h2d_bytes) + rates.pageable(work.update_d2h_bytes, 0.0),
        "collective": rates.collective(work.update_gather_bytes),
    }
    chain["launch"] = rates.calls(work.update_calls)
    storage = rates.nvme(work.update_nvme_read_bytes, work.update_nvme_write_bytes)
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


def _exposed(
    phases: Mapping[Phase, tuple[Part, ...]], total: float, hardware: HardwareProfile
) -> dict[Resource, float]:
    used = {name for parts in phases.values() for name, busy in _busy(parts).items() if busy}
    found: dict[Resource, float] = {}
    for name in sorted(used):
        without = (_without(parts, name) for parts in phases.values())
        found[name] = max(0.0, total - sum(_phase_s(parts, hardware) for parts in without))
    return found


def _without(parts: tuple[Part, ...], name: Resource) -> tuple[Part, ...]:
    def drop(lane: Mapping[Resource, float]) -> Mapping[Resource, float]:
        return {key: value for key, value in lane.items() if key != name}

    return tuple(replace(p, lanes=tuple(drop(lane) for lane in p.lanes), serial=drop(p.serial)) for p in parts)
