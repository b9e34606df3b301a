"""Predicted against measured on the CPU accelerator: used memory and throughput of offtune's own trials.

    python benchmarks/accuracy_cpu.py                                judge the trials of data/cpu_trials.jsonl
    python benchmarks/accuracy_cpu.py STUDIES.DB [STUDIES.DB ...]    judge what was recorded there
    python benchmarks/accuracy_cpu.py --run FOLDER                   record first (an hour on two cores)
    python benchmarks/accuracy_cpu.py STUDIES.DB --save FILE.jsonl   keep what was recorded

Every trial that trained counts, baselines too. Goals: 40 configurations; used memory within 10 % for nine of
ten; rank correlation of throughput 0.8 (median over studies: each has its own model and batch). Exit code 1
when a goal is missed. Throughput means nothing while others use the machine: the trials of the data file were
recorded on a busy one and are judged by their memory only.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from offtune import hardware_profile
from offtune.memory_model import predict_memory
from offtune.model_shape import shape_of
from offtune.records import Run, StudyRecord
from offtune.step_work import step_work
from offtune.store import Store
from offtune.time_model import predict_time
from offtune.trial import DsConfig, Facts, Status, Workload, dump, load

_RECORDED = Path(__file__).parent / "data" / "cpu_trials.jsonl"
_CONFIGURATIONS, _WITHIN, _SHARE, _RANK = 40, 0.10, 0.9, 0.8
_TRAINED = (Status.OK, Status.OVER_BUDGET)
# Sizes, lengths and batches that a run without arguments records: model, tokens, global batch, ranks, trials.
_STUDIES = (
    ("llama-5m", 128, 8, 1, 16),
    ("llama-5m", 512, 8, 1, 12),
    ("llama-25m", 256, 8, 1, 16),
    ("llama-25m", 256, 8, 2, 8),
    ("gpt2-124m", 64, 4, 1, 8),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """One trial that trained; `used_bytes` of a rank above its level before the model, samples a second."""

    study: str
    number: int
    what: str
    workload: Workload
    ds_config: DsConfig
    deepspeed: str
    used_bytes: int
    rate: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """A trial beside its prediction."""

    trial: Trial
    predicted_bytes: int
    predicted_rate: float

    @property
    def error(self) -> float:
        return self.predicted_bytes / self.trial.used_bytes - 1


def main() -> int:
    options = _options()
    places = [_record(Path(options.run))] if options.run else [Path(text) for text in options.studies]
    trials = [trial for place in places for trial in trained(place)] if places else list(_kept(_RECORDED))
    if options.save:
        Path(options.save).write_text("".join(dump(trial) + "\n" for trial in trials), encoding="utf-8")
    found = [compared(trial) for trial in trials]
    for item in found:
        trial = item.trial
        used = f"{item.predicted_bytes / 1e6:6.0f} /{trial.used_bytes / 1e6:6.0f} MB {item.error:+6.1%}"
        rate = f"{item.predicted_rate:7.2f} /{trial.rate:7.2f} samples/s"
        print(f"{trial.study:14} {trial.number:3}  {used}  {rate}  {trial.what}")
    return _verdict(found, judge_throughput=bool(places))


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("studies", nargs="*", help="databases of offtune search")
    parser.add_argument("--run", metavar="FOLDER", help="record studies there first")
    parser.add_argument("--save", metavar="FILE", help="write the trials down")
    return parser.parse_args()


def _record(folder: Path) -> Path:
    """Run the studies of `_STUDIES`, configurations drawn at random from the default space."""
    swap = folder / "nvme"
    swap.mkdir(parents=True, exist_ok=True)
    place = folder / "studies.db"
    for seed, (model, tokens, batch, ranks, trials) in enumerate(_STUDIES):
        command = [sys.executable, "-m", "offtune", "search", "--device", "cpu", "--budget", "16GB"]
        command += ["--sampler", "random", "--space", "default", "--nvme-path", str(swap)]
        command += ["--model", model, "--seq-len", str(tokens), "--global-batch", str(batch)]
        command += ["--gpus", str(ranks), "--trials", str(trials), "--seed", str(seed)]
        command += ["--warmup-steps", "1", "--steps", "3", "--storage", str(place)]
        subprocess.run([*command, "--study", f"{model}-{tokens}-{ranks}"], check=True)
    return place


def trained(place: Path) -> Iterator[Trial]:
    """Every trial in a database that trained."""
    with Store.open(str(place), write=False) as store:
        for study in store.studies():
            for run in store.runs(study.name):
                if run.ran and run.result is not None and run.result.status in _TRAINED:
                    yield _trial(study, run)


def _trial(study: StudyRecord, run: Run) -> Trial:
    assert run.result is not None
    return Trial(
        study=study.name,
        number=run.number,
        what=f"{run.point.get('placement')}, micro {run.point.get('micro_batch')}",
        workload=Workload(**study.settings["workload"]),
        ds_config=run.ds_config,
        deepspeed=study.settings["versions"]["deepspeed"],
        used_bytes=run.result.memory.used_device_bytes or 0,
        rate=run.result.samples_per_s or 0.0,
    )


def _kept(file: Path) -> Iterator[Trial]:
    for line in file.read_text(encoding="utf-8").splitlines():
        yield load(Trial, line)


def compared(trial: Trial) -> Compared:
    """What is predicted for a trial."""
    shape = shape_of(trial.workload.model_config)
    facts = Facts(
        workload=trial.workload,
        device="cpu",
        parameter_numels=shape.parameter_numels,
        nvme_dir=None,
        ops=frozenset(),
        deepspeed_version=trial.deepspeed,
    )
    times = predict_time(step_work(trial.ds_config, facts, shape), hardware_profile.load("cpu"))
    return Compared(
        trial=trial,
        predicted_bytes=predict_memory(trial.ds_config, facts, shape).used_device_bytes,
        predicted_rate=trial.workload.global_batch / times.step_s,
    )


def rank_correlation(pairs: Sequence[tuple[float, float]]) -> float:
    """Spearman's, for values without ties to speak of."""
    count = len(pairs)
    ranks = [
        {i: rank for rank, i in enumerate(sorted(range(count), key=lambda i: pairs[i][side]))}
        for side in (0, 1)
    ]
    squares = sum((ranks[0][i] - ranks[1][i]) ** 2 for i in range(count))
    return 1 - 6 * squares / (count * (count * count - 1))


def _verdict(found: list[Compared], judge_throughput: bool) -> int:
    within = sum(abs(item.error) <= _WITHIN for item in found) / len(found)
    errors = sorted(abs(item.error) for item in found)
    print(f"\n{len(found)} configurations (goal: {_CONFIGURATIONS})")
    print(f"used memory: {within:.0%} within {_WITHIN:.0%} (goal: {_SHARE:.0%}), median {median(errors):.1%}")
    met = len(found) >= _CONFIGURATIONS and within >= _SHARE
    if judge_throughput:
        correlation = _throughput(found)
        print(f"throughput: rank correlation {correlation:.2f} (goal: {_RANK})")
        met = met and correlation >= _RANK
    return 0 if met else 1


def _throughput(found: list[Compared]) -> float:
    """Median over studies of the rank correlation of predicted and measured throughput."""
    studies: dict[str, list[tuple[float, float]]] = {item.trial.study: [] for item in found}
    for item in found:
        studies[item.trial.study].append((item.predicted_rate, item.trial.rate))
    return median(rank_correlation(pairs) for pairs in studies.values() if len(pairs) > 2)


if __name__ == "__main__":
    sys.exit(main())
