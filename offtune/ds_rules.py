"""Rules across the keys of a ds_config: what DeepSpeed would refuse late, abort on, or silently not do.

Covered: stage and device, partial offload, optimizers, reduction, batch and number formats; and joining these
with the rules for NVMe (`ds_nvme_rules`) and special features (`ds_feature_rules`). Not covered: memory. Each
sentence says what, why and what to do. Behaviour is that of DeepSpeed 0.19.8.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from offtune.ds_feature_rules import feature_problems, zenflow_problems
from offtune.ds_key_rules import key_problems
from offtune.ds_keys import block
from offtune.ds_layout import Layout, layout
from offtune.ds_nvme_rules import nvme_problems
from offtune.knobs import DEVICE_OPTIMIZER_OP, OFFLOADED_OPTIMIZER_OP
from offtune.trial import DsConfig, Facts

Rule = Callable[[DsConfig, Layout], Iterator[str]]

_OPTIMIZER = "zero_optimization.offload_optimizer"
_PARAM = "zero_optimization.offload_param"
_ADAM = ("adam", "adamw")
_16_BIT = ("bf16", "fp16")
# data_types spellings of one dtype (DtypeEnum in runtime/config.py).
_DTYPE_NAMES = {
    "bf16": ("bf16", "bfloat16", "torch.bfloat16"),
    "fp16": ("fp16", "float16", "half", "torch.float16"),
    "fp32": ("fp32", "float32", "float", "torch.float32"),
}
# Here "auto" is a word of DeepSpeed itself.
_AUTO_IS_MEANT = ("select_strategy", "select_interval", "update_interval", "keep_in_fp32_modules")


def problems(ds_config: DsConfig, facts: Facts) -> tuple[str, ...]:
    """Why this ds_config cannot run as meant under `facts`, one sentence each; empty when it may run."""
    single = [*_autos(ds_config, ""), *key_problems(ds_config, facts.deepspeed_version)]
    if single:
        return tuple(single)
    plan = layout(ds_config, facts)
    return tuple(sentence for rule in _RULES for sentence in rule(ds_config, plan))


def _autos(value: Any, where: str) -> Iterator[str]:
    if isinstance(value, dict):
        for key, item in value.items():
            yield from _autos(item, f"{where}.{key}" if where else str(key))
    elif value == "auto" and where.rpartition(".")[2] not in _AUTO_IS_MEANT:
        yield f'{where}: "auto" means nothing to plain DeepSpeed, which fails or ignores it; write the value.'


def _stage(ds_config: DsConfig, plan: Layout) -> Iterator[str]:
    if plan.stage not in (0, 1, 2, 3):
        yield f"zero_optimization.stage is {plan.stage}: ZeRO has stages 0 to 3; write one of them."
    for path, device in ((_OPTIMIZER, plan.optimizer_device), (_PARAM, plan.param_device)):
        if device not in ("none", "cpu", "nvme"):
            yield f"{path}.device is '{device}': DeepSpeed knows none, cpu and nvme; write one of them."
    if plan.param_device != "none" and plan.stage != 3:
        yield f"{_PARAM} at stage {plan.stage} does nothing there; set stage 3 or remove it."
    if plan.optimizer_device == "nvme" and plan.stage != 3:
        yield f"{_OPTIMIZER} on nvme at stage {plan.stage} is taken for cpu: set stage 3 or device cpu."
    if plan.optimizer_device != "none" and plan.stage == 0 and plan.facts.device == "cuda":
        yield f"{_OPTIMIZER} at stage 0 fails: CPUAdam wants its parameters on the CPU; set stage 1, 2 or 3."
    if plan.zero["legacy_stage1"]:
        yield "zero_optimization.legacy_stage1: DeepSpeed no longer has that code and raises; remove it."
    if plan.zero.get("cpu_offload") and plan.zero["offload_optimizer"]:
        yield "zero_optimization.cpu_offload beside offload_optimizer asserts; keep offload_optimizer."


def _ratio(ds_config: DsConfig, plan: Layout) -> Iterator[str]:
    if plan.optimizer["ratio"] >= 1:
        return
    what = f"{_OPTIMIZER}.ratio is {plan.optimizer['ratio']}"
    if plan.stage != 3:
        yield f"{what} at stage {plan.stage}: only stage 3 has partial offload; set ratio 1.0 or stage 3."
    elif "nvme" in (plan.optimizer_device, plan.param_device):
        yield f"{what} beside NVMe: a mix of GPU and swapped states is not supported; set ratio 1.0 or cpu."
    elif plan.optimizer_device == "cpu" and not _is_cpu_adam(ds_config):
        yield f"{what} without DeepSpeedCPUAdam: no other optimizer is split; set ratio 1.0 or AdamW."
    elif plan.optimizer_device == "cpu" and len(plan.sub_groups) < 2:
        yield f"{what} with one sub-group: nothing can be split; lower sub_group_size or set ratio 1.0."


def _is_cpu_adam(ds_config: DsConfig) -> bool:
    optimizer = block(ds_config, "optimizer")
    if not optimizer:  # the script's own, which only ends up offloaded where it is DeepSpeedCPUAdam
        return True
    torch_adam = block(optimizer, "params").get("torch_adam", False)
    return str(optimizer.get("type", "")).lower() in _ADAM and not torch_adam


def _optimizer(ds_config: DsConfig, plan: Layout) -> Iterator[str]:
    optimizer = block(ds_config, "optimizer")
    kind, params = str(optimizer.get("type", "")).lower(), block(optimizer, "params")
    if "max_grad_norm" in params:
        yield "optimizer.params.max_grad_norm: DeepSpeed raises; write gradient_clipping at the top level."
    if params.get("amsgrad"):
        yield "optimizer.params.amsgrad: DeepSpeed's optimizers do not have it and raise; remove it."
    if kind == "lamb" and plan.facts.device == "cpu":
        yield "optimizer.type Lamb: there is no Lamb for the CPU accelerator; choose AdamW, or use a GPU."
    if kind == "muon" and plan.stage == 3 and plan.zero["reduce_scatter"]:
        yield "optimizer.type Muon at stage 3 needs whole gradients: set reduce_scatter to false."
    if params.get("torch_adam"):
        return
    offloaded = plan.optimizer_device != "none"
    op = (OFFLOADED_OPTIMIZER_OP if offloaded else DEVICE_OPTIMIZER_OP).get(kind)
    if op is not None and op not in plan.facts.ops:
        yield f"optimizer.type {kind} needs the {op} op, which cannot be loaded; run offtune doctor."


def _sizes(ds_config: DsConfig, plan: Layout) -> Iterator[str]:
    if plan.zero["reduce_bucket_size"] < 1:
        yield "zero_optimization.reduce_bucket_size is below 1: DeepSpeed needs a bucket; write 500000000."
    for key, value in plan.zero.items():
        if type(value) in (int, float) and value < 0 and key != "mics_shard_size":
            yield f"zero_optimization.{key} is {value}: DeepSpeed refuses sizes below 0; write 0 or more."
    if plan.zero["allgather_bucket_size"] % 2 and plan.stage in (1, 2):
        yield "zero_optimization.allgather_bucket_size is odd: stages 1 and 2 assert; write an even number."


def _reduction(ds_config: DsConfig, plan: Layout) -> Iterator[str]:
    scaled = ds_config.get("prescale_gradients") or ds_config.get("gradient_predivide_factor", 1) != 1
    if plan.zero["reduce_scatter"] and scaled and plan.stage in (2, 3):
        yield "Gradients scaled before reduction assert with reduce_scatter; set reduce_scatter to false."
    managed = ds_config.get("managed_gradient_accumulation", True)
    if not managed and plan.stage == 1 and plan.overlap_comm:
        yield "managed_gradient_accumulation false asserts with overlap at stage 1; set overlap_comm false."
    if ds_config.get("gradient_allreduce_op") == "sum" and plan.stage == 3:
        yield "gradient_allreduce_op sum: stage 3 raises; set it to mean."
    clips = ds_config.get("gradient_clipping", 1.0) != 0
    wrong = plan.stage not in (1, 2) or clips or plan.optimizer_device != "none" or plan.zero["zenflow"]
    if not plan.zero["compute_grad_norm"] and wrong:
        yield "compute_grad_norm false needs stage 1 or 2, no offload and no clipping; set it to true."


def _batch(ds_config: DsConfig, plan: Layout) -> Iterator[str]:
    names = ("train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps")
    total, micro, steps = (ds_config.get(name) for name in names)
    ranks = plan.facts.workload.world_size
    if total is None and micro is None:
        yield "train_batch_size and micro-batch are both missing: DeepSpeed asserts; write them."
        return
    # Missing ones follow by division without rest, as in _set_batch_related_parameters of runtime/config.py.
    micro = micro or max(1, (total or 1) // ranks // (steps or 1))
    steps = steps or max(1, (total or 1) // ranks // micro)
    if total is not None and total != micro * steps * ranks:
        yield (
            f"train_batch_size is {total}, but micro-batch {micro} x accumulation {steps} x {ranks} ranks is "
            f"{micro * steps * ranks}: DeepSpeed asserts that they agree; change one of them."
        )


def _number_format(ds_config: DsConfig, plan: Layout) -> Iterator[str]:
    on = [name for name in _16_BIT if block(ds_config, name).get("enabled")]
    if len(on) > 1:
        yield "bf16 and fp16 are both enabled: DeepSpeed asserts; disable one."
    if "fp16" in on and plan.facts.device == "cpu":
        yield "fp16.enabled: the CPU accelerator does not support fp16 and raises; use bf16 or fp32."
    data_types = block(ds_config, "data_types")
    wanted, mode = data_types.get("param_dtype"), on[0] if on else "fp32"
    if wanted is not None and wanted not in _DTYPE_NAMES[mode]:
        yield f"data_types.param_dtype is {wanted} although the run is {mode}: DeepSpeed asserts; remove it."
    if data_types.get("grad_accum_dtype") in _DTYPE_NAMES["fp32"] and on and plan.stage == 0:
        yield "data_types.grad_accum_dtype fp32 at stage 0 is not implemented; set stage 1 or remove it."


def _16_bit_state(ds_config: DsConfig, plan: Layout) -> Iterator[str]:
    bf16, fp16 = block(ds_config, "bf16"), block(ds_config, "fp16")
    master, states = bf16.get("bf16_master_weights_and_grads"), bf16.get("bf16_optimizer_states")
    if plan.stage == 0 and (master or states or fp16.get("fp16_master_weights_and_grads")):
        yield "16-bit master weights or optimizer states at stage 0: DeepSpeed asserts; set stage 1, 2 or 3."
    if states and not master:
        yield "bf16.bf16_optimizer_states without bf16_master_weights_and_grads: DeepSpeed asserts; set both."
    on_cpu = plan.optimizer_device != "none" and _is_cpu_adam(ds_config)
    if master and not states and not on_cpu:
        yield "bf16.bf16_master_weights_and_grads needs AdamW offloaded, or bf16_optimizer_states; set one."
    if fp16.get("fp16_master_weights_and_grads") and not on_cpu:
        yield "fp16.fp16_master_weights_and_grads needs AdamW offloaded to cpu (CPUAdam); offload it."


_RULES: tuple[Rule, ...] = (
    _stage,
    _ratio,
    _optimizer,
    _sizes,
    _reduction,
    _batch,
    _number_format,
    _16_bit_state,
    feature_problems,
    zenflow_problems,
    nvme_problems,
)
