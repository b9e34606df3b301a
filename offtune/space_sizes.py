"""Sizes cut to the model: buckets, thresholds and tiles that would act like another one are left out.

Covered: which element counts still make a difference for a model. Not covered: everything else a machine or
workload rules out (`space_fit`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from offtune.knobs import DEFAULT_SUB_GROUP_NUMEL, Knob, is_number
from offtune.trial import Facts

Knobs = tuple[Knob, ...]

# Below 1/16 of the largest parameter nearly every parameter is moved alone, so that still smaller buckets
# are all the same (a parameter larger than the bucket is reduced by itself: stage3.py, 0.19.8).
_FINEST_BUCKET_SHARE = 16
# Tiles of 1e5 elements made steps 6 to 40 % slower on the CPU accelerator; smaller ones are no use.
_MIN_SUB_GROUP_NUMEL = 2**16


@dataclass(frozen=True, slots=True, kw_only=True)
class _Sizes:
    """Elements: of the model, of its parameters, and of one rank's share."""

    total: int
    smallest: int
    largest: int
    partition_total: int
    partition_largest: int


def _sizes(facts: Facts) -> _Sizes:
    numels, world = facts.parameter_numels, facts.workload.world_size
    parts = [-(-numel // world) for numel in numels]
    return _Sizes(
        total=sum(numels),
        smallest=min(numels),
        largest=max(numels),
        partition_total=sum(parts),
        partition_largest=max(parts),
    )


# Lowest and highest size that makes a difference; between two powers of two the next higher one is kept.
_BOUNDS: Mapping[str, Callable[[_Sizes], tuple[int, int]]] = {
    "reduce_bucket_size": lambda model: (model.largest // _FINEST_BUCKET_SHARE, model.total),
    "prefetch_bucket_size": lambda model: (model.largest // _FINEST_BUCKET_SHARE, model.total),
    "param_persistence_threshold": lambda model: (model.smallest, model.largest),
    "max_live_parameters": lambda model: (model.largest, model.total),
    # Forward and backward: the next use of a parameter is never further than twice the model.
    "max_reuse_distance": lambda model: (model.largest, 2 * model.total),
    "param_max_in_cpu": lambda model: (model.partition_largest, model.partition_total),
    # A buffer holds one parameter; a larger one holds no more.
    "param_buffer_size": lambda model: (model.partition_largest, model.partition_largest),
}


def cut_sizes(knobs: Knobs, facts: Facts) -> tuple[Knobs, list[str]]:
    """`knobs` without sizes that act like another one for this model, and a note that says so."""
    model = _sizes(facts)
    cut = {knob.name: _bounded(knob, *_BOUNDS[knob.name](model)) for knob in knobs if knob.name in _BOUNDS}
    new = tuple(cut.get(knob.name, knob) for knob in knobs)
    changed = [now.name for before, now in zip(knobs, new, strict=True) if before != now]
    note = f"Sizes of {len(changed)} knobs cut to the model (see --dry-run): others act alike."
    return new, [note] if changed else []


def _bounded(knob: Knob, low: int, high: int) -> Knob:
    """`knob` without sizes that act like another one; of a range wholly outside the nearest size stays.

    0 is no small size but none at all; it stays, and so does what is no number.
    """
    sizes = [value for value in knob.values if is_number(value) and value > 0]
    if not sizes:
        return knob
    first = max((size for size in sizes if size <= max(1, low)), default=min(sizes))
    last = min((size for size in sizes if size >= high), default=max(sizes))
    dropped = [size for size in sizes if not first <= size <= max(first, last)]
    return knob.limited_to(value for value in knob.values if value not in dropped)


def cut_sub_groups(knobs: Knobs, facts: Facts) -> tuple[Knobs, list[str]]:
    """`knobs` without numbers of sub-groups that this model cannot or need not be cut into."""
    knob = next((knob for knob in knobs if knob.name == "sub_groups"), None)
    if knob is None:
        return knobs, []
    tiles = {value: -(-_sizes(facts).partition_total // value) for value in knob.values}
    # More groups than asked for come by themselves where the model is larger than DeepSpeed's own tile.
    coarse = [value for value, tile in tiles.items() if tile > DEFAULT_SUB_GROUP_NUMEL]
    fine = [
        value
        for value, tile in tiles.items()
        if value > 1 and (tile < _MIN_SUB_GROUP_NUMEL or value > len(facts.parameter_numels))
    ]
    left = [value for value in knob.values if value not in fine and value not in coarse[:-1]]
    dropped = [str(value) for value in knob.values if value not in left]
    note = f"Sub-groups {', '.join(dropped)} left out: the model is too small or too large for a difference."
    narrowed = knob.limited_to(left or knob.values[:1])
    return tuple(narrowed if other is knob else other for other in knobs), [note] if dropped else []
