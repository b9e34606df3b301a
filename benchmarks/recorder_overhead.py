"""What recording costs a training: one process whose recorder is switched on and off from block to block.

    python benchmarks/recorder_overhead.py [-o FILE]             three placements, seven minutes at most
    python benchmarks/recorder_overhead.py --nvme-path FOLDER    an NVMe placement, too: ten minutes at most
    python benchmarks/recorder_overhead.py --quick               half a minute: does it work at all
    python benchmarks/recorder_overhead.py --trials              whole trials in pairs (recorder_trials.py)

Blocks run on-off-off-on in one training, so that the layout of memory is the same and a drift of the machine
cancels. Compared are the whole turn of the training loop, which has also what recording does between two
steps, the step as a trial reports it, and processor time of the rank. A placement ends when its intervals lie
wholly on one side of the goal, at most 1 % (`recorder_blocks.enough`), or after `--seconds`. Exit code 0 when
all lie below, 1 when one lies above, 2 when the noise of the machine leaves one undecided.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from datetime import date
from functools import partial
from pathlib import Path

import recorder_trials
from recorder_blocks import DECIDING, Blocks, Figure, side
from recorder_trials import NVME_PLACEMENT, PLACEMENTS, overhead_spec

from offtune import hardware, host, log_tail, prepare, scratch
from offtune.config import Options, resolve
from offtune.errors import OfftuneError
from offtune.launch import ColdRanks
from offtune.runner import run_ranks
from offtune.space import load_space
from offtune.trial import dump, load
from offtune.worker.recorder import PARTS_EVERY

_SECONDS = 130.0  # of training a placement: four of them and their starts in ten minutes
_BLOCK_STEPS = PARTS_EVERY  # as many steps have their parts timed as in a trial
_WARMUP_STEPS = 3
_QUICK_SECONDS = 12.0
_DEADLINE_S = 240.0  # beside `_SECONDS`, for starting
_RESULT = "blocks.json"
_COLUMNS: tuple[tuple[str, Figure], ...] = (
    ("whole turn", "turn_s"),
    ("step", "step_s"),
    ("processor time", "cpu_s"),
)


def main() -> int:
    options = _options()
    asked = Options(budget="4GB", model=options.model, nvme_path=options.nvme_path, device=options.device,
                    gpus=options.gpus, warmup_steps=_WARMUP_STEPS, steps=options.steps)  # fmt: skip
    placements = PLACEMENTS[:1] if options.quick else PLACEMENTS
    placements += (NVME_PLACEMENT,) if options.nvme_path else ()
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
    parser.add_argument("--steps", type=int, help="of a block (1), or of a trial (20)")
    parser.add_argument("--model", default="llama-5m", help="the smaller the model, the harder the goal")
    parser.add_argument("--device", choices=("cpu", "cuda"), help="default: cuda where there is one")
    parser.add_argument("--gpus", type=int, help="ranks")
    parser.add_argument("--nvme-path", help="a folder on the device to offload to")
    parser.add_argument("-o", "--output", type=Path, help="write the dated sheet here")
    options = parser.parse_args()
    options.load = host.load_per_core()  # of the last minute; above a tenth the figures scatter
    options.steps = options.steps or (recorder_trials.STEPS if options.trials else _BLOCK_STEPS)
    if options.quick:
        options.seconds, options.pairs = _QUICK_SECONDS, 2
    return options


def _measure(prepared: prepare.Prepared, placement: str, seconds: float) -> Blocks:
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
        return load(Blocks, (folder / _RESULT).read_bytes())
    finally:
        scratch.remove_trial(spec.trial_dir, spec.swap_dir, spec.token)


def _row(placement: str, found: Blocks) -> str:
    cells = [placement, f"{1000 * found.without('turn_s'):.1f}", str(len(found.comparisons()))]
    for _, figure in _COLUMNS:
        ratio = found.ratio(figure)
        change, low, high = (100 * (value - 1) for value in (ratio.centre, ratio.low, ratio.high))
        cells.append(f"{change:+.2f} % ({low:+.2f} to {high:+.2f})")
    cells.append(f"{1000 * _cpu_cost_s(found):+.2f}")
    share = found.own_share()
    cells.append(f"{1000 * share * found.without('turn_s'):.2f}, {100 * share:.2f} %")
    cells.append({"below": "yes", "above": "NO", "open": "not decided"}[_side(found)])
    return f"| {' | '.join(cells)} |"


def _cpu_cost_s(found: Blocks) -> float:
    """Processor time of a step that recording takes."""
    return (found.ratio("cpu_s").centre - 1) * found.without("cpu_s")


def _side(found: Blocks) -> str:
    sides = [side(found.ratio(figure)) for figure in DECIDING]
    return "above" if "above" in sides else "open" if "open" in sides else "below"


def _verdict(found: Mapping[str, Blocks]) -> str:
    above = [placement for placement, blocks in found.items() if _side(blocks) == "above"]
    undecided = [placement for placement, blocks in found.items() if _side(blocks) == "open"]
    if above:
        return f"Recording costs more than 1 % of a step: {', '.join(above)}."
    if undecided:
        most = max(found[placement].own_share() for placement in undecided)
        return (
            f"Not decided, the machine scatters too much: {', '.join(undecided)}. More --seconds help. "
            f"In the recorder's own code at most {100 * most:.2f} % of a step were spent there."
        )
    return "Recording costs less than 1 % of a step."


def _exit_code(found: Mapping[str, Blocks]) -> int:
    sides = {_side(blocks) for blocks in found.values()}
    return 1 if "above" in sides else 2 if "open" in sides else 0


def _sheet(found: Mapping[str, Blocks], options: argparse.Namespace, prepared: prepare.Prepared) -> str:
    """The page for docs/."""
    config = prepared.config
    device = "CPU accelerator" if config.device == "cpu" else f"{config.workload.world_size} GPUs"
    where = (
        f"{date.today()}, {host.cpu_model()}, {host.usable_cores()} cores, {device}, {options.model}; "
        f"{options.load:.1f} processes a core wanted to run before"
    )
    titles = ("placement", "turn, ms", "comparisons", *(title for title, _ in _COLUMNS),
              "processor time, ms a step", "own code, ms a step", "below 1 %")  # fmt: skip
    lines = [
        "# What recording costs",
        "",
        f"    python {' '.join([f'benchmarks/{Path(sys.argv[0]).name}', *_shown_arguments()])}",
        "",
        *_ABOUT.splitlines(),
        "",
        f"{where}; steps a block: {options.steps}, micro-batch 1.",
        "",
        f"| {' | '.join(titles)} |",
        f"|---|{'---:|' * (len(titles) - 1)}",
        *(_row(placement, blocks) for placement, blocks in found.items()),
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
One training switches its recorder on and off from block to block, on-off-off-on, which is one comparison:
the layout of memory is the same and a drift of the machine cancels. With it on, everything that recording
adds to a trial is there ([trials.md](trials.md)): edges of phases, samples, parts, marks, and what is read
between two steps. *Whole turn* is the wall time of a turn of the training loop, *step* what a trial
reports, from barrier to barrier; *processor time* is the rank's own, all its threads. In brackets are 95 %
intervals, Student's over the comparisons without spikes. *Own code* is the time spent in the recorder's
functions, in any thread: it scatters little, but leaves out what they do to caches. Micro-batch 1 on a
small model has the shortest phases, so the most to record in a second."""


if __name__ == "__main__":
    sys.exit(main())
