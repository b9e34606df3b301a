"""A result as the sampler sees it: one number to maximise, and by how much it breaks each limit.

Covered: the value and the constraints of every way a trial can end. Not covered: telling them to Optuna
(`sampling.py`). Every trial has the same constraints in the same order: Optuna's GP takes them by position,
and a trial without any counts as feasible (Optuna 5.0.0).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from offtune.records import Limits
from offtune.trial import Status, TrialResult

# An out-of-memory trial needs more than the limit, nobody knows how much more: this says twice the limit.
# With TPE a constant 1 served as well as the true overshoot: 91.7 and 91.5 % of the optimum (100 trials, 24
# seeds, a synthetic throughput surface).
ASSUMED_OVERSHOOT = 1.0
DEVICE_MEMORY, HOST_MEMORY, FAILURE = "device_memory", "host_memory", "failure"
FAILED = 1.0
NOT_FAILED = -1.0
MARGIN_UNKNOWN = 0.0  # feasible, but nobody knows by how much
# Below every feasible throughput: Optuna's summaries and its dashboard ignore constraints (optuna#6825).
INFEASIBLE_VALUE = 0.0
_FAILURES = frozenset({Status.INVALID, Status.TIMEOUT, Status.DIVERGED, Status.CRASHED})


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """Samples per second, or 0 for what breaks a limit; constraints are relative overshoots, well up to 0."""

    value: float
    constraints: dict[str, float]

    @property
    def feasible(self) -> bool:
        """Whether no limit is broken."""
        return all(overshoot <= 0 for overshoot in self.constraints.values())


def score(result: TrialResult, limits: Limits) -> Score:
    """The score of a trial that ended by itself (anything but `interrupted`)."""
    memory = result.memory
    device = _overshoot(memory.used_device_bytes, limits.device_bytes)
    host = _overshoot(memory.used_host_bytes, limits.host_bytes)
    if result.status is Status.OOM_GPU:
        device = max(device, ASSUMED_OVERSHOOT)
    if result.status is Status.OOM_HOST:
        host = max(host, ASSUMED_OVERSHOOT)
    failed = result.status in _FAILURES or not _is_explained(result, device, host)
    constraints = {DEVICE_MEMORY: device, HOST_MEMORY: host, FAILURE: FAILED if failed else NOT_FAILED}
    speed = result.samples_per_s
    if speed is None or max(constraints.values()) > 0:
        speed = INFEASIBLE_VALUE
    return Score(value=speed, constraints=constraints)


def _overshoot(used_bytes: int | None, limit_bytes: int | None) -> float:
    if used_bytes is None or limit_bytes is None:
        return MARGIN_UNKNOWN
    return used_bytes / limit_bytes - 1


def _is_explained(result: TrialResult, device: float, host: float) -> bool:
    """Whether status and figures agree: a throughput where it is ok, an overshoot where it is not."""
    if result.status is Status.OK:
        return result.samples_per_s is not None and math.isfinite(result.samples_per_s)
    return device > 0 or host > 0
