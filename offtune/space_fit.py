"""Fitting a space to a machine and a workload: what cannot run or cannot matter is left out, and said.

Covered: placements, divisors of the global batch, knobs without effect here. Not covered: sizes
(`space_sizes`) and rules about a whole ds_config (`ds_rules`). Ranges found here stay fixed for a study,
because a parameter whose range changes is lost to joint sampling.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

from offtune.errors import SpaceError
from offtune.knob_workload import CHECKPOINTING
from offtune.knobs import (
    DEVICE_OPTIMIZER_OP,
    OFFLOADED_OPTIMIZER_OP,
    Knob,
    Placement,
    format_value,
    parse_placement,
)
from offtune.space_sizes import cut_sizes, cut_sub_groups
from offtune.trial import Facts

Knobs = tuple[Knob, ...]
Step = Callable[[Knobs, Facts], tuple[Knobs, list[str]]]

_ADAM = ("adamw", "adam")


def fit(knobs: Knobs, facts: Facts) -> tuple[Knobs, tuple[str, ...]]:
    """The narrowed knobs and one sentence for each thing left out. Raises SpaceError when nothing is left."""
    notes: list[str] = []
    for step in _STEPS:
        knobs, more = step(knobs, facts)
        knobs = _reachable(knobs)
        notes += more
    return knobs, tuple(notes)


def _reachable(knobs: Knobs) -> Knobs:
    """Conditions cut to values that still exist; knobs whose conditions cannot be met are dropped."""
    kept: dict[str, Knob] = {}
    for knob in knobs:
        when = {name: _possible(kept.get(name), values) for name, values in knob.when.items()}
        if all(when.values()):
            kept[knob.name] = replace(knob, when=when)
    return tuple(kept.values())


def _possible(parent: Knob | None, values: tuple[Any, ...]) -> tuple[Any, ...]:
    return tuple(value for value in values if parent is not None and parent.holds(value))


def _without(knobs: Knobs, name: str, note: str) -> tuple[Knobs, list[str]]:
    left = tuple(knob for knob in knobs if knob.name != name)
    return left, [note] if len(left) < len(knobs) else []


def _replaced(knobs: Knobs, new: Knob) -> Knobs:
    return tuple(new if knob.name == new.name else knob for knob in knobs)


def _named(knobs: Knobs, name: str) -> Knob | None:
    return next((knob for knob in knobs if knob.name == name), None)


def _placements(knobs: Knobs, facts: Facts) -> tuple[Knobs, list[str]]:
    knob = _named(knobs, "placement")
    if knob is None:
        return knobs, []
    reasons = {text: list(_obstacles(parse_placement(text), facts)) for text in knob.choices}
    notes = list(dict.fromkeys(reason for found in reasons.values() for reason in found))
    left = [text for text, found in reasons.items() if not found]
    if not left:
        raise SpaceError(
            f"No placement of the space can run here. {' '.join(notes)}", "Choose another --space."
        )
    return _replaced(knobs, knob.limited_to(left)), notes


def _obstacles(placement: Placement, facts: Facts) -> Iterator[str]:
    """Why this placement cannot run here; nothing when it can."""
    if "nvme" in (placement.optimizer, placement.param):
        yield from _nvme_obstacles(facts)
    own = facts.workload.command
    if own is not None and own.own_optimizer and placement.optimizer == "none":
        return  # the script brings an optimizer for the device; no op of DeepSpeed's is needed
    if own is not None and not own.offloads and placement.optimizer != "none":
        yield (
            f"Optimizer offload left out: the script builds its optimizer ({own.own_optimizer}), which "
            "DeepSpeed does not offload; leave it out of deepspeed.initialize, and the ds_config gets one."
        )
        return
    if placement.optimizer == "none":
        op, what = DEVICE_OPTIMIZER_OP.get(facts.workload.optimizer), "Optimizer state on the device"
    else:
        op, what = OFFLOADED_OPTIMIZER_OP.get(facts.workload.optimizer), "Optimizer offload"
    if op is not None and op not in facts.ops:
        yield (
            f"{what} left out: DeepSpeed's {op} op cannot be loaded; "
            "`offtune doctor` says what its build needs."
        )


def _nvme_obstacles(facts: Facts) -> Iterator[str]:
    if facts.nvme_dir is None:
        yield "NVMe offload left out: no --nvme-path given."
    elif "async_io" not in facts.ops:
        yield (
            "NVMe offload left out: DeepSpeed's async_io op cannot be loaded; install the libaio headers "
            "(libaio-dev or libaio-devel) and search again."
        )


def _micro_batch(knobs: Knobs, facts: Facts) -> tuple[Knobs, list[str]]:
    knob, workload = _named(knobs, "micro_batch"), facts.workload
    if knob is None:
        return knobs, []
    per_rank, rest = divmod(workload.global_batch, workload.world_size)
    left = [value for value in knob.values if rest == 0 and value > 0 and per_rank % value == 0]
    if not left:
        raise SpaceError(
            f"micro_batch: nothing in {knob.domain} divides a global batch of {workload.global_batch} "
            f"over {workload.world_size} ranks.",
            "Choose a --global-batch that is a multiple of ranks x micro-batch.",
        )
    dropped = [str(value) for value in knob.values if value not in left]
    note = f"Micro-batch {', '.join(dropped)} left out: {per_rank} samples per rank are no multiple of it."
    return _replaced(knobs, knob.limited_to(left)), [note] if dropped else []


def _checkpointing(knobs: Knobs, facts: Facts) -> tuple[Knobs, list[str]]:
    workload = facts.workload
    if workload.command is not None:
        return _without(knobs, CHECKPOINTING, "Activation checkpointing left out: the script decides it.")
    fixed = workload.activation_checkpointing
    if fixed is None:
        return knobs, []
    note = f"Activation checkpointing left out: it is {format_value(fixed)} in every trial."
    return _without(knobs, CHECKPOINTING, note)


def _resident(knobs: Knobs, facts: Facts) -> tuple[Knobs, list[str]]:
    name = "resident_sixteenths"
    if facts.device == "cpu":
        return _without(
            knobs,
            name,
            "Partial offload left out: on the CPU accelerator the ratio has no effect; it needs a GPU.",
        )
    if facts.workload.optimizer not in _ADAM:
        return _without(
            knobs,
            name,
            "Partial offload left out: DeepSpeed has it for --optimizer adamw and adam only.",
        )
    return knobs, []


def _cpu_accelerator(knobs: Knobs, facts: Facts) -> tuple[Knobs, list[str]]:
    if facts.device != "cpu":
        return knobs, []
    knobs, notes = _without(
        knobs,
        "pin_memory",
        "Pinned memory left out: on the CPU accelerator nothing is pinned; it needs a GPU.",
    )
    knob = _named(knobs, "overlap_comm")
    stages = knob.when.get("placement", _all_placements(knobs)) if knob else ()
    below = tuple(text for text in stages if parse_placement(text).stage < 3)
    if knob is None or not stages or below == stages:
        return knobs, notes
    note = "Overlap at stage 3 left out: the CPU accelerator has no streams; it needs a GPU."
    return _replaced(knobs, replace(knob, when={**knob.when, "placement": below})), [*notes, note]


def _all_placements(knobs: Knobs) -> tuple[Any, ...]:
    knob = _named(knobs, "placement")
    return knob.choices if knob else ()


def _one_rank(knobs: Knobs, facts: Facts) -> tuple[Knobs, list[str]]:
    if facts.workload.world_size > 1:
        return knobs, []
    return _without(
        knobs, "round_robin_gradients", "Round-robin gradients left out: they need several ranks."
    )


def _precision(knobs: Knobs, facts: Facts) -> tuple[Knobs, list[str]]:
    notes: list[str] = []
    if facts.workload.precision == "fp32":
        knobs, notes = _without(
            knobs,
            "grad_accum_dtype",
            "Accumulation dtype left out: with fp32 gradients are summed in fp32 anyway.",
        )
    if facts.workload.precision == "bf16" and facts.workload.optimizer in _ADAM:
        return knobs, notes
    note = "bf16 master weights left out: they need --precision bf16 and --optimizer adamw."
    knobs, more = _without(knobs, "bf16_master_weights_and_grads", note)
    return knobs, [*notes, *more]


_STEPS: tuple[Step, ...] = (
    _placements,
    _micro_batch,
    _checkpointing,
    _resident,
    _cpu_accelerator,
    _one_rank,
    _precision,
    cut_sub_groups,
    cut_sizes,
)
