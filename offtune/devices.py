"""Devices by names that are the same for every process, so that no two trials run on one of them.

Covered: GPUs (by the driver's UUID) and, without CUDA, the processors of a host, which train one trial at a
time. Not covered: MIG instances; containers of one machine, each of which counts as a host of its own.
"""

from __future__ import annotations

from collections.abc import Collection

from offtune.hardware import Gpu, Machine, cuda_gpus
from offtune.trial import DeviceKind


def device_names(machine: Machine, device: DeviceKind, gpus: Collection[int]) -> tuple[str, ...]:
    """What a trial on these GPUs (NVML indices), or without CUDA on the processors, occupies."""
    if device == "cpu":
        return (f"processors of {machine.hostname}",)
    return tuple(gpu.uuid for gpu in machine.gpus if gpu.index in gpus)


def free_gpus(
    machine: Machine, device: DeviceKind, wanted: tuple[int, ...], taken: Collection[str]
) -> tuple[int, ...] | None:
    """GPUs for the next trial: as many as wanted and of their kind; None when too few are free.

    Without CUDA () stands for the processors.
    """
    if device == "cpu":
        return None if set(device_names(machine, device, ())) & set(taken) else ()
    free = [gpu for gpu in _candidates(machine, wanted) if gpu.uuid not in taken]
    return tuple(gpu.index for gpu in free[: len(wanted)]) if len(free) >= len(wanted) else None


def visible_gpus(machine: Machine, wanted: tuple[int, ...]) -> tuple[int, ...]:
    """The wanted GPUs or, where not all of them are visible here, as many others as there are."""
    visible = [gpu.index for gpu in cuda_gpus(machine)]
    return wanted if set(wanted) <= set(visible) else tuple(visible[: len(wanted)])


def _candidates(machine: Machine, wanted: tuple[int, ...]) -> list[Gpu]:
    """Visible GPUs of the kinds of the wanted ones, these first."""
    kinds = {(gpu.name, gpu.memory_bytes) for gpu in machine.gpus if gpu.index in wanted}
    alike = [gpu for gpu in cuda_gpus(machine) if (gpu.name, gpu.memory_bytes) in kinds]
    return sorted(alike, key=lambda gpu: gpu.index not in wanted)
