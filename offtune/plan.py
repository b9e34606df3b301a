"""A plan: whether and how a model trains on hardware that need not be here, predicted without running.

Covered: what was asked, resolved; the best few configurations, what each budget buys, time and cost of a
number of tokens. Not covered: what would make a model fit that does not (`plan_ladder`), pages.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache
from typing import get_args

from offtune import hardware, hardware_profile, installed
from offtune.candidates import Candidate, candidates, distinct, within
from offtune.config import max_positions
from offtune.errors import SpaceError, UsageError
from offtune.hardware_profile import HardwareProfile
from offtune.knobs import DEVICE_OPTIMIZER_OP, OFFLOADED_OPTIMIZER_OP
from offtune.machine_profile import profile_for
from offtune.model_shape import ModelShape, shape_of
from offtune.models import Model, resolve_model
from offtune.predict import Bounds, Predictor, Verdict
from offtune.space import Space, load_space
from offtune.trial import Facts, Precision, Workload
from offtune.units import format_bytes, parse_bytes

# What DeepSpeed's own documentation calls the folder, for a machine whose folders nobody named.
NVME_PLACEHOLDER = "/local_nvme"
FRONT_BUDGETS_GB = (24, 32, 40, 48, 80)
CHOICES_SHOWN = 3
# The release the tables were checked with, where DeepSpeed is not installed.
_DEEPSPEED_VERSION = "0.19.8"
# As a search does it: nine tenths of the node's memory are for training; 32 samples a rank and step.
_HOST_SHARE = 0.9
_SAMPLES_PER_RANK = 32
_SEQ_LEN = 1024
_GB = 10**9
_MULTIPLES = {"": 1, "K": 10**3, "M": 10**6, "B": 10**9, "T": 10**12}
_COUNT = re.compile(r"\s*(\d+(?:\.\d+)?(?:e\+?\d+)?)\s*([KMBT]?)\s*\Z", re.IGNORECASE)


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanOptions:
    """What the person typed, unread; None is "not given"."""

    model: str
    hardware: str | None = None
    gpus: int = 1
    budget: str | None = None
    host_budget: str | None = None
    seq_len: int | None = None
    global_batch: int | None = None
    precision: str = "bf16"
    activation_checkpointing: bool = False
    nvme: bool = False
    nvme_path: str | None = None


@dataclass(frozen=True, kw_only=True)
class Request:
    """A question, complete: what is trained, on what, within which bytes."""

    model: Model
    shape: ModelShape
    hardware: HardwareProfile
    gpus: int
    budget_bytes: int
    host_budget_bytes: int
    seq_len: int
    global_batch: int
    precision: Precision
    activation_checkpointing: bool
    nvme_path: str | None

    @property
    def bounds(self) -> Bounds:
        return Bounds(device_bytes=self.budget_bytes, host_bytes=self.host_budget_bytes)


@dataclass(frozen=True, slots=True, kw_only=True)
class Front:
    """What a budget buys: the fastest that surely fits it; `beyond_card` where the card has less."""

    budget_bytes: int
    choice: Candidate | None
    beyond_card: bool


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


def resolve(options: PlanOptions) -> Request:
    """Read and check every option. Raises UsageError naming the option."""
    profile = _hardware(options.hardware)
    gpus = _positive(options.gpus, "--gpus")
    model = resolve_model(options.model)
    return Request(
        model=model,
        shape=shape_of(model.config),
        hardware=profile,
        gpus=gpus,
        budget_bytes=_budget(options.budget, profile),
        host_budget_bytes=_host_budget(options.host_budget, profile),
        seq_len=_seq_len(options.seq_len, model),
        global_batch=_global_batch(options.global_batch, gpus),
        precision=_precision(options.precision, profile),
        activation_checkpointing=options.activation_checkpointing,
        nvme_path=_nvme_path(options, profile),
    )


def _hardware(name: str | None) -> HardwareProfile:
    if name is not None:
        return hardware_profile.load(name)
    machine = hardware.detect()
    return profile_for("cuda" if hardware.cuda_gpus(machine) else "cpu", machine)


def _budget(text: str | None, profile: HardwareProfile) -> int:
    card = int(profile.device_memory_bytes)
    budget = card if text is None else parse_bytes(text, "--budget")
    if budget > card:
        raise UsageError(
            f"--budget {text}: {profile.name} has {format_bytes(card)}.",
            "Give a smaller one, or other --hardware.",
        )
    return budget


def _host_budget(text: str | None, profile: HardwareProfile) -> int:
    if text is not None:
        return parse_bytes(text, "--host-budget")
    return int(profile.host_memory_bytes * _HOST_SHARE)


def _seq_len(given: int | None, model: Model) -> int:
    longest = max_positions(model.config)
    if given is None:
        return min(_SEQ_LEN, longest or _SEQ_LEN)
    if longest is not None and given > longest:
        raise UsageError(
            f"--seq-len {given}: {model.name} takes at most {longest} tokens.", f"Use {longest} or less."
        )
    return _positive(given, "--seq-len")


def _global_batch(given: int | None, gpus: int) -> int:
    batch = _positive(_SAMPLES_PER_RANK * gpus if given is None else given, "--global-batch")
    if batch % gpus:
        near = max(gpus, batch // gpus * gpus)
        raise UsageError(
            f"--global-batch {batch} cannot be split over {gpus} GPUs.", f"Use --global-batch {near}."
        )
    return batch


def _precision(text: str, profile: HardwareProfile) -> Precision:
    able = [name for name in get_args(Precision) if profile.matrix_flops_per_s.get(name)]
    if text not in able:
        raise UsageError(
            f"--precision {text}: {profile.name} has no rate for it.", f"One of: {', '.join(able)}."
        )
    precision: Precision = text  # type: ignore[assignment]
    return precision


def _nvme_path(options: PlanOptions, profile: HardwareProfile) -> str | None:
    wanted = options.nvme_path or (NVME_PLACEHOLDER if options.nvme else None)
    if wanted and not profile.nvme_read_bytes_per_s:
        raise UsageError(
            f"--nvme: {profile.name} has no NVMe in its profile.", "Leave it out, or write its rates."
        )
    return wanted


def _positive(value: int, option: str) -> int:
    if value < 1:
        raise UsageError(f"{option} {value}: must be at least 1.", f"Leave {option} out for the default.")
    return value


def parse_count(text: str, option: str) -> float:
    """A number such as 3e11, 300B or 1.5T. Raises UsageError naming `option`."""
    match = _COUNT.match(text)
    if match is None or not float(match[1]):
        raise UsageError(f"{option}: '{text}' is no number of tokens.", "Write it like 300B or 3e11.")
    return float(match[1]) * _MULTIPLES[match[2].upper()]


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
        nearest=None if chosen else nearest(found, request.bounds),
        front=_front(found, request),
        training=_training(chosen, request, tokens, price_per_gpu_hour) if chosen and tokens else None,
    )


def look(request: Request, *, partial: bool = True) -> list[Candidate]:
    """Every candidate of the default space, predicted and ranked."""
    facts = facts_of(request)
    predictor = Predictor(facts=facts, shape=request.shape, hardware=request.hardware, bounds=request.bounds)
    try:
        space = _space().fit(facts)
    except SpaceError as error:
        raise UsageError(error.message, error.hint) from error
    return candidates(space, predictor, request.nvme_path, partial=partial)


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

    def overshoot(one: Candidate) -> float:
        host = one.prediction.used_host_bytes / bounds.host_bytes if bounds.host_bytes else 0.0
        return max(one.prediction.used_device_bytes / bounds.device_bytes, host)

    return min(found, key=overshoot, default=None)


def _rate(one: Candidate) -> float:
    return one.prediction.samples_per_s


def _front(found: list[Candidate], request: Request) -> tuple[Front, ...]:
    front = []
    for size in FRONT_BUDGETS_GB:
        budget = size * _GB
        judged = within(found, Bounds(device_bytes=budget, host_bytes=request.host_budget_bytes))
        fits = judged and judged[0].prediction.verdict == "fits"
        beyond = budget > request.hardware.device_memory_bytes
        front.append(Front(budget_bytes=budget, choice=judged[0] if fits else None, beyond_card=beyond))
    return tuple(front)


def _training(chosen: Candidate, request: Request, tokens: float, price: float | None) -> Training | None:
    rate = chosen.prediction.tokens_per_s
    if not rate:
        return None
    seconds = tokens / rate
    hours = seconds * request.gpus / 3600
    return Training(tokens=tokens, seconds=seconds, gpu_hours=hours, cost=hours * price if price else None)
