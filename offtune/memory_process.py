"""Memory that no tensor accounts for: the CUDA context, NCCL, allocators that keep what was freed, processes.

Covered: constants with the measurement that fixed each, torch's pinned rounding, glibc's heap. Not covered:
tensors (`memory_zero12`, `memory_zero3`, `memory_work`).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

from offtune.memory_case import LARGE_BYTES, MOMENTS, Block, Case, Moment

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


# A rank before the model: torch, DeepSpeed, transformers and ops loaded, private pages only; measured here.
CPU_LEVEL_BYTES = 356_000_000
# The rest is fitted to 63 runs of ours (benchmarks/accuracy_cpu.py, DeepSpeed 0.19.8, glibc 2.36).
# What a rank holds besides tensors: compiled kernels, Python objects, threads of gloo.
CPU_RANK_BYTES = 15_000_000
# Heap over the sum of its components' own peaks: below stage 3 one component reuses a little of what another
# freed; the hooks of stage 3 allocate in between, so that freed neighbours do not join.
_HEAP_SHARE = {False: 0.9, True: 1.0}
# Activations come and go in every layer and leave gaps, by share of their peak.
_GAPS = {False: 0.2, True: 0.4}
_WORK = frozenset({"activations", "logits and loss", "working layer"})


def resident_on_cpu(case: Case, blocks: Iterable[Block]) -> dict[Moment, int]:
    """Resident bytes of a CPU rank above its level before the model, by moment.

    Large tensors come and go; the heap stays as large as it ever was.
    """
    small: dict[str, dict[Moment, int]] = defaultdict(lambda: dict.fromkeys(MOMENTS, 0))
    mapped: dict[Moment, int] = dict.fromkeys(MOMENTS, 0)
    for block in blocks:
        if block.place != "nvme":
            is_small = (block.piece or block.size) < LARGE_BYTES
            sizes = small[block.component] if is_small else mapped
            for moment in block.moments:
                sizes[moment] += block.size if block.written is None else block.written
    peaks = {component: max(sizes.values()) for component, sizes in small.items()}
    hooked = case.stage == 3
    gaps = _GAPS[hooked] * sum(size for component, size in peaks.items() if component in _WORK)
    heap = int(_HEAP_SHARE[hooked] * sum(peaks.values()) + gaps)
    return {moment: CPU_RANK_BYTES + heap + mapped[moment] for moment in MOMENTS}


def total(blocks: Iterable[Block], moment: Moment) -> int:
    """Bytes of all blocks at one moment."""
    return sum(block.size for block in blocks if moment in block.moments)
