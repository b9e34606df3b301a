"""Crashes that are all alike: a script, or an environment, that no configuration mends.

Covered: when a search that has trained nothing so far should stop. Not covered: why a trial crashed
(`verdict`, `command_verdict`); single keys that DeepSpeed refuses (`ds_rules`).
"""

from __future__ import annotations

import re
from collections import defaultdict
from dataclasses import dataclass, field

from offtune.ds_zero import placement_of
from offtune.records import Run
from offtune.trial import Status

# Two are enough where they share neither partitioning: a model built under zero.Init, say, trains at stage 3
# only. Otherwise as many as the ladder of baselines has.
_LEAST, _OF_ONE_KIND = 2, 5
# What differs from trial to trial without meaning anything: paths, addresses, process numbers.
_INCIDENTAL = re.compile(r"/\S+|0x[0-9a-f]+|\d+")


@dataclass(slots=True, kw_only=True)
class Alike:
    """The crashes of one search. `trained` is whether any trial of the study has trained."""

    trained: bool = False
    _kinds: dict[str, list[bool]] = field(default_factory=lambda: defaultdict(list))
    _reasons: dict[str, str] = field(default_factory=dict)
    last: int = 0  # the number of the last one

    def see(self, run: Run) -> None:
        """Take note of how a trial ended."""
        if run.result is None or self.trained:
            return
        self.trained = run.result.samples_per_s is not None
        if run.status is Status.CRASHED:
            cause = _INCIDENTAL.sub("#", run.result.reason)
            self._kinds[cause].append(placement_of(run.ds_config, {}).stage == 3)
            self._reasons[cause], self.last = run.result.reason, run.number

    @property
    def reason(self) -> str | None:
        """Why all crashed, once that is clear; None before."""
        if self.trained or len(self._kinds) != 1:
            return None
        (cause, kinds), *_ = self._kinds.items()
        clear = len(kinds) >= _OF_ONE_KIND or (len(kinds) >= _LEAST and len(set(kinds)) > 1)
        return self._reasons[cause] if clear else None

    @property
    def count(self) -> int:
        return sum(len(kinds) for kinds in self._kinds.values())
