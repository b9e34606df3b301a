"""What other workers leave to do: a device for the next trial, or a reason to wait.

Covered: devices and targets shared with other trials of the same database. Not covered: who the workers are
(`crew.py`), what is tried (`search.py`).
"""

from __future__ import annotations

from dataclasses import dataclass

from offtune.config import RunConfig
from offtune.crew import Crew
from offtune.devices import free_gpus
from offtune.hardware import Machine
from offtune.lock import is_same_machine
from offtune.records import Run
from offtune.store import Store

_DEVICE_TAKEN = "Another worker has this device: trials take turns. A device of its own would be faster."
_LAST_TRIALS = "Waiting for the last trials of other workers."
_NEIGHBOUR = (
    "Another trial runs on this host: the two share processors, memory and links, and may both be slower "
    "than alone (docs/many-gpus.md)."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Outlook:
    """What a worker sees in its turn: the trials of others, GPUs for one of its own, what to tell a person.

    With `wait` no trial can start now.
    """

    others: tuple[Run, ...] = ()
    gpus: tuple[int, ...] = ()
    note: str = ""
    wait: bool = False

    def twin(self, study: str, fingerprint: str) -> int | None:
        """The number of a running trial of the study with the same effective ds_config."""
        same = (run.number for run in self.others if (run.study, run.fingerprint) == (study, fingerprint))
        return next(same, None)


def look(store: Store, crew: Crew, study: str, config: RunConfig, machine: Machine) -> Outlook:
    """The outlook for the next trial of the study; a worker alone has its own GPUs and nobody to wait for."""
    if not crew.shared:
        return Outlook(gpus=config.gpus)
    others = tuple(run for run in store.under_way() if run.owner is not None and crew.is_alive(run.owner))
    running = sum(run.study == study for run in others)
    # Should one of them die, it is taken over: so this worker stays until the target is reached, which may
    # have happened while it waited for its turn.
    if store.measured_count(study) + running >= config.trials:
        return Outlook(wait=True, note=_LAST_TRIALS if running else "")
    taken = {name for run in others if run.owner is not None for name in run.owner.devices}
    gpus = free_gpus(machine, config.device, config.gpus, taken)
    if gpus is None:
        return Outlook(wait=True, note=_DEVICE_TAKEN)
    beside = any(run.owner is not None and is_same_machine(run.owner) for run in others)
    return Outlook(others=others, gpus=gpus, note=_NEIGHBOUR if beside else "")
