"""Candidates: ds_configs worth a prediction, enumerated and ranked by predicted throughput.

Covered: every placement x micro-batch x number of resident sub-groups of a space, each micro-batch also with
activations recomputed, other knobs at their defaults; the best few that differ in placement. Not covered: the
prediction of one (`predict`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from offtune import ds_config
from offtune.knob_workload import CHECKPOINTING
from offtune.knobs import Knob
from offtune.predict import Bounds, Prediction, Predictor
from offtune.space import Space
from offtune.trial import DsConfig, Point

_RESIDENT = "resident_sixteenths"
_ORDER = ("fits", "close", "over")


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A point, the ds_config it means and what is predicted for it."""

    point: Point
    ds_config: DsConfig
    prediction: Prediction

    @property
    def placement(self) -> str:
        return str(self.point.get("placement", ""))


def points(space: Space, *, partial: bool = True) -> Iterator[Point]:
    """Placements x micro-batches x resident sub-groups, as far as the space has these knobs.

    Without `partial` nothing is resident: what fits at all fits like that. Where activations may be
    recomputed, every placement and micro-batch comes like that too, with nothing resident.
    """
    for placement in _values(space, "placement"):
        for micro_batch in _values(space, "micro_batch"):
            chosen = {**placement, **micro_batch}
            yield from (space.complete({**chosen, **kept}) for kept in _values(space, CHECKPOINTING))
            yield from _resident(space, chosen) if partial else ()


def _values(space: Space, name: str) -> list[Point]:
    knob = _knob(space, name)
    return [{name: value} for value in knob.values] if knob else [{}]


def _knob(space: Space, name: str) -> Knob | None:
    return next((knob for knob in space.knobs if knob.name == name), None)


def _resident(space: Space, chosen: Point) -> Iterator[Point]:
    """Partial offload at the coarsest cut that allows it; a finer one gains a few per cent at most."""
    knob = _knob(space, _RESIDENT)
    if knob is None or chosen.get("placement") not in knob.when.get("placement", (chosen.get("placement"),)):
        return
    cut: dict[str, Any] = {name: values[0] for name, values in knob.when.items() if name != "placement"}
    for value in knob.values:
        if value:
            yield space.complete({**chosen, **cut, _RESIDENT: value})


def candidates(
    space: Space,
    predictor: Predictor,
    nvme_path: str | None,
    *,
    base: DsConfig | None = None,
    partial: bool = True,
) -> list[Candidate]:
    """All candidates that DeepSpeed would take, fastest of the fitting first, then the close, then the rest.

    Points that land on the same ds_config are one candidate; `base` is a person's own file under the points.
    """
    found: dict[tuple[Any, ...], Candidate] = {}
    for point in points(space, partial=partial):
        config = ds_config.build(base or {}, point, predictor.facts, nvme_path)
        key = _identity(point, config)
        if key not in found and (one := _candidate(point, config, predictor)) is not None:
            found[key] = one
    return ranked(found.values(), predictor.bounds)


def candidate(
    point: Point, predictor: Predictor, nvme_path: str | None, base: DsConfig | None = None
) -> Candidate | None:
    """What a point means and what is predicted for it; None where DeepSpeed would not take it."""
    return _candidate(point, ds_config.build(base or {}, point, predictor.facts, nvme_path), predictor)


def _candidate(point: Point, config: DsConfig, predictor: Predictor) -> Candidate | None:
    if ds_config.problems(config, predictor.facts):
        return None
    return Candidate(point=point, ds_config=config, prediction=predictor.at(point).predict(config))


def _identity(point: Point, config: DsConfig) -> tuple[Any, ...]:
    """What distinguishes two candidates: the ratio is a staircase, and several points can share a step."""
    zero = config["zero_optimization"]
    offload = zero.get("offload_optimizer") or {}
    kept = offload.get("ratio", 1.0)
    size = zero.get("sub_group_size") if kept != 1.0 else None
    split = config["train_micro_batch_size_per_gpu"]
    return point.get("placement"), split, point.get(CHECKPOINTING), kept, size


def ranked(found: Iterable[Candidate], bounds: Bounds) -> list[Candidate]:
    """Fitting ones first, then those that fit but for the error, by throughput; of equals the smaller one."""
    return sorted(
        found,
        key=lambda one: (
            _ORDER.index(one.prediction.verdict),
            one.prediction.overshoot(bounds) > 1,
            -one.prediction.samples_per_s,
            one.prediction.used_device_bytes,
        ),
    )


def within(found: Iterable[Candidate], bounds: Bounds) -> list[Candidate]:
    """The same predictions judged by other bounds, and ranked anew."""
    judged = (replace(one, prediction=one.prediction.within(bounds)) for one in found)
    return ranked(judged, bounds)


def distinct(found: Iterable[Candidate], count: int) -> list[Candidate]:
    """The first of each placement, `count` at most."""
    firsts: dict[str, Candidate] = {}
    for one in found:
        firsts.setdefault(one.placement, one)
    return list(firsts.values())[:count]
