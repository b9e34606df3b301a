"""A profile corrected by measured trials: what two or three steps of a study say about its machine.

Covered: rates of computing, launching, updating and of the paths gradients take, each by the phase that shows
it. Not covered: fitting published runs (benchmarks/fit_constants.py), measuring rates (`calibrate`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import median

from offtune.hardware_profile import HardwareProfile
from offtune.step_work import StepWork
from offtune.time_model import Phase, phase_seconds

# A phase that is off by more than this has another cause than its rates.
_MOST, _LEAST = 20.0, 0.05
_FORWARD = ("matrix_efficiency", "attention_efficiency", "device_bytes_per_s")
_UPDATE = (
    "adam_elements_per_s",
    "pageable_h2d_bytes_per_s",
    "nvme_read_bytes_per_s",
    "nvme_write_bytes_per_s",
)
_BACKWARD = ("d2h_bytes_per_s", "h2d_bytes_per_s", "pageable_d2h_bytes_per_s", "host_copy_bytes_per_s")


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredStep:
    """A trial's work and what its phases took, in seconds per optimizer step."""

    work: StepWork
    forward_s: float
    backward_s: float
    update_s: float

    def seconds(self, phase: Phase) -> float:
        """What one phase took."""
        return {"forward": self.forward_s, "backward": self.backward_s, "update": self.update_s}[phase]


def corrected(hardware: HardwareProfile, trials: Sequence[MeasuredStep]) -> HardwareProfile:
    """The profile under which the medians of forward, update and then backward fit `trials`; none change it.

    Forwards set the rates of computing and launching; updates those of the optimizer. What a backward then
    takes more or less is put down to the copies of gradients, where there are any.
    """
    if not trials:
        return hardware
    slower = _ratio(hardware, trials, "forward")
    fitted = _slowed(hardware, _FORWARD, slower)
    fitted = replace(fitted, layer_launch_s=fitted.layer_launch_s * slower)
    slower = _ratio(fitted, trials, "update")
    fitted = _slowed(fitted, _UPDATE, slower)
    return _with_copies(fitted, [trial for trial in trials if trial.work.cpu_numel])


def _ratio(hardware: HardwareProfile, trials: Sequence[MeasuredStep], phase: Phase) -> float:
    """Median of measured over predicted seconds of one phase."""
    pairs = [(trial.seconds(phase), phase_seconds(phase, trial.work, hardware)) for trial in trials]
    ratios = [seconds / guess for seconds, guess in pairs if seconds > 0 and guess > 0]
    return min(_MOST, max(_LEAST, median(ratios))) if ratios else 1.0


def _slowed(hardware: HardwareProfile, names: tuple[str, ...], factor: float) -> HardwareProfile:
    return replace(hardware, **{name: getattr(hardware, name) / factor for name in names})


def _with_copies(hardware: HardwareProfile, trials: Sequence[MeasuredStep]) -> HardwareProfile:
    """Link and host-copy rates by bisection: the backward only falls as they rise."""
    if not trials:
        return hardware
    low, high = _LEAST, _MOST
    for _ in range(20):
        middle = (low * high) ** 0.5
        tried = _slowed(hardware, _BACKWARD, middle)
        longer = _ratio(tried, trials, "backward") > 1
        low, high = (middle, high) if longer else (low, middle)
    return _slowed(hardware, _BACKWARD, (low * high) ** 0.5)
