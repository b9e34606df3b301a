"""What would help: single changes, tried from cheap to dear, until it fits; and one that may gain speed.

Covered: checkpointing, NVMe, shorter sequences, more GPUs, a bigger budget; smaller micro-batches and more
offload are in every look already. Not covered: combinations of changes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from offtune.candidates import Candidate
from offtune.plan import look, nearest
from offtune.plan_request import NVME_PLACEHOLDER, Request
from offtune.predict import HOST_ERROR_SHARE
from offtune.units import format_bytes

_SHORTEST = 128
_MOST_GPUS = 64
_GB = 10**9
# Less is within what two predictions of one model and machine may differ by.
_WORTH = 1.1


@dataclass(frozen=True, slots=True, kw_only=True)
class Rung:
    """A change that was tried: `option` is what to type, `candidate` the best that then fits, or the nearest.

    `request` is None where the change was part of the first look.
    """

    change: str
    option: str
    fits: bool
    candidate: Candidate | None
    request: Request | None = None


def climb(request: Request, missed: Candidate | None) -> tuple[Rung, ...]:
    """Changes in order, the last of which fits unless none does. `missed` is the nearest without a change."""
    tried = [
        Rung(change=change, option="", fits=False, candidate=missed)
        for change in ("a smaller micro-batch, down to 1", "more offload, as far as the machine has it")
    ]
    if request.activation_checkpointing:
        tried.append(
            Rung(change="activation checkpointing, which is on", option="", fits=False, candidate=missed)
        )
    for change, option, changed in _changes(request):
        rung = _try(change, option, changed)
        tried.append(rung)
        if rung.fits:
            return tuple(tried)
    return (*tried, *_bigger(request))


def faster(request: Request, best: Candidate | None) -> Rung | None:
    """Activation checkpointing, where what it makes room for gains more than recomputing costs; else None.

    It changes nothing that is learned, but it is the person's to switch on.
    """
    if best is None or request.activation_checkpointing:
        return None
    rung = _try(*_checkpointed(request))
    found = rung.candidate
    gains = found is not None and found.prediction.samples_per_s > _WORTH * best.prediction.samples_per_s
    return rung if rung.fits and gains else None


def _changes(request: Request) -> Iterator[tuple[str, str, Request]]:
    if not request.activation_checkpointing:
        yield _checkpointed(request)
    if request.nvme_path is None and request.hardware.nvme_read_bytes_per_s:
        yield "offload to NVMe", "--nvme", replace(request, nvme_path=NVME_PLACEHOLDER)
    seq_len = request.seq_len // 2
    while seq_len >= _SHORTEST:
        yield f"sequences of {seq_len} tokens", f"--seq-len {seq_len}", replace(request, seq_len=seq_len)
        seq_len //= 2
    gpus = request.gpus * 2
    while gpus <= _MOST_GPUS and request.global_batch % gpus == 0:
        yield f"{gpus} GPUs", f"--gpus {gpus}", replace(request, gpus=gpus)
        gpus *= 2


def _checkpointed(request: Request) -> tuple[str, str, Request]:
    changed = replace(request, activation_checkpointing=True)
    return "activation checkpointing", "--activation-checkpointing", changed


def _try(change: str, option: str, request: Request) -> Rung:
    # What fits at all fits with nothing resident; only then it pays to look for the fastest.
    least = look(request, partial=False)
    if least and least[0].prediction.verdict == "fits":
        best = look(request)[0]
        return Rung(change=change, option=option, fits=True, candidate=best, request=request)
    missed = nearest(least, request.bounds)
    return Rung(change=change, option=option, fits=False, candidate=missed, request=request)


def _bigger(request: Request) -> Iterator[Rung]:
    """The smallest budget of one kind that would do, the other as it is; a larger card comes last."""
    found = look(request, partial=False)
    device = _least(found, _device_need, lambda one: _host_need(one) <= request.host_budget_bytes)
    host = _least(found, _host_need, lambda one: _device_need(one) <= request.budget_bytes)
    card = int(request.hardware.device_memory_bytes)
    if device and (device[0] <= card or not host):
        budget, one = device
        beyond = "" if budget <= card else f": a card with more than the {format_bytes(card)} of this one"
        changed = replace(request, budget_bytes=budget)
        option = "" if beyond else f"--budget {budget // _GB}GB"
        yield _raised(f"{format_bytes(budget)} of device memory{beyond}", option, one, changed)
    elif host:
        budget, one = host
        changed = replace(request, host_budget_bytes=budget)
        yield _raised(
            f"{format_bytes(budget)} of host memory", f"--host-budget {budget // _GB}GB", one, changed
        )


def _least(
    found: list[Candidate], need: Callable[[Candidate], float], allowed: Callable[[Candidate], bool]
) -> tuple[int, Candidate] | None:
    """The smallest need among the allowed in whole GB, and whose it is."""
    able = [one for one in found if allowed(one)]
    if not able:
        return None
    one = min(able, key=need)
    return _GB * math.ceil(need(one) / _GB), one


def _raised(change: str, option: str, one: Candidate, request: Request) -> Rung:
    judged = replace(one, prediction=one.prediction.within(request.bounds))
    return Rung(change=change, option=option, fits=True, candidate=judged, request=request)


def _device_need(one: Candidate) -> float:
    return one.prediction.used_device_bytes * (1 + one.prediction.memory.error_share)


def _host_need(one: Candidate) -> float:
    return one.prediction.used_host_bytes * (1 + HOST_ERROR_SHARE)
