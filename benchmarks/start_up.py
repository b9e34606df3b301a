"""From the command to the first optimizer step: warm, cold, and through the `deepspeed` launcher.

    python benchmarks/start_up.py [--repeats N] [--pairs N] [--forks N] [--quick] [-o FILE]

The ways take turns on the default model of a search without CUDA (llama-5m): ZeRO stage 2, 2 + 5 steps, one
and two ranks of the CPU accelerator. Measured for each: seconds from the request to the end of the first
optimizer step, and seconds of the whole trial beside its measured steps (after the first two); then, over
these and `--pairs` further pairs, the throughput of warm trials over that of the cold ones beside them, and
what the warm server holds before and after many short trials.

Exit code 1 when a goal is missed: warm to the first step at most 2.5 s and 8 times less than the launcher,
the same throughput within the noise (the 95 % interval holds 1), a server that keeps its memory, files and
threads. Run it on a quiet machine.
"""

from __future__ import annotations

import argparse
import functools
import json
import math
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import date
from pathlib import Path
from statistics import fmean, median, stdev

import psutil

from offtune import ds_config, host, ops, scratch
from offtune.intervals import t95
from offtune.launch import ColdRanks, child_environment
from offtune.models import resolve_model
from offtune.runner import TrialRunner, run_trial
from offtune.trial import Facts, Status, TrialResult, TrialSpec, Workload

_MODEL = "llama-5m"
_SEQ_LEN, _SAMPLES_PER_RANK, _MICRO_BATCH = 128, 8, 4
_WARMUP, _STEPS = 2, 5
_RANKS = (1, 2)
_REPEATS, _PAIRS, _FORKS = 7, 20, 500
_FIRST_STEP_GOAL_S, _RATIO_GOAL = 2.5, 8.0
_SERVER_GROWTH_GOAL_MB = 5.0
_DEADLINE_S = 300.0
_COMPARED = ("warm", "cold")


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """One training: seconds to the end of its first step, of all beside the measured steps, and of a step."""

    first_step_s: float
    overhead_s: float
    step_s: float


Way = Callable[[TrialSpec], Start]


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """What the warm server holds: resident bytes, open files, threads."""

    resident_bytes: int
    files: int
    threads: int


def main() -> int:
    options = _options()
    ready = ops.needed_ops("cpu", "adamw", ["zero2"], nvme=False)
    lacking = [one.error for one in ops.prepare(ready, "cpu", print).values() if one.state != "ready"]
    if lacking:
        print(f"DeepSpeed's ops cannot be built: {lacking[0]}", file=sys.stderr)
        return 1
    lines, missed = (
        [f"{date.today()}, {host.cpu_model()}, {host.usable_cores()} cores, CPU accelerator", ""],
        [],
    )
    for ranks in _RANKS:
        threads = max(1, (host.usable_cores() - 1) // ranks)
        with TrialRunner("cpu", threads, ready, "llama", print) as runner:
            ways, spec = _ways(runner), functools.partial(_spec, ranks, threads, ready)
            ways["warm"](spec())  # reads the disk: left out
            found = _interleaved(ways, spec, options.repeats)
            pairs = _interleaved({name: ways[name] for name in _COMPARED}, spec, options.pairs)
            ratio = _warm_over_cold({name: found[name] + pairs[name] for name in _COMPARED})
            lines += [*_table(ranks, found), _throughput_text(ratio, options.repeats + options.pairs)]
            missed += _missed(ranks, found, ratio)
            if ranks == 1:
                before, after = _forked(runner, _spec(1, threads, ready), options.forks)
                lines.append(_server_text(before, after, options.forks))
                missed += _missed_by_server(before, after)
    text = "\n".join([*lines, *(f"MISSED: {one}" for one in missed)])
    print(text)
    if options.output:
        options.output.write_text(text + "\n")
    return 1 if missed else 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--repeats", type=int, default=_REPEATS)
    parser.add_argument("--pairs", type=int, default=_PAIRS)
    parser.add_argument("--forks", type=int, default=_FORKS)
    parser.add_argument("--quick", action="store_true", help="2 repeats, 2 further pairs, 20 short trials")
    parser.add_argument("-o", "--output", type=Path)
    options = parser.parse_args()
    if options.quick:
        options.repeats, options.pairs, options.forks = 2, 2, 20
    return options


def _ways(runner: TrialRunner) -> dict[str, Way]:
    return {
        "warm": lambda spec: _trial(runner, spec),
        "cold": lambda spec: _trial(lambda one: run_trial(one, ColdRanks, "cold"), spec),
        "deepspeed launcher": _launched,
    }


def _interleaved(ways: dict[str, Way], spec: Callable[[], TrialSpec], rounds: int) -> dict[str, list[Start]]:
    """Each way once a round, another first in each."""
    found: dict[str, list[Start]] = {name: [] for name in ways}
    for number in range(rounds):
        first = number % len(ways)
        for name in (*list(ways)[first:], *list(ways)[:first]):
            found[name].append(ways[name](spec()))
    return found


def _spec(ranks: int, threads: int, ready: tuple[str, ...]) -> TrialSpec:
    work = Workload(
        model_name=_MODEL, model_config=resolve_model(_MODEL).config, seq_len=_SEQ_LEN,
        global_batch=_SAMPLES_PER_RANK * ranks, world_size=ranks, precision="bf16", optimizer="adamw",
        activation_checkpointing=False, seed=0,
    )  # fmt: skip
    facts = Facts(workload=work, device="cpu", parameter_numels=(), nvme_dir=None, ops=frozenset(ready),
                  deepspeed_version="0.19.8")  # fmt: skip
    return TrialSpec(
        study="start-up", number=0, workload=work, device="cpu",
        ds_config=ds_config.build({}, {"placement": "zero2", "micro_batch": _MICRO_BATCH}, facts, None),
        warmup_steps=_WARMUP, steps=_STEPS, deadline_s=_DEADLINE_S, limit_bytes=2 * 10**9,
        host_limit_bytes=16 * 10**9, threads_per_rank=threads, ops=ready,
        trial_dir=str(scratch.make_trial_dir("start-up", 0)), token=scratch.new_token(),
    )  # fmt: skip


def _trial(run: Callable[[TrialSpec], TrialResult], spec: TrialSpec) -> Start:
    result = run(spec)
    scratch.remove_trial(spec.trial_dir, None, spec.token)
    if result.status is not Status.OK or result.first_step_s is None:
        raise SystemExit(f"A trial ended as {result.status}: {result.reason} {result.log_tail}")
    return Start(
        first_step_s=result.first_step_s,
        overhead_s=result.seconds - sum(result.step_s),
        step_s=median(result.step_s),
    )


def _launched(spec: TrialSpec) -> Start:
    """The same training by `deepspeed`, with a port of its own."""
    folder = Path(spec.trial_dir)
    paths = {name: folder / f"{name}.json" for name in ("model", "ds_config", "out")}
    paths["model"].write_text(json.dumps(spec.workload.model_config))
    paths["ds_config"].write_text(json.dumps(spec.ds_config))
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    words = [
        str(Path(sys.executable).parent / "deepspeed"), "--num_gpus", str(spec.workload.world_size),
        "--master_port", str(port), str(Path(__file__).with_name("launched_training.py")),
        str(paths["model"]), str(paths["ds_config"]), str(_WARMUP + _STEPS), str(_SEQ_LEN), str(paths["out"]),
    ]  # fmt: skip
    requested, took = _timed(words, child_environment("cpu", spec.threads_per_rank), folder / "log.txt")
    told = json.loads(paths["out"].read_text())
    shutil.rmtree(folder)
    step_s = told["step_s"][_WARMUP:]
    return Start(
        first_step_s=told["first_step_at"] - requested, overhead_s=took - sum(step_s), step_s=median(step_s)
    )


def _timed(words: list[str], environment: dict[str, str], log_path: Path) -> tuple[float, float]:
    """(time of the request, seconds) of a run of the launcher; one that died is run again, once, and told of.

    Now and then it dies at its end, of "terminate called without an active exception".
    """
    for _ in range(2):
        requested = time.time()
        with log_path.open("w") as log:
            done = subprocess.run(words, env=environment, stdout=log, stderr=log, check=False)
        if done.returncode == 0:
            return requested, time.time() - requested
        print(f"The launcher failed ({done.returncode}).", file=sys.stderr)
    raise SystemExit(f"The launcher failed twice: {log_path.read_text()[-2000:]}")


def _table(ranks: int, found: dict[str, list[Start]]) -> list[str]:
    lines = [f"{ranks} rank{'s' if ranks > 1 else ''}, medians of {len(found['warm'])}, launcher over each:"]
    lines += [
        "",
        "| start | first step, s | ratio | beside the steps, s | ratio |",
        "|---|---:|---:|---:|---:|",
    ]
    slow = found["deepspeed launcher"]
    for name, starts in found.items():
        cells = [name]
        for field in ("first_step_s", "overhead_s"):
            own, other = _median(starts, field), _median(slow, field)
            cells += [f"{own:.2f}", f"{other / own:.1f}"]
        lines.append(f"| {' | '.join(cells)} |")
    return [*lines, ""]


def _throughput_text(ratio: tuple[float, float, float], pairs: int) -> str:
    centre, low, high = ratio
    return (
        f"Throughput, warm over cold: {centre:.3f} (95 % interval {low:.3f} to {high:.3f}, {pairs} pairs).\n"
    )


def _median(starts: list[Start], field: str) -> float:
    return float(median(getattr(start, field) for start in starts))


def _warm_over_cold(found: dict[str, list[Start]]) -> tuple[float, float, float]:
    """Geometric mean of the ratio of throughputs over the rounds, and Student's 95 % interval."""
    pairs = zip(found["warm"], found["cold"], strict=True)
    logs = [math.log(cold.step_s / warm.step_s) for warm, cold in pairs]
    half = t95(len(logs) - 1) * stdev(logs) / math.sqrt(len(logs)) if len(logs) > 1 else math.inf
    return math.exp(fmean(logs)), math.exp(fmean(logs) - half), math.exp(min(fmean(logs) + half, 99.0))


def _missed(ranks: int, found: dict[str, list[Start]], ratio: tuple[float, float, float]) -> list[str]:
    warm, slow = (_median(found[name], "first_step_s") for name in ("warm", "deepspeed launcher"))
    missed = []
    if warm > _FIRST_STEP_GOAL_S:
        missed.append(f"{ranks} ranks: {warm:.2f} s to the first step, the goal is {_FIRST_STEP_GOAL_S} s")
    if slow / warm < _RATIO_GOAL:
        missed.append(
            f"{ranks} ranks: {slow / warm:.1f} times less than the launcher, the goal is {_RATIO_GOAL}"
        )
    _, low, high = ratio
    if not low <= 1 <= high:
        missed.append(f"{ranks} ranks: warm trials are not as fast as cold ones ({low:.3f} to {high:.3f})")
    return missed


def _forked(runner: TrialRunner, spec: TrialSpec, count: int) -> tuple[Held, Held]:
    """The server before and after `count` trials that fail as soon as DeepSpeed sees their ds_config."""
    wrong = replace(spec, ds_config={**spec.ds_config, "train_batch_size": 3})
    runner(wrong)  # what is loaded once is loaded now
    before = _held(runner)
    for _ in range(count):
        result = runner(wrong)
        if result.status is Status.OK or result.start != "warm":
            raise SystemExit(f"A trial that should fail warm ended as {result.status}, {result.start}")
    after = _held(runner)
    scratch.remove_trial(spec.trial_dir, None, spec.token)
    return before, after


def _held(runner: TrialRunner) -> Held:
    assert runner.server is not None
    server = psutil.Process(runner.server.pid)
    return Held(resident_bytes=server.memory_info().rss, files=server.num_fds(), threads=server.num_threads())


def _server_text(before: Held, after: Held, count: int) -> str:
    grown = (after.resident_bytes - before.resident_bytes) / 1e6
    return (
        f"The server after {count} trials: {grown:+.1f} MB on {before.resident_bytes / 1e6:.0f} MB, "
        f"{before.files} to {after.files} files, {before.threads} to {after.threads} threads.\n"
    )


def _missed_by_server(before: Held, after: Held) -> list[str]:
    grown = (after.resident_bytes - before.resident_bytes) / 1e6
    missed = [f"the server has grown by {grown:.1f} MB"] if grown > _SERVER_GROWTH_GOAL_MB else []
    if (after.files, after.threads) != (before.files, before.threads):
        missed.append(f"the server holds {after.files} files and {after.threads} threads")
    return missed


if __name__ == "__main__":
    sys.exit(main())
