"""What a plan is asked: options read and checked, for hardware that need not be here.

Covered: the request, its defaults and the messages when something does not fit. Not covered: answering it
(`plan`).
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import get_args

from offtune import hardware_profile
from offtune.calibrated_machine import profile_from
from offtune.errors import UsageError
from offtune.hardware_profile import HardwareProfile
from offtune.model_shape import ModelShape, shape_of
from offtune.models import Model, max_positions, resolve_model
from offtune.predict import Bounds
from offtune.trial import Precision
from offtune.units import format_bytes, parse_bytes

# --hardware for the machine at hand, as when the option is left out.
THIS = "this"
# What DeepSpeed's own documentation calls the folder, for a machine whose folders nobody named.
NVME_PLACEHOLDER = "/local_nvme"
# As a search does it: nine tenths of the node's memory are for training; 32 samples a rank and step.
_HOST_SHARE = 0.9
_SAMPLES_PER_RANK = 32
_SEQ_LEN = 1024
_MULTIPLES = {"": 1, "K": 10**3, "M": 10**6, "B": 10**9, "T": 10**12}
_COUNT = re.compile(r"\s*(\d+(?:\.\d+)?(?:e\+?\d+)?)\s*([KMBT]?)\s*\Z", re.IGNORECASE)


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanOptions:
    """What the person typed, unread; None is "not given". `storage` is where calibrations are looked for."""

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
    storage: str | None = None


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


def resolve(options: PlanOptions) -> Request:
    """Read and check every option. Raises UsageError naming the option."""
    gpus = _positive(options.gpus, "--gpus")
    profile = _hardware(options, gpus)
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


def _hardware(options: PlanOptions, gpus: int) -> HardwareProfile:
    if options.hardware not in (None, THIS):
        return hardware_profile.load(options.hardware)
    return profile_from(options.storage, gpus)


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


def priced(tokens: str | None, price: float | None) -> tuple[float | None, float | None]:
    """The number of tokens and the price of a GPU hour. Raises UsageError naming the option."""
    if price is not None and not (price >= 0 and math.isfinite(price)):
        raise UsageError(f"--price-per-gpu-hour {price}: that is no price.", "Write it like 2.5.")
    if price is not None and tokens is None:
        raise UsageError(
            "--price-per-gpu-hour: a cost needs a number of tokens.", "Say how many, like --tokens 300B."
        )
    return (parse_count(tokens, "--tokens") if tokens is not None else None), price


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
