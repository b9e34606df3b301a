"""Budgets: how much device and host memory a study may use, from what the person typed.

Covered: sizes, percentages, and what is taken where nothing was said. Not covered: comparing with them.
"""

from __future__ import annotations

from offtune import hardware
from offtune.errors import UsageError
from offtune.hardware import Machine
from offtune.units import format_bytes, parse_bytes, parse_share

# Share of the host memory available at the start that trials may use together (design, section 2).
_HOST_SHARE = 0.9


def budget_bytes(text: str | None, machine: Machine, gpus: tuple[int, ...]) -> int:
    """Device memory a rank may use: as asked, else the smallest of the cards."""
    if text is not None:
        return parse_bytes(text, "--budget")
    cards = [gpu.memory_bytes for gpu in machine.gpus if gpu.index in gpus]
    if not cards:
        raise UsageError(
            "--budget is missing: without a GPU there is no card size to take it from.", "Try: --budget 2GB"
        )
    return min(cards)


def headroom_bytes(text: str | None, budget: int) -> int:
    """Bytes to keep free below the budget, from a size or a percentage."""
    if text is None:
        return 0
    if text.strip().endswith("%"):
        headroom = round(budget * parse_share(text, "--headroom", "5% or 2GB"))
    else:
        headroom = parse_bytes(text, "--headroom")
    if not 0 <= headroom < budget:
        raise UsageError(
            f"--headroom: {text} leaves nothing of {format_bytes(budget)}.", "Write it like 5% or 2GB."
        )
    return headroom


def host_limit_bytes(text: str | None) -> int:
    """Host memory of all ranks together: as asked, else most of what is free now."""
    if text is not None:
        return parse_bytes(text, "--host-budget")
    return int(hardware.available_host_bytes() * _HOST_SHARE)
