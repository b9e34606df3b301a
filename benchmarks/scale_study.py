"""A study of simulated trials through offtune's own search: for benchmarks of offtune itself (`scale.py`).

Covered: a workload and a card that need not be here, a runner that computes its results. Nothing here was
measured: the figures are the predictor's, with noise, and results say so (`device_source`, `start`).
"""

from __future__ import annotations

import random
import time
from functools import partial

from offtune import hardware_profile
from offtune.config import RunConfig
from offtune.foresight import Foresight, foresight_for
from offtune.guesses import guesses_for
from offtune.loss_check import make_judge
from offtune.model_shape import shape_of
from offtune.models import resolve_model
from offtune.phase_analysis import Figure, PhaseFigures, StepAnalysis
from offtune.records import Limits, Run, StudyRecord, utc_now
from offtune.search import Search
from offtune.space import Space, load_space
from offtune.store import Store
from offtune.store_standings import labelled
from offtune.study import Study
from offtune.timeline import OTHER, PHASES
from offtune.trial import Facts, MemoryPeaks, PhaseTimes, Status, TrialResult, TrialSpec, Workload, as_dict

NAME = "scale"
SIMULATED = "SIMULATED trials: the predictor's figures with noise"
_BUDGET = 40 * 10**9
_HOST = 400 * 10**9
_NOISE = 0.04
_STEPS = 5
_SERIES = ("memory_bytes", "h2d_bytes_per_s", "d2h_bytes_per_s", "gpu_busy_share", "cpu_busy_share")


class Stopwatch:
    """A watcher that says nothing and keeps the seconds from one trained trial to the next.

    By the clock on the wall and of the processor.
    """

    def __init__(self) -> None:
        self.took_s: list[tuple[float, float]] = []
        self._last = self._now()

    def begin(self, run: Run) -> None: ...

    def trial(self, run: Run, best: Run | None, *, done: int | None = None) -> None:
        now = self._now()
        if run.ran and run.reuse_of is None:
            self.took_s.append((now[0] - self._last[0], now[1] - self._last[1]))
            self._last = now

    def note(self, text: str) -> None: ...

    @staticmethod
    def _now() -> tuple[float, float]:
        return time.perf_counter(), time.process_time()


def open_study(store: Store) -> None:
    """Add the study's record."""
    config = _config(NAME, _workload())
    store.add_study(
        StudyRecord(
            name=NAME, created_at=utc_now(),
            settings={**as_dict(config), "notes": [SIMULATED]},
            target_trials=config.trials, model="llama-1b", device="cuda", budget_bytes=_BUDGET,
        )
    )  # fmt: skip


def make_search(store: Store, sampler: str, seed: int = 0) -> Search:
    """The search of that study with the given sampler and simulated trials."""
    workload = _workload()
    config = _config(sampler, workload)
    numels = shape_of(workload.model_config).parameter_numels
    facts = Facts(
        workload=workload, device="cuda", parameter_numels=numels, nvme_dir=None,
        ops=frozenset({"cpu_adam", "fused_adam", "async_io"}), deepspeed_version="0.19.8",
    )  # fmt: skip
    space = load_space("default").fit(facts)
    foresight = foresight_for(config, facts, space, hardware_profile.load("a100-40gb"))
    assert foresight is not None
    judge = make_judge(partial(labelled, store), workload.precision, "judge")
    limits = Limits(device_bytes=_BUDGET, host_bytes=_HOST)
    study = Study(store, NAME, space, limits=limits, seed=seed, sampler=sampler, judge=judge,
                  guess=guesses_for(config, facts, foresight))  # fmt: skip
    _queue_baselines(study, space)
    runner = partial(_simulate, foresight, random.Random(seed))
    return Search(
        config=config, store=store, study=study, facts=facts, ops=(), runner=runner, watcher=Stopwatch(),
        judge=judge, foresight=foresight,
    )  # fmt: skip


def _queue_baselines(study: Study, space: Space) -> None:
    for label, point in space.baselines():
        study.enqueue(point, "baseline", label)


def _workload() -> Workload:
    return Workload(
        model_name="llama-1b", model_config=resolve_model("llama-1b").config, seq_len=1024, global_batch=32,
        world_size=1, precision="bf16", optimizer="adamw", activation_checkpointing=True, seed=0,
    )  # fmt: skip


def _config(sampler: str, workload: Workload) -> RunConfig:
    return RunConfig(
        workload=workload, device="cuda", gpus=(), threads_per_rank=1, budget_bytes=_BUDGET,
        limit_bytes=_BUDGET, host_limit_bytes=_HOST, nvme_path=None, space="default", trials=100,
        time_s=None, trial_timeout_s=60.0, warmup_steps=2, steps=_STEPS, seed=0, sampler=sampler, machine={},
    )  # fmt: skip


def _simulate(foresight: Foresight, draw: random.Random, spec: TrialSpec) -> TrialResult:
    """What the predictor says of a trial, with noise; nothing is run."""
    found = foresight.plain.predict(spec.ds_config)
    step_s = tuple(found.time.step_s * draw.gauss(1, _NOISE) for _ in range(_STEPS))
    middle = sorted(step_s)[_STEPS // 2]
    used = round(found.used_device_bytes * draw.gauss(1, 0.01))
    fits = used <= spec.limit_bytes and found.used_host_bytes <= spec.host_limit_bytes
    return TrialResult(
        status=Status.OK if fits else Status.OVER_BUDGET,
        samples_per_s=spec.workload.global_batch / middle,
        step_s=step_s,
        losses=(8.2, 8.1, 8.0, 7.9, 7.8),
        warmup_losses=(8.4, 8.3),
        phases=PhaseTimes(forward_s=middle / 4, backward_s=middle / 2, update_s=middle / 4, other_s=0.0),
        memory=MemoryPeaks(
            used_device_bytes=used, used_host_bytes=found.used_host_bytes, device_source="simulated"
        ),
        analysis=_analysis(middle),
        seconds=60.0,
        start="predicted",
        versions={"torch": "0", "deepspeed": "0"},
    )


def _analysis(step_s: float) -> StepAnalysis:
    """As much as a recorded trial carries, so that the database is as large as a real one."""
    figures = {name: Figure(mean=step_s, peak=step_s, samples=100) for name in _SERIES}
    names = (*PHASES, OTHER)
    phases = tuple(
        PhaseFigures(name=name, seconds=step_s / len(names), share=1 / len(names), figures=figures)
        for name in names
    )
    return StepAnalysis(steps=_STEPS, step_s=step_s, phases=phases, source="simulated")
