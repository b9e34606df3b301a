"""Rules for swapping to NVMe: folders, ops, buffers, locked memory and asynchronous I/O.

Covered: what makes NVMe offload fail in the first steps, hang or silently train on zeros. Not covered:
whether the folder exists and the disk has room, which is asked where the folder is made. Behaviour is that
of DeepSpeed 0.19.8, runtime/swap_tensor/.
"""

from __future__ import annotations

from collections.abc import Iterator

from offtune.ds_layout import AIO_ALIGNMENT_BYTES, FP32_BYTES, Layout
from offtune.trial import DsConfig
from offtune.units import format_bytes

_OPTIMIZER = "zero_optimization.offload_optimizer"
_PARAM = "zero_optimization.offload_param"
# Adam swaps master weight, two moments and gradient; other optimizers have fewer. Pipelined reading and
# writing each work on one more sub-group at a time.
STATES_PER_BUFFER_SET = 4
# Enough for the parameters of one module at a time, the most that is live without prefetch and reuse.
SINGLE_MODULE_BUFFERS = 5
_AHEAD = ("stage3_prefetch_bucket_size", "stage3_max_live_parameters", "stage3_max_reuse_distance")


def nvme_problems(ds_config: DsConfig, plan: Layout) -> Iterator[str]:
    """Why swapping cannot work as written; nothing when nothing is swapped."""
    swaps_optimizer = plan.optimizer_device == "nvme" and plan.stage == 3
    swaps_params = plan.param_device == "nvme" and plan.stage == 3
    if not swaps_optimizer and not swaps_params:
        return
    if "async_io" not in plan.facts.ops:
        yield "nvme offload needs the async_io op, which cannot be loaded; install the libaio headers."
    yield from _aio(plan)
    if swaps_optimizer:
        yield from _optimizer(ds_config, plan)
    if swaps_params:
        yield from _params(plan)
    yield from _locked_memory(plan, swaps_optimizer, swaps_params)


def _aio(plan: Layout) -> Iterator[str]:
    # A queue_depth of 0 is accepted and trains on zeros, without a word; that is a rule of `ds_key_rules`.
    if plan.aio["block_size"] % AIO_ALIGNMENT_BYTES:
        yield "aio.block_size is no multiple of 1024 bytes, as direct I/O needs it; write 1048576."
    if plan.aio["use_gds"] and plan.facts.device == "cpu":
        yield "aio.use_gds needs CUDA and asserts on the CPU accelerator; set it to false."


def _optimizer(ds_config: DsConfig, plan: Layout) -> Iterator[str]:
    if not plan.optimizer["nvme_path"]:
        yield f"{_OPTIMIZER} on nvme has no nvme_path: DeepSpeed fails with a TypeError; name a folder."
    needed, count = _buffers_needed(plan), plan.optimizer["buffer_count"]
    if count < needed:
        yield (
            f"{_OPTIMIZER}.buffer_count is {count}, and the first step asserts for lack of buffers: "
            f"4 states x (1 + pipeline_read + pipeline_write) is {needed}; write {needed}."
        )
    if (ds_config.get("bf16") or {}).get("bf16_master_weights_and_grads"):
        yield "bf16.bf16_master_weights_and_grads cannot be swapped and asserts; set it to false."
    largest = max(plan.sub_groups)
    if plan.optimizer["fast_init"] and plan.param_device == "nvme" and plan.param["buffer_size"] < largest:
        yield f"{_PARAM}.buffer_size is below the largest sub-group, which fast_init needs; write {largest}."


def _buffers_needed(plan: Layout) -> int:
    swapped = [size for size in plan.sub_groups if size * FP32_BYTES >= plan.min_swap_bytes]
    if len(swapped) <= 1:
        return STATES_PER_BUFFER_SET  # there is no neighbour to read ahead or write behind
    ahead = bool(plan.optimizer["pipeline_read"]) + bool(plan.optimizer["pipeline_write"])
    return STATES_PER_BUFFER_SET * (1 + ahead)


def _params(plan: Layout) -> Iterator[str]:
    if not plan.param["nvme_path"]:
        yield f"{_PARAM} on nvme has no nvme_path: DeepSpeed asserts; name a folder."
    largest = max(plan.partitions)
    if plan.param["buffer_size"] < largest:
        yield f"{_PARAM}.buffer_size is below the largest parameter's share and fails; write {largest}."
    swapped = [numel for numel in plan.partitions if numel * plan.param_bytes >= plan.min_swap_bytes]
    if plan.param["max_in_cpu"] >= sum(plan.partitions) or not swapped:
        return  # nothing is ever read back from the disk
    enough_for_all = plan.param["buffer_count"] >= len(swapped)
    quiet = all(plan.zero[key] == 0 for key in _AHEAD) and plan.param["buffer_count"] >= SINGLE_MODULE_BUFFERS
    if not quiet and not (enough_for_all and plan.zero[_AHEAD[0]] == 0):
        yield (
            f"{_PARAM} on nvme runs out of buffers or assigns one twice (DeepSpeed issue 3062) unless "
            f"{', '.join(_AHEAD)} are 0 and buffer_count is at least {SINGLE_MODULE_BUFFERS}; write that."
        )


def _locked_memory(plan: Layout, swaps_optimizer: bool, swaps_params: bool) -> Iterator[str]:
    """Above RLIMIT_MEMLOCK a C++ assert ends the process with SIGABRT, not with an exception."""
    limit = plan.facts.memlock_bytes
    needed = plan.optimizer["buffer_count"] * max(plan.sub_groups) * FP32_BYTES if swaps_optimizer else 0
    if swaps_params:
        needed += plan.param["buffer_count"] * plan.param["buffer_size"] * plan.param_bytes
    if limit is not None and needed > limit:
        yield (
            f"NVMe buffers lock {format_bytes(needed)} per rank and would abort the process, as this system "
            f"allows {format_bytes(limit)}; raise it (ulimit -l unlimited), or use fewer or smaller buffers."
        )
