"""A person's ds_config against the model and the machine, once these are known: what works with it.

Covered: what keeps the file from running as it is, or from being the base of anything; placements and
micro-batches that its settings exclude; a ratio without effect. Not covered: reading it (`ds_settle`).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from offtune import ds_config
from offtune.ds_change import Base
from offtune.ds_keys import block
from offtune.ds_layout import layout
from offtune.errors import ConfigError
from offtune.space import Space
from offtune.trial import Facts, Point

# Knobs of which a base may exclude values: ZenFlow fixes accumulation, 16-bit masters want offload.
_LIMITED = ("placement", "micro_batch")


def fit_to_base(space: Space, base: Base | None, facts: Facts) -> Space:
    """The space without placements and micro-batches that cannot run beside the base's other settings.

    Raises ConfigError with the reasons where nothing is left.
    """
    if base is None:
        return space
    names = [knob.name for knob in space.knobs if knob.name in _LIMITED]
    corners = [space.complete(corner) for corner in _corners(space, names)]
    faults = {index: _faults(base, point, facts) for index, point in enumerate(corners)}
    if all(faults.values()):
        raise _unusable(base, (reason for reasons in faults.values() for reason in reasons))
    for name in names:
        space = _limited(space, name, corners, faults)
        values = next(knob.values for knob in space.knobs if knob.name == name)
        faults = {index: found for index, found in faults.items() if corners[index][name] in values}
    return space


def check_base(base: Base | None, facts: Facts) -> tuple[str, ...]:
    """What to know about the file before it is the first baseline."""
    if base is None:
        return ()
    own = ds_config.problems(ds_config.build(base.ds_config, {}, facts, facts.nvme_dir), facts)
    notes = [f"Your file as it is will not be run: {' '.join(own)}"] if own else []
    return (*notes, *_ratio_note(base, facts))


def _corners(space: Space, names: list[str]) -> list[Point]:
    """Every combination of the values of `names`."""
    found: list[Point] = [{}]
    for knob in space.knobs:
        if knob.name in names:
            found = [{**point, knob.name: value} for point in found for value in knob.values]
    return found


def _faults(base: Base, point: Point, facts: Facts) -> tuple[str, ...]:
    """What is wrong with a point because of the base; other faults are the search's to tell."""
    found = ds_config.problems(ds_config.build(base.ds_config, point, facts, facts.nvme_dir), facts)
    if not found:
        return ()
    alone = ds_config.problems(ds_config.build({}, point, facts, facts.nvme_dir), facts)
    return tuple(reason for reason in found if reason not in alone)


def _limited(space: Space, name: str, corners: list[Point], faults: dict[int, tuple[str, ...]]) -> Space:
    works = {corners[index][name] for index, found in faults.items() if not found}
    knob = next(knob for knob in space.knobs if knob.name == name)
    lost = [value for value in knob.values if value not in works]
    if not lost:
        return space
    reason = next(found[0] for index, found in faults.items() if corners[index][name] == lost[0])
    note = f"{name} {', '.join(map(str, lost))} left out, as your file excludes it: {reason}"
    knobs = tuple(knob.limited_to(works) if knob.name == name else knob for knob in space.knobs)
    return replace(space, knobs=knobs, notes=(*space.notes, note))


def _unusable(base: Base, reasons: Iterable[Any]) -> ConfigError:
    return ConfigError(
        f"{base.path} cannot be the base here:\n  " + "\n  ".join(dict.fromkeys(reasons)),
        "Correct the file, or search without --base.",
    )


def _ratio_note(base: Base, facts: Facts) -> tuple[str, ...]:
    """A ratio is a staircase over sub-groups: with few of them it may do nothing."""
    ratio = block(base.ds_config, "zero_optimization.offload_optimizer").get("ratio", 1.0)
    if ratio >= 1:
        return ()
    if facts.device == "cpu":
        return (f"The ratio {ratio} of your file has no effect on the CPU accelerator.",)
    plan = layout(base.ds_config, facts)
    if plan.resident_sub_groups:
        return ()
    return (
        f"The ratio {ratio} of your file does nothing: sub_group_size makes {len(plan.sub_groups)} "
        "sub-group(s) of this model, and no whole one stays on the GPU.",
    )
