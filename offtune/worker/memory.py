"""Peak memory of one rank, sampled while it trains and made exact where the kernel keeps a peak.

Covered: resident memory (CPU accelerator and host side), device memory as the driver reports it (CUDA), and
PCIe rates. Not covered: memory by phase over time (`recorder.py`). What cannot be measured is None.
"""

from __future__ import annotations

import ctypes
import os
import threading
from collections.abc import Callable
from pathlib import Path

from offtune import hardware
from offtune.trial import DeviceKind, MemoryPeaks, Traffic

_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_PROC_BYTES = 8192  # more than any of the files read here holds
# 10 ms costs under 0.5 % of one core here; a step of the smallest model takes ten times that.
_RESIDENT_INTERVAL_S = 0.01
# NVML averages PCIe counters over 20 ms itself and one query blocks that long.
_DRIVER_INTERVAL_S = 0.05


class ProcFile:
    """One of this process's own files in /proc, kept open: reading again costs a tenth of opening again.

    Make it after a fork; a copy in a forked child goes on telling of the parent. Raises OSError.
    """

    def __init__(self, name: str) -> None:
        self._descriptor = os.open(f"/proc/self/{name}", os.O_RDONLY | os.O_CLOEXEC)

    def read(self) -> bytes:
        """What it says now."""
        return os.pread(self._descriptor, _PROC_BYTES, 0)

    def close(self) -> None:
        os.close(self._descriptor)


class ResidentReader:
    """Resident memory without file pages: the pages of shared libraries come and go at the kernel's will."""

    def __init__(self) -> None:
        self.statm, self._status = ProcFile("statm"), ProcFile("status")
        self._shared = (b"", 0)  # file-backed pages as statm had them, and bytes of shared memory then

    def read(self) -> int:
        """Bytes now."""
        return self.bytes_in(self.statm.read())

    def bytes_in(self, statm: bytes) -> int:
        """Bytes when statm said this. It has shared memory as file-backed; DeepSpeed's buffers are ours."""
        _, resident, file_backed, _ = statm.split(None, 3)
        seen, shared_bytes = self._shared
        if file_backed != seen:
            # status takes four times as long to read as all the rest, and says something new only then.
            shared_bytes = 1024 * int(self._status.read().partition(b"RssShmem:")[2].split(None, 1)[0])
            self._shared = (file_backed, shared_bytes)
        return (int(resident) - int(file_backed)) * _PAGE_BYTES + shared_bytes

    def close(self) -> None:
        self.statm.close()
        self._status.close()


def private_resident_bytes() -> int:
    """What a `ResidentReader` reads, once."""
    reader = ResidentReader()
    value = reader.read()
    reader.close()
    return value


def _status_bytes(key: str) -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(key + ":"):
            return int(line.split()[1]) * 1024
    return 0


def trim_heap() -> None:
    """Give free heap pages back, so that a warm and a cold rank start from the same level."""
    ctypes.CDLL(None).malloc_trim(0)


def reset_kernel_peak() -> None:
    """Restart the kernel's own high-water mark (VmHWM) of this process."""
    Path("/proc/self/clear_refs").write_text("5")


class Sampler(threading.Thread):
    """Call `read` every `interval_s` until stopped and `tell` each value; keep the maximum and the mean."""

    def __init__(self, read: Callable[[], float | None], interval_s: float) -> None:
        super().__init__(daemon=True)
        self._read = read
        self._interval_s = interval_s
        self.tell: Callable[[float], object] | None = None
        self._over = threading.Event()
        self.peak: float | None = None
        self.total = 0.0
        self.count = 0

    def run(self) -> None:
        while not self._over.wait(self._interval_s):
            value = self.sample()
            tell = self.tell  # once: another thread may take it away between a look and the call
            if value is not None and tell is not None:
                tell(value)

    def sample(self) -> float | None:
        """Read once, beside the clock; nobody is told."""
        value = self._read()
        if value is not None:
            self.book(value)
        return value

    def book(self, value: float) -> None:
        """Count a value that somebody else has read."""
        self.peak = value if self.peak is None else max(self.peak, value)
        self.total += value
        self.count += 1

    def stop(self) -> None:
        self._over.set()
        self.join()


class ResidentMemory:
    """Peak resident memory of this rank from its creation on, and the level it started from."""

    def __init__(self) -> None:
        trim_heap()
        reset_kernel_peak()
        self._reader = reader = ResidentReader()
        self.level_bytes = reader.read()
        # What the kernel says now, for `looked` to read later: beside a phase nothing may take long.
        self.look: Callable[[], bytes] = reader.statm.read
        self._sampler = Sampler(reader.read, _RESIDENT_INTERVAL_S)
        self._sampler.start()

    def looked(self, seen: bytes) -> float:
        """Bytes of an earlier `look`, which count for the peak."""
        value = self._reader.bytes_in(seen)
        self._sampler.book(value)
        return value

    def listen(self, tell: Callable[[float], object] | None) -> None:
        """Tell each sample by the clock from now on, in the sampling thread; None tells nobody."""
        self._sampler.tell = tell

    def peak_bytes(self) -> int:
        """Two lower bounds, the larger counts: the samples miss short peaks, VmHWM less the file pages of
        the end is short by file pages that came after the peak."""
        self._sampler.sample()
        from_kernel = _status_bytes("VmHWM") - _status_bytes("RssFile")
        return max(int(self._sampler.peak or 0), from_kernel)

    def used_bytes(self) -> int:
        return max(0, self.peak_bytes() - self.level_bytes)

    def stop(self) -> None:
        self._sampler.stop()


class DriverMemory:
    """Device memory of this rank by the driver; falls back to device use above its level at the start.

    `gpu` is the NVML index of the card.
    """

    def __init__(self, gpu: int) -> None:
        self._gpu = gpu
        self._start_bytes = hardware.device_used_bytes(gpu)
        self.source = "driver, this process"
        self._sampler = Sampler(self._read, _DRIVER_INTERVAL_S)
        self._sampler.start()

    def _read(self) -> float | None:
        mine = hardware.process_used_bytes(self._gpu, {os.getpid()})
        if mine is not None:
            return float(mine)
        whole = hardware.device_used_bytes(self._gpu)
        if whole is None or self._start_bytes is None:
            return None
        self.source = "driver, device above its level before the trial"
        return float(whole - self._start_bytes)

    def listen(self, tell: Callable[[float], object] | None) -> None:
        """Tell each sample by the clock from now on, in the sampling thread; None tells nobody."""
        self._sampler.tell = tell

    def now_bytes(self) -> int | None:
        value = self._read()
        return None if value is None else int(value)

    def peak_bytes(self) -> int | None:
        self._sampler.sample()
        return None if self._sampler.peak is None else int(self._sampler.peak)

    def stop(self) -> None:
        self._sampler.stop()


class LinkTraffic:
    """Mean PCIe rates (CUDA) and bytes to and from block devices over a stretch of steps."""

    def __init__(self, device: DeviceKind, gpu: int) -> None:
        self._device = device
        self._io_start = io_bytes()
        self._gpu = gpu
        self._tell: Callable[[tuple[float, float] | None], object] | None = None
        self._up = self._down = 0.0
        self._sampler = Sampler(self._read, _DRIVER_INTERVAL_S)
        if device == "cuda":
            self._sampler.start()

    def _read(self) -> float | None:
        rates = hardware.pcie_bytes_per_s(self._gpu)
        tell = self._tell
        if tell is not None:
            tell(rates)
        if rates is None:
            return None
        self._up += rates[0]
        self._down += rates[1]
        return rates[0] + rates[1]

    def listen(self, tell: Callable[[tuple[float, float] | None], object] | None) -> None:
        """Tell each sample from now on: (H2D, D2H) in bytes per second, None without such a counter."""
        self._tell = tell

    def finish(self) -> Traffic:
        if self._device == "cuda":
            self._sampler.stop()
        count = self._sampler.count
        read, write = (end - start for start, end in zip(self._io_start, io_bytes(), strict=True))
        return Traffic(
            h2d_bytes_per_s=self._up / count if count else None,
            d2h_bytes_per_s=self._down / count if count else None,
            pcie_reason="" if count else self._why_no_pcie(),
            nvme_read_bytes=read,
            nvme_write_bytes=write,
        )

    def _why_no_pcie(self) -> str:
        if self._device == "cpu":
            return "CPU accelerator: host and device are one memory, nothing crosses a link"
        return "the driver has no PCIe counters for this GPU"


def io_bytes() -> tuple[int, int]:
    """(read, written) by this process on block devices so far, by the kernel's accounting."""
    return io_bytes_of(Path("/proc/self/io").read_bytes())


def io_bytes_of(text: bytes) -> tuple[int, int]:
    """(read, written) in the text of a process's io file."""
    read, _, written, *_ = text.partition(b"\nread_bytes: ")[2].split(None, 3)  # write_bytes comes next
    return int(read), int(written)


def peaks(resident: ResidentMemory, driver: DriverMemory | None, allocated: int | None, reserved: int | None,
          pinned: int | None) -> MemoryPeaks:  # fmt: skip
    """What the budget is compared with, by device: see the design's definition of used memory."""
    if driver is None:
        used: int | None = resident.used_bytes()
        source = "resident memory of the rank above its level before the model was built"
    else:
        used, source = driver.peak_bytes(), driver.source
    return MemoryPeaks(
        used_device_bytes=used,
        device_source=source if used is not None else "",
        allocated_bytes=allocated,
        reserved_bytes=reserved,
        used_host_bytes=resident.peak_bytes(),
        pinned_bytes=pinned,
    )
