"""Knobs: the settings offtune can turn, by name, and what one of them may be.

Covered: the closed list of names, the placements, one knob's domain in both forms (the value a point holds,
the small number a sampler sees) and one-line texts about points. Not covered: which knobs a space has
(`space`), what they become in a ds_config (`ds_config`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Literal

from offtune.errors import SpaceError
from offtune.trial import Point

OffloadDevice = Literal["none", "cpu", "nvme"]

# Every name a space may use, with the word that stands for it in a progress line.
KNOBS: dict[str, str] = {
    "placement": "",
    "micro_batch": "micro",
    "activation_checkpointing": "checkpointing",
    "pin_memory": "pinned",
    "sub_groups": "sub-groups",
    "resident_sixteenths": "resident/16",
    "reduce_bucket_size": "bucket",
    "overlap_comm": "overlap",
    "contiguous_gradients": "contiguous",
    "round_robin_gradients": "round-robin",
    "prefetch_bucket_size": "prefetch",
    "param_persistence_threshold": "persist",
    "max_live_parameters": "live",
    "max_reuse_distance": "reuse",
    "pipeline_read": "pipelined read",
    "pipeline_write": "pipelined write",
    "spare_buffers": "spare buffers",
    "param_buffer_count": "param buffers",
    "param_buffer_size": "param buffer",
    "param_max_in_cpu": "params in RAM",
    "aio_block_size": "aio block",
    "aio_queue_depth": "aio depth",
    "aio_intra_op_parallelism": "aio threads",
    "aio_single_submit": "aio single submit",
    "aio_overlap_events": "aio overlap",
    "grad_accum_dtype": "accumulate in",
    "bf16_master_weights_and_grads": "bf16 master",
    "bf16_optimizer_states": "bf16 states",
}

# Knobs after which the losses are others: only for spaces that say so at the top.
CHANGES_RESULT = frozenset({"grad_accum_dtype", "bf16_master_weights_and_grads", "bf16_optimizer_states"})

# ZeRO stage x where the optimizer state lives x where the parameters live. Stages 1 and 2 know no NVMe (they
# take it for cpu) and no parameter offload: deepspeed/runtime/zero/stage_1_and_2.py, 0.19.8.
PLACEMENTS: tuple[str, ...] = (
    "zero1",
    "zero1 opt=cpu",
    "zero2",
    "zero2 opt=cpu",
    "zero3",
    "zero3 opt=cpu",
    "zero3 param=cpu",
    "zero3 opt=cpu param=cpu",
    "zero3 opt=nvme",
    "zero3 opt=nvme param=cpu",
    "zero3 opt=cpu param=nvme",
    "zero3 opt=nvme param=nvme",
)

# The op that an optimizer needs where its state is offloaded, and where it is on the device; Adagrad on the
# device is torch's own. Source: _configure_basic_optimizer in deepspeed/runtime/engine.py, 0.19.8.
OFFLOADED_OPTIMIZER_OP: dict[str, str] = {
    "adamw": "cpu_adam",
    "adam": "cpu_adam",
    "lion": "cpu_lion",
    "adagrad": "cpu_adagrad",
}
DEVICE_OPTIMIZER_OP: dict[str, str] = {"adamw": "fused_adam", "adam": "fused_adam", "lion": "fused_lion"}

# Elements of DeepSpeed's own tile, sub_group_size (runtime/zero/config.py, 0.19.8).
DEFAULT_SUB_GROUP_NUMEL = 1_000_000_000

# Below this a number reads better in full than as a power of two.
_SHORT_NUMBER = 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """A ZeRO stage and the device that holds optimizer state and parameters ("none" is the GPU itself)."""

    stage: int
    optimizer: OffloadDevice = "none"
    param: OffloadDevice = "none"


def parse_placement(text: str) -> Placement:
    """The parts of 'zero3 opt=cpu param=nvme'. Raises SpaceError for anything not in `PLACEMENTS`."""
    if text not in PLACEMENTS:
        raise SpaceError(f"'{text}' is not a placement.", f"Placements are: {', '.join(PLACEMENTS)}.")
    stage, *offloads = text.split()
    where: dict[str, Any] = dict(part.split("=") for part in offloads)
    return Placement(
        stage=int(stage.removeprefix("zero")),
        optimizer=where.get("opt", "none"),
        param=where.get("param", "none"),
    )


@dataclass(frozen=True, kw_only=True)
class Knob:
    """One setting: its domain, its default and the values of earlier knobs under which it exists.

    `low`, `high` and `step` bound the raw number a sampler draws. For `int` that is the value itself; for
    `pow2` it is the exponent, and with `zero` the lowest raw number stands for the value 0.
    """

    name: str
    about: str
    kind: Literal["choices", "int", "pow2"]
    default: Any
    choices: tuple[Any, ...] = ()
    low: int = 0
    high: int = 0
    step: int = 1
    zero: bool = False
    when: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)

    @cached_property
    def values(self) -> tuple[Any, ...]:
        """Every value a point may hold, in order."""
        if self.kind == "choices":
            return self.choices
        return tuple(self.value(raw) for raw in range(self.low, self.high + 1, self.step))

    def value(self, raw: Any) -> Any:
        """The point's value for what a sampler drew."""
        if self.kind != "pow2":
            return raw
        return 0 if self.zero and raw == self.low else 2**raw

    def raw(self, value: Any) -> Any:
        """What a sampler has to be told for `value`. Raises SpaceError outside the domain."""
        if not self.holds(value):
            raise SpaceError(
                f"{self.name}: {value!r} is not in {self.domain}.", f"Give {self.name} a value of its domain."
            )
        if self.kind != "pow2":
            return value
        return self.low if value == 0 else value.bit_length() - 1

    def holds(self, value: Any) -> bool:
        """Whether `value` is in the domain; true is not 1 here, although Python thinks so."""
        try:
            return (type(value), value) in self._held
        except TypeError:  # a list, say, is in none
            return False

    @cached_property
    def _held(self) -> frozenset[tuple[type, Any]]:
        return frozenset((type(value), value) for value in self.values)

    def nearest(self, value: Any) -> Any:
        """`value` itself where the domain has it, else the closest number, else the first choice."""
        if self.holds(value):
            return value
        if all(is_number(known) for known in (value, *self.values)):
            return min(self.values, key=lambda known: abs(known - value))
        return self.values[0]

    def limited_to(self, wanted: Iterable[Any]) -> Knob:
        """This knob with only the `wanted` of its values; the default moves to the nearest one left."""
        allowed = tuple(wanted)
        left = tuple(value for value in self.values if value in allowed)
        if self.kind == "choices":
            narrowed = replace(self, choices=left)
        else:
            raws = [self.raw(value) for value in left]
            narrowed = replace(self, low=min(raws), high=max(raws), zero=self.zero and left[0] == 0)
        return replace(narrowed, default=narrowed.nearest(self.default))

    def is_active(self, point: Point) -> bool:
        """Whether the earlier values in `point` let this knob exist."""
        return all(name in point and point[name] in allowed for name, allowed in self.when.items())

    @property
    def domain(self) -> str:
        """The domain as a person reads it: '[0, 2^16..2^24]'."""
        if self.kind == "choices" or len(self.values) <= 2:
            return f"[{', '.join(format_value(value) for value in self.values)}]"
        zero, first = ("0, ", self.values[1]) if self.zero else ("", self.values[0])
        return f"[{zero}{format_value(first)}..{format_value(self.values[-1])}]"


def is_number(value: Any) -> bool:
    """Whether a value counts; true and false do not, although Python thinks so."""
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def format_value(value: Any) -> str:
    """A point's value in few characters: on, off, 2^22."""
    if isinstance(value, bool):
        return "on" if value else "off"
    if isinstance(value, int) and value >= _SHORT_NUMBER and value & (value - 1) == 0:
        return f"2^{value.bit_length() - 1}"
    return str(value)


def tuned_difference(point: Point, reference: Point) -> dict[str, tuple[Any, Any]]:
    """Knobs that differ, as (value in `point`, value in `reference`); None where a point lacks the knob."""
    names = [*point, *(name for name in reference if name not in point)]
    pairs = {name: (point.get(name), reference.get(name)) for name in names}
    return {name: pair for name, pair in pairs.items() if pair[0] != pair[1]}


def describe(point: Point, reference: Point) -> str:
    """One short line: where things are, the micro-batch, and what else is not as in `reference`.

    Example: 'zero3 opt=cpu, micro 4, bucket 2^22'.
    """
    always = [name for name in ("placement", "micro_batch") if name in point]
    changed = [name for name in tuned_difference(point, reference) if name in point and name not in always]
    words = (f"{KNOBS.get(name, name)} {format_value(point[name])}" for name in [*always, *changed])
    return ", ".join(word.strip() for word in words)
