"""What this machine can do at best, for saying how near a phase comes to it.

Covered: which numbers of a hardware profile are this machine's own, as one rank's share. Not covered:
measuring them (`calibrate`) and what they bound (`bounds.py`).
"""

from __future__ import annotations

from offtune.bounds import Peaks
from offtune.calibrated_machine import NAME
from offtune.config import RunConfig
from offtune.hardware_profile import HardwareProfile


def machine_peaks(profile: HardwareProfile, config: RunConfig) -> Peaks:
    """Peaks of one rank. Of a machine that was not calibrated only the link is known, by the kind of card."""
    link = {name: _own(profile, name, 1) for name in ("h2d_bytes_per_s", "d2h_bytes_per_s")}
    if config.device == "cpu":
        link = dict.fromkeys(link)
    if profile.name != NAME:
        return Peaks(**link)
    ranks = config.nodes.ranks_per_node if config.nodes else config.workload.world_size
    return Peaks(
        nvme_read_bytes_per_s=_own(profile, "nvme_read_bytes_per_s", ranks),
        nvme_write_bytes_per_s=_own(profile, "nvme_write_bytes_per_s", ranks),
        host_memory_bytes_per_s=_own(profile, "host_bytes_per_s", ranks),
        **link,
    )


def _own(profile: HardwareProfile, number: str, sharers: int) -> float | None:
    """A rate as one rank's share of it; zero in a profile means that there is none."""
    value = float(getattr(profile, number))
    return value / sharers if value > 0 and profile.is_own(number) else None
