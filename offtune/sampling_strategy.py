"""The strategy as an Optuna sampler: it plugs into ask and tell like any other.

Covered: reading trials of an Optuna study into what the strategy has seen, and its proposal back into raw
parameters. Not covered: the decision (`strategy`). From one draw to the next it keeps only what can be read
again, so a resumed study, another process or another worker decides the same from the same trials.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from optuna.distributions import BaseDistribution, CategoricalDistribution, IntDistribution
from optuna.samplers import BaseSampler, RandomSampler
from optuna.study import Study
from optuna.trial import FrozenTrial, TrialState

from offtune.basis import MOST
from offtune.beliefs import Seen
from offtune.knobs import Knob
from offtune.score import ASSUMED_OVERSHOOT, FAILURE, MARGIN_UNKNOWN, Score
from offtune.space import Space
from offtune.strategy import Proposal, Strategy
from offtune.trial import Point

# User attributes of a trial that say more than its value: throughput also where it went over the budget, and
# the spread of its steps as a share.
SPEED_ATTRIBUTE = "samples_per_s"
NOISE_ATTRIBUTE = "noise_share"
# In a study longer than any default search, points at random serve so many draws before others take their
# place: most of a draw's time went into predictions for 130 new ones (`benchmarks/scale.py`).
_DRAWS_A_SEED = 20


class StrategySampler(BaseSampler):
    """Proposes what `strategy` decides; `proposal` is the last one, None where the trial was queued.

    `has_proposed` also where nothing was left to propose.
    """

    def __init__(self, strategy: Strategy, seed: int, told: dict[int, Seen] | None = None) -> None:
        self.has_proposed = False
        self.proposal: Proposal | None = None
        self._strategy = strategy
        self._seed = seed
        # By number, filled here: what was told never changes, and is read once.
        self._told = {} if told is None else told
        # For what no decision is left on: then the whole space has been tried.
        self._random = RandomSampler(seed=seed)

    def infer_relative_search_space(self, study: Study, trial: FrozenTrial) -> dict[str, BaseDistribution]:
        """Every knob of the space; those that are inactive in the proposal stay unused."""
        return {knob.name: distribution(knob) for knob in self._strategy.space.knobs}

    def sample_relative(
        self, study: Study, trial: FrozenTrial, search_space: dict[str, BaseDistribution]
    ) -> dict[str, Any]:
        """Raw parameters of the next point; none when the space is exhausted."""
        trials = study.get_trials(deepcopy=False)  # once: each time asks the database
        space = self._strategy.space
        pending = [
            point_of(space, _raw(other))
            for other in trials
            if other.state in (TrialState.RUNNING, TrialState.WAITING) and other.number != trial.number
        ]
        found = self._strategy.propose(
            [self._seen(one) for one in trials if one.state is TrialState.COMPLETE and one.params],
            [point for point in pending if point],
            self._seed,
        )
        self.has_proposed = True
        self.proposal = found
        if found is None:
            return {}
        return {
            knob.name: knob.raw(found.point[knob.name]) for knob in space.knobs if knob.name in found.point
        }

    def _seen(self, trial: FrozenTrial) -> Seen:
        if trial.number not in self._told:
            self._told[trial.number] = seen(self._strategy.space, trial)
        return self._told[trial.number]

    def sample_independent(
        self, study: Study, trial: FrozenTrial, param_name: str, param_distribution: BaseDistribution
    ) -> Any:
        """A random value, where the strategy has nothing to say."""
        return self._random.sample_independent(study, trial, param_name, param_distribution)


def seeding(index: int) -> int:
    """The number of the draw whose seed draw number `index` uses: its own, but in a long study."""
    return index if index < MOST else index - index % _DRAWS_A_SEED


def distribution(knob: Knob) -> BaseDistribution:
    """What a knob's raw parameter is drawn from."""
    if knob.kind == "choices":
        return CategoricalDistribution(knob.choices)
    return IntDistribution(knob.low, knob.high, step=knob.step)


def point_of(space: Space, raw: dict[str, Any]) -> Point:
    """The point that raw parameters mean."""
    return {knob.name: knob.value(raw[knob.name]) for knob in space.knobs if knob.name in raw}


def seen(space: Space, trial: FrozenTrial) -> Seen:
    """What a told trial has shown: its value and constraints (`score.py`), and what is noted beside them."""
    return Seen(
        point=point_of(space, trial.params),
        samples_per_s=trial.user_attrs.get(SPEED_ATTRIBUTE, trial.value) or None,
        shares=_shares(trial.constraints),
        failed=trial.constraints.get(FAILURE, 0.0) > 0,
        noise_share=trial.user_attrs.get(NOISE_ATTRIBUTE),
        chosen=_is_chosen(trial),
    )


def amended(space: Space, trial: FrozenTrial, score: Score) -> Seen:
    """The same once its point was trained again and did not hold, as `score` has it."""
    # What grew from step to step broke no limit yet; it would not hold either.
    failed = score.constraints[FAILURE] > 0 or score.feasible
    return replace(seen(space, trial), shares=_shares(score.constraints), failed=failed)


def _shares(constraints: Mapping[str, float]) -> dict[str, float | None]:
    """Used over allowed memory by limit; None is more than allowed, what is not known is left out."""
    return {
        name: None if overshoot >= ASSUMED_OVERSHOOT else 1.0 + overshoot
        for name, overshoot in constraints.items()
        if name != FAILURE and overshoot != MARGIN_UNKNOWN
    }


def _is_chosen(trial: FrozenTrial) -> bool:
    """Whether the strategy chose it: it was not queued, or only queued again after it had been lost."""
    lost = trial.user_attrs.get("origin") == "retry" and not trial.user_attrs.get("label")
    return lost or "fixed_params" not in trial.system_attrs


def _raw(trial: FrozenTrial) -> dict[str, Any]:
    raw: dict[str, Any] = trial.system_attrs.get("fixed_params", trial.params)
    return raw
