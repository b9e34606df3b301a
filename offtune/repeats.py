"""Measurements of runs that were made already: the rounds of the finals, and the confirmation.

Covered: the records. Not covered: keeping them (`store_repeats.py`), what follows from them (`winner.py`).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Literal

from offtune.lock import Owner
from offtune.trial import Status, TrialResult


@dataclass(frozen=True, slots=True, kw_only=True)
class Repeat:
    """The run of that number, trained once more; `number` counts the repeats of a study.

    `finals` says of which finals it is part (a study that is resumed after its finals has further ones),
    `round` of which round, from 1. A confirmation is longer, and in round 0. `status` and `result` are None
    while it runs.
    """

    study: str
    number: int
    finals: int
    round: int
    run: int
    kind: Literal["repeat", "confirmation"] = "repeat"
    status: Status | None = None
    result: TrialResult | None = None
    started_at: str = ""
    finished_at: str | None = None
    owner: Owner | None = None
    trial_dir: str | None = None
    swap_dir: str | None = None
    token: str = ""

    @property
    def fault(self) -> str:
        """What speaks against the run: that it failed, or that something grew all through the longer run."""
        if self.result is None or self.status in (None, Status.INTERRUPTED):
            return ""
        if self.status is Status.OK:
            return self.result.unsafe if self.kind == "confirmation" else ""
        when = "in a longer run" if self.kind == "confirmation" else "when it was repeated"
        return f"{str(self.status).replace('_', ' ')} {when}. {self.result.reason}".strip()


def used_bytes_of(repeats: Iterable[Repeat], run: int | None) -> tuple[int, ...]:
    """Device memory that each repeat of the run used, where it was measured."""
    results = (repeat.result for repeat in repeats if repeat.run == run and repeat.result)
    used = (result.memory.used_device_bytes for result in results)
    return tuple(each for each in used if each is not None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Who is in the finals: run numbers. `baseline` is one of them, `simplified` the variant of `simple_of`.

    `measured` is how many trials the study had then: with more, there are new finals.
    """

    finals: int
    measured: int
    contenders: tuple[int, ...]
    baseline: int | None = None
    simplified: int | None = None
    simple_of: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Rejected:
    """A contender that did not hold when it was trained again, and why."""

    run: int
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Ratio:
    """How many times as fast the winner is as the run `against`, with the 95 % interval.

    `rounds` is in how many both were trained; None of finals that an older offtune held.
    """

    against: int
    value: float
    low: float
    high: float
    rounds: int | None = None

    @property
    def is_clear(self) -> bool:
        """Whether one of the two is faster beyond doubt."""
        return self.low > 1 or self.high < 1

    def turned(self, against: int) -> Ratio:
        """The other way round: the run `against` the winner, which this is over."""
        return replace(self, against=against, value=1 / self.value, low=1 / self.high, high=1 / self.low)


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What the finals decided. `winner` is None where no contender held.

    `ratios` are over every other contender; `tied` are those that the winner was chosen over although they
    are as fast, for being simpler. `confirmed_steps` is how many steps the winner's confirmation measured,
    None where there was no time for one. `used_bytes` is the device memory of each of its repeats.
    """

    plan: Plan
    winner: int | None
    rounds: int
    ratios: tuple[Ratio, ...] = ()
    tied: tuple[int, ...] = ()
    rejected: tuple[Rejected, ...] = ()
    confirmed_steps: int | None = None
    confirmed_samples_per_s: float | None = None
    used_bytes: tuple[int, ...] = ()
    notes: tuple[str, ...] = field(default=())

    def over(self, run: int | None) -> Ratio | None:
        """The winner's ratio over that run; None where it is the winner or was not compared."""
        return next((ratio for ratio in self.ratios if ratio.against == run), None)

    def rounds_of(self, ratio: Ratio) -> int:
        """In how many rounds the two of a ratio were trained."""
        return ratio.rounds or self.rounds
