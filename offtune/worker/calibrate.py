"""Measures this machine: `python -m offtune.worker.calibrate TASK`, TASK being a `calibration.Task` as JSON.

Covered: sections in order, one JSON line per event: {"event": "begin", "section"}, {"event": "figure", ...},
{"event": "failed", "section", "error"}, {"event": "end"}. Not covered: deadlines, and what to make of the
figures (`offtune/calibrate.py`).
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator
from subprocess import SubprocessError
from typing import Any

from offtune.calibration import Figure, Task
from offtune.trial import as_dict, load
from offtune.worker import calibrate_compute, calibrate_host, calibrate_links, calibrate_storage
from offtune.worker.build_ops import own_stdout
from offtune.worker.rank import die_with_parent


def _layers(task: Task) -> Iterator[Figure]:
    """Imported late: transformers takes seconds, and nothing else here needs it."""
    from offtune.worker import calibrate_layers

    return calibrate_layers.layers(task)


SECTIONS: dict[str, Callable[[Task], Iterator[Figure]]] = {
    "context": calibrate_compute.context,
    "matrix": calibrate_compute.matrix,
    "attention": calibrate_compute.attention,
    "device memory": calibrate_compute.device_memory,
    "launch": calibrate_compute.launch,
    "copies": calibrate_links.copies,
    "host memory": calibrate_host.memory,
    "CPU Adam": calibrate_host.adam,
    "storage": calibrate_storage.nvme,
    "collectives": calibrate_links.collectives,
    "layers": _layers,
}
_ERROR_CHARACTERS = 300


def main(arguments: list[str]) -> None:
    """Measure what the task names; one section that fails does not stop the others."""
    task = load(Task, arguments[0])
    die_with_parent()
    output = own_stdout()

    def tell(**event: Any) -> None:
        output.write(json.dumps(event) + "\n")
        output.flush()

    for section in task.sections:
        tell(event="begin", section=section)
        try:
            for figure in SECTIONS[section](task):
                tell(event="figure", **as_dict(figure))
        except (RuntimeError, ImportError, OSError, ValueError, AssertionError, SubprocessError) as error:
            first = (str(error).splitlines() or [""])[0][:_ERROR_CHARACTERS]
            tell(event="failed", section=section, error=f"{type(error).__name__}: {first}")
    tell(event="end")
    output.flush()
    os._exit(0)  # some libraries' clean-up at exit hangs when a context was lost; nothing is left to say


if __name__ == "__main__":
    main(sys.argv[1:])
