"""What is known of a point before a trial: its effective ds_config and, where there is one, the prediction.

Covered: building, refusing and predicting a point once, kept for the rest of the search. Not covered: the
models (`predict`), correcting them by measurements (`beliefs`).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field

from offtune import ds_config
from offtune.beliefs import Guess
from offtune.config import RunConfig
from offtune.foresight import Foresight
from offtune.knob_workload import same_training
from offtune.predict import Bounds, Prediction, Predictor
from offtune.score import DEVICE_MEMORY, HOST_MEMORY
from offtune.trial import DsConfig, Facts, Point

# Points kept, some kilobyte each; of so many older ones only those are kept that are still asked for.
_MOST_KEPT = 20_000


@dataclass(slots=True, kw_only=True)
class Guesses:
    """A guess for any point of one study; `base` is under every point. Points do not change once asked about.

    `predictor` gives the predictions of the study as it was before any correction, None while there are none.
    """

    base: DsConfig
    facts: Facts
    nvme_path: str | None
    predictor: Callable[[], Predictor | None] = lambda: None
    _used: Predictor | None = None
    _kept: dict[str, Guess | None] = field(default_factory=dict)
    _older: dict[str, Guess | None] = field(default_factory=dict)
    # By the point's own identity: most are asked for again and again, and to write one out takes its time.
    _same: dict[int, tuple[Point, Guess | None]] = field(default_factory=dict)

    def __call__(self, point: Point) -> Guess | None:
        """The guess; None where DeepSpeed would refuse the point."""
        predictor = self.predictor()
        if predictor is not self._used:
            self._used, self._kept, self._older, self._same = predictor, {}, {}, {}
        same = self._same.get(id(point))
        if same is not None and same[0] is point:
            return same[1]
        if max(len(self._kept), len(self._same)) >= _MOST_KEPT:
            self._kept, self._older, self._same = {}, self._kept, {}
        found = self._remembered(repr(point), point)
        self._same[id(point)] = (point, found)
        return found

    def _remembered(self, name: str, point: Point) -> Guess | None:
        if name not in self._kept:
            self._kept[name] = self._older[name] if name in self._older else self._guess(point)
        return self._kept[name]

    def _guess(self, point: Point) -> Guess | None:
        config = ds_config.build(self.base, point, self.facts, self.nvme_path)
        if ds_config.problems(config, self.facts):
            return None
        key = same_training(ds_config.fingerprint(config, self.facts), point, self.facts.workload)
        if self._used is None:
            return Guess(key=key)
        return _guessed(key, self._used.bounds, self._used.at(point).predict(config))


def _guessed(key: str, bounds: Bounds, found: Prediction) -> Guess:
    shares = {DEVICE_MEMORY: found.used_device_bytes / bounds.device_bytes}
    if bounds.host_bytes:
        shares[HOST_MEMORY] = found.used_host_bytes / bounds.host_bytes
    speed = found.samples_per_s
    return Guess(key=key, samples_per_s=speed if math.isfinite(speed) and speed > 0 else None, shares=shares)


def guesses_for(config: RunConfig, facts: Facts, foresight: Foresight | None) -> Guesses:
    """The guesses of a study under these settings; without foresight only what makes points the same."""
    return Guesses(
        base=config.under_points,
        facts=facts,
        nvme_path=config.nvme_path,
        predictor=lambda: foresight.plain if foresight is not None and foresight.ready else None,
    )
