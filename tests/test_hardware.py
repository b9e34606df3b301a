"""Hardware: a fake driver library that answers, refuses or is absent."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from offtune import hardware

GIB = 2**30


def test_this_machine_is_detected_without_a_driver(no_driver: None) -> None:
    machine = hardware.detect()
    assert machine.gpus == ()
    assert machine.driver_version is None
    assert machine.cores >= 1
    assert 0 < hardware.available_host_bytes() <= machine.memory_bytes
    assert hardware.driver_cuda() is None
    assert hardware.device_used_bytes(0) is None
    assert hardware.pcie_bytes_per_s(0) is None


class NvmlError(Exception):
    """Stands for every error of the driver library."""


class FakeDriver(ModuleType):
    """A `pynvml` with two cards; a function listed in `silent` raises, as drivers do for what they lack."""

    NVMLError = NvmlError
    NVML_PCIE_UTIL_RX_BYTES = "rx"
    NVML_PCIE_UTIL_TX_BYTES = "tx"

    def __init__(self, *silent: str) -> None:
        super().__init__("pynvml")
        self.silent = silent
        self.processes: list[Any] = []
        self.starts = 0

    def __getattribute__(self, name: str) -> Any:
        if name.startswith("nvml") and name in super().__getattribute__("silent"):
            return self._refuse
        return super().__getattribute__(name)

    def _refuse(self, *_: object) -> None:
        raise NvmlError("not supported")

    def nvmlInit(self) -> None:
        self.starts += 1

    def nvmlSystemGetDriverVersion(self) -> str:
        return "570.86"

    def nvmlSystemGetCudaDriverVersion_v2(self) -> int:
        return 12080

    def nvmlDeviceGetCount(self) -> int:
        return 2

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:
        return index

    def nvmlDeviceGetName(self, gpu: int) -> str:
        return "NVIDIA H100 80GB HBM3"

    def nvmlDeviceGetCudaComputeCapability(self, gpu: int) -> list[int]:
        return ([9, 0], [8, 6])[gpu]

    def nvmlDeviceGetUUID(self, gpu: int) -> str:
        return ("GPU-aaaa1111", "GPU-bbbb2222")[gpu]

    def nvmlDeviceGetMemoryInfo(self, gpu: int) -> SimpleNamespace:
        return SimpleNamespace(total=80 * GIB, used=(gpu + 1) * GIB)

    def nvmlDeviceGetComputeRunningProcesses(self, gpu: int) -> list[Any]:
        return self.processes

    def nvmlDeviceGetPcieThroughput(self, gpu: int, counter: str) -> int:
        return {"rx": 1000, "tx": 10}[counter]


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., FakeDriver]]:
    def install(*silent: str) -> FakeDriver:
        fake = FakeDriver(*silent)
        monkeypatch.setitem(sys.modules, "pynvml", fake)
        hardware._nvml.cache_clear()
        return fake

    yield install
    hardware._nvml.cache_clear()


@pytest.fixture
def no_driver(driver: Callable[..., FakeDriver]) -> None:
    driver("nvmlInit")


def process(pid: int, used: int | None) -> SimpleNamespace:
    return SimpleNamespace(pid=pid, usedGpuMemory=used)


def test_gpus_are_those_of_the_driver_and_the_library_is_started_once(
    driver: Callable[..., FakeDriver],
) -> None:
    fake = driver()
    machine = hardware.detect()
    assert [gpu.uuid for gpu in machine.gpus] == ["GPU-aaaa1111", "GPU-bbbb2222"]
    assert machine.gpus[0].memory_bytes == 80 * GIB
    assert machine.driver_version == "570.86"
    assert hardware.driver_cuda() == "12.8"
    assert hardware.device_used_bytes(1) == 2 * GIB
    assert fake.starts == 1


def test_a_forked_process_starts_the_library_anew(
    driver: Callable[..., FakeDriver], monkeypatch: pytest.MonkeyPatch
) -> None:
    fake = driver()
    hardware.device_used_bytes(0)
    monkeypatch.setattr(os, "getpid", lambda: 424242)
    hardware.device_used_bytes(0)
    assert fake.starts == 2


def test_processes_memory_is_the_sum_over_our_own(driver: Callable[..., FakeDriver]) -> None:
    driver().processes = [process(10, 3 * GIB), process(11, 2 * GIB), process(99, 50 * GIB)]
    assert hardware.process_used_bytes(0, {10, 11, 12}) == 5 * GIB


@pytest.mark.parametrize("listed", [[], [process(99, 50 * GIB)], [process(10, None)]])
def test_processes_the_driver_does_not_know_have_unknown_memory_not_none(
    driver: Callable[..., FakeDriver], listed: list[Any]
) -> None:
    driver().processes = listed
    assert hardware.process_used_bytes(0, {10}) is None


def test_pcie_traffic_is_host_to_device_first(driver: Callable[..., FakeDriver]) -> None:
    driver()
    assert hardware.pcie_bytes_per_s(0) == (1_024_000.0, 10_240.0)


def test_what_the_driver_refuses_is_unknown(driver: Callable[..., FakeDriver]) -> None:
    driver(
        "nvmlDeviceGetPcieThroughput", "nvmlDeviceGetComputeRunningProcesses", "nvmlSystemGetDriverVersion"
    )
    assert hardware.pcie_bytes_per_s(0) is None
    assert hardware.process_used_bytes(0, {1}) is None
    assert hardware.detect().driver_version is None
    assert len(hardware.detect().gpus) == 2


@pytest.mark.parametrize(
    ("visible", "indices"),
    [
        (None, [0, 1]),
        ("", []),
        ("-1", []),
        ("1", [1]),
        ("1,0", [1, 0]),
        ("GPU-bbbb, 0", [1, 0]),
        ("0,7,1", [0]),
        ("0,0,1", [0]),
        ("GPU-", []),
    ],
)
def test_visible_devices_are_read_as_cuda_reads_them(
    driver: Callable[..., FakeDriver],
    monkeypatch: pytest.MonkeyPatch,
    visible: str | None,
    indices: list[int],
) -> None:
    driver()
    if visible is None:
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    else:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert [gpu.index for gpu in hardware.cuda_gpus(hardware.detect())] == indices


def test_the_fingerprint_counts_the_used_cards_and_leaves_cpu_studies_alone(
    driver: Callable[..., FakeDriver],
) -> None:
    driver()
    machine = hardware.detect()
    assert hardware.fingerprint(machine, "cuda", (0, 1))["GPUs"].startswith("2 x NVIDIA H100")
    assert hardware.fingerprint(machine, "cuda", (0,)) == hardware.fingerprint(machine, "cuda", (1,))
    assert set(hardware.fingerprint(machine, "cpu", ())) == {"processor", "cores", "host memory"}


def test_builders_are_told_the_architectures_so_that_they_need_not_start_cuda(
    driver: Callable[..., FakeDriver], monkeypatch: pytest.MonkeyPatch
) -> None:
    driver()
    monkeypatch.delenv("TORCH_CUDA_ARCH_LIST", raising=False)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert hardware.cuda_build_environment() == {"TORCH_CUDA_ARCH_LIST": "8.6;9.0"}
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    assert hardware.cuda_build_environment() == {"TORCH_CUDA_ARCH_LIST": "9.0"}
    monkeypatch.setenv("TORCH_CUDA_ARCH_LIST", "7.0")
    assert hardware.cuda_build_environment() == {}


def test_without_gpus_builders_are_told_nothing(no_driver: None) -> None:
    assert hardware.cuda_build_environment() == {}
