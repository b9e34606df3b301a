"""A search over a made-up machine: a runner that needs none, a watcher that remembers, a small study."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from space_samples import facts

from offtune.config import Options, resolve
from offtune.hardware import Machine
from offtune.records import Limits, Run, StudyRecord
from offtune.search import Search
from offtune.space import Space, load_space
from offtune.store import Store
from offtune.study import Study
from offtune.trial import Facts, MemoryPeaks, Status, TrialResult, TrialSpec

MACHINE = Machine(
    cpu_model="p", cores=2, memory_bytes=10**10, gpus=(), driver_version=None, hostname="h", boot_id="b"
)


class Notes:
    """A watcher that remembers."""

    def __init__(self) -> None:
        self.runs: list[tuple[Run, Run | None]] = []
        self.texts: list[str] = []

    def begin(self, run: Run) -> None:
        pass

    def trial(self, run: Run, best: Run | None, *, done: int | None = None) -> None:
        self.runs.append((run, best))

    def note(self, text: str) -> None:
        self.texts.append(text)


def imagined(spec: TrialSpec) -> TrialResult:
    """Faster with larger micro-batches and lower stages, at the price of memory."""
    micro = spec.ds_config["train_micro_batch_size_per_gpu"]
    stage = spec.ds_config["zero_optimization"]["stage"]
    used = 100_000_000 * micro + 50_000_000 * (3 - stage)
    status = Status.OK if used <= spec.limit_bytes else Status.OVER_BUDGET
    return made_up(10.0 + micro - stage, used=used, status=status)


def made_up(speed: float, used: int = 10**8, status: Status = Status.OK, **more: Any) -> TrialResult:
    """A result of that speed; two equal steps, unless told otherwise."""
    memory = MemoryPeaks(used_device_bytes=used, used_host_bytes=10**6)
    fields = {"step_s": (1.0, 1.0), **more}
    return TrialResult(status=status, samples_per_s=speed, memory=memory, start="predicted", **fields)


_FACTS = facts(device="cpu", nvme_dir=None, ops=frozenset({"cpu_adam", "fused_adam"}))


def fitted_space(name: str, known: Facts = _FACTS) -> Space:
    """A packaged space, narrowed to the machine of these tests."""
    return load_space(name).fit(known)


def open_search(
    folder: Path,
    runner: Callable[[TrialSpec], TrialResult] = imagined,
    *,
    space: str = "ladder",
    baselines: Sequence[str] | None = None,
    known: Facts = _FACTS,
    **options: Any,
) -> Search:
    """A Search over `studies.db` in the folder, which is made if need be; the caller closes its store.

    `baselines` are the labels of those to try; all of them where it is None.
    """
    settings = resolve(Options(**{"budget": "1GB", "trials": 10, "sampler": "tpe", **options}), MACHINE)
    store = Store.open(str(folder / "studies.db"), write=True)
    narrowed = fitted_space(space, known)
    if not store.studies():
        record = StudyRecord(
            name="s", created_at="2026", settings={"limit_bytes": settings.limit_bytes},
            target_trials=settings.trials, model="m", device="cpu", budget_bytes=10**9,
        )  # fmt: skip
        store.add_study(record)
    limits = Limits(device_bytes=settings.limit_bytes)
    study = Study(store, "s", narrowed, limits=limits, seed=settings.seed, sampler=settings.sampler)
    for label, point in narrowed.baselines():
        if baselines is None or label in baselines:
            study.enqueue(point, "baseline", label)
    return Search(
        config=settings, store=store, study=study, facts=known, ops=(), runner=runner, watcher=Notes()
    )


@pytest.fixture
def make_search(tmp_path):
    """A Search over a database in the test's folder; keyword arguments are options."""
    opened: list[Store] = []

    def make(runner: Callable[[TrialSpec], TrialResult] = imagined, **options: Any) -> Search:
        search = open_search(tmp_path, runner, **options)
        opened.append(search.store)
        return search

    yield make
    for store in opened:
        store.close()
