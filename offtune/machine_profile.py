"""Which hardware profile stands for this machine.

Covered: packaged profiles by the card's name, a stand-in for cards without one. Not covered: measuring a
machine (`calibrate`), whose profile is better than any of these.
"""

from __future__ import annotations

import re
from dataclasses import replace

from offtune import hardware_profile
from offtune.hardware import Machine, cuda_gpus
from offtune.hardware_profile import HardwareProfile
from offtune.trial import DeviceKind

# Words of a card's name as the driver gives it, all of which must be there; the first match counts. Cards of
# one kind differ in memory, which the driver tells better than their name.
_BY_NAME: tuple[tuple[tuple[str, ...], str], ...] = (
    (("GH200",), "gh200"),
    (("H200",), "h200"),
    (("H100",), "h100-80gb"),
    (("A100", "80GB"), "a100-80gb"),
    (("A100",), "a100-40gb"),
    (("V100",), "v100-32gb"),
    (("4090",), "rtx4090"),
    (("3090",), "rtx3090"),
    (("A10G",), "a10g"),
    (("L4",), "l4"),
)


def profile_for(device: DeviceKind, machine: Machine) -> HardwareProfile:
    """The profile of the machine that trains; where there is none, the nearest one, its numbers assumed."""
    gpus = cuda_gpus(machine)
    if device == "cpu" or not gpus:
        return hardware_profile.load("cpu")
    name = packaged_for(gpus[0].name)
    if name is None:
        return _stand_in(gpus[0].name, gpus[0].memory_bytes)
    return replace(hardware_profile.load(name), device_memory_bytes=float(gpus[0].memory_bytes))


def packaged_for(card: str) -> str | None:
    """The packaged profile of a card by its name; None for a card without one."""
    words = re.split(r"[^A-Za-z0-9]+", card)
    return next((name for wanted, name in _BY_NAME if all(word in words for word in wanted)), None)


def _stand_in(card: str, memory_bytes: int) -> HardwareProfile:
    """The packaged card nearest in memory; every number says that it is another machine's."""
    known = [hardware_profile.load(name) for name in hardware_profile.names()]
    cards = [profile for profile in known if profile.device == "cuda"]
    near = min(cards, key=lambda profile: abs(profile.device_memory_bytes - memory_bytes))
    sources = {number: f"as {near.name}: {source}" for number, source in near.sources.items()}
    return replace(
        near,
        name=f"{card} (rates as {near.name})",
        device_memory_bytes=float(memory_bytes),
        sources=sources,
    )
