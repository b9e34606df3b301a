"""Optuna's samplers by the names that `--sampler` takes.

Covered: making one, and the message where that cannot be. Not covered: ours (`sampling_strategy`).
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

from optuna.exceptions import ExperimentalWarning
from optuna.samplers import (
    BaseSampler,
    BruteForceSampler,
    GPSampler,
    QMCSampler,
    RandomSampler,
    TPESampler,
)

from offtune.convergence import STRATEGY
from offtune.errors import UsageError


class _Grid(BruteForceSampler):
    """Every point once. Optuna 5.0.0 would stop a study it does not run, and trips over an empty point."""

    def after_trial(self, *_: object, **__: object) -> None:
        """Nothing: that the space is exhausted is seen by the search."""

    @staticmethod
    def _populate_tree(tree: Any, trials: Any, params: Any) -> None:
        # The person's own file is a trial without parameters.
        BruteForceSampler._populate_tree(tree, [trial for trial in trials if trial.params], params)


# From the study's seed and the seed of one draw.
SAMPLERS: dict[str, Callable[[int, int], BaseSampler]] = {
    "tpe": lambda study_seed, draw_seed: TPESampler(seed=draw_seed),
    "random": lambda study_seed, draw_seed: RandomSampler(seed=draw_seed),
    "gp": lambda study_seed, draw_seed: GPSampler(
        seed=draw_seed, independent_sampler=TPESampler(seed=draw_seed)
    ),
    "qmc": lambda study_seed, draw_seed: QMCSampler(
        seed=study_seed,
        scramble=True,
        independent_sampler=RandomSampler(seed=draw_seed),
        warn_independent_sampling=False,
    ),
    # Optuna's own GridSampler knows no conditions.
    "grid": lambda study_seed, draw_seed: _Grid(seed=draw_seed),
}


def make_sampler(name: str, study_seed: int = 0, draw_seed: int = 0) -> BaseSampler:
    """The sampler of that name. Raises UsageError where there is none, or a package is missing.

    Ours needs a strategy, which is the study's; here it is only checked that the name is known.
    """
    if name == STRATEGY:
        return RandomSampler(seed=draw_seed)
    if name not in SAMPLERS:
        known = ", ".join((STRATEGY, *SAMPLERS))
        raise UsageError(f"--sampler: there is no '{name}'.", f"Samplers are: {known}.")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ExperimentalWarning)
        try:
            return SAMPLERS[name](study_seed, draw_seed)
        except ImportError as error:
            raise UsageError(
                f"--sampler {name} needs a package that is not installed: {error.name}.",
                "Install scipy, or leave out --sampler.",
            ) from error
