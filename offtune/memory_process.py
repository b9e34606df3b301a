"""Memory that no tensor accounts for: the CUDA context, NCCL, allocators that keep what was freed, processes.

Covered: constants with the measurement that fixed each, torch's pinned rounding, glibc's heap. Not covered:
tensors (`memory_zero12`, `memory_zero3`, `memory_work`).
"""

from __future__ import annotations

from collections.abc import Iterable

from offtune.memory_case import MOMENTS, Block, Case, Moment

GIB = 1024**3
MIB = 1024**2
# Driver's figure less the allocator's reserved bytes on one A100 (published log, 13B, seed paper's data).
CONTEXT_BYTES = int(2.4 * GIB)
# The same on four H100 and four A100 with NCCL is 4.0 GiB.
NCCL_BYTES = int(1.6 * GIB)
# Freed memory that a reserved block keeps from others, as a share of what an iteration allocates and frees.
# Published NVML traces, 20B on four H100: 0.5 when every gradient copy blocks, 1.2 when copies run ahead.
FRAGMENTED_BLOCKING = 0.5
FRAGMENTED_ASYNC = 1.2
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


def fragmentation(case: Case, transient: int) -> int:
    """Reserved beyond allocated bytes, when `transient` come and go within an iteration."""
    blocking = case.stage == 3 and case.offloads_optimizer and case.version < _ASYNC_COPIES
    runs_ahead = case.layout.resident_sub_groups if case.stage == 3 and case.offloads_optimizer else 0
    return int(transient * (FRAGMENTED_BLOCKING if blocking and not runs_ahead else FRAGMENTED_ASYNC))


def host_size(block: Block) -> int:
    """What a host block costs on a CUDA machine: pinned ones are rounded up."""
    if not block.pinned:
        return block.size
    if block.piece is None or block.piece >= block.size:
        return pow2(block.size)
    return int(block.size * pow2(block.piece) / block.piece)


def total(blocks: Iterable[Block], moment: Moment) -> int:
    """Bytes of all blocks at one moment."""
    return sum(block.size for block in blocks if moment in block.moments)
