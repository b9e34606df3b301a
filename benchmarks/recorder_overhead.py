"""What recording costs a training: one process whose recorder is switched on and off from step to step.

    python benchmarks/recorder_overhead.py [-o FILE]             three placements, seven minutes at most
    python benchmarks/recorder_overhead.py --nvme-path FOLDER    an NVMe placement, too: ten minutes at most
    python benchmarks/recorder_overhead.py --quick               half a minute: does it work at all
    python benchmarks/recorder_overhead.py --trials              whole trials in pairs (recorder_trials.py)

Steps run in pairs in one training, so that the layout of memory is the same; which one of a pair records is
drawn by lot (`recorder_pairs.py`). Compared are the whole turn of the training loop, which has also what
recording does between two steps, the step as a trial reports it, and processor time of the rank. A placement
ends when its intervals lie wholly on one side of the goal, at most 1 %, or after `--seconds`. Exit code 0
when all lie below, 1 when one lies above, 2 when the noise of the machine leaves one undecided.
"""

from __future__ import annotations

import argparse
import math
import shlex
import sys
from collections.abc import Mapping, Sequence
from datetime import date
from functools import partial
from pathlib import Path

import recorder_trials
from recorder_pairs import DECIDING, Figure, Pairs, side
from recorder_trials import NVME_PLACEMENT, PLACEMENTS, overhead_spec

from offtune import hardware, host, log_tail, prepare, scratch
from offtune.config import Options, resolve
from offtune.errors import OfftuneError
from offtune.intervals import Interval
from offtune.launch import ColdRanks
from offtune.runner import run_ranks
from offtune.space import load_space
from offtune.trial import dump, load

_SECONDS = 130.0  # of training a placement: four of them and their starts in ten minutes
_WARMUP_STEPS = 3
_QUICK_SECONDS = 12.0
_DEADLINE_S = 240.0  # beside `_SECONDS`, for starting
_RESULT = "pairs.json"
_COLUMNS: tuple[tuple[str, Figure], ...] = (
    ("whole turn", "turn_s"),
    ("step", "step_s"),
    ("processor time", "cpu_s"),
)


def main() -> int:
    options = _options()
    asked = Options(budget="4GB", model=options.model, nvme_path=options.nvme_path, device=options.device,
                    gpus=options.gpus, warmup_steps=_WARMUP_STEPS, steps=options.steps)  # fmt: skip
    placements = options.placements
    config = resolve(asked, hardware.detect())
    space = load_space("nvme" if options.nvme_path else "ladder")
    prepared = prepare.prepare(config, space, lambda text: print(text, file=sys.stderr))
    with prepared.runner:
        if options.trials:
            return recorder_trials.compare(prepared, placements, options.pairs)
    found = {}
    for placement in placements:
        found[placement] = _measure(prepared, placement, options.seconds)
        print(_row(placement, found[placement]), flush=True)
    sheet = _sheet(found, options, prepared)
    print("\n" + _verdict(found))
    if options.output:
        options.output.write_text(sheet)
    return _exit_code(found)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--quick", action="store_true", help="only see that it runs")
    parser.add_argument("--seconds", type=float, default=_SECONDS, help="most of training a placement")
    parser.add_argument("--trials", action="store_true", help="compare whole trials instead")
    parser.add_argument("--pairs", type=int, default=20, help="with --trials: pairs a placement")
    parser.add_argument("--steps", type=int, default=recorder_trials.STEPS, help="with --trials: of a trial")
    parser.add_argument("--model", default="llama-5m", help="the smaller the model, the harder the goal")
    parser.add_argument("--device", choices=("cpu", "cuda"), help="default: cuda where there is one")
    parser.add_argument("--gpus", type=int, help="ranks")
    parser.add_argument("--nvme-path", help="a folder on the device to offload to")
    parser.add_argument("-o", "--output", type=Path, help="write the dated sheet here")
    parser.add_argument(
        "--placement", action="append", dest="placements", metavar="TEXT", help="only that one"
    )
    options = parser.parse_args()
    if options.placements is None:
        options.placements = [*PLACEMENTS, *([NVME_PLACEMENT] if options.nvme_path else [])]
    options.load = host.load_per_core()  # of the last minute; above a tenth the figures scatter
    if options.quick:
        options.seconds, options.pairs, options.placements = _QUICK_SECONDS, 2, options.placements[:1]
    return options


def _measure(prepared: prepare.Prepared, placement: str, seconds: float) -> Pairs:
    """One training of that placement. Raises OfftuneError where it fails."""
    spec = overhead_spec(prepared, placement, record=False, deadline_s=seconds + _DEADLINE_S)
    folder = Path(spec.trial_dir)
    path = folder / "spec.json"
    path.write_text(dump(spec))
    program = (sys.executable, str(Path(__file__).with_name("recorder_rank.py")), str(seconds))
    try:
        ending = run_ranks(spec, partial(ColdRanks, program=program), path)
        if not (folder / _RESULT).exists():
            raise OfftuneError(
                f"'{placement}' ended ({ending.cause}): {log_tail.read_tail(folder / 'rank0.log')}",
                "Run: offtune doctor",
            )
        return load(Pairs, (folder / _RESULT).read_bytes())
    finally:
        scratch.remove_trial(spec.trial_dir, spec.swap_dir, spec.token)


def _row(placement: str, found: Pairs) -> str:
    cells = [placement, f"{1000 * found.without('turn_s'):.1f}", str(len(found.pairs))]
    cells += [_change(found.ratio(figure)) for _, figure in _COLUMNS]
    cells.append(f"{1000 * _cpu_cost_s(found):+.2f}")
    cells.append(f"{1000 * found.own_s():.2f}, {100 * found.own_share():.2f} %")
    cells.append(f"{found.slow(on=True)}, {found.slow(on=False)}")
    cells.append({"below": "yes", "above": "NO", "open": "not decided"}[_side(found)])
    return f"| {' | '.join(cells)} |"


def _change(ratio: Interval) -> str:
    change, low, high = (100 * (value - 1) for value in (ratio.centre, ratio.low, ratio.high))
    return f"{change:+.2f} % " + (
        f"({low:+.2f} to {high:+.2f})" if math.isfinite(high) else "(too few pairs)"
    )


def _cpu_cost_s(found: Pairs) -> float:
    """Processor time of a step that recording takes."""
    return (found.ratio("cpu_s").centre - 1) * found.without("cpu_s")


def _side(found: Pairs) -> str:
    sides = [side(found.ratio(figure)) for figure in DECIDING]
    return "above" if "above" in sides else "open" if "open" in sides else "below"


def _verdict(found: Mapping[str, Pairs]) -> str:
    above = [placement for placement, pairs in found.items() if _side(pairs) == "above"]
    undecided = [placement for placement, pairs in found.items() if _side(pairs) == "open"]
    if above:
        return f"Recording costs more than 1 % of a step: {', '.join(above)}."
    if undecided:
        most = max(found[placement].own_share() for placement in undecided)
        return (
            f"Not decided, the machine scatters too much: {', '.join(undecided)}. More --seconds help. "
            f"In the recorder's own code at most {100 * most:.2f} % of a step were spent there."
        )
    return "Recording costs less than 1 % of a step."


def _exit_code(found: Mapping[str, Pairs]) -> int:
    sides = {_side(pairs) for pairs in found.values()}
    return 1 if "above" in sides else 2 if "open" in sides else 0


def _sheet(found: Mapping[str, Pairs], options: argparse.Namespace, prepared: prepare.Prepared) -> str:
    """The page for docs/."""
    config = prepared.config
    device = "CPU accelerator" if config.device == "cpu" else f"{config.workload.world_size} GPUs"
    where = (
        f"{date.today()}, {host.cpu_model()}, {host.usable_cores()} cores, {device}, {options.model}; "
        f"{options.load:.1f} processes a core wanted to run before"
    )
    titles = ("placement", "turn, ms", "pairs", *(title for title, _ in _COLUMNS),
              "processor time, ms a step", "own code, ms a step",
              "slow steps, on, off", "below 1 %")  # fmt: skip
    lines = [
        "# What recording costs",
        "",
        f"    python {shlex.join([f'benchmarks/{Path(sys.argv[0]).name}', *_shown_arguments()])}",
        "",
        *_ABOUT.splitlines(),
        "",
        f"{where}; micro-batch 1.",
        "",
        f"| {' | '.join(titles)} |",
        f"|---|{'---:|' * (len(titles) - 1)}",
        *(_row(placement, pairs) for placement, pairs in found.items()),
        "",
        _verdict(found),
    ]
    return "\n".join(lines) + "\n"


def _shown_arguments() -> Sequence[str]:
    """The command's own arguments, with folders of this machine left out."""
    hidden = {"--nvme-path": "DIR", "-o": "FILE", "--output": "FILE"}
    words = sys.argv[1:]
    return [hidden.get(before, word) for before, word in zip(["", *words], words, strict=False)]


_ABOUT = """\
One training switches its recorder on and off from step to step, so that the layout of memory is the same.
Steps come in pairs, and which one of a pair records is drawn by lot: no drift and no wave of the machine can
favour either. With it on, everything that recording adds to a trial is there ([trials.md](trials.md)): edges
of phases, samples, parts (in one of eight steps, with this weight), marks, and what is read between two
steps. *Whole turn* is the wall time of a turn of the training loop, *step* what a trial reports, from barrier
to barrier; *processor time* is the rank's own, all its threads. They are Hodges and Lehmann's estimates over
the pairs; in brackets are the costs that Wilcoxon's signed-rank test does not reject at 95 %. Nothing is
taken out; *slow steps* are those that took half as long again as usual, which count little. *Own code* is the
time spent in the recorder's functions, in any thread: it scatters little, but leaves out what they do to
caches. Micro-batch 1 on a small model has the shortest phases, so the most to record in a second."""


if __name__ == "__main__":
    sys.exit(main())
