"""How far a search is: what counts, what is best, how long it will go on; and its lines as text.

Covered: everything about progress but the drawing. Not covered: the terminal (`report.terminal`).
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from offtune.records import Run, is_measured
from offtune.report.page import Line, Tone
from offtune.report.words import rate_text, share_text, status_text, what_text
from offtune.trial import Point, Status
from offtune.units import format_bytes, format_rate, format_seconds

_TONES: dict[Status | None, Tone] = {
    None: "dim",
    Status.OK: "plain",
    Status.OVER_BUDGET: "dim",
    Status.OOM_GPU: "dim",
    Status.INTERRUPTED: "dim",
}
# Failures the budget does not explain; their reason is worth a line while the search runs.
_SAY_WHY = frozenset({Status.INVALID, Status.TIMEOUT, Status.DIVERGED, Status.CRASHED, Status.OOM_HOST})
TRIAL_HEADER = f"{'#':>3}  {'status':<11} {'samples/s':>9}  {'used of limit':>13} {'time':>6}  what"


@dataclass(slots=True, kw_only=True)
class Tally:
    """The state of a search as it goes on.

    `target` is in trials that count, `time_limit_s` in seconds from now; `done` and `best` are what a resumed
    study brings along.
    """

    limit_bytes: int
    target: int | None = None
    time_limit_s: float | None = None
    done: int = 0
    best: Run | None = None
    clock: Callable[[], float] = time.monotonic
    current: str = ""
    reasons: set[str] = field(default_factory=set)
    done_before: int = field(init=False)
    started: float = field(init=False)

    def __post_init__(self) -> None:
        self.done_before = self.done
        self.started = self.clock()

    def begin(self, run: Run) -> None:
        """A trial starts."""
        self.current = f"#{run.number} {what_text(run, self._best_point())}"

    def end(self, run: Run, best: Run | None) -> list[Line]:
        """A trial has ended: its lasting line and, for a failure not seen before, the reason."""
        self.done += is_measured(run)
        is_best = best is not None and best.number == run.number
        lines = [trial_line(run, self._best_point(), self.limit_bytes, is_best=is_best)]
        reason = run.result.reason.strip().partition("\n")[0] if run.result else ""
        if run.status in _SAY_WHY and reason and reason not in self.reasons:
            self.reasons.add(reason)
            lines.append(Line(text=reason, tone="dim", indent=6))
        self.best, self.current = best, ""
        return lines

    def live_text(self) -> str:
        """Best so far, trials done, time left, and what is being tried."""
        pieces = [
            self._best_text(),
            f"{self.done}/{self.target} trials" if self.target else f"{self.done} trials",
            self._left_text(),
            self.current,
        ]
        return "  ".join(piece for piece in pieces if piece)

    def seconds_left(self) -> float | None:
        """A guess from the pace so far, cut off at the time limit; None before there is a pace."""
        elapsed = self.clock() - self.started
        pace = math.inf
        if self.target is not None and self.done > self.done_before:
            # What the running trial has used is part of `elapsed`: a little pessimistic, never jumpy.
            pace = elapsed / (self.done - self.done_before) * max(0, self.target - self.done)
        limit = math.inf if self.time_limit_s is None else max(0.0, self.time_limit_s - elapsed)
        left = min(pace, limit)
        return left if math.isfinite(left) else None

    def _left_text(self) -> str:
        left = self.seconds_left()
        if left is None:
            return ""
        return f"about {f'{left:.0f} s' if left < 60 else format_seconds(left)} left"

    def _best_point(self) -> Point | None:
        return self.best.point if self.best else None

    def _best_text(self) -> str:
        if self.best is None or self.best.result is None:
            return "nothing fits yet"
        used = format_bytes(self.best.result.memory.used_device_bytes)
        return f"best #{self.best.number}: {format_rate(self.best.result.samples_per_s)}, {used}"


def trial_line(run: Run, reference: Point | None, limit_bytes: int, *, is_best: bool) -> Line:
    """One trial in one line: number, status, throughput, used memory, share of the limit, seconds, what."""
    result = run.result if run.reuse_of is None else None
    used = result.memory.used_device_bytes if result else None
    seconds = f"{result.seconds:.0f} s" if result and run.ran else "-"
    figures = (
        f"{run.number:>3}{'*' if is_best else ' '} {status_text(run):<11} "
        f"{rate_text(result.samples_per_s if result else None):>9}  {format_bytes(used):>8} "
        f"{share_text(used, limit_bytes).replace(' ', ''):>4} {seconds:>6}  "
    )
    tone: Tone = "good" if is_best else _TONES.get(run.status, "warn")
    return Line(text=figures + what_text(run, reference), tone=tone)
