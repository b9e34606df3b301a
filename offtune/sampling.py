"""Optuna's side of a study: draw raw parameters, queue them, tell a score.

Covered: Optuna's storage and its troubles. Sampling keeps no state of its own: each draw comes from
a fresh sampler seeded by the study's seed and the number of trials told so far, so a study that was
interrupted goes on as if it had not been (tpe, random, gp; qmc counts its draws in the database, lost ones
too). Not covered: samplers (`sampling_by_name`, `sampling_strategy`), what the parameters mean and our own
rows (`study.py`).
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import sha256
from typing import TYPE_CHECKING, Any

import optuna
from optuna.exceptions import ExperimentalWarning, StorageInternalError
from optuna.samplers import BaseSampler
from optuna.study import StudyDirection
from optuna.trial import Trial, TrialState

from offtune.beliefs import Seen
from offtune.errors import StoreError, StudyMismatch
from offtune.records import Origin
from offtune.sampling_by_name import make_sampler
from offtune.sampling_strategy import StrategySampler, amended, seeding
from offtune.score import Score
from offtune.store import Store
from offtune.trial import Point
from offtune.trouble import trouble

if TYPE_CHECKING:
    from offtune.knobs import Knob
    from offtune.space import Space
    from offtune.strategy import Strategy

METRIC = "samples/s"
_MARK = "offtune"
# Marks a draw that stands for the person's own file: no point, and never told, as a trial without parameters
# would empty the intersection that joint samplers work on.
AS_IS = "as_is"
# What the strategy expected to gain by a draw, over the best before it, as a share.
EXPECTED_GAIN = "expected_gain"
REPEAT_NOISE = "repeat_noise"
_GIVEN_UP = "given_up"
_RETRY_OF = "retry_of"
# What Optuna makes of a locked database or a full disk, the real error being behind it (Optuna 5.0.0).
_WRAPPERS = (StorageInternalError, AssertionError, UnboundLocalError)


@dataclass(frozen=True, slots=True, kw_only=True)
class Draw:
    """One Optuna trial: number, raw parameters, what was noted with it, whether Optuna knows its end."""

    number: int
    raw: dict[str, Any]
    attributes: dict[str, Any]
    ended: bool

    @property
    def origin(self) -> Origin:
        """Who chose the point."""
        found: Origin = self.attributes.get("origin", "search")
        return found

    @property
    def label(self) -> str:
        """What the point is called; "" for most."""
        return str(self.attributes.get("label", ""))


class Sampling:
    """The Optuna study of that name in the store's database, made if need be."""

    def __init__(
        self, store: Store, name: str, *, seed: int, sampler: str, strategy: Strategy | None = None
    ) -> None:
        self._location = store.location
        self._name = name
        self._seed, self._sampler = seed, sampler
        self._strategy = strategy
        self._told: dict[int, Seen] = {}  # what the strategy has read of trials
        self._asked: Trial | None = None  # the last one, which need not be read again
        optuna.logging.set_verbosity(optuna.logging.ERROR)
        first = self._make_sampler(0)
        with self._trouble():
            with store.lock_tables():
                self._storage = _storage(store)
            self._study = _load_or_create(self._storage, name, first)
            self._study_id = self._storage.get_study_id_from_name(name)

    def ask(self, space: Space) -> tuple[Draw, Point]:
        """The next draw and its point: what is queued first, then what the sampler proposes."""
        with self._trouble():
            sampler = self._make_sampler(self._draw_index())
            self._study.sampler = sampler
            trial = self._asked = self._study.ask()
            if trial.user_attrs.get(AS_IS):
                return _fresh(trial), {}
            point = space.suggest(lambda knob: suggested(trial, knob))
            if isinstance(sampler, StrategySampler) and sampler.has_proposed:
                found = sampler.proposal
                trial.set_user_attr(EXPECTED_GAIN, found.expected_gain if found else None)
                if found is not None and found.noise_share is not None:
                    trial.set_user_attr(REPEAT_NOISE, found.noise_share)
            return _fresh(trial), point

    def queue(self, raw: Mapping[str, Any], attributes: Mapping[str, Any]) -> None:
        """Queue raw parameters, unless they have been queued or drawn before."""
        with self._trouble():
            self._study.enqueue_trial(dict(raw), user_attrs=dict(attributes), skip_if_exists=True)

    def queue_again(self, draw: Draw, attributes: Mapping[str, Any]) -> None:
        """Queue the parameters of a draw that came to nothing; once for each draw."""
        with self._trouble():
            trials = self._study.get_trials(deepcopy=False)
            if not any(trial.user_attrs.get(_RETRY_OF) == draw.number for trial in trials):
                self._study.enqueue_trial(draw.raw, user_attrs={**attributes, _RETRY_OF: draw.number})

    def tell(self, draw: Draw, score: Score, attributes: Mapping[str, Any]) -> None:
        """Tell the score of a draw that has not ended."""
        with self._trouble():
            trial = self._noted(draw, attributes)
            with warnings.catch_warnings():  # of constraints that an interrupted tell has set already
                warnings.simplefilter("ignore")
                for name, overshoot in score.constraints.items():
                    trial.set_constraint(name, overshoot)
            self._study.tell(trial, score.value, state=TrialState.COMPLETE)

    def fail(self, number: int, *, give_up: bool) -> None:
        """Tell that a draw came to nothing; samplers ignore it, but after `give_up` they draw another."""
        with self._trouble():
            trial = self._trial(number)
            if give_up:
                trial.set_user_attr(_GIVEN_UP, True)
            self._study.tell(trial, state=TrialState.FAIL, skip_if_finished=True)

    def leave_out(self, draw: Draw, attributes: Mapping[str, Any]) -> None:
        """End a draw that is no point of the space: samplers learn nothing from it, a reader of it does."""
        with self._trouble():
            self._study.tell(self._noted(draw, attributes), state=TrialState.FAIL)

    def _noted(self, draw: Draw, attributes: Mapping[str, Any]) -> Trial:
        """Optuna's trial of a draw, with these attributes; what it has already is not written again."""
        trial = self._trial(draw.number)
        for name, value in attributes.items():
            if name not in draw.attributes or draw.attributes[name] != value:
                trial.set_user_attr(name, value)
        return trial

    def draw(self, number: int) -> Draw:
        """The draw of that number."""
        with self._trouble():
            trial = self._storage.get_trial(self._trial_id(number))
            return Draw(
                number=number,
                raw=trial.system_attrs.get("fixed_params", trial.params),
                attributes=dict(trial.user_attrs),
                ended=trial.state.is_finished(),
            )

    def amend(self, number: int, score: Score) -> None:
        """Let the strategy take a told draw for what `score` says from now on."""
        with self._trouble():
            trial = self._storage.get_trial(self._trial_id(number))
        if self._strategy and trial.state is TrialState.COMPLETE:
            self._told[number] = amended(self._strategy.space, trial, score)

    def waiting(self) -> int:
        """How many queued draws nobody has asked for yet."""
        with self._trouble():
            return len(self._study.get_trials(deepcopy=False, states=(TrialState.WAITING,)))

    def noted(self, attribute: str) -> list[Any]:
        """What told draws have noted under that name, oldest first; those without it are left out."""
        with self._trouble():
            told = self._study.get_trials(deepcopy=False, states=(TrialState.COMPLETE,))
            return [one.user_attrs[attribute] for one in told if attribute in one.user_attrs]

    def unended(self) -> list[int]:
        """Numbers of the draws that were asked for and not told."""
        with self._trouble():
            running = self._study.get_trials(deepcopy=False, states=(TrialState.RUNNING,))
            return [trial.number for trial in running]

    def _draw_index(self) -> int:
        """How many draws have had their effect on the next one; a failed one that is repeated has none.

        Those of other workers that run now count too, or two would be given the same random point.
        """
        return sum(
            trial.state in (TrialState.COMPLETE, TrialState.RUNNING) or _GIVEN_UP in trial.user_attrs
            for trial in self._study.get_trials(deepcopy=False)
        )

    def _make_sampler(self, index: int) -> BaseSampler:
        if self._strategy:
            return StrategySampler(self._strategy, self._draw_seed(seeding(index)), self._told)
        return make_sampler(self._sampler, self._seed, self._draw_seed(index))

    def _draw_seed(self, index: int) -> int:
        digest = sha256(f"{self._seed}:{index}".encode()).digest()
        return int.from_bytes(digest[:4], "big")

    def _trial(self, number: int) -> Trial:
        if self._asked is not None and self._asked.number == number:
            return self._asked
        return Trial(self._study, self._trial_id(number))  # asked for by another process, or earlier

    def _trial_id(self, number: int) -> int:
        return self._storage.get_trial_id_from_study_id_trial_number(self._study_id, number)

    @contextmanager
    def _trouble(self) -> Iterator[None]:
        with trouble(self._location, *_WRAPPERS):
            yield


def _fresh(trial: Trial) -> Draw:
    """What was just drawn, without reading it back."""
    return Draw(number=trial.number, raw=trial.params, attributes=trial.user_attrs, ended=False)


def _storage(store: Store) -> optuna.storages.RDBStorage:
    try:
        return optuna.storages.RDBStorage(**store.optuna_arguments())
    except RuntimeError as error:  # Optuna's own tables are of another version
        raise StoreError(
            f"{store.location}: {error}", "Update Optuna: pip install --upgrade optuna"
        ) from error


def _load_or_create(storage: optuna.storages.RDBStorage, name: str, sampler: BaseSampler) -> optuna.Study:
    pruner = optuna.pruners.NopPruner()  # the default is a median pruner
    known = {
        summary.study_name for summary in optuna.get_all_study_summaries(storage, include_best_trial=False)
    }
    if name in known:
        study = optuna.load_study(study_name=name, storage=storage, sampler=sampler, pruner=pruner)
    else:
        study = optuna.create_study(
            study_name=name, storage=storage, sampler=sampler, pruner=pruner, direction="maximize"
        )
    if study.directions != [StudyDirection.MAXIMIZE] or (
        _MARK not in study.user_attrs and study.get_trials()
    ):
        raise StudyMismatch(
            f"An Optuna study '{name}' that offtune did not make is in this database.",
            "Use --study with another name.",
        )
    if _MARK not in study.user_attrs:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ExperimentalWarning)
            study.set_metric_names([METRIC])
        study.set_user_attr(_MARK, True)
    return study


def suggested(trial: Trial, knob: Knob) -> Any:
    """The value of a knob, by the raw parameter Optuna suggests."""
    if knob.kind == "choices":
        return knob.value(trial.suggest_categorical(knob.name, knob.choices))
    return knob.value(trial.suggest_int(knob.name, knob.low, knob.high, step=knob.step))
