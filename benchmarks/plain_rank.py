"""A rank of a cold trial that starts as any script does: `python benchmarks/plain_rank.py SPEC RANK`.

offtune's own cold ranks import without collecting garbage and ask for the CPU's features meanwhile; who
starts a script a trial has none of that.
"""

from __future__ import annotations

import sys
from pathlib import Path

from offtune.trial import TrialSpec, load
from offtune.worker import rank
from offtune.worker.preload import preload

PROGRAM = (sys.executable, __file__)


def main(arguments: list[str]) -> None:
    spec = load(TrialSpec, Path(arguments[0]).read_bytes())
    rank.die_with_parent()
    preload(spec.ops, [spec.workload.model_config["model_type"]], hurried=False)
    rank.be(spec, int(arguments[1]), forked=False)


if __name__ == "__main__":
    main(sys.argv[1:])
