"""torch's CUDA allocator: what it holds now, and its exact peaks between two looks.

Covered: bytes handed out (allocated) and kept from the driver (reserved), of this process's device. Not
covered: what the driver counts beside it, which is the gap shown to people.
"""

from __future__ import annotations

from typing import Any

import torch


class AllocatorMemory:
    """Its own high-water marks are restarted by `peaks`, so the whole trial's are kept here."""

    def __init__(self) -> None:
        self.allocated_peak = self.reserved_peak = 0

    def now(self) -> tuple[int, int]:
        """(allocated, reserved) bytes."""
        return self._read("current")

    def peaks(self) -> tuple[int, int]:
        """The peaks of (allocated, reserved) since this was last asked; exact, nothing is sampled."""
        allocated, reserved = self._read("peak")
        torch.cuda.reset_peak_memory_stats()
        self.allocated_peak = max(self.allocated_peak, allocated)
        self.reserved_peak = max(self.reserved_peak, reserved)
        return allocated, reserved

    @staticmethod
    def _read(which: str) -> tuple[int, int]:
        found: Any = torch.cuda.memory_stats_as_nested_dict()
        pools = (found.get(name, {}).get("all", {}) for name in ("allocated_bytes", "reserved_bytes"))
        allocated, reserved = (int(pool.get(which, 0)) for pool in pools)
        return allocated, reserved
