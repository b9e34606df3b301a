"""The hardware profile of this machine: as it was calibrated, else the packaged one that is nearest.

Covered: looking a calibration up in a database. Not covered: making a profile of one (`calibrated_profile`),
the packaged ones (`machine_profile`).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import replace

from offtune import hardware
from offtune.calibrated_profile import profile
from offtune.database import locate
from offtune.hardware import Machine
from offtune.hardware_profile import HardwareProfile
from offtune.machine_profile import profile_for
from offtune.store import Store
from offtune.trial import DeviceKind

NAME = "this machine"


def profile_here(
    store: Store | None, device: DeviceKind, machine: Machine, gpus: tuple[int, ...]
) -> HardwareProfile:
    """The profile of the machine that trains on `gpus`; its text says whether it was measured here.

    A calibration with as many GPUs is best, one with all of them next.
    """
    if store is not None:
        for fingerprint in _fingerprints(device, machine, gpus):
            calibration = store.calibration(fingerprint)
            if calibration is not None:
                return replace(profile(calibration), name=NAME)
    packaged = profile_for(device, machine)
    return replace(packaged, about=f"{packaged.about}; not measured here, which offtune calibrate does")


def _fingerprints(device: DeviceKind, machine: Machine, gpus: tuple[int, ...]) -> Iterator[dict[str, str]]:
    yield hardware.fingerprint(machine, device, gpus)
    yield hardware.fingerprint(machine, device, tuple(gpu.index for gpu in hardware.cuda_gpus(machine)))


def profile_from(storage: str | None, gpus: int) -> HardwareProfile:
    """The same by a database's path or URL, where there is one; `gpus` are how many would train."""
    machine = hardware.detect()
    visible = tuple(gpu.index for gpu in hardware.cuda_gpus(machine))
    return profile_at(storage, "cuda" if visible else "cpu", machine, visible[:gpus])


def profile_at(
    storage: str | None, device: DeviceKind, machine: Machine, gpus: tuple[int, ...]
) -> HardwareProfile:
    """The same for a machine that was looked at already."""
    with nullcontext() if storage is None or _missing(storage) else Store.open(storage, write=False) as store:
        return profile_here(store, device, machine, gpus)


def _missing(storage: str) -> bool:
    path = locate(storage).path
    return path is not None and not path.exists()
