"""The layout that a ds_config asks for: stage, what lives where, and how ZeRO-3 cuts the model.

Covered: one reading of a ds_config, aliases and defaults resolved, for everything that judges or compares.
Not covered: whether it may run (`ds_rules`), whether two are the same (`ds_identity`). One optimizer
parameter group is assumed, as `optimizer` in a ds_config makes one.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

from offtune import models
from offtune.ds_keys import (
    AIO_DEFAULTS,
    OFFLOAD_OPTIMIZER_DEFAULTS,
    OFFLOAD_PARAM_DEFAULTS,
    ZERO_ALIASES,
    ZERO_DEFAULTS,
    block,
)
from offtune.trial import DsConfig, Facts

# swap_tensor/utils.py, 0.19.8: smaller tensors are not swapped, whatever the block size.
MIN_SWAP_BYTES = 1024**2
# csrc/aio: every thread reads and writes multiples of this.
AIO_ALIGNMENT_BYTES = 1024
# The swapped optimizer states are fp32 (stage3.py), parameters have the model's dtype.
FP32_BYTES = 4
_PARAM_BYTES = {"bf16": 2, "fp16": 2, "fp32": 4}


@dataclass(frozen=True, kw_only=True)
class Layout:
    """What a ds_config says, with DeepSpeed's defaults where it says nothing. Sizes are per rank."""

    stage: int
    zero: dict[str, Any]
    optimizer: dict[str, Any]
    param: dict[str, Any]
    aio: dict[str, Any]
    facts: Facts

    @property
    def optimizer_device(self) -> str:
        return str(self.optimizer["device"])

    @property
    def param_device(self) -> str:
        return str(self.param["device"])

    @property
    def overlap_comm(self) -> bool:
        """null is true at stage 3 and false below (overlap_comm_valid, runtime/zero/config.py, 0.19.8)."""
        value = self.zero["overlap_comm"]
        return self.stage == 3 if value is None else bool(value)

    @cached_property
    def partitions(self) -> tuple[int, ...]:
        """Elements of each parameter on one rank at stage 3."""
        return models.partition_numels(self.facts.parameter_numels, self.facts.workload.world_size)

    @cached_property
    def sub_groups(self) -> tuple[int, ...]:
        """Elements of each optimizer sub-group on one rank at stage 3."""
        world, size = self.facts.workload.world_size, int(self.zero["sub_group_size"])
        return models.sub_group_numels(self.facts.parameter_numels, world, size)

    @property
    def resident_sub_groups(self) -> int:
        """Sub-groups whose optimizer state the ratio leaves on the GPU."""
        return models.resident_groups(float(self.optimizer["ratio"]), len(self.sub_groups))

    @property
    def param_bytes(self) -> int:
        """Bytes of one parameter element."""
        return _PARAM_BYTES[self.facts.workload.precision]

    @property
    def min_swap_bytes(self) -> int:
        """Tensors below this stay in host memory although their device is NVMe."""
        return max(MIN_SWAP_BYTES, int(self.aio["block_size"]))


def layout(ds_config: DsConfig, facts: Facts) -> Layout:
    """The layout of a ds_config whose single keys are right (`ds_key_rules` found nothing)."""
    zero = {ZERO_ALIASES.get(key, key): value for key, value in block(ds_config, "zero_optimization").items()}
    return Layout(
        stage=int(zero.get("stage") or 0),
        zero=ZERO_DEFAULTS | zero,
        optimizer=OFFLOAD_OPTIMIZER_DEFAULTS | block(ds_config, "zero_optimization.offload_optimizer"),
        param=OFFLOAD_PARAM_DEFAULTS | block(ds_config, "zero_optimization.offload_param"),
        aio=AIO_DEFAULTS | block(ds_config, "aio"),
        facts=facts,
    )
