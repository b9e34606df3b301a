"""torch's CUDA allocator: its exact peaks between two looks.

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

    def peaks(self) -> tuple[int, int]:
        """The peaks of (allocated, reserved) since this was last asked; exact, nothing is sampled."""
        found: Any = torch.cuda.memory_stats_as_nested_dict()
        allocated, reserved = (_peak(found, name) for name in ("allocated_bytes", "reserved_bytes"))
        torch.cuda.reset_peak_memory_stats()
        self.allocated_peak = max(self.allocated_peak, allocated)
        self.reserved_peak = max(self.reserved_peak, reserved)
        return allocated, reserved


def _peak(stats: dict[str, Any], name: str) -> int:
    """Zero before the first allocation, when torch has no such entry yet."""
    return int(stats.get(name, {}).get("all", {}).get("peak", 0))
