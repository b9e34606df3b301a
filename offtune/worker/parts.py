"""The parts of a phase that DeepSpeed lets us see: methods of this engine's own objects, timed in place.

Covered: gradients made ready (flush), CPU or GPU optimizer, copying parameters back, NVMe reads and writes
that are waited for, gathering parameters, collectives. Not covered: what runs in the background meanwhile.

Two parts never run at once: an inner one interrupts the outer. A method that this version of DeepSpeed does
not have is no part. Read in DeepSpeed 0.19.8: runtime/zero/stage3.py, stage_1_and_2.py, comm/comm.py.
"""

from __future__ import annotations

import sys
import time
import types
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from threading import get_ident
from typing import Any, NamedTuple

from offtune.trial import DeviceKind
from offtune.worker.phases import Moment, PhaseClock, Timed

CPU_OPTIMIZER, GPU_OPTIMIZER = "cpu_optimizer", "gpu_optimizer"
FLUSH, COPY_BACK, GATHER, COLLECTIVE = "flush", "copy_back", "gather", "collective"
NVME_READ, NVME_WRITE = "nvme_read", "nvme_write"

# Of the ZeRO optimizer: stage 3 first, then what only stages 1 and 2 have.
_OPTIMIZER = {
    "partition_grads": FLUSH,
    "_get_norm_groups": FLUSH,
    "_prepare_fp32_grad_for_sub_group": FLUSH,
    "unscale_and_clip_grads": FLUSH,
    "_reassign_or_swap_out_partitioned_parameters": COPY_BACK,
    "reduce_ipg_grads": FLUSH,
    "scaled_global_norm": FLUSH,
}
_OPTIMIZER_SWAPPER = {
    "swap_in_optimizer_state": NVME_READ,
    "swap_out_optimizer_state": NVME_WRITE,
    "swap_out_gradients": NVME_WRITE,
    "release_swap_buffers": NVME_WRITE,
}
_PARAMETER_SWAPPER = {
    "swap_in": NVME_READ,
    "synchronize_reads": NVME_READ,
    "synchronize_writes": NVME_WRITE,
    "swap_out_and_release": NVME_WRITE,
    "swap_out_partitioned_params": NVME_WRITE,
}
_COORDINATOR = {"fetch_sub_module": GATHER}
_COLLECTIVES = dict.fromkeys(
    ("all_reduce", "all_reduce_coalesced", "reduce", "reduce_scatter", "reduce_scatter_tensor", "broadcast",
     "all_gather", "all_gather_into_tensor", "all_gather_coalesced", "all_to_all_single"),
    COLLECTIVE,
)  # fmt: skip
# Stages 1 and 2 copy within their step itself, between these timers of theirs; the optimizer in there is a
# part of its own, so what is left of "optimizer_step" is the copying.
_TIMERS = {"optimizer_gradients": FLUSH, "optimizer_step": COPY_BACK}
_HOST_PARTS = (CPU_OPTIMIZER, NVME_READ, NVME_WRITE)  # keep the host busy, whatever the device does


@dataclass(frozen=True, slots=True)
class Turns:
    """When the parts of one step began and ended; what lay in what is worked out when they are asked for.

    A step of stage 3 has a thousand, and working one out takes longer than noting it.
    """

    noted: list[Any]
    host_s: Callable[[Moment], float]

    @property
    def most(self) -> int:
        """No more parts than this."""
        return len(self.noted) // _COLUMNS

    def parts(self) -> list[Timed]:
        """The parts, in order in each thread."""
        by_thread: dict[int, list[_Turn]] = defaultdict(list)
        for turn in map(_Turn, *(self.noted[column::_COLUMNS] for column in range(_COLUMNS))):
            by_thread[turn.thread].append(turn)
        return [part for turns in by_thread.values() for part in self._parts_of(turns)]

    def _parts_of(self, turns: Sequence[_Turn]) -> Iterator[Timed]:
        """From each turn of a thread to the next: the innermost part under way."""
        names: list[str] = []  # of the parts under way, the innermost last
        for turn, following in pairwise(turns):
            if turn.part is not None:
                names.append(turn.part)
            elif names:
                names.pop()
            if names and following.phase is not None:
                start_s, end_s = (self.host_s(one.moment(names[-1])) for one in (turn, following))
                name = f"{following.phase}.{names[-1]}"
                yield Timed(name, following.micro_step, start_s, max(start_s, end_s))


class _Turn(NamedTuple):
    """A part begins, or with None the last that began ends.

    When, by the clock of the host and by that of the device: a part of one can interrupt a part of the other.
    """

    thread: int  # autograd may run hooks in threads of its own
    part: str | None
    phase: str | None
    micro_step: int
    at_s: float
    on_device: Moment | None  # None without a device

    def moment(self, part: str) -> Moment:
        """By the clock of that part."""
        return self.at_s if self.on_device is None or part in _HOST_PARTS else self.on_device


_COLUMNS = len(_Turn._fields)


def _nowhere() -> None:
    """The moment on a device that is not there."""


class PartClock:
    """Notes the parts of the phase under way; they nest as the calls do."""

    def __init__(self, clock: PhaseClock) -> None:
        self._clock = clock
        self._on_device = clock.on_device if clock.has_device else _nowhere
        self._noted: list[Any] = []  # the fields of turns one after the other: a thousand tuples cost more
        self._in_place: list[tuple[Any, str, Any, Any]] = []  # owner, name, ours, what was there before

    def note(self, part: str | None) -> None:
        """A part begins, and interrupts the one it lies in; None: the last part that began is over."""
        clock = self._clock
        self._noted += (
            get_ident(), part, clock.inside, clock.micro_step, time.perf_counter(), self._on_device()
        )  # fmt: skip

    def take(self) -> Turns:
        """What was noted since it was taken last; between two steps, before the next begins."""
        noted, self._noted = self._noted, []
        return Turns(noted, self._clock.host_s)

    def around(self, owner: Any, method: str, part: str) -> None:
        """Time a method of one object; it stays a bound method, which learning-rate schedulers look for."""
        original = getattr(owner, method, None)
        if original is None:
            return
        inherited = method not in vars(owner)
        note = self.note

        def timed(_: Any, *args: Any, **kwargs: Any) -> Any:
            note(part)
            try:
                return original(*args, **kwargs)
            finally:
                note(None)

        self._put_in_place(owner, method, types.MethodType(timed, owner), None if inherited else original)

    def around_timers(self, optimizer: Any) -> None:
        """Let some timers of a ZeRO optimizer of stage 1 or 2 be parts."""
        self._put_in_place(optimizer, "timers", _Timers(optimizer.timers, self), optimizer.timers)

    def _put_in_place(self, owner: Any, name: str, ours: Any, before: Any) -> None:
        """Set an attribute until `release`; what was inherited has no `before`."""
        setattr(owner, name, ours)
        self._in_place.append((owner, name, ours, before))

    def is_on_top(self) -> bool:
        """Whether nobody has put anything around ours meanwhile, so that all of it can be released."""
        return all(vars(owner).get(name) is ours for owner, name, ours, _ in self._in_place)

    def release(self) -> None:
        """Put every object back as it was; between two phases."""
        for owner, name, ours, before in reversed(self._in_place):
            # What somebody has put around ours meanwhile stays, and ours within it.
            if vars(owner).get(name) is not ours:
                continue
            if before is None:
                delattr(owner, name)
            else:
                setattr(owner, name, before)
        self._in_place.clear()


class _Timers:
    """In place of an optimizer's timers: some of them are parts, all still do what they did."""

    def __init__(self, original: Any, parts: PartClock) -> None:
        self._original, self._parts = original, parts

    def __getattr__(self, name: str) -> Any:
        return getattr(self._original, name)

    def __call__(self, name: str) -> Any:
        timer = self._original(name)
        return _Timer(timer, self._parts, _TIMERS[name]) if name in _TIMERS else timer


class _Timer:
    def __init__(self, original: Any, parts: PartClock, part: str) -> None:
        self._original, self._parts, self._part = original, parts, part

    def __getattr__(self, name: str) -> Any:
        return getattr(self._original, name)

    def start(self) -> None:
        self._original.start()
        self._parts.note(self._part)

    def stop(self, *args: Any, **kwargs: Any) -> None:
        self._parts.note(None)
        self._original.stop(*args, **kwargs)


def watch_parts(engine: Any, clock: PhaseClock, device: DeviceKind, ranks: int) -> PartClock:
    """Time the parts of this engine's phases until they are released; alone, a rank has no collectives."""
    parts = PartClock(clock)
    optimizer = engine.optimizer
    for owner, methods in (
        (optimizer, _OPTIMIZER),
        (getattr(optimizer, "optimizer_swapper", None), _OPTIMIZER_SWAPPER),
        (_parameter_swapper(optimizer), _PARAMETER_SWAPPER),
        (_coordinator(optimizer), _COORDINATOR),
        (getattr(sys.modules.get("deepspeed.comm.comm"), "cdb", None) if ranks > 1 else None, _COLLECTIVES),
    ):
        for method, part in methods.items():
            parts.around(owner, method, part)
    for inner in _inner_optimizers(optimizer):
        on_host = device == "cpu" or type(inner).__name__.startswith("DeepSpeedCPU")
        parts.around(inner, "step", CPU_OPTIMIZER if on_host else GPU_OPTIMIZER)
    if hasattr(optimizer, "bit16_groups") and hasattr(optimizer, "timers"):
        parts.around_timers(optimizer)
    return parts


def _inner_optimizers(optimizer: Any) -> list[Any]:
    """What really updates: within DeepSpeed's wrapper, or the optimizer itself where there is none."""
    found = [getattr(optimizer, name, None) for name in ("optimizer", "backup_optimizer")]
    return [one for one in found if one is not None] or [optimizer]


def _coordinator(optimizer: Any) -> Any:
    return getattr(getattr(optimizer, "parameter_offload", None), "param_coordinator", None)


def _parameter_swapper(optimizer: Any) -> Any:
    groups = getattr(optimizer, "fp16_groups", None) or [[]]
    return getattr(groups[0][0], "nvme_swapper", None) if groups[0] else None
