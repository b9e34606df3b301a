"""Predicted against measured peaks of memory by phase: forward, backward, update.

    python benchmarks/memory_by_phase.py [STUDIES.DB ...]

Of the studies named (default: studies.db) every trial on the CPU accelerator whose memory was recorded
counts; of published runs (data/published_runs.csv) the allocator's peaks, and the driver's of the two whose
trace is public (13B on one A100, 20B at ratio 0.5 on four H100). Those runs emptied torch's pool after
backward (reserved is all but allocated before forward), so that the driver's figure went down: it is held
against level plus context and, in backward, what is fragmented. Figures of docs/memory.md.
"""

from __future__ import annotations

import json
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path
from statistics import median

import published
from published_memory import predicted_bytes, prediction_of
from published_traces import GIB, PHASES, PUBLISHED

from offtune.memory_model import MemoryPrediction, predict_memory
from offtune.model_shape import shape_of
from offtune.records import Run
from offtune.store import Store
from offtune.trial import Facts, Workload, load

_MEMORY_COLUMN = 4  # of a row of PUBLISHED
_TRACED = {"13B_ratio1": ("11198000000", "1"), "20B_ratio0.5": ("15327000000", "0.5")}
_TENTH = 0.9


def main(storages: Iterable[str]) -> None:
    for storage in storages:
        _print(storage, _errors(_recorded(storage)))
    _print("published, allocator", _errors(_published()))
    for run, (params, ratio) in _TRACED.items():
        _traced(run, params, ratio)


def _recorded(storage: str) -> Iterator[tuple[str, float]]:
    """A phase, predicted over measured peak of its memory, of each trial on the CPU accelerator."""
    with Store.open(storage, write=False) as store:
        for study in store.studies():
            record = store.study(study.name)
            workload = load(Workload, json.dumps(record.settings["workload"]))
            if record.device == "cpu" and workload.command is None and workload.model_config:
                for brief in store.runs(study.name):
                    yield from _of_run(workload, store.run(study.name, brief.number))


def _of_run(workload: Workload, run: Run) -> Iterator[tuple[str, float]]:
    if run.result is None or run.result.analysis is None or run.reuse_of is not None:
        return
    shape = shape_of(workload.model_config)
    facts = Facts(
        workload=workload,
        device="cpu",
        parameter_numels=shape.parameter_numels,
        nvme_dir=None,
        ops=frozenset(),
        deepspeed_version=run.result.versions.get("deepspeed", ""),
    )
    peaks = predict_memory(run.ds_config, facts, shape).peak_by_phase
    for phase in run.result.analysis.phases:
        measured = phase.peak("device_used_bytes")
        if measured and phase.name in peaks:
            yield phase.name, peaks[phase.name] / measured


def _published() -> Iterator[tuple[str, float]]:
    columns = {"alloc_forward_bytes": "forward", "alloc_backward_bytes": "backward"}
    for case in published.cases():
        for column, predicted in predicted_bytes(case).items():
            if column in columns and case.row[column]:
                yield columns[column], predicted / float(case.row[column])


def _errors(ratios: Iterable[tuple[str, float]]) -> dict[str, list[float]]:
    found: dict[str, list[float]] = defaultdict(list)
    for phase, ratio in ratios:
        found[phase].append(ratio - 1)
    return found


def _print(what: str, errors: dict[str, list[float]]) -> None:
    for phase, each in errors.items():
        sizes = sorted(map(abs, each))
        tenth = sizes[min(len(sizes) - 1, int(_TENTH * len(sizes)))]
        print(
            f"{what}: {phase:9} n {len(each):3}  median {median(sizes):5.1%}  90th {tenth:5.1%}"
            f"  from {min(each):+.1%} to {max(each):+.1%}"
        )


def _traced(run: str, params: str, ratio: str) -> None:
    case = next(
        case
        for case in published.cases()
        if (case.row["params"], case.row["ratio"], case.row["micro_batch"]) == (params, ratio, "1")
    )
    memory = prediction_of(case.row, case.ds_config, case.facts)
    for phase, figures in zip(PHASES, PUBLISHED[run], strict=True):
        predicted, measured = _driver(memory, phase) / GIB, figures[_MEMORY_COLUMN]
        error = predicted / measured - 1
        print(f"{run}, driver: {phase:9} {predicted:6.2f} / {measured:6.2f} GiB  {error:+.1%}")


def _driver(memory: MemoryPrediction, phase: str) -> int:
    """The driver's figure while nothing freed is kept from one phase to the next."""
    device = memory.device
    gaps = device["fragmentation"] if phase == "backward" else 0
    return memory.peak_by_phase[phase] + device["context"] + device.get("NCCL", 0) + gaps


if __name__ == "__main__":
    main(sys.argv[1:] or [str(Path(__file__).parents[1] / "studies.db")])
