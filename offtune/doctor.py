"""Is this machine ready: everything that would make a search fail, each with its remedy.

Covered: putting the checks together. Not covered: the checks themselves (`machine_checks.py`,
`software_checks.py`) and exit codes (`cli.py`).
"""

from __future__ import annotations

from collections.abc import Sequence

from offtune import hardware, installed, machine_checks, software_checks
from offtune.check import Check, State, worst
from offtune.trial import DeviceKind

__all__ = ["Check", "State", "checks", "worst"]


def checks(
    *,
    nvme_path: str | None = None,
    storage: str = "studies.db",
    quick: bool = False,
    device: DeviceKind | None = None,
    probe: Sequence[str] = software_checks.PROBE,
) -> tuple[Check, ...]:
    """Every check, in the order a person would mend things; nothing is built or changed.

    `quick` leaves out the one child process (`probe`), which loads torch; `device` is what searches would
    choose when None.
    """
    machine = hardware.detect()
    kind = device or _device(bool(hardware.cuda_gpus(machine)))
    return (
        software_checks.python(),
        *software_checks.packages(),
        *machine_checks.gpus(machine),
        *software_checks.tools(),
        software_checks.libaio(),
        *software_checks.compiled_ops(kind),
        software_checks.stale_locks(),
        *software_checks.imports(bool(machine.gpus), quick, probe),
        machine_checks.host_memory(),
        machine_checks.shared_memory(),
        machine_checks.shared_leftovers(),
        machine_checks.locked_memory(nvme_path),
        machine_checks.threads(),
        machine_checks.swap_disk(nvme_path),
        machine_checks.storage(storage),
    )


def _device(has_gpus: bool) -> DeviceKind:
    build = installed.torch_build()
    return "cuda" if has_gpus and build is not None and build.cuda is not None else "cpu"
