"""The memory model: bytes by component on device, host and NVMe, before anything runs.

Covered: CUDA ranks, and the CPU accelerator, where all components live in one memory. Not covered: which
blocks there are (`memory_zero12`, `memory_zero3`, `memory_work`) and a trial's time. How far predictions
were off: docs/accuracy.md.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

from offtune import memory_process, memory_work, memory_zero3, memory_zero12
from offtune.activations import HUGGING_FACE, Stack
from offtune.memory_case import MOMENTS, PHASE_OF, UPDATE, Block, Case, Moment, case_of
from offtune.memory_course import Level, lasting, levels
from offtune.model_shape import ModelShape
from offtune.trial import DsConfig, Facts

# docs/memory.md: nine of ten published runs are within 3 %, trials of the CPU accelerator within 10 %. Stages
# and stacks without published figures are the reason for more on CUDA.
CUDA_ERROR_SHARE = 0.08
CPU_ERROR_SHARE = 0.10


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryPrediction:
    """Predicted bytes: `device` of one rank at its peak, `host` of all ranks at theirs, `nvme` of all ranks.

    `used_device_bytes` is what a budget is compared with, `allocated_bytes` the part that torch's allocator
    counts. `peak_by_phase` are allocator peaks of a rank (start, forward, backward, update), `levels` that
    over the course of a step; on the CPU accelerator both are used memory. Of ten predictions nine are off by
    no more than `error_share`.
    """

    device: dict[str, int]
    host: dict[str, int]
    nvme: dict[str, int]
    peak_by_phase: dict[str, int]
    levels: tuple[Level, ...]
    used_device_bytes: int
    allocated_bytes: int
    resting_bytes: int
    used_host_bytes: int
    resting_host_bytes: int
    error_share: float


def predict_memory(
    ds_config: DsConfig,
    facts: Facts,
    shape: ModelShape,
    stack: Stack = HUGGING_FACE,
    ranks_per_node: int | None = None,
) -> MemoryPrediction:
    """The memory of training `shape` under a ds_config that `ds_rules` found nothing wrong with."""
    case = case_of(ds_config, facts, shape, stack, ranks_per_node)
    states = memory_zero3 if case.stage == 3 else memory_zero12
    blocks = [*states.blocks(case), *memory_work.blocks(case)]
    return _on_cpu(case, blocks) if facts.device == "cpu" else _on_cuda(case, blocks)


def _on_cuda(case: Case, blocks: list[Block]) -> MemoryPrediction:
    device = [block for block in blocks if block.place == "device"]
    totals = {moment: memory_process.total(device, moment) for moment in MOMENTS}
    # The pool that torch reserves grows to the worst moment, gaps included.
    gaps = {moment: memory_process.fragmentation(case, device, moment) for moment in MOMENTS}
    peak = max(MOMENTS, key=lambda moment: totals[moment] + gaps[moment])
    resting = totals["update"] - sum(b.size for b in device if b.moments == UPDATE)
    before = memory_process.total(lasting(device), "forward")
    outside = memory_process.outside_allocator(case)
    components = _components([*device, *outside], peak) | {"fragmentation": gaps[peak]}
    host = _host_components(case, blocks)
    return MemoryPrediction(
        device=components,
        host=host,
        nvme=_components([b for b in blocks if b.place == "nvme"], "update", case.ranks_per_node),
        peak_by_phase=_by_phase(totals),
        levels=levels(case, totals, before),
        used_device_bytes=sum(components.values()),
        allocated_bytes=max(totals.values()),
        resting_bytes=resting,
        used_host_bytes=sum(host.values()),
        resting_host_bytes=sum(host.values()) - host.get("overflow check", 0),
        error_share=CUDA_ERROR_SHARE,
    )


def _on_cpu(case: Case, blocks: list[Block]) -> MemoryPrediction:
    """Everything lives in one memory: a rank's resident bytes above its level before the model."""
    heap, mapped = memory_process.heap_on_cpu(case, blocks), memory_process.mapped_on_cpu(blocks)
    totals = {moment: sum(heap.values()) + sum(mapped[moment].values()) for moment in MOMENTS}
    peak = max(MOMENTS, key=lambda moment: totals[moment])
    mapped_before = memory_process.mapped_on_cpu(lasting(blocks))["forward"]
    components = {
        name: size
        for name in {**mapped[peak], **heap}
        if (size := heap.get(name, 0) + mapped[peak].get(name, 0))
    }
    return MemoryPrediction(
        device=components,
        host={},
        nvme=_components([b for b in blocks if b.place == "nvme"], "update", case.ranks_per_node),
        peak_by_phase=_by_phase(totals),
        levels=levels(case, totals, sum(heap.values()) + sum(mapped_before.values())),
        used_device_bytes=totals[peak],
        allocated_bytes=totals[peak],
        resting_bytes=totals["update"],
        used_host_bytes=case.ranks_per_node * (memory_process.CPU_LEVEL_BYTES + totals[peak]),
        resting_host_bytes=0,
        error_share=CPU_ERROR_SHARE,
    )


def _components(blocks: Iterable[Block], moment: Moment, times: int = 1) -> dict[str, int]:
    sizes: dict[str, int] = defaultdict(int)
    for block in blocks:
        if moment in block.moments and block.size:
            sizes[block.component] += block.size * times
    return dict(sizes)


def _by_phase(totals: dict[Moment, int]) -> dict[str, int]:
    peaks: dict[str, int] = {}
    for moment, size in totals.items():
        phase = PHASE_OF[moment]
        peaks[phase] = max(size, peaks.get(phase, 0))
    return peaks


def _host_components(case: Case, blocks: Iterable[Block]) -> dict[str, int]:
    """All ranks of one node; pinned blocks stay for good, whatever their moments."""
    sizes: dict[str, int] = defaultdict(int)
    for block in blocks:
        if block.place == "host" and ("update" in block.moments or block.pinned):
            sizes[block.component] += memory_process.host_size(block) * case.ranks_per_node
    sizes["processes"] = memory_process.HOST_NODE_BYTES + case.ranks_per_node * memory_process.HOST_RANK_BYTES
    return dict(sizes)
