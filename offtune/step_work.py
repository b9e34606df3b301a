"""The work of one optimizer step on one rank: operations, bytes over each path, elements to update.

Covered: what a ds_config moves at stages 0 to 3 with states and parameters on the GPU, in host memory or on
NVMe, by DeepSpeed version. Not covered: how long it takes (`time_model`) and what it holds (`memory_model`).
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, Literal

from offtune.ds_layout import FP32_BYTES, Layout, layout
from offtune.model_shape import Attention, ModelShape, seq_len_of
from offtune.models import numel_up_to
from offtune.trial import DsConfig, Facts, Precision

# How the last micro-step's gradients reach the fp32 gradient on the host (runtime/zero/stage3.py).
# cast_on_host: 16 bit through a pageable temporary, converted by the host; bounce: fp32 through a pinned
# buffer and a copy on the host; blocking: fp32 straight to its place; overlapped: the same, asynchronous.
GradientCopy = Literal["cast_on_host", "bounce", "blocking", "overlapped"]
# First releases with each: DeepSpeed PRs 6670, 6962 and 8207.
_COPY_SINCE: tuple[tuple[tuple[int, ...], GradientCopy], ...] = (
    ((0, 19, 5), "overlapped"),
    ((0, 16, 3), "blocking"),
    ((0, 15, 4), "bounce"),
)
# Kernels that keep no scores skip the half that the causal mask hides.
_CAUSAL_SHARE = 0.5
_BYTES = {"bf16": 2, "fp16": 2, "fp32": 4}
# parameter_offload.py: a parameter is fetched and released in the forward and again in the backward.
_HOOKS = 2
# Master weight, first and second moment, fp32; a gradient is as wide, and is not written back.
_STATE_BYTES = 3 * FP32_BYTES
_Volumes = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class StepWork:
    """Volumes of one rank. `forward_`, `backward_` and `micro_` are per micro-step, `last_` are added by the
    last micro-step of a window, `update_` by the optimizer step. Bytes of collectives are what is gathered or
    reduced in all; a rank's share is the time model's affair.

    `attention_flops` are those of one forward in kernels that keep no scores; others count among the
    forward's and keep `score_bytes`. `state_bytes` is the width of the model times tokens and layers: what
    element-wise work crosses again and again. `calls` are hooks, buckets and tiles, which cost host time
    whatever their size.
    """

    ranks: int
    ranks_per_node: int
    cores_bound: bool
    precision: Precision
    micro_steps: int
    tokens: int
    layers: int
    forward_flops: float
    recompute_flops: float
    backward_flops: float
    attention_flops: float
    score_bytes: float
    state_bytes: float
    zero_stage: int
    overlap_comm: bool
    gradient_copy: GradientCopy
    pinned: bool
    cpu_numel: float
    device_numel: float
    forward_gather_bytes: float = 0.0
    backward_gather_bytes: float = 0.0
    micro_reduce_bytes: float = 0.0
    last_reduce_bytes: float = 0.0
    update_gather_bytes: float = 0.0
    forward_h2d_bytes: float = 0.0
    backward_h2d_bytes: float = 0.0
    micro_d2h_bytes: float = 0.0
    micro_h2d_bytes: float = 0.0
    micro_copies_block: bool = False
    last_numel: float = 0.0
    update_h2d_bytes: float = 0.0
    update_h2d_pinned: bool = False
    update_d2h_bytes: float = 0.0
    forward_nvme_read_bytes: float = 0.0
    backward_nvme_read_bytes: float = 0.0
    last_nvme_write_bytes: float = 0.0
    update_nvme_read_bytes: float = 0.0
    update_nvme_write_bytes: float = 0.0
    param_nvme_write_bytes: float = 0.0
    nvme_overlapped: bool = False
    micro_calls: float = 0.0
    update_calls: float = 0.0


def gradient_copy_of(version: str) -> GradientCopy:
    """How that DeepSpeed release copies stage-3 gradients to the host; one that cannot be read is new."""
    found = re.match(r"(\d+)\.(\d+)(?:\.(\d+))?", version)
    if found is None:
        return "overlapped"
    number = tuple(int(part or 0) for part in found.groups())
    return next((copy for since, copy in _COPY_SINCE if number >= since), "cast_on_host")


def step_work(
    ds_config: DsConfig,
    facts: Facts,
    shape: ModelShape,
    *,
    ranks_per_node: int | None = None,
    cores_bound: bool = True,
    attention: Attention = "flash",
) -> StepWork:
    """The work of a checked ds_config (`ds_rules` found nothing) whose batch sizes are written out."""
    plan = layout(ds_config, facts)
    load, ranks, seq_len = facts.workload, facts.workload.world_size, seq_len_of(facts.workload)
    micro_batch = int(ds_config["train_micro_batch_size_per_gpu"])
    flops = shape.flops(seq_len, bool(load.activation_checkpointing), "eager")
    moved = _Moved(plan, int(ds_config.get("gradient_accumulation_steps", 1)), shape.n_params)
    decoder = shape.decoder
    scores = micro_batch * decoder.layers * decoder.heads * seq_len**2 * _BYTES[load.precision]
    states = micro_batch * decoder.layers * decoder.hidden * seq_len * _BYTES[load.precision]
    inner = _attention_flops(shape, micro_batch * seq_len, seq_len)
    kept = inner if attention == "flash" else 0.0
    return StepWork(
        ranks=ranks,
        ranks_per_node=min(ranks, ranks_per_node or ranks),
        cores_bound=cores_bound,
        precision=load.precision,
        micro_steps=moved.micro_steps,
        tokens=micro_batch * seq_len,
        layers=decoder.layers,
        forward_flops=micro_batch * flops.forward - kept,
        recompute_flops=max(0.0, micro_batch * flops.recompute - kept),
        backward_flops=micro_batch * flops.backward - 2 * kept,
        attention_flops=_CAUSAL_SHARE * kept,
        score_bytes=scores if attention == "eager" else 0.0,
        state_bytes=states,
        zero_stage=plan.stage,
        overlap_comm=plan.overlap_comm,
        gradient_copy=gradient_copy_of(facts.deepspeed_version),
        **moved.volumes(),
    )


def _attention_flops(shape: ModelShape, tokens: int, seq_len: int) -> float:
    """Products of queries with keys and of weights with values in one forward, masked half included."""
    return 4.0 * tokens * seq_len * shape.decoder.query * shape.decoder.layers


class _Moved:
    """Reads the volumes off a layout; elements are a rank's unless named whole."""

    def __init__(self, plan: Layout, micro_steps: int, whole: int) -> None:
        self.plan, self.micro_steps, self.whole = plan, micro_steps, whole
        ranks = plan.facts.workload.world_size
        self.own = sum(plan.partitions) if plan.stage == 3 else -(-whole // ranks)
        self.element = plan.param_bytes
        self.on_nvme = plan.stage == 3 and plan.optimizer_device == "nvme"
        self.on_host = plan.stage > 0 and plan.optimizer_device != "none"

    def volumes(self) -> _Volumes:
        """Every StepWork field that the layout decides."""
        cpu = self._cpu_numel()
        pinned = bool(self.plan.optimizer["pin_memory"]) and self.on_host
        found: _Volumes = {
            "cpu_numel": cpu,
            "device_numel": (self.own if self.plan.stage else self.whole) - cpu,
            "pinned": pinned,
            **self._collectives(),
        }
        found |= self._stage_3(cpu) if self.plan.stage == 3 else self._below_3(cpu)
        found |= self._nvme() if self.on_nvme else {}
        return found | self._parameters() | self._calls()

    def _cpu_numel(self) -> float:
        if not self.on_host:
            return 0.0
        if self.plan.stage == 3 and self.plan.optimizer_device == "cpu":
            return float(sum(self.plan.sub_groups[self.plan.resident_sub_groups :]))
        return float(self.own)

    def _collectives(self) -> _Volumes:
        size = float(self.element * self.whole)
        if self.plan.facts.workload.world_size == 1:
            return {}
        if self.plan.stage == 0:
            # An all-reduce is a reduce-scatter and an all-gather.
            return {"last_reduce_bytes": 2 * size}
        if self.plan.stage == 1:
            return {"last_reduce_bytes": size, "update_gather_bytes": size}
        if self.plan.stage == 2:
            return {"micro_reduce_bytes": size, "update_gather_bytes": size}
        released = size * self._released_share()
        return {
            "forward_gather_bytes": size * self._sharded_share(),
            "backward_gather_bytes": released,
            "micro_reduce_bytes": size,
        }

    def _sharded_share(self) -> float:
        """Share of elements in parameters above the persistence threshold: the others are never released."""
        threshold = int(self.plan.zero["stage3_param_persistence_threshold"])
        numels = self.plan.facts.parameter_numels
        return 1 - numel_up_to(numels, threshold) / sum(numels)

    def _released_share(self) -> float:
        """Share gathered again for the backward: what is reused soon enough is kept (coordinator, 0.19.8).

        Forward and backward meet at the last layer, so the elements kept are those within half the distance.
        """
        reuse = float(self.plan.zero["stage3_max_reuse_distance"])
        return self._sharded_share() * max(0.0, 1.0 - reuse / 2 / max(1, self.whole))

    def _stage_3(self, cpu: float) -> _Volumes:
        """Every micro-step copies its gradient to the host and back, whatever the ratio (partition_grads)."""
        if not self.on_host:
            return {}
        trip = float(self.element * self.own)
        return {
            "micro_d2h_bytes": trip,
            "micro_h2d_bytes": trip,
            "last_numel": cpu,
            # The refreshed shard is converted on the host and uploaded from pageable memory.
            "update_h2d_bytes": self.element * cpu if self.plan.param_device == "none" else 0.0,
        }

    def _below_3(self, cpu: float) -> _Volumes:
        """stage_1_and_2.py: fp32 gradients from the last backward, 16-bit parameters back, both pinned."""
        if not self.on_host:
            return {}
        found: _Volumes = {
            "last_numel": cpu,
            "update_h2d_bytes": self.element * cpu,
            "update_h2d_pinned": True,
        }
        if self.plan.stage == 2 and self.micro_steps > 1:
            # Added up on the GPU, kept on the host: the host waits for every copy.
            trip = self.element * cpu
            found |= {"micro_d2h_bytes": trip, "micro_h2d_bytes": trip, "micro_copies_block": True}
        return found

    def _nvme(self) -> _Volumes:
        """States by sub-group, gradients by parameter; what is below DeepSpeed's floor stays in memory."""
        plan = self.plan
        states = float(self._swapped(plan.sub_groups, FP32_BYTES))
        gradients = float(FP32_BYTES * self._swapped(plan.partitions, FP32_BYTES))
        return {
            "last_nvme_write_bytes": gradients,
            "update_nvme_read_bytes": _STATE_BYTES * states + gradients,
            "update_nvme_write_bytes": _STATE_BYTES * states,
            "nvme_overlapped": bool(plan.optimizer["pipeline_read"])
            or bool(plan.optimizer["pipeline_write"]),
        }

    def _swapped(self, numels: Iterable[int], element_bytes: int) -> int:
        """Elements of those that are large enough for the disk."""
        return sum(numel for numel in numels if numel * element_bytes >= self.plan.min_swap_bytes)

    def _swapped_param_share(self) -> float:
        """Share of parameter elements on disk: those of sub-groups beyond max_in_cpu (stage3.py, 0.19.8)."""
        ends = list(accumulate(self.plan.sub_groups))
        held = max((end for end in ends if end <= self.plan.param["max_in_cpu"]), default=0)
        swapped = self._swapped(self.plan.partitions, self.element)
        return (1 - held / self.own) * swapped / self.own

    def _parameters(self) -> _Volumes:
        """Parameters that live on the host or on NVMe are brought for the forward and for the backward."""
        if self.plan.stage != 3 or self.plan.param_device == "none":
            return {}
        size = float(self.element * self.own)
        found: _Volumes = {
            "forward_h2d_bytes": size * self._sharded_share(),
            "backward_h2d_bytes": size * self._released_share(),
        }
        if not self.on_host:
            found["update_d2h_bytes"] = float(FP32_BYTES * self.own)
        if self.plan.param_device == "nvme" and (share := self._swapped_param_share()):
            found |= {
                "forward_nvme_read_bytes": share * found["forward_h2d_bytes"],
                "backward_nvme_read_bytes": share * found["backward_h2d_bytes"],
                "param_nvme_write_bytes": share * size,
            }
        return found

    def _calls(self) -> _Volumes:
        """Buckets, hooks that fetch and release a parameter, copies of a gradient that the host waits for."""
        plan, count = self.plan, len(self.plan.facts.parameter_numels)
        if not plan.stage:
            return {"micro_calls": 0.0, "update_calls": 1.0}
        buckets = max(1.0, self.whole / max(1, int(plan.zero["reduce_bucket_size"])))
        calls = min(float(count), buckets) + (_HOOKS * count if plan.stage == 3 else 0.0)
        if plan.stage == 2 and self.on_host and self.micro_steps > 1:
            calls += count
        tiles = len(plan.sub_groups) if plan.stage == 3 else 1
        return {"micro_calls": calls, "update_calls": float(tiles)}
