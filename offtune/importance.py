"""The importance of knobs by Optuna's PED-ANOVA, on a study in memory made for the purpose.

Covered: handing measured runs to Optuna. Not covered: which runs, and what it means (`effects.py`).
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import optuna
from optuna.distributions import BaseDistribution, CategoricalDistribution, IntDistribution
from optuna.exceptions import ExperimentalWarning
from optuna.importance import PedAnovaImportanceEvaluator, get_param_importances

from offtune.records import Run


def importances_of(runs: Sequence[Run], varied: Mapping[str, list[Any]]) -> dict[str, float]:
    """The share of each knob of `varied` (name to the values it took, in order); they sum to 1."""
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ExperimentalWarning)
        study = optuna.create_study(direction="maximize")
        for run in runs:
            study.add_trial(_trial(run, varied))
        return get_param_importances(study, evaluator=PedAnovaImportanceEvaluator())


def _trial(run: Run, varied: Mapping[str, list[Any]]) -> optuna.trial.FrozenTrial:
    """The run as Optuna sees it: numbers by their rank among the values tried, 2^16 next to 2^17."""
    assert run.result is not None
    params: dict[str, Any] = {}
    distributions: dict[str, BaseDistribution] = {}
    for name, known in varied.items():
        if name in run.point:
            numeric = all(type(value) in (int, float) for value in known)
            params[name] = known.index(run.point[name]) if numeric else run.point[name]
            distributions[name] = (
                IntDistribution(0, len(known) - 1) if numeric else CategoricalDistribution(known)
            )
    return optuna.trial.create_trial(
        params=params, distributions=distributions, value=run.result.samples_per_s
    )
