"""One rank's short training of the built-in workload: start, build, warm up, measure, report.

Covered: the measured loop. Not covered: what is recorded of it (`record.py`), starting and ending the process
(`rank.py`, `server.py`) and deciding the trial's status, which is the parent's.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import deepspeed
import torch

from offtune.rank_report import RankReport
from offtune.trial import TrialSpec
from offtune.worker import workload
from offtune.worker.failures import DIED_IN_CLOSE_LOOK, INITIALIZE, described
from offtune.worker.record import Record


class Rank:
    """One rank of one trial. `run` returns its report and raises nothing that a configuration can cause."""

    def __init__(self, spec: TrialSpec, rank: int, gpu: int) -> None:
        self.spec, self.rank = spec, rank
        self.record = Record(spec, rank, gpu)

    def run(self, keep: Callable[[RankReport], None]) -> RankReport:
        """Train; `keep` puts what was measured on disk before something is tried that could lose it."""
        try:
            engine = self._start()
            while not self.record.is_over():
                self.record.begin_step(engine)
                self._one_step(engine, self.record.steps_done)
            report = self.record.done(engine)
        except Exception as error:  # noqa: BLE001 the configuration under trial may raise anything; it is a value
            return self.record.failed(error)
        return self._looked_at(engine, report, keep) if self.spec.close_steps else report

    def _looked_at(self, engine: Any, report: RankReport, keep: Callable[[RankReport], None]) -> RankReport:
        """The report after the close look, whatever becomes of that."""
        keep(replace(report, close_error=DIED_IN_CLOSE_LOOK))
        try:
            self._look_closely(engine)
        except Exception as error:  # noqa: BLE001 the profiler slows and fills memory; what is measured stands
            traceback.print_exception(error)
            return replace(report, close_error=described(error))
        return report

    def _start(self) -> Any:
        self.record.enter("start the process group")
        device = torch.device("cuda", 0) if self.spec.device == "cuda" else torch.device("cpu")
        if self.spec.device == "cuda":
            torch.cuda.set_device(device)
        torch.manual_seed(self.spec.workload.seed)
        _join(self.spec, self.rank)
        self.record.watch_memory()
        self.record.cap_allocator(device)
        self.record.enter("build the model")
        model = workload.build_model(self.spec.workload, self.spec.ds_config, device)
        self.record.enter(INITIALIZE)
        parameters = [p for p in model.parameters() if p.requires_grad]
        engine, *_ = deepspeed.initialize(
            model=model, model_parameters=parameters, config=dict(self.spec.ds_config)
        )
        return engine

    def _one_step(self, engine: Any, step: int) -> None:
        batches = self._batches(engine, step)
        start = self.record.barrier()
        losses = self._micro_steps(engine, batches)
        self.record.end_step(self.record.barrier() - start, losses)

    def _look_closely(self, engine: Any) -> None:
        """Some more steps under torch's profiler."""
        clock = self.record.look_closely()
        for step in range(self.spec.close_steps):
            batches = self._batches(engine, self.record.steps_done + step)
            start = self.record.barrier()
            self._micro_steps(engine, batches)
            clock.next_step(self.record.barrier() - start)
        clock.finish()

    def _batches(self, engine: Any, step: int) -> list[torch.Tensor]:
        micro = int(self.spec.ds_config["train_micro_batch_size_per_gpu"])
        return workload.micro_batches(self.spec.workload, step, self.rank, micro, engine.device)

    def _micro_steps(self, engine: Any, batches: list[torch.Tensor]) -> list[torch.Tensor]:
        return [self._micro_step(engine, tokens) / len(batches) for tokens in batches]

    def _micro_step(self, engine: Any, tokens: torch.Tensor) -> torch.Tensor:
        with self.record.clock.phase("forward"):
            loss: torch.Tensor = engine(input_ids=tokens, labels=tokens).loss
        with self.record.clock.phase("backward"):
            engine.backward(loss)
        with self.record.clock.phase("update"):
            engine.step()
        return loss.detach().float()


def _join(spec: TrialSpec, rank: int) -> None:
    """Join the trial's process group through a file: no port to find, none to be taken by somebody else."""
    deepspeed.init_distributed(
        auto_mpi_discovery=False,
        verbose=False,
        init_method=f"file://{Path(spec.trial_dir) / 'rendezvous'}",
        rank=rank,
        world_size=spec.workload.world_size,
    )
