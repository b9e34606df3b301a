"""One worker on a study, with a made-up trainer: `python study_worker.py URL SETTINGS`.

SETTINGS is JSON: `host` the machine it pretends to be, `target` trials, `trial_s` seconds each, `log` a file
to which every trial appends a line of JSON. From its trial number `hold` on (1 is the first) each lasts until
the file `release` is there. With `gate`, a folder, it begins once `party` workers have come to it. Ends by
printing why the search ended.
"""

from __future__ import annotations

import json
import os
import platform
import sys
import time
from pathlib import Path
from typing import Any

from processes import wait_for
from study_samples import LIMITS, measure, small_space, study_record

from offtune import hardware, lock
from offtune.config import Options, resolve
from offtune.records import Run
from offtune.search import Search
from offtune.store import Store
from offtune.study import Study
from offtune.trial import Facts, TrialResult, TrialSpec

BASELINES = (("stage 2", {"placement": "zero2"}), ("stage 3", {"placement": "zero3"}))


class Trainer:
    """Sleeps instead of training, and keeps account."""

    def __init__(self, settings: dict[str, Any]) -> None:
        self.settings = settings
        self.points: dict[int, Any] = {}
        self.count = 0

    def __call__(self, spec: TrialSpec) -> TrialResult:
        started = time.time()
        self.write(spec.number, event="start", at=started)
        time.sleep(self.settings["trial_s"])
        self.count += 1
        if self.count >= self.settings.get("hold", sys.maxsize):
            wait_for(Path(self.settings["release"]).exists)
        self.write(spec.number, event="end", at=time.time())
        return measure(self.points[spec.number])

    def write(self, number: int, **more: Any) -> None:
        line = {"number": number, "pid": os.getpid(), "host": self.settings["host"], **more}
        with Path(self.settings["log"]).open("a") as log:
            log.write(json.dumps(line) + "\n")

    def begin(self, run: Run) -> None:
        self.points[run.number] = run.point

    def trial(self, run: Run, best: Run | None, *, done: int | None = None) -> None:
        pass

    def note(self, text: str) -> None:
        print(text, file=sys.stderr, flush=True)


def work(url: str, settings: dict[str, Any]) -> str:
    trainer = Trainer(settings)
    config = resolve(
        Options(budget="2GB", device="cpu", global_batch=16, trials=settings["target"]), hardware.detect()
    )
    facts = Facts(
        workload=config.workload, device="cpu", parameter_numels=(1 << 16,) * 8, nvme_dir=None,
        ops=frozenset({"cpu_adam", "fused_adam"}), deepspeed_version="0.19.8",
    )  # fmt: skip
    with Store.open(url, write=True) as store, store.lock("study-1") as crew:
        with crew.turn():
            if not store.studies():
                store.add_study(study_record())
            study = Study(store, "study-1", small_space(), limits=LIMITS, seed=7, sampler="random")
            search = Search(config=config, store=store, study=study, facts=facts, ops=(), runner=trainer,
                            watcher=trainer, crew=crew)  # fmt: skip
            search.repair()
            for label, point in BASELINES:
                study.enqueue(point, "baseline", label)
        meet(settings)
        return search.run().text


def meet(settings: dict[str, Any]) -> None:
    """Wait for the others at the gate: one that is quick to start would have done all the work alone."""
    if (gate := settings.get("gate")) is not None:
        Path(gate, str(os.getpid())).touch()
        wait_for(lambda: len(list(Path(gate).iterdir())) >= settings["party"])


def pretend_to_be(host: str) -> None:
    platform.node = lambda: host
    lock._BOOT_ID = Path(f"/nonexistent/{host}")


if __name__ == "__main__":
    settings = json.loads(sys.argv[2])
    if settings.get("pretend", True):
        pretend_to_be(settings["host"])
    print(work(sys.argv[1], settings))
