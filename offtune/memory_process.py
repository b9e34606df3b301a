"""Memory that no tensor accounts for: the CUDA context, NCCL, allocators that keep what was freed, processes.

Covered: constants with the measurement that fixed each, torch's pinned rounding, glibc's heap. Not covered:
tensors (`memory_zero12`, `memory_zero3`, `memory_work`).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator

from offtune.memory_case import LARGE_BYTES, MOMENTS, Block, Case, Moment

GIB = 1024**3
MIB = 1024**2
# Driver's figure less the allocator's reserved bytes on one A100 (published log, 13B, seed paper's data).
CONTEXT_BYTES = int(2.4 * GIB)
# The same on four H100 and four A100 with NCCL is 4.0 GiB.
NCCL_BYTES = int(1.6 * GIB)
# Freed memory that a reserved block keeps from others, as a share of what layers and buckets allocate and
# free in turn on several streams. Published NVML traces, 20B on four H100: 0.6 when every gradient copy
# blocks, 1.4 when copies run ahead of the host.
FRAGMENTED_BLOCKING = 0.6
FRAGMENTED_ASYNC = 1.4
# Activations leave gaps too: the low end of the usual 5 to 20 %, which agrees with 14.8B on eight H200
# (PR 8186: at 2048 tokens it runs, at 2400 it does not).
FRAGMENTED_ACTIVATIONS = 0.05
# PR 8207: from here on gradient copies do not block.
_ASYNC_COPIES = (0, 19, 5)

# A CUDA rank's libraries and runtime, and what a node uses without any rank.
HOST_RANK_BYTES = int(5 * GIB)
HOST_NODE_BYTES = int(15 * GIB)


def pow2(size: int) -> int:
    """torch's CachingHostAllocator rounds pinned blocks up to a power of two."""
    return 1 << (size - 1).bit_length() if size > 0 else 0


def outside_allocator(case: Case) -> list[Block]:
    """Device memory that torch's allocator does not count."""
    always: frozenset[Moment] = frozenset(MOMENTS)
    nccl = NCCL_BYTES if case.ranks > 1 else 0
    return [Block("context", "device", CONTEXT_BYTES, always), Block("NCCL", "device", nccl, always)]


_ACTIVATIONS = frozenset({"activations", "logits and loss", "held scores"})


def fragmentation(case: Case, device: Iterable[Block], moment: Moment) -> int:
    """Reserved beyond allocated bytes at a moment: of what lives for the moment only."""
    passing = [block for block in device if moment in block.moments and "update" not in block.moments]
    kept = sum(block.size for block in passing if block.component in _ACTIVATIONS)
    moving = sum(block.size for block in passing) - kept
    blocking = case.stage == 3 and case.offloads_optimizer and case.version < _ASYNC_COPIES
    runs_ahead = case.layout.resident_sub_groups if case.stage == 3 and case.offloads_optimizer else 0
    share = FRAGMENTED_BLOCKING if blocking and not runs_ahead else FRAGMENTED_ASYNC
    return int(share * moving + FRAGMENTED_ACTIVATIONS * kept)


def host_size(block: Block) -> int:
    """What a host block costs on a CUDA machine: pinned ones are rounded up."""
    if not block.pinned:
        return block.size
    if block.piece is None or block.piece >= block.size:
        return pow2(block.size)
    return int(block.size * pow2(block.piece) / block.piece)


# A rank before the model: torch, DeepSpeed, transformers and ops loaded, private pages only; measured here.
CPU_LEVEL_BYTES = 356_000_000
# The rest is fitted to 84 recorded trials and checked on 44 others (docs/memory.md): DeepSpeed 0.19.8, glibc.
# What a rank holds besides tensors: compiled kernels, Python objects, threads of gloo.
CPU_RANK_BYTES = 15_000_000
# Heap over the sum of its components' own peaks: one component reuses little of what another freed.
_HEAP_SHARE = 0.9
# Activations come and go in every layer and leave gaps, by share of their peak; the hooks of stage 3 allocate
# in between, so that freed neighbours do not join.
_GAPS = {False: 0.2, True: 0.7}
_WORK = frozenset({"activations", "logits and loss", "working layer"})


def heap_on_cpu(case: Case, blocks: Iterable[Block]) -> dict[str, int]:
    """What a CPU rank's heap holds from its busiest moment on, by component of its peak; and the process."""
    sizes: dict[str, dict[Moment, int]] = defaultdict(lambda: dict.fromkeys(MOMENTS, 0))
    for block in _resident(blocks):
        if _on_heap(block):
            for moment in block.moments:
                sizes[block.component][moment] += _touched(block)
    peaks = {name: int(_HEAP_SHARE * max(each.values())) for name, each in sizes.items()}
    work = sum(max(each.values()) for name, each in sizes.items() if name in _WORK)
    return {**peaks, "gaps in the heap": int(_GAPS[case.stage == 3] * work), "process": CPU_RANK_BYTES}


def mapped_on_cpu(blocks: Iterable[Block]) -> dict[Moment, dict[str, int]]:
    """Large tensors of a CPU rank, which come and go, by moment and component."""
    found: dict[Moment, dict[str, int]] = {moment: {} for moment in MOMENTS}
    for block in _resident(blocks):
        if not _on_heap(block):
            for moment in block.moments:
                found[moment][block.component] = found[moment].get(block.component, 0) + _touched(block)
    return found


def _resident(blocks: Iterable[Block]) -> Iterator[Block]:
    return (block for block in blocks if block.place != "nvme" and block.size)


def _on_heap(block: Block) -> bool:
    return (block.size if block.piece is None else block.piece) < LARGE_BYTES


def _touched(block: Block) -> int:
    return block.size if block.written is None else block.written


def total(blocks: Iterable[Block], moment: Moment) -> int:
    """Bytes of all blocks at one moment."""
    return sum(block.size for block in blocks if moment in block.moments)
