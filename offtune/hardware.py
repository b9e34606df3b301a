"""The machine: processor, memory and GPUs, without ever starting CUDA.

Covered: NVIDIA GPUs as the driver's management library (NVML) reports them, from parent and child alike. Not
covered: MIG instances, other makers. Where the driver cannot say, the answer is None.
"""

from __future__ import annotations

import os
import platform
from collections import Counter
from collections.abc import Callable, Collection
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any, TypeVar

from offtune import host
from offtune.host import available_host_bytes, oom_kills
from offtune.trial import DeviceKind
from offtune.units import format_bytes

__all__ = [
    "Gpu", "Machine", "available_host_bytes", "cuda_gpus", "detect", "device_used_bytes", "driver_cuda",
    "fingerprint", "gpu_busy_share", "oom_kills", "pcie_bytes_per_s", "process_used_bytes",
]  # fmt: skip

T = TypeVar("T")
# NVML counts PCIe traffic in KB/s over the last 20 ms and does not say which KB; nvtop reads it as 1024.
_PCIE_UNIT_BYTES = 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """One GPU; `index` is NVML's (PCI bus order), `uuid` names it in CUDA_VISIBLE_DEVICES without doubt."""

    index: int
    name: str
    memory_bytes: int
    uuid: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """What trials run on; `cores` and `memory_bytes` respect affinity and control group limits."""

    cpu_model: str
    cores: int
    memory_bytes: int
    gpus: tuple[Gpu, ...]
    driver_version: str | None
    hostname: str
    boot_id: str


def detect() -> Machine:
    """This machine; without an NVIDIA driver it has no GPUs."""
    return Machine(
        cpu_model=host.cpu_model(),
        cores=host.usable_cores(),
        memory_bytes=host.memory_bytes(),
        gpus=_gpus(),
        driver_version=_ask_driver(lambda nvml: str(nvml.nvmlSystemGetDriverVersion())),
        hostname=platform.node(),
        boot_id=host.boot_id(),
    )


def fingerprint(machine: Machine, device: DeviceKind, gpus: tuple[int, ...]) -> dict[str, str]:
    """What must be the same for two trials to be comparable, with keys a person can read.

    Host name and GPU ids are left out: a container or an exchanged card of the same kind changes neither
    speed nor memory.
    """
    facts = {
        "processor": machine.cpu_model,
        "cores": str(machine.cores),
        "host memory": format_bytes(machine.memory_bytes),
    }
    if device == "cuda":
        used = [gpu for gpu in machine.gpus if gpu.index in gpus]
        kinds = Counter(f"{gpu.name}, {format_bytes(gpu.memory_bytes)}" for gpu in used)
        facts["GPUs"] = "; ".join(f"{count} x {kind}" for kind, count in kinds.items())
        facts["driver"] = machine.driver_version or "unknown"
    return facts


def cuda_gpus(machine: Machine) -> tuple[Gpu, ...]:
    """GPUs that CUDA_VISIBLE_DEVICES leaves visible, in its order; all of them when it is unset.

    As in CUDA, entries are indices or the beginning of a UUID, and the first unknown one ends the list.
    Indices are taken in PCI bus order, which equals CUDA's own order on machines with one kind of GPU.
    """
    wanted = os.environ.get("CUDA_VISIBLE_DEVICES")
    if wanted is None:
        return machine.gpus
    visible: list[Gpu] = []
    for entry in wanted.split(","):
        gpu = _named(entry.strip(), machine.gpus)
        if gpu is None or gpu in visible:
            break
        visible.append(gpu)
    return tuple(visible)


def _named(entry: str, gpus: tuple[Gpu, ...]) -> Gpu | None:
    if entry.isdigit():
        return next((gpu for gpu in gpus if gpu.index == int(entry)), None)
    matches = [gpu for gpu in gpus if entry.startswith("GPU-") and gpu.uuid.startswith(entry)]
    return matches[0] if len(matches) == 1 else None


def driver_cuda() -> str | None:
    """The newest CUDA the driver can run, such as '12.4'; None without a driver."""
    code = _ask_driver(lambda nvml: int(nvml.nvmlSystemGetCudaDriverVersion_v2()))
    return None if code is None else f"{code // 1000}.{code % 1000 // 10}"


def device_used_bytes(gpu_index: int) -> int | None:
    """Device memory in use by everybody, context and driver included."""
    return _ask_gpu(gpu_index, lambda nvml, gpu: int(nvml.nvmlDeviceGetMemoryInfo(gpu).used))


def process_used_bytes(gpu_index: int, pids: Collection[int]) -> int | None:
    """Device memory of these processes; None also when the driver lists none of them.

    Inside a container the driver lists process ids of the host, or nothing at all, and an absent process may
    hold gigabytes: absence is not zero.
    """
    listed = _ask_gpu(gpu_index, lambda nvml, gpu: nvml.nvmlDeviceGetComputeRunningProcesses(gpu))
    sizes = [process.usedGpuMemory for process in listed or () if process.pid in pids]
    return sum(sizes) if sizes and None not in sizes else None


def pcie_bytes_per_s(gpu_index: int) -> tuple[float, float] | None:
    """PCIe traffic (host to device, device to host) over the last 20 ms; the call takes about as long."""

    def traffic(nvml: Any, gpu: Any) -> tuple[float, float]:
        received = nvml.nvmlDeviceGetPcieThroughput(gpu, nvml.NVML_PCIE_UTIL_RX_BYTES)
        sent = nvml.nvmlDeviceGetPcieThroughput(gpu, nvml.NVML_PCIE_UTIL_TX_BYTES)
        return float(received * _PCIE_UNIT_BYTES), float(sent * _PCIE_UNIT_BYTES)

    return _ask_gpu(gpu_index, traffic)


def gpu_busy_share(gpu_index: int) -> float | None:
    """Share of the driver's last sampling period (a sixth of a second to one) in which a kernel ran."""
    return _ask_gpu(gpu_index, lambda nvml, gpu: float(nvml.nvmlDeviceGetUtilizationRates(gpu).gpu) / 100.0)


def cuda_build_environment() -> dict[str, str]:
    """What keeps DeepSpeed's builders from asking CUDA itself for the architectures to build for.

    The question initialises CUDA in the process that asks (compute_capability_args in op_builder/builder.py,
    0.19.8), which the warm server must not do before it forks; the answer is the same. Empty without GPUs.
    """
    capabilities = sorted({found for gpu in cuda_gpus(detect()) if (found := _capability(gpu.index))})
    if not capabilities or "TORCH_CUDA_ARCH_LIST" in os.environ:
        return {}
    return {"TORCH_CUDA_ARCH_LIST": ";".join(f"{major}.{minor}" for major, minor in capabilities)}


def _capability(gpu_index: int) -> tuple[int, int] | None:
    found = _ask_gpu(gpu_index, lambda nvml, gpu: nvml.nvmlDeviceGetCudaComputeCapability(gpu))
    return None if found is None else (int(found[0]), int(found[1]))


def _gpus() -> tuple[Gpu, ...]:
    count = _ask_driver(lambda nvml: int(nvml.nvmlDeviceGetCount())) or 0
    found = (_ask_gpu(index, partial(_gpu, index)) for index in range(count))
    return tuple(gpu for gpu in found if gpu is not None)


def _gpu(index: int, nvml: Any, handle: Any) -> Gpu:
    return Gpu(
        index=index,
        name=str(nvml.nvmlDeviceGetName(handle)),
        memory_bytes=int(nvml.nvmlDeviceGetMemoryInfo(handle).total),
        uuid=str(nvml.nvmlDeviceGetUUID(handle)),
    )


def _ask_gpu(gpu_index: int, question: Callable[[Any, Any], T]) -> T | None:
    return _ask_driver(lambda nvml: question(nvml, nvml.nvmlDeviceGetHandleByIndex(gpu_index)))


def _ask_driver(question: Callable[[Any], T]) -> T | None:
    """The driver's answer; None when there is no driver or it cannot say (MIG, WSL, permissions)."""
    nvml = _nvml(os.getpid())
    if nvml is None:
        return None
    try:
        return question(nvml)
    except nvml.NVMLError:
        return None


@lru_cache(maxsize=4)
def _nvml(pid: int) -> Any:
    """NVML, started once in this process; None without a driver. A forked child (new `pid`) has its own."""
    import pynvml

    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return None
    return pynvml
