"""Memory of the model's states at stages 0, 1 and 2: parameters, gradients, optimizer, buckets.

Covered: what runtime/zero/stage_1_and_2.py of DeepSpeed 0.19.8 allocates, and when. Not covered:
activations (`memory_work`); stage 0 is taken as stage 1 with everything on every rank.
"""

from __future__ import annotations

from offtune.memory_case import (
    ALWAYS,
    BACKWARD,
    FP32_BYTES,
    PASSES,
    REDUCING,
    START,
    STEADY,
    UPDATE,
    Block,
    Case,
    per_parameter,
)

# Gradient norms are taken in fp64, one parameter at a time (get_norm_dtype in runtime/zero/utils.py).
NORM_BYTES = 8


def blocks(case: Case) -> list[Block]:
    """Every block of the states; the optimizer's are in host memory when it is offloaded."""
    found = [*_parameters(case), *_gradients(case), *_bucket(case)]
    return found + (_offloaded_optimizer(case) if case.offloads_optimizer else _optimizer(case))


def _parameters(case: Case) -> list[Block]:
    size = case.numel * case.param_bytes
    return [
        Block("parameters", "device", size, ALWAYS),
        # As the model was built, until the flat copy takes their place (flatten_on_accelerator).
        *per_parameter(case, "parameters as built", "device", case.param_bytes, START),
    ]


def _gradients(case: Case) -> list[Block]:
    """Gradients of one micro-step, and those accumulated so far.

    Stage 1 keeps whole gradients to the boundary, stage 2 those of its partition, or none when offloaded
    (independent_gradient_partition_epilogue: all_grad_tensors and param.grad coexist from the second
    micro-step on).
    """
    share = case.partition / case.numel if case.stage == 2 else 1.0
    grad = case.grad_bytes * share
    if case.offloads_optimizer:
        if case.stage == 2 and case.grad_bytes == case.param_bytes:
            return []
        # Moved to the host in the boundary's backward, before the update.
        moments = PASSES if case.accumulation > 1 else REDUCING
        return per_parameter(case, "gradients", "device", grad, moments)
    if case.accumulation == 1:
        return per_parameter(case, "gradients", "device", grad, REDUCING | UPDATE)
    own = case.grad_bytes * case.partition / case.numel
    return [
        *per_parameter(case, "accumulated gradients", "device", own, STEADY),
        *per_parameter(case, "gradients", "device", grad, REDUCING),
    ]


def _optimizer(case: Case) -> list[Block]:
    p, grad = case.partition, case.grad_bytes
    flat = [Block("flat gradients", "device", p * grad, UPDATE)] if grad != case.master_bytes else []
    return [
        Block("master weights", "device", p * case.master_bytes, ALWAYS),
        Block("optimizer moments", "device", p * case.moment_bytes, STEADY),
        # Made at the start to initialise, freed, and made again in each update (single_partition_..._groups).
        Block("optimizer gradients", "device", p * case.master_bytes, START | UPDATE),
        *flat,
    ]


def _offloaded_optimizer(case: Case) -> list[Block]:
    p, pins, largest = case.partition, case.pins, case.largest * case.param_bytes
    found = [
        Block("master weights", "host", p * case.master_bytes, ALWAYS, pinned=pins),
        Block("staging", "host", p * case.param_bytes, ALWAYS, pinned=pins),
        Block("optimizer gradients", "host", p * case.master_bytes, ALWAYS, pinned=pins),
        # Lazily made in the first update (csrc/adam through ops/adam/cpu_adam.py), never pinned.
        Block("optimizer moments", "host", p * case.moment_bytes, STEADY),
        Block("gradient copy", "host", largest, ALWAYS, pinned=pins),
        Block("gradient copy", "device", largest, ALWAYS),
        # One gradient in fp64 for its norm, and after that in fp32 on its way to the host.
        Block("wide gradient", "device", case.largest * max(FP32_BYTES, NORM_BYTES), REDUCING),
    ]
    if case.stage == 2 and case.accumulation > 1 and case.grad_bytes == case.param_bytes:
        element = case.param_bytes * p / case.numel
        found += per_parameter(case, "accumulated gradients", "host", element, STEADY, pins)
    return found


def _bucket(case: Case) -> list[Block]:
    """The reduce bucket, allocated at full size whatever the model's size, twice with overlap_comm."""
    in_use = case.bucket * case.param_bytes
    copies = 2 if case.layout.overlap_comm else 1
    moments = BACKWARD
    if case.stage < 2 and case.accumulation > 1:
        # From the first micro-step's backward to the boundary.
        moments = STEADY
    reduced = Block("reduction", "device", in_use if case.ranks > 1 else 0, REDUCING)
    if not case.contiguous:
        return [reduced]
    size = copies * case.bucket_size * case.param_bytes
    # With one bucket's worth of gradients the second is never written.
    written = min(copies * in_use, case.numel * case.param_bytes)
    return [Block("reduce bucket", "device", size, moments, written=written), reduced]
