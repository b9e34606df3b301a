"""Knobs of the workload: what a point says of the training itself, and no ds_config has a key for.

Covered: activation checkpointing, which a Hugging Face model is told by a call of its own; the block of that
name in a ds_config is for models that call DeepSpeed's functions (runtime/activation_checkpointing). Not
covered: knobs that become keys (`ds_config`).
"""

from __future__ import annotations

from collections.abc import Container
from dataclasses import replace

from offtune.trial import Facts, Point, Workload

CHECKPOINTING = "activation_checkpointing"


def checkpoints(point: Point, own: bool | None) -> bool:
    """Whether a trial at `point` recomputes activations; `own` is the workload's, None where knobs decide."""
    return bool(point.get(CHECKPOINTING, own))


def workload_at(point: Point, workload: Workload) -> Workload:
    """The workload as a trial at `point` trains it; nothing is left open in it."""
    return replace(workload, activation_checkpointing=checkpoints(point, workload.activation_checkpointing))


def facts_at(point: Point, facts: Facts) -> Facts:
    """The facts of a trial at `point`."""
    workload = workload_at(point, facts.workload)
    return facts if workload == facts.workload else replace(facts, workload=workload)


def same_training(fingerprint: str, point: Point, workload: Workload) -> str:
    """The same text for points that train alike: `fingerprint` is that of the ds_config.

    What trains as the workload itself does has the plain fingerprint, as in studies from before this knob.
    """
    own = workload.activation_checkpointing
    return fingerprint if checkpoints(point, own) is bool(own) else f"{fingerprint}-{CHECKPOINTING}"


def decided(workload: Workload, knobs: Container[str]) -> Workload:
    """The workload without an open choice that none of the `knobs` will make: off, as the model has it."""
    return workload if CHECKPOINTING in knobs else workload_at({}, workload)
