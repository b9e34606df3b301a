"""Memory of the model's states at stage 3: shards, gathered parameters, optimizer sub-groups, swap buffers.

Covered: what runtime/zero/stage3.py, partitioned_param_coordinator.py and runtime/swap_tensor of DeepSpeed
0.19.8 allocate, and when. Not covered: activations (`memory_work`).
"""

from __future__ import annotations

from offtune.ds_layout import AIO_ALIGNMENT_BYTES
from offtune.memory_case import (
    ALWAYS,
    FP32_BYTES,
    PASSES,
    REDUCING,
    START,
    STEADY,
    UPDATE,
    Block,
    Case,
    Place,
    per_parameter,
)
from offtune.memory_zero12 import NORM_BYTES
from offtune.models import numel_up_to

# _constant_buffered_norm2 in stage3.py takes norms of at most so many elements at a time.
_NORM_PIECE_NUMEL = 250_000_000
# From here on swap buffers are locked by the aio op; read in 0.19.8, whether before is not known to us.
_LOCKED_BUFFERS = (0, 19)
# What torch's AdamW holds besides the state while it steps one resident sub-group: the denominator and the
# update, fp32 (foreach implementation, torch/optim/adamw.py).
_ADAMW_TEMPORARIES = 2


def blocks(case: Case) -> list[Block]:
    """Every block of the states at stage 3."""
    found = [*_parameters(case), *_gathered(case), *_reduction(case)]
    device = case.layout.optimizer_device
    if device == "nvme":
        return found + _swapped_optimizer(case)
    return found + (_offloaded_optimizer(case) if device == "cpu" else _optimizer(case))


def _parameters(case: Case) -> list[Block]:
    size = case.partition * case.param_bytes
    element = size / case.numel
    if case.layout.param_device == "none":
        # Shards as zero.Init made them are joined by way of the host (defragment), which on the CPU
        # accelerator is the same memory.
        place: Place = "device" if case.facts.device == "cpu" else "host"
        return [
            Block("parameters", "device", size, ALWAYS),
            *per_parameter(case, "parameters as built", place, element, START),
        ]
    if case.layout.param_device == "nvme":
        # Made in memory, then written out.
        as_built = per_parameter(case, "parameters as built", "host", element, START)
        return [*_swapped_parameters(case), *as_built]
    # The flat buffer is pinned whatever pin_memory says; torch keeps the pinned shards it replaced.
    pins = _pins_params(case)
    moments = ALWAYS if pins and case.facts.device == "cuda" else START
    return [
        Block("parameters", "host", size, ALWAYS, pinned=True),
        *per_parameter(case, "parameters as built", "host", element, moments, pins),
    ]


def _pins_params(case: Case) -> bool:
    return bool(case.layout.param["pin_memory"])


def _swapped_parameters(case: Case) -> list[Block]:
    """offload_param nvme: what max_in_cpu lets stay in memory, the swap buffers, and the rest on disk."""
    options, element = case.layout.param, case.param_bytes
    in_memory = min(case.partition, int(options["max_in_cpu"]))
    buffers = int(options["buffer_count"]) * int(options["buffer_size"])
    # Swapped-out sub-groups pass through a buffer of the largest one (reserve_partitioned_swap_space).
    through = max(case.layout.sub_groups) if in_memory < case.partition else 0
    return [
        Block("parameters", "host", in_memory * element, ALWAYS, pinned=True),
        Block("parameter swap buffers", "host", buffers * element, ALWAYS, pinned=True),
        Block("parameter swap buffers", "host", through * element, ALWAYS, pinned=True),
        Block("parameters", "nvme", (case.partition - in_memory) * element, ALWAYS),
    ]


def _gathered(case: Case) -> list[Block]:
    """Parameters in full: small ones for good, others from their fetch to their release.

    One rank with its parameters on the device gathers nothing: NoGatherCoalescedHandle hands out views.
    """
    if case.ranks == 1 and not _copies_on_one_rank(case):
        return []
    persistent = _persistent_numel(case)
    live = live_numel(case, persistent) * case.param_bytes
    return [
        Block("persistent parameters", "device", persistent * case.param_bytes, STEADY),
        Block("live parameters", "device", live, PASSES, piece=live // 8),
        Block("lingering tables", "device", _lingering(case), PASSES),
    ]


def _copies_on_one_rank(case: Case) -> bool:
    """Whether a fetch copies: from host memory to a device, which on the CPU accelerator are the same."""
    return case.offloads_params and case.facts.device == "cuda"


def _lingering(case: Case) -> int:
    table = case.facts.parameter_numels[0]
    return case.stack.lingering_tables * table * case.param_bytes


def _persistent_numel(case: Case) -> int:
    threshold = int(case.layout.zero["stage3_param_persistence_threshold"])
    return numel_up_to(case.facts.parameter_numels, threshold)


def live_numel(case: Case, persistent: int) -> int:
    """Most elements gathered at once, persistent ones not counted.

    Prefetch looks ahead until max_live_parameters are gathered (it takes a parameter in every module's hook,
    faster than modules consume them); what is used again within max_reuse_distance elements of the trace is
    kept. fetch_sub_module and __params_to_release in partitioned_param_coordinator.py.
    """
    zero = case.layout.zero
    releasable = case.numel - persistent
    head = case.facts.parameter_numels[-1] if not case.shape.decoder.tied else case.facts.parameter_numels[0]
    # The trace passes a layer in forward, in recomputation and in backward before its parameter is due again.
    passes = 3 if case.checkpointing else 2
    reused = head + max(0, int(zero["stage3_max_reuse_distance"]) - 2 * head) / passes
    current = max(head, case.shape.largest_layer // 2)
    ahead = 0
    if int(zero["stage3_prefetch_bucket_size"]) > 0:
        # The last parameter taken may overshoot the limit.
        ahead = int(zero["stage3_max_live_parameters"]) + case.shape.largest_layer // 8
    return int(min(releasable, max(reused, ahead, current)))


def _reduction(case: Case) -> list[Block]:
    """The bucket, its flat copy while it is reduced, and one partition in a wider form."""
    in_use = case.bucket * case.param_bytes
    found = [Block("reduction", "device", in_use, REDUCING)]
    if case.contiguous:
        size = case.bucket_size * case.param_bytes
        found.append(Block("reduce bucket", "device", size, ALWAYS, written=in_use))
    if case.offloads_optimizer:
        # A bucket smaller than a parameter does not keep it from being reduced, alone. For NVMe the whole
        # bucket's gradients are cast before any is written (offload_fp32_gradients).
        one = -(-case.largest // case.ranks)
        if case.layout.optimizer_device == "nvme":
            cast = max(case.bucket // case.ranks, one) * FP32_BYTES
            found += per_parameter(case, "gradients to swap", "device", cast / case.numel, REDUCING)
        # In fp64 for its norm, and after that in fp32 on its way to the host.
        wide = max(min(one, _NORM_PIECE_NUMEL) * NORM_BYTES, one * _on_device_fp32(case))
        found.append(Block("wide gradient", "device", one * case.grad_bytes + wide, REDUCING))
    return found


def _on_device_fp32(case: Case) -> int:
    """Until 0.15.4 the cast to fp32 was the host's (PR 6670)."""
    return FP32_BYTES if case.version >= (0, 15, 4) else 0


def _optimizer(case: Case) -> list[Block]:
    p, aliased = case.partition, case.param_bytes == case.master_bytes
    # One sub-group at a time: its flat gradients, then their fp32 form (_prepare_fp32_grad_for_sub_group).
    step = max(case.layout.sub_groups) * (case.grad_bytes + case.master_bytes)
    master = 0 if aliased and not case.offloads_params else p * case.master_bytes
    return [
        Block("gradients", "device", p * case.grad_bytes, ALWAYS),
        Block("master weights", "device", master, ALWAYS, piece=_group_bytes(case)),
        Block("optimizer moments", "device", p * case.moment_bytes, STEADY, piece=_group_bytes(case)),
        Block("optimizer gradients", "device", step, UPDATE, piece=_group_bytes(case)),
    ]


def _group_bytes(case: Case) -> int:
    return max(case.layout.sub_groups) * FP32_BYTES


def _offloaded_optimizer(case: Case) -> list[Block]:
    """Sub-groups below the ratio's step stay on the device with state and gradient, the others do not."""
    groups = case.layout.sub_groups
    kept = case.layout.resident_sub_groups if case.facts.device == "cuda" else 0
    resident, away = sum(groups[:kept]), sum(groups[kept:])
    master, moments, piece = case.master_bytes, case.moment_bytes, _group_bytes(case)
    # Nodes of 0.13.3 and 0.16.2 held 4 bytes per offloaded parameter more than these tensors, in proportion
    # to the offloaded share, since the first update (published logs, 6B to 68B); on the CPU accelerator
    # (0.19.8) there is no such copy.
    second = away if case.facts.device == "cuda" else 0
    found = [
        Block("master weights", "host", away * master, ALWAYS, piece=piece),
        Block("optimizer moments", "host", away * moments, STEADY, piece=piece),
        Block("gradients", "host", case.partition * case.grad_bytes, ALWAYS, pinned=case.pins),
        *(Block("optimizer gradients", "host", n * master, ALWAYS, pinned=case.pins) for n in groups[kept:]),
        Block("second copy", "host", second * master, ALWAYS),
        # The check for overflow compares the absolute gradients with infinity, all at once (has_overflow).
        Block("overflow check", "host", case.partition * (case.grad_bytes + 1), UPDATE),
    ]
    if kept:
        size = resident * (2 * master + moments)
        step = _ADAMW_TEMPORARIES * max(groups[:kept]) * FP32_BYTES
        found.append(Block("resident optimizer", "device", size, STEADY))
        found.append(Block("resident update", "device", step, UPDATE))
        # One is pinned for each of these too before it moves to the device; a block goes on being used.
        pinned = max(groups[:kept]) * master
        found.append(Block("optimizer gradients", "host", pinned, ALWAYS, pinned=case.pins))
    return found


def _swapped_optimizer(case: Case) -> list[Block]:
    """Master, moments and gradients on disk; buffers of the largest sub-group in memory."""
    groups, floor = case.layout.sub_groups, case.layout.min_swap_bytes
    states = 2 * case.master_bytes + case.moment_bytes
    swapped = sum(n for n in groups if n * FP32_BYTES >= floor)
    align = AIO_ALIGNMENT_BYTES * int(case.layout.aio["intra_op_parallelism"])
    one = -(-_group_bytes(case) // align) * align
    count, rounded = int(case.layout.optimizer["buffer_count"]), case.version < _LOCKED_BUFFERS
    # Gradients of single parameters below the floor wait in memory (unswapped_gradients, optimizer_utils.py).
    small = sum(n for n in case.layout.partitions if n * case.master_bytes < floor)
    unswapped = min(small, swapped)
    return [
        Block("gradients", "host", case.partition * case.grad_bytes, ALWAYS, pinned=case.pins),
        # Buffers are locked now, without rounding; they were torch's pinned memory before.
        Block("optimizer swap buffers", "host", count * one, ALWAYS, piece=one, pinned=rounded),
        Block("unswapped gradients", "host", unswapped * case.master_bytes, REDUCING | UPDATE, piece=floor),
        Block("optimizer states", "host", (sum(groups) - swapped) * states, STEADY),
        Block("overflow check", "host", case.partition * (case.grad_bytes + 1), UPDATE),
        Block("optimizer states", "nvme", swapped * states, ALWAYS),
    ]
