"""Does `offtune profile` add up? Phases against the step time, NVMe bytes against DeepSpeed's design.

    python benchmarks/profile_check.py --nvme-path DIR

Three runs on the CPU accelerator: stage 2, stage 3 with the optimizer in host memory, and on NVMe. Exits
with 1 where the phases do not sum to the step time within 3 %, or NVMe bytes are over 10 % off the formulas.
`--quick` takes fewer steps of a smaller model. DIR must be on a disk: tmpfs has no I/O to count.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from statistics import mean
from typing import Any

from offtune.config import Options
from offtune.profile import Profiled, profile
from offtune.traffic_check import WHOLE, traffic_checks
from offtune.units import format_bytes

PHASES_WITHIN, BYTES_WITHIN = 0.03, 0.10
PLACEMENTS: dict[str, dict[str, Any]] = {
    "stage 2": {"stage": 2},
    "stage 3, optimizer in host memory": {"stage": 3, "offload_optimizer": {"device": "cpu"}},
    "stage 3, optimizer on NVMe": {"stage": 3, "offload_optimizer": {"device": "nvme", "buffer_count": 4}},
}


def ds_config(zero: dict[str, Any]) -> dict[str, Any]:
    """What a person would write down."""
    return {
        "train_batch_size": 8,
        "train_micro_batch_size_per_gpu": 4,
        "bf16": {"enabled": True},
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-4}},
        "zero_optimization": zero,
    }


def faults(found: Profiled) -> Iterator[str]:
    """What does not add up, a line each; prints every comparison."""
    analysis, step_s = found.result.analysis, found.result.step_s
    if analysis is None:
        yield f"no figures: {found.result.status} {found.result.reason}"
        return
    total = sum(phase.seconds for phase in analysis.phases)
    off = total / mean(step_s) - 1
    times = ", ".join(f"{phase.name} {1000 * phase.seconds:.1f}" for phase in analysis.phases)
    print(
        f"  phases, ms: {times}; sum {1000 * total:.1f}, step {1000 * mean(step_s):.1f} ({100 * off:+.2f} %)"
    )
    if abs(off) > PHASES_WITHIN:
        yield f"phases sum to {100 * off:+.1f} % of the step"
    for check in traffic_checks(found.expected.work, analysis, found.look):
        if not check.path.startswith("NVMe"):
            continue
        difference = check.difference_share
        shown = "unknown" if difference is None else f"{100 * difference:+.2f} %"
        formula, measured = format_bytes(check.formula_bytes), format_bytes(check.measured_bytes)
        print(
            f"  {check.path}, {check.phase}: formula {formula}, measured {measured} ({shown}) {check.reason}"
        )
        # By phase they may differ: gradients are written in the background, and counted where that is.
        if check.phase == WHOLE and (difference is None or abs(difference) > BYTES_WITHIN):
            yield f"{check.path}: {shown}"


def main() -> int:
    """Run all three; the number of faults decides the exit code."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--nvme-path", default=".", help="a folder on a disk")
    parser.add_argument("--quick", action="store_true", help="a smaller model, fewer steps")
    asked = parser.parse_args()
    model, steps = ("llama-5m", 3) if asked.quick else ("llama-25m", 10)
    missed = []
    with tempfile.TemporaryDirectory(prefix="profile-check-", dir=asked.nvme_path) as folder:
        for name, zero in PLACEMENTS.items():
            file = Path(folder) / "ds_config.json"
            file.write_text(json.dumps(ds_config(zero)))
            options = Options(base=str(file), device="cpu", model=model, steps=steps, nvme_path=folder)
            print(name)
            found = profile(options, str(Path(folder) / "none.db"), 1, lambda text: None)
            missed += [f"{name}: {fault}" for fault in faults(found)]
    for line in missed:
        print(f"MISSED: {line}", file=sys.stderr)
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
