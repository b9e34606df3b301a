"""Watch an engine that somebody else's loop drives: whole optimizer steps, phases, losses, batches.

A step's time is what the rank spends loading its batches (since it first asked a torch DataLoader for one;
since the step before, where the script uses none) plus, barrier to barrier, from its first training forward
to the end of the engine.step() that updates the weights. Evaluation (engine.eval() to engine.train(), and
forwards without gradients) and checkpoints are taken out. Not covered: pipeline engines, a second engine.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from statistics import median
from typing import Any

import torch
from torch.utils.data import dataloader

from offtune.rank_report import RankReport
from offtune.worker.close_look import ProfiledClock
from offtune.worker.failures import described
from offtune.worker.record import Record

_SAVERS = ("save_checkpoint", "save_16bit_model", "load_checkpoint")
# Arguments that come with batches packed into one row, whose number of samples nobody can see.
_PACKED = frozenset({"position_ids", "cu_seq_lens_q", "seq_idx"})
_ENDED_BEFORE_CLOSE_LOOK = "the script ended before its steps under torch's profiler did"


class Watch:
    """Before the engine's methods; `finish` (takes the report) and `refuse` (a reason) do not return."""

    def __init__(
        self, record: Record, engine: Any, finish: Callable[[Any], Any], refuse: Callable[[str], Any]
    ) -> None:
        self.record, self.engine = record, engine
        self._finish, self._refuse = finish, refuse
        self._clock = _StepClock()
        self._losses: list[torch.Tensor] = []
        self._tokens = 0
        self._step_tokens: list[int] = []
        self._report: RankReport | None = None
        self._profiled: ProfiledClock | None = None
        self._put_in_front()

    def _put_in_front(self) -> None:
        engine = self.engine
        engine.forward = self._around_forward(engine.forward)
        engine.backward = self._around_backward(engine.backward)
        engine.step = self._around_step(engine.step)
        engine.train = self._around_train(engine.train)
        engine.eval = self._around_eval(engine.eval)
        for name in _SAVERS:
            if hasattr(engine, name):
                setattr(engine, name, self._outside(getattr(engine, name)))
        _tell_of_fetches(self._fetching)

    def _fetching(self) -> None:
        if self._trains():
            self._clock.fetching()

    def _trains(self) -> bool:
        return bool(self.engine.module.training) and torch.is_grad_enabled()

    def _around_forward(self, forward: Callable[..., Any]) -> Callable[..., Any]:
        evaluate = self._outside(forward)

        def watched(*args: Any, **kwargs: Any) -> Any:
            if not self._trains():
                return evaluate(*args, **kwargs)
            self._begin()
            self._look_at(args, kwargs)
            with self.record.clock.phase("forward"):
                return forward(*args, **kwargs)

        return watched

    def _around_backward(self, backward: Callable[..., Any]) -> Callable[..., Any]:
        def watched(loss: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
            self._begin()
            # The Hugging Face Trainer has divided by the accumulation already and says so.
            scale = (
                1 / self.engine.gradient_accumulation_steps() if kwargs.get("scale_wrt_gas", True) else 1.0
            )
            self._losses.append(loss.detach().float().mean() * scale)
            with self.record.clock.phase("backward"):
                return backward(loss, *args, **kwargs)

        return watched

    def _around_step(self, step: Callable[..., Any]) -> Callable[..., Any]:
        def watched(*args: Any, **kwargs: Any) -> Any:
            self._begin()
            before = self.engine.global_steps
            with self.record.clock.phase("update"):
                result = step(*args, **kwargs)
            if self.engine.global_steps > before:
                self._end()
            return result

        return watched

    def _around_train(self, train: Callable[..., Any]) -> Callable[..., Any]:
        def watched(mode: bool = True) -> Any:
            if mode:
                self._clock.leave_outside()
            else:
                self._clock.enter_outside()
            return train(mode)

        return watched

    def _around_eval(self, evaluate: Callable[..., Any]) -> Callable[..., Any]:
        def watched() -> Any:
            self._clock.enter_outside()
            return evaluate()

        return watched

    def _outside(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def watched(*args: Any, **kwargs: Any) -> Any:
            with self._clock.outside():
                return call(*args, **kwargs)

        return watched

    def _begin(self) -> None:
        """At the first training forward of an optimizer step."""
        if self._clock.running:
            return
        self._clock.arrive()
        if self._report is None:
            self.record.begin_step(self.engine)
        self._clock.start(self.record.barrier())

    def _end(self) -> None:
        step_s = self._clock.stop(self.record.barrier())
        if self._report is not None:
            self._end_close_step(step_s, self._report)
        else:
            self._end_measured_step(step_s)
        self._losses, self._tokens = [], 0
        self._clock.rest()

    def _end_measured_step(self, step_s: float) -> None:
        self._step_tokens.append(self._tokens)
        self.record.end_step(step_s, self._losses)
        if not self.record.is_over():
            return
        self._report = self.report()
        if not self.record.spec.close_steps:
            self._finish(self._report)
        self._profiled = self.record.look_closely()

    def _end_close_step(self, step_s: float, report: RankReport) -> None:
        """A step under the profiler, after the measured ones, whose report is made."""
        assert self._profiled is not None
        self._profiled.next_step(step_s)
        if self._profiled.steps >= self.record.spec.close_steps:
            self._profiled.finish()
            self._finish(report)

    @property
    def is_usable(self) -> bool:
        """Whether a report can be made of the steps so far."""
        return self._report is not None or self.record.is_usable

    def failed(self, error: BaseException) -> RankReport:
        """The report of a script that an exception ended; what was measured before a close look stands."""
        if self._report is None:
            return self.record.failed(error)
        return replace(self._report, close_error=described(error))

    def report(self) -> RankReport:
        """The report of the measured steps so far."""
        if self._report is not None:
            return replace(self._report, close_error=_ENDED_BEFORE_CLOSE_LOOK)
        return self.record.done(self.engine, self._tokens_per_step())

    def _tokens_per_step(self) -> float | None:
        measured = self._step_tokens[self.record.spec.warmup_steps :]
        return float(median(measured)) if all(measured) else None

    def _look_at(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Count the tokens, and make sure that a micro-batch has as many samples as the ds_config says."""
        tensors = [
            value for value in (*kwargs.values(), *args) if isinstance(value, torch.Tensor) and value.dim()
        ]
        ids = kwargs.get("input_ids")
        if not isinstance(ids, torch.Tensor):
            ids = next((t for t in tensors if t.dim() == 2 and t.dtype == torch.long), None)
        if ids is not None:
            self._tokens += ids.numel()
        micro = int(self.engine.train_micro_batch_size_per_gpu())
        looked = [ids.shape[:1]] if ids is not None else [t.shape[:2] for t in tensors]
        if looked and not _PACKED & kwargs.keys() and not any(micro in shape for shape in looked):
            self._refuse(
                f"The script feeds batches of {looked[0][0]} samples, but the micro-batch of the ds_config "
                f"is {micro}: its speed would be reckoned wrong. Give it its batch size by {{micro_batch}} "
                "or OFFTUNE_MICRO_BATCH, and drop incomplete last batches."
            )


class _StepClock:
    """The time of one optimizer step: loading before its window, the window, less what is not training."""

    def __init__(self) -> None:
        self.running = False
        self._fetched_at: float | None = None
        self._rested_at: float | None = None
        self._fetches = False  # whether the script loads by a torch DataLoader at all
        self._outside_since: float | None = None
        self._outside_s = self._lead_s = self._start = 0.0

    def fetching(self) -> None:
        """A DataLoader is asked for a batch, for training."""
        self._fetches = True
        if not self.running and self._fetched_at is None:
            self._fetched_at, self._outside_s = time.perf_counter(), 0.0

    def arrive(self) -> None:
        """The first training forward of a step has been reached: what came before was loading."""
        self.leave_outside()
        origin = self._fetched_at if self._fetches else self._rested_at
        self._lead_s = max(0.0, time.perf_counter() - origin - self._outside_s) if origin is not None else 0.0
        self._outside_s = 0.0

    def start(self, now: float) -> None:
        self.running, self._start = True, now

    def stop(self, now: float) -> float:
        """Seconds of the step that ended at `now`."""
        self.running, self._fetched_at = False, None
        return self._lead_s + now - self._start - self._outside_s

    def rest(self) -> None:
        """The step is booked; what comes now belongs to the next one, or to none."""
        self._rested_at, self._outside_s = time.perf_counter(), 0.0

    def enter_outside(self) -> None:
        if self._outside_since is None:
            self._outside_since = time.perf_counter()

    def leave_outside(self) -> None:
        if self._outside_since is not None:
            self._outside_s += time.perf_counter() - self._outside_since
            self._outside_since = None

    @contextmanager
    def outside(self) -> Iterator[None]:
        """One call that is not training; within an evaluation it is counted already."""
        nested = self._outside_since is not None
        self.enter_outside()
        try:
            yield
        finally:
            if not nested:
                self.leave_outside()


def _tell_of_fetches(fetching: Callable[[], None]) -> None:
    """Call `fetching` whenever any torch DataLoader is asked for a batch."""
    base: Any = dataloader._BaseDataLoaderIter
    original = base.__next__

    def watched(self: Any) -> Any:
        fetching()
        return original(self)

    base.__next__ = watched
