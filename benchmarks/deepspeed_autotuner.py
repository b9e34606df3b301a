"""DeepSpeed's own autotuner against `offtune search`, both on the same script, on the CPU accelerator.

    python benchmarks/deepspeed_autotuner.py [--budget 2GB] [--quick] [-o FILE]

First `deepspeed --autotuning run` on examples/plain_deepspeed.py (it knows ZeRO stages and micro-batches,
and no offload); needs `pip install "offtune[benchmarks]"`. Then `offtune search --base` with the file it
ends with, for as long as it took: its configuration is measured in the first trial, by the same clock as all
others. Counted are trials that ended within the autotuner's time; our finals, which may end later, only prove
the difference, and are left out (`--no-finals`). Printed are the wall time of the autotuner, the time after
which ours had something as fast (less 3 %), and both throughputs after equal time. Exit 1 when ours is slower
to that, or ends with something slower. The autotuner is ended after `--most` seconds, and what it has by then
is not known: that is said, and nothing compared. Run it on a quiet machine: it takes ten minutes.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from datetime import date, datetime, timezone
from pathlib import Path

from offtune.errors import OfftuneError
from offtune.records import Run, best_run, is_measured
from offtune.report.miss import study_limits
from offtune.store import Store

ROOT = Path(__file__).parent.parent
_SCRIPT = ROOT / "examples" / "plain_deepspeed.py"
_OPTIMAL = Path("autotuning_results") / "ds_config_optimal.json"
# Repeats on a calm machine differ by about this.
_SAME_SHARE = 0.03
_BATCH = 8
_DS_CONFIG = {
    "train_batch_size": _BATCH,
    "optimizer": {"type": "AdamW", "params": {"lr": 1e-3}},
    "bf16": {"enabled": True},
    "zero_optimization": {"stage": 2},
}


def main() -> int:
    options = _options()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        theirs_s = _autotune(folder, options)
        begun = datetime.now(timezone.utc)
        runs, best = _search(folder, options.budget, theirs_s, begun)
    theirs = next((run for run in runs if run.label == "your file"), None)
    if theirs is None or best is None:
        print(
            "Nothing to compare: its configuration or ours did not train within the budget.", file=sys.stderr
        )
        return 1
    wanted = _speed(theirs) * (1 - _SAME_SHARE)
    good = (run for run in runs if run is not theirs and run.status == "ok" and _speed(run) >= wanted)
    ours_s = min((_since(begun, run) for run in good), default=None)
    text = _sheet(theirs_s, ours_s, _speed(theirs), _speed(best), len(runs))
    print(text)
    if options.output:
        Path(options.output).write_text(text)
    return 0 if ours_s is not None and ours_s < theirs_s and _speed(best) >= wanted else 1


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--budget", default="2GB")
    parser.add_argument("--most", type=float, default=600.0, help="Seconds for the autotuner.")
    parser.add_argument("--quick", action="store_true", help="Two experiments of the autotuner: a look.")
    parser.add_argument("-o", "--output", help="Also write the sheet there.")
    return parser.parse_args()


def _autotune(folder: Path, options: argparse.Namespace) -> float:
    """Wall seconds of the autotuner, its results being in `folder`. Raises OfftuneError if it did not end."""
    tuning = {"enabled": True, "fast": True, "max_train_batch_size": _BATCH, "start_profile_step": 3,
              "end_profile_step": 6, "overwrite": True}  # fmt: skip
    if options.quick:
        tuning |= {"tuner_num_trials": 2, "num_tuning_micro_batch_sizes": 1}
    (folder / "ds_config.json").write_text(json.dumps({**_DS_CONFIG, "autotuning": tuning}))
    command = [_beside("deepspeed"), "--autotuning", "run", "--num_gpus", "1", str(_SCRIPT),
               "--deepspeed_config", str(folder / "ds_config.json"), "--steps", "8"]  # fmt: skip
    started = time.monotonic()
    # Its experiments are started by name.
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"
    environment = {**os.environ, "DS_ACCELERATOR": "cpu", "PATH": path}
    with subprocess.Popen(
        command, cwd=folder, env=environment, stdout=sys.stderr, start_new_session=True
    ) as run:
        try:
            code = run.wait(options.most)
        except subprocess.TimeoutExpired:
            os.killpg(run.pid, signal.SIGKILL)
            raise OfftuneError(
                f"DeepSpeed's autotuner did not end within {options.most:.0f} s.", "Give it more: --most."
            ) from None
    if code != 0:
        raise OfftuneError(f"DeepSpeed's autotuner ended with code {code}.", "See its output above.")
    return time.monotonic() - started


def _search(folder: Path, budget: str, seconds: float, begun: datetime) -> tuple[list[Run], Run | None]:
    """The runs of a search over the autotuner's file that ended within so long, and the best of them."""
    if not (folder / _OPTIMAL).exists():
        raise OfftuneError("DeepSpeed's autotuner found no configuration.", "See its output above.")
    found = json.loads((folder / _OPTIMAL).read_text())
    found.pop("autotuning", None)
    base, storage = folder / "base.json", folder / "studies.db"
    base.write_text(json.dumps(found))
    options = ["--budget", budget, "--device", "cpu", "--base", str(base), "--storage", str(storage)]
    script = [sys.executable, str(_SCRIPT), "--deepspeed_config", "{ds_config}"]
    options += ["--no-finals", "--time", f"{seconds:.0f}s"]
    command = [sys.executable, "-m", "offtune", "search", *options, "--", *script]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    with Store.open(str(storage), write=False) as store:
        record = store.study(None)
        runs = [run for run in store.runs(record.name) if is_measured(run) and _since(begun, run) <= seconds]
    return runs, best_run(runs, study_limits(record))


def _beside(program: str) -> str:
    """A program of this interpreter's environment."""
    return str(Path(sys.executable).parent / program)


def _since(begun: datetime, run: Run) -> float:
    assert run.finished_at is not None
    return (datetime.fromisoformat(run.finished_at) - begun).total_seconds()


def _speed(run: Run) -> float:
    return (run.result.samples_per_s if run.result else None) or 0.0


def _sheet(theirs_s: float, ours_s: float | None, theirs: float, best: float, trials: int) -> str:
    reached = "never" if ours_s is None else f"after {ours_s:.0f} s"
    return (
        f"# DeepSpeed's autotuner\n\nMeasured on {date.today().isoformat()} by "
        "`python benchmarks/deepspeed_autotuner.py`, CPU accelerator.\n\n"
        f"- autotuner: {theirs_s:.0f} s to a configuration with {theirs:.1f} samples/s\n"
        f"- offtune: as fast (less 3 %) {reached}; after equal time {best:.1f} samples/s in {trials} trials\n"
    )


if __name__ == "__main__":
    sys.exit(main())
