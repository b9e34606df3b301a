"""Rules for DeepSpeed's special features: SuperOffload, quantised ZeRO, DeepCompile and ZenFlow.

Covered: what they exclude and where they cannot run. None of them is in a space that offtune brings; a
person's own file may have them. Behaviour is that of DeepSpeed 0.19.8.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from offtune.ds_keys import block
from offtune.ds_layout import Layout
from offtune.trial import DsConfig

_OPTIMIZER = "zero_optimization.offload_optimizer"
_QUANTIZED = ("zero_quantized_weights", "zero_quantized_nontrainable_weights", "zero_quantized_gradients")


def feature_problems(ds_config: DsConfig, plan: Layout) -> Iterator[str]:
    """Features that need CUDA, another stage, or each other's absence."""
    compile_block, cpu = block(ds_config, "compile"), plan.facts.device == "cpu"
    if plan.optimizer["super_offload"] and (cpu or plan.stage != 3):
        yield f"{_OPTIMIZER}.super_offload needs CUDA and stage 3, and fails or is ignored here; remove it."
    if plan.optimizer["super_offload"] and not plan.optimizer["cpuadam_cores_perc"]:
        yield f"{_OPTIMIZER}.cpuadam_cores_perc is 0: SuperOffload's worker would have no core; write 0.8."
    for key in _QUANTIZED:
        if plan.zero[key] and (cpu or plan.stage != 3):
            yield f"zero_optimization.{key} needs CUDA's quantizer op and stage 3; set it to false."
    if compile_block.get("deepcompile"):
        yield from _deepcompile(ds_config, plan, compile_block)


def _deepcompile(ds_config: DsConfig, plan: Layout, compile_block: dict[str, Any]) -> Iterator[str]:
    if plan.facts.device == "cpu":
        yield "compile.deepcompile cannot build its op on the CPU accelerator; set it to false."
    if compile_block.get("offload_opt_states") and plan.optimizer_device != "none":
        yield "compile.offload_opt_states beside offload_optimizer: DeepSpeed raises; keep one of them."
    others = [key for key in ("offload_parameters", "offload_opt_states") if compile_block.get(key)]
    if compile_block.get("offload_activation") and others:
        yield f"compile.offload_activation excludes {' and '.join(others)}: keep one of them."
    if ds_config.get("gradient_allreduce_op") == "sum":
        yield "gradient_allreduce_op sum: DeepCompile raises; set it to mean."


def zenflow_problems(ds_config: DsConfig, plan: Layout) -> Iterator[str]:
    """Why ZenFlow, which also changes the update rule, cannot run as written; nothing without it."""
    zenflow = plan.zero["zenflow"]
    if not zenflow:
        return
    where = "zero_optimization.zenflow"
    if plan.optimizer_device != "cpu":
        yield f"{where} without optimizer offload to cpu: DeepSpeed raises; offload it or remove this."
    if plan.stage == 3 and plan.facts.device == "cpu":
        yield f"{where} at stage 3 asks for CUDA by name and fails on the CPU accelerator; set stage 1 or 2."
    if zenflow.get("offload") and not zenflow.get("overlap_step"):
        yield f"{where}.offload needs overlap_step; set overlap_step to true."
    select, update = (zenflow.get(key, "auto") for key in ("select_interval", "update_interval"))
    if zenflow.get("select_strategy", "auto") == "auto" and select != "auto":
        yield f"{where}: select_strategy auto with a number as select_interval raises; name a strategy."
    if isinstance(select, int) and isinstance(update, int) and select < update:
        yield f"{where}: select_interval is below update_interval and raises; raise it to {update}."
    if update != ds_config.get("gradient_accumulation_steps"):
        yield f"{where} overwrites gradient_accumulation_steps with update_interval; write the same in both."
    if ds_config.get("gradient_allreduce_op") == "sum":
        yield "gradient_allreduce_op sum: ZenFlow raises; set it to mean."
