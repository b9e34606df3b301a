"""Simulated machines that no constant of the strategy was chosen on: other models, cards, budgets and laws.

Covered: three machines whose truth departs from `simulated` in constants and in form (updates that overlap
with the backward pass, memory in segments, host memory that binds, a penalty for crowded cards). Not covered:
anything that was tuned on; whoever changes the strategy with one of these in view must replace it. Nothing
here is measured.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from random import Random

from landscapes.landscape import Landscape, Truth
from landscapes.simulated import Machine, Simulation, landscape_of

from offtune.knobs import Placement
from offtune.trial import Point

_GB = 1e9
# Device memory comes in segments of this size (assumed).
_SEGMENT_BYTES = 0.5 * _GB
# Above this share of the budget the allocator frees and reserves anew, which makes a step slower (assumed).
_CROWDED_SHARE, _CROWDED_COST = 0.97, 1.06


@dataclass(frozen=True, slots=True, kw_only=True)
class OtherSimulation(Simulation):
    """The same inputs under other laws; `noise_share` of throughput in a trial."""

    noise_share: float

    def truth(self, point: Point) -> Truth:
        """Throughput and memory without noise; a crowded card is slower."""
        true = Simulation.truth(self, point)
        crowded = _CROWDED_SHARE < true.device_share <= 1.0
        return replace(true, samples_per_s=true.samples_per_s / (_CROWDED_COST if crowded else 1.0))

    def measure(self, point: Point, draw: Random) -> Truth:
        """One trial: noise of throughput by the machine, of memory up to a per cent and upwards only."""
        true = self.truth(point)
        speed = true.samples_per_s * math.exp(draw.gauss(0.0, self.noise_share))
        share = true.device_share * (1.0 + 0.01 * draw.random())
        return replace(true, samples_per_s=speed, device_share=share, out_of_memory=share > 1.0,
                       noise_share=self.noise_share)  # fmt: skip

    def _device_bytes(self, point: Point, where: Placement) -> float:
        """Rounded up to segments; activations cost more, buckets are held twice under overlap."""
        plain = Simulation._device_bytes(self, point, where) + 0.35 * self._activations(point)
        if point.get("overlap_comm"):
            plain += 4.0 * point.get("reduce_bucket_size", 2**26)
        return _SEGMENT_BYTES * math.ceil(plain / _SEGMENT_BYTES)

    def _host_bytes(self, where: Placement) -> float:
        """Pinned copies come in powers of two, so that states take a third more than they hold."""
        return 1.33 * Simulation._host_bytes(self, where)

    def _compute_s(self, micro: float) -> float:
        """Kernels are launched one by one: a fixed time a layer, which small micro-batches do not hide."""
        flops = 8.6 * self.model.parameters * 1024 * micro
        fixed = 3.2e-3 * self.model.layers
        return math.hypot(flops / (0.48 * self.machine.flops_per_s), fixed)

    def _update_s(self, point: Point, where: Placement) -> float:
        """An update on the CPU hides in part behind the backward pass; finer cuts hide more, then cost."""
        plain = Simulation._update_s(self, point, where)
        if where.optimizer != "cpu":
            return plain
        cuts = math.log2(point.get("sub_groups", 1) or 1)
        return plain * (0.8 - 0.05 * min(cuts, 4.0) + 0.03 * max(0.0, cuts - 4.0))


# Assumed, in the range of published machines; budgets in bytes a rank.
_H100_PAIR = Machine(
    ranks=2, budget_bytes=30 * _GB, host_bytes=190 * _GB, flops_per_s=760e12, collective_bytes_per_s=60e9,
    pinned_bytes_per_s=34e9, pageable_bytes_per_s=11e9, cpu_adam_elements_per_s=1.7e9,
    gpu_adam_elements_per_s=80e9, nvme_bytes_per_s=5.2e9, context_bytes=2.8 * _GB,
)  # fmt: skip
_L4_QUARTET = Machine(
    ranks=4, budget_bytes=21 * _GB, host_bytes=150 * _GB, flops_per_s=90e12, collective_bytes_per_s=9e9,
    pinned_bytes_per_s=11e9, pageable_bytes_per_s=3e9, cpu_adam_elements_per_s=0.7e9,
    gpu_adam_elements_per_s=14e9, nvme_bytes_per_s=1.1e9, context_bytes=0.9 * _GB,
)  # fmt: skip
_SMALL_CARD = Machine(
    ranks=1, budget_bytes=12 * _GB, host_bytes=48 * _GB, flops_per_s=60e12, collective_bytes_per_s=1e9,
    pinned_bytes_per_s=12e9, pageable_bytes_per_s=4e9, cpu_adam_elements_per_s=0.5e9,
    gpu_adam_elements_per_s=12e9, nvme_bytes_per_s=2.2e9, context_bytes=0.7 * _GB,
)  # fmt: skip


def h100_pair() -> Landscape:
    """llama-7b on two H100 held to 30 GB."""
    return _held_out("2 x H100 at 30 GB, 7B", "llama-7b", "h100-80gb", _H100_PAIR, 0.02)


def l4_quartet() -> Landscape:
    """llama-3b on four L4 with slow links."""
    return _held_out("4 x L4-24GB, 3B", "llama-3b", "l4", _L4_QUARTET, 0.06)


def small_card() -> Landscape:
    """llama-1b on one card of 12 GB."""
    return _held_out("1 x 12 GB card, 1B", "llama-1b", "rtx3090", _SMALL_CARD, 0.03)


def _held_out(name: str, model_name: str, profile: str, machine: Machine, noise_share: float) -> Landscape:
    def other(simulation: Simulation) -> OtherSimulation:
        return OtherSimulation(machine=simulation.machine, model=simulation.model, noise_share=noise_share)

    found = landscape_of(name, model_name, profile, machine, noise_share=noise_share, laws=other)
    found.note += "; the strategy was never tuned on it"
    return found
