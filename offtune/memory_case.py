"""What a memory prediction is made from, and the blocks of memory it is made of.

Covered: one reading of a ds_config with all sizes worked out. Not covered: which blocks there are
(`memory_zero12`, `memory_zero3`, `memory_work`), what they add up to (`memory_model`).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

from offtune.activations import HUGGING_FACE, Stack
from offtune.ds_keys import block, parse_version
from offtune.ds_layout import Layout, layout
from offtune.model_shape import ModelShape, seq_len_of
from offtune.models import numel_up_to
from offtune.trial import DsConfig, Facts

Place = Literal["device", "host", "nvme"]
# Moments at which memory can peak. The backward has four: the loss, its first layer, its first full bucket,
# and its end, when activations are gone and gradients complete.
Moment = Literal["start", "forward", "loss", "layer", "reduction", "drained", "update"]
START: frozenset[Moment] = frozenset({"start"})
FORWARD: frozenset[Moment] = frozenset({"forward"})
BACKWARD: frozenset[Moment] = frozenset({"loss", "layer", "reduction", "drained"})
REDUCING: frozenset[Moment] = frozenset({"reduction", "drained"})
UPDATE: frozenset[Moment] = frozenset({"update"})
PASSES = FORWARD | BACKWARD
STEADY = PASSES | UPDATE
ALWAYS = START | STEADY
MOMENTS: tuple[Moment, ...] = ("start", "forward", "loss", "layer", "reduction", "drained", "update")
PHASE_OF: dict[Moment, str] = {
    "start": "start",
    "forward": "forward",
    **dict.fromkeys(BACKWARD, "backward"),
    "update": "update",
}

FP32_BYTES = 4
# glibc maps larger allocations one by one and returns them when freed; smaller ones come from a heap that
# keeps what is freed (malloc.c: DEFAULT_MMAP_THRESHOLD_MAX, to which the threshold grows).
LARGE_BYTES = 32 * 1024**2
_DTYPE_BYTES = {"fp32": 4, "fp16": 2, "bf16": 2, "float32": 4, "float16": 2, "bfloat16": 2}
# fp32 tensors per parameter that an optimizer keeps besides the master weights (csrc/adam, csrc/lion,
# csrc/adagrad).
_MOMENTS = {"adamw": 2, "adam": 2, "lion": 1, "adagrad": 1}


@dataclass(frozen=True, slots=True)
class Block:
    """Bytes of one component, where and at which moments they exist.

    `piece` is the size of one allocation when the block is made of several: a host's allocators treat small
    and large ones unlike. `written` is how much of it is ever touched, None for all: an untouched page of
    host memory costs nothing, one of device memory does.
    """

    component: str
    place: Place
    size: int
    moments: frozenset[Moment]
    piece: int | None = None
    pinned: bool = False
    written: int | None = None


@dataclass(frozen=True, kw_only=True)
class Case:
    """One ds_config for one model on one machine; elements and bytes are per rank unless named otherwise."""

    ds_config: DsConfig
    facts: Facts
    shape: ModelShape
    stack: Stack
    ranks_per_node: int

    @cached_property
    def layout(self) -> Layout:
        return layout(self.ds_config, self.facts)

    @cached_property
    def stage(self) -> int:
        return self.layout.stage

    @cached_property
    def ranks(self) -> int:
        return self.facts.workload.world_size

    @cached_property
    def micro_batch(self) -> int:
        return int(self.ds_config["train_micro_batch_size_per_gpu"])

    @cached_property
    def accumulation(self) -> int:
        """Micro-steps per optimizer step."""
        given = self.ds_config.get("gradient_accumulation_steps")
        return int(given) if given else self.facts.workload.global_batch // (self.micro_batch * self.ranks)

    @cached_property
    def param_bytes(self) -> int:
        return self.layout.param_bytes

    @cached_property
    def grad_bytes(self) -> int:
        """Bytes of an accumulated gradient element, which is of the model's dtype if not told otherwise."""
        named = block(self.ds_config, "data_types").get("grad_accum_dtype")
        return _DTYPE_BYTES.get(str(named), self.param_bytes)

    @cached_property
    def master_bytes(self) -> int:
        """Bytes of a master weight; its gradient in the optimizer has the same dtype."""
        low = block(self.ds_config, "bf16").get("bf16_master_weights_and_grads")
        low = low or block(self.ds_config, "fp16").get("fp16_master_weights_and_grads")
        return 2 if low else FP32_BYTES

    @cached_property
    def moment_bytes(self) -> int:
        """Bytes of all moments of one element."""
        low = block(self.ds_config, "bf16").get("bf16_optimizer_states")
        return _MOMENTS.get(self.facts.workload.optimizer, 2) * (2 if low else FP32_BYTES)

    @cached_property
    def numel(self) -> int:
        """Elements of the whole model."""
        return sum(self.facts.parameter_numels)

    @cached_property
    def largest(self) -> int:
        return max(self.facts.parameter_numels)

    @cached_property
    def partition(self) -> int:
        """Elements of the model on one rank: by parameter at stage 3, of the flat whole below."""
        if self.stage == 3:
            return sum(self.layout.partitions)
        return -(-self.numel // self.ranks) if self.stage else self.numel

    @cached_property
    def bucket(self) -> int:
        """Elements the reduce bucket ever holds: no more than the model."""
        return min(self.bucket_size, self.numel)

    @cached_property
    def bucket_size(self) -> int:
        return int(self.layout.zero["reduce_bucket_size"])

    @cached_property
    def contiguous(self) -> bool:
        """Whether gradients move into a bucket; always with an offload at stages 1 and 2."""
        asked = bool(self.layout.zero["contiguous_gradients"])
        return asked or (self.stage < 3 and self.offloads_optimizer)

    @cached_property
    def offloads_optimizer(self) -> bool:
        return self.layout.optimizer_device != "none"

    @cached_property
    def offloads_params(self) -> bool:
        return self.stage == 3 and self.layout.param_device != "none"

    @cached_property
    def pins(self) -> bool:
        return self.offloads_optimizer and bool(self.layout.optimizer["pin_memory"])

    @cached_property
    def checkpointing(self) -> bool:
        return bool(self.facts.workload.activation_checkpointing)

    @cached_property
    def seq_len(self) -> int:
        return seq_len_of(self.facts.workload)

    @cached_property
    def version(self) -> tuple[int, ...]:
        return parse_version(self.facts.deepspeed_version)


def per_parameter(
    case: Case, component: str, place: Place, element: float, moments: frozenset[Moment], pinned: bool = False
) -> list[Block]:
    """A block with an allocation for every parameter, of `element` bytes per element of the whole model.

    It comes in two parts, as allocators tell large from small.
    """
    numels = case.facts.parameter_numels
    # A parameter that fills a mapping to the byte counts as large.
    small = numel_up_to(numels, math.ceil(LARGE_BYTES / element) - 1)
    parts = ((small, LARGE_BYTES // 2), (case.numel - small, LARGE_BYTES))
    return [
        Block(component, place, int(count * element), moments, piece=piece, pinned=pinned)
        for count, piece in parts
        if count
    ]


def case_of(
    ds_config: DsConfig,
    facts: Facts,
    shape: ModelShape,
    stack: Stack = HUGGING_FACE,
    ranks_per_node: int | None = None,
) -> Case:
    """The case of a ds_config that `ds_rules` found nothing wrong with; by default all ranks share a node."""
    ranks = facts.workload.world_size if ranks_per_node is None else ranks_per_node
    return Case(ds_config=ds_config, facts=facts, shape=shape, stack=stack, ranks_per_node=ranks)
