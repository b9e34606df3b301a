"""A plan: whether and how a model trains on hardware that need not be here, predicted without running.

Covered: the best few configurations, what each budget buys, time and cost of a number of tokens. Not covered:
reading the question (`plan_request`), what would make a model fit that does not (`plan_ladder`), pages.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Literal

from offtune import installed
from offtune.candidates import Candidate, candidates, distinct, within
from offtune.errors import SpaceError, UsageError
from offtune.knobs import DEVICE_OPTIMIZER_OP, OFFLOADED_OPTIMIZER_OP
from offtune.plan_request import Request
from offtune.predict import Bounds, Predictor, Verdict
from offtune.space import Space, load_space
from offtune.trial import Facts, Workload

FRONT_BUDGETS_GB = (24, 32, 40, 48, 80)
CHOICES_SHOWN = 3
# The release the tables were checked with, where DeepSpeed is not installed.
_DEEPSPEED_VERSION = "0.19.8"
_GB = 10**9


@dataclass(frozen=True, slots=True, kw_only=True)
class Front:
    """What a budget buys: the fastest that surely fits it; `beyond_card` where the card has less.

    Without a choice `short` is the memory that is: the host's where the device's would do, else the device's.
    """

    budget_bytes: int
    choice: Candidate | None
    beyond_card: bool
    short: Literal["device", "host"] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Training:
    """Time and cost of training so many tokens at the predicted speed; `cost` in the price's currency."""

    tokens: float
    seconds: float
    gpu_hours: float
    cost: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The answer. `choices` surely fit, fastest first, one a placement; `close` is the fastest that may."""

    request: Request
    looked_at: int
    choices: tuple[Candidate, ...]
    close: Candidate | None
    nearest: Candidate | None
    front: tuple[Front, ...]
    training: Training | None

    @property
    def verdict(self) -> Verdict:
        if self.choices:
            return "fits"
        return "close" if self.close else "over"

    @property
    def best(self) -> Candidate | None:
        """What would be exported: the fastest that surely fits, else the fastest that may."""
        return self.choices[0] if self.choices else self.close


def make_plan(request: Request, tokens: float | None = None, price_per_gpu_hour: float | None = None) -> Plan:
    """Look at every candidate. Raises UsageError where nothing can be made of the question."""
    found = look(request)
    fitting = [one for one in found if one.prediction.verdict == "fits"]
    close = [one for one in found if one.prediction.verdict == "close"]
    best = fitting[0] if fitting else None
    faster = [one for one in close if best is None or _rate(one) > _rate(best)]
    chosen = best or (faster[0] if faster else None)
    return Plan(
        request=request,
        looked_at=len(found),
        choices=tuple(distinct(fitting, CHOICES_SHOWN)),
        close=faster[0] if faster else None,
        nearest=None if fitting else nearest(found, request.bounds),
        front=_front(found, request),
        training=_training(chosen, request, tokens, price_per_gpu_hour) if chosen and tokens else None,
    )


def look(request: Request, *, partial: bool = True) -> list[Candidate]:
    """Every candidate of the default space, predicted and ranked."""
    predictor = predictor_of(request)
    try:
        space = _space().fit(predictor.facts)
    except SpaceError as error:
        raise UsageError(error.message, error.hint) from error
    return candidates(space, predictor, request.nvme_path, partial=partial)


def predictor_of(request: Request) -> Predictor:
    """What predicts for the request."""
    facts = facts_of(request)
    return Predictor(facts=facts, shape=request.shape, hardware=request.hardware, bounds=request.bounds)


@lru_cache(maxsize=1)
def _space() -> Space:
    return load_space("default")


def facts_of(request: Request) -> Facts:
    """The facts of a machine that has everything DeepSpeed can build."""
    ops = {*OFFLOADED_OPTIMIZER_OP.values(), *DEVICE_OPTIMIZER_OP.values(), "async_io"}
    return Facts(
        workload=Workload(
            model_name=request.model.name,
            model_config=request.model.config,
            seq_len=request.seq_len,
            global_batch=request.global_batch,
            world_size=request.gpus,
            precision=request.precision,
            optimizer="adamw",
            activation_checkpointing=request.activation_checkpointing,
            seed=0,
        ),
        device=request.hardware.device,
        parameter_numels=request.shape.parameter_numels,
        nvme_dir=request.nvme_path,
        ops=frozenset(ops),
        deepspeed_version=installed.version("deepspeed") or _DEEPSPEED_VERSION,
    )


def nearest(found: list[Candidate], bounds: Bounds) -> Candidate | None:
    """The candidate that misses the bounds by the least."""

    return min(found, key=lambda one: one.prediction.overshoot(bounds), default=None)


def _rate(one: Candidate) -> float:
    return one.prediction.samples_per_s


def _front(found: list[Candidate], request: Request) -> tuple[Front, ...]:
    front = []
    for size in FRONT_BUDGETS_GB:
        budget = size * _GB
        bounds = Bounds(device_bytes=budget, host_bytes=request.host_budget_bytes)
        choice = _fitting(found, bounds)
        beyond = budget > request.hardware.device_memory_bytes
        short: Literal["device", "host"] | None = None
        if choice is None:
            short = "host" if _fitting(found, replace(bounds, host_bytes=None)) else "device"
        front.append(Front(budget_bytes=budget, choice=choice, beyond_card=beyond, short=short))
    return tuple(front)


def _fitting(found: list[Candidate], bounds: Bounds) -> Candidate | None:
    """The fastest that surely fits other bounds."""
    judged = within(found, bounds)
    return judged[0] if judged and judged[0].prediction.verdict == "fits" else None


def _training(chosen: Candidate, request: Request, tokens: float, price: float | None) -> Training | None:
    rate = chosen.prediction.tokens_per_s
    if not rate:
        return None
    seconds = tokens / rate
    hours = seconds * request.gpus / 3600
    return Training(tokens=tokens, seconds=seconds, gpu_hours=hours, cost=hours * price if price else None)
