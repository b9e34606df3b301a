"""What a ds_config would use and how fast it would be, and whether it fits: both models put together.

Covered: one prediction with its verdict, corrections by what a study measured. Not covered: which ds_configs
to look at (`candidates`), the models (`memory_model`, `time_model`). Nothing is run, and a prediction is
always off by something: `fits` and `over` are said only where the stated error leaves no doubt.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal

from offtune.activations import HUGGING_FACE, attention_of
from offtune.hardware_profile import HardwareProfile
from offtune.knob_workload import facts_at
from offtune.memory_model import MemoryPrediction, predict_memory
from offtune.model_shape import ModelShape, seq_len_of
from offtune.step_work import StepWork, step_work
from offtune.time_model import TimePrediction, predict_time
from offtune.trial import DsConfig, Facts, Forecast, Point
from offtune.units import format_bytes

Verdict = Literal["fits", "over", "close"]
# Host memory has fewer published figures than the device: the goal's median of 10 %, doubled
# (docs/accuracy.md).
HOST_ERROR_SHARE = 0.2
_SEVERITY: tuple[Verdict, ...] = ("fits", "close", "over")


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """What may be used: device bytes of a rank, host bytes of a node (None: not looked at)."""

    device_bytes: int
    host_bytes: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """Predicted memory and time of one optimizer step under one ds_config; throughput is over all ranks.

    `used_device_bytes` and `used_host_bytes` are the memory model's, corrected by what was measured. `reason`
    says in one sentence why the verdict is what it is.
    """

    memory: MemoryPrediction
    time: TimePrediction
    used_device_bytes: int
    used_host_bytes: int
    samples_per_s: float
    tokens_per_s: float
    verdict: Verdict
    reason: str

    def within(self, bounds: Bounds) -> Prediction:
        """The same figures judged by other bounds."""
        verdict, reason = judge(self.used_device_bytes, self.used_host_bytes, self.memory.error_share, bounds)
        return replace(self, verdict=verdict, reason=reason)

    def overshoot(self, bounds: Bounds) -> float:
        """Predicted over allowed bytes, of the memory that is shorter."""
        host = self.used_host_bytes / bounds.host_bytes if bounds.host_bytes else 0.0
        return max(self.used_device_bytes / bounds.device_bytes, host)

    @property
    def forecast(self) -> Forecast:
        """The figures that are kept with a trial."""
        return Forecast(
            used_device_bytes=self.used_device_bytes,
            used_host_bytes=self.used_host_bytes,
            step_s=self.time.step_s if math.isfinite(self.time.step_s) else None,
            samples_per_s=self.samples_per_s,
            device_error_share=self.memory.error_share,
            step_error_share=self.time.error_share,
        )


@dataclass(frozen=True, kw_only=True)
class Predictor:
    """Predicts for one workload on one kind of machine.

    `memory_ratio` multiplies predicted device memory: measured over predicted, as a study found it.
    """

    facts: Facts
    shape: ModelShape
    hardware: HardwareProfile
    bounds: Bounds
    memory_ratio: float = 1.0

    @cached_property
    def ranks_per_node(self) -> int:
        return min(self.facts.workload.world_size, self.hardware.gpus_per_node)

    def at(self, point: Point) -> Predictor:
        """The predictor for a trial at `point`, which may change the workload."""
        facts = facts_at(point, self.facts)
        return self if facts is self.facts else replace(self, facts=facts)

    def predict(self, ds_config: DsConfig) -> Prediction:
        """The prediction for a ds_config that `ds_rules` found nothing wrong with."""
        memory = predict_memory(ds_config, self.facts, self.shape, ranks_per_node=self.ranks_per_node)
        time = predict_time(self.work(ds_config), self.hardware)
        rate = self.facts.workload.global_batch / time.step_s if time.step_s else 0.0
        used = round(memory.used_device_bytes * self.memory_ratio)
        verdict, reason = judge(used, memory.used_host_bytes, memory.error_share, self.bounds)
        return Prediction(
            memory=memory,
            time=time,
            used_device_bytes=used,
            used_host_bytes=memory.used_host_bytes,
            samples_per_s=rate,
            tokens_per_s=rate * seq_len_of(self.facts.workload),
            verdict=verdict,
            reason=reason,
        )

    def work(self, ds_config: DsConfig) -> StepWork:
        """What a step has to do, whatever the machine."""
        return step_work(
            ds_config,
            self.facts,
            self.shape,
            ranks_per_node=self.ranks_per_node,
            attention=attention_of(self.shape.decoder, HUGGING_FACE),
        )


def judge(used_device: int, used_host: int, error_share: float, bounds: Bounds) -> tuple[Verdict, str]:
    """The verdict on predicted bytes, and one sentence on the memory that decides it."""
    found = [(used_device, bounds.device_bytes, error_share, "of device memory per rank")]
    if bounds.host_bytes is not None:
        found.append((used_host, bounds.host_bytes, HOST_ERROR_SHARE, "of host memory per node"))
    judged = [(_SEVERITY.index(_verdict(*one[:3])), one[0] / one[1], one) for one in found]
    severity, _, (used, limit, share, what) = max(judged, key=lambda entry: entry[:2])
    doubt = ", too close to call" if _SEVERITY[severity] == "close" else ""
    sentence = f"{format_bytes(used)} {what}, error {100 * share:.0f} %, for {format_bytes(limit)}."
    return _SEVERITY[severity], f"Predicted{doubt}: {sentence}"


def _verdict(used: int, limit: int, error_share: float) -> Verdict:
    if used * (1 - error_share) > limit:
        return "over"
    return "fits" if used * (1 + error_share) <= limit else "close"
