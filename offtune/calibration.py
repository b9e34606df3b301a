"""What a calibration is: figures measured on one machine, each with its spread or why there is none.

Covered: the records, and what parent and child of a calibration tell each other. Not covered: measuring
(`worker/calibrate.py`), and the hardware profile made of them (`calibrated_profile.py`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from offtune.trial import DeviceKind

RATE = "B/s"
FLOPS = "FLOP/s"
ELEMENTS = "elements/s"
SECONDS = "s"
BYTES = "B"
SHARE = "1"


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """One measured number: the median of `count` repeats; `spread` is their interquartile range over it.

    Without a `value` the `detail` says why; with one it says what was measured.
    """

    key: str
    value: float | None
    unit: str
    spread: float | None = None
    count: int = 0
    detail: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration:
    """All figures of one machine. `threads` are those of one rank, as trials have them with as many ranks.

    `load_per_core` is the machine's when it began: above a half, others were at work too.
    """

    measured_at: str
    device: DeviceKind
    ranks: int
    threads: int
    load_per_core: float
    seconds: float
    fingerprint: Mapping[str, str]
    figures: tuple[Figure, ...]
    notes: tuple[str, ...] = ()

    def figure(self, key: str) -> Figure | None:
        """The figure of that key, measured or not; None where it was never asked for."""
        return next((figure for figure in self.figures if figure.key == key), None)

    def best(self, prefix: str) -> Figure | None:
        """The largest measured figure whose key begins with `prefix`."""
        found = [figure for figure in self.figures if figure.key.startswith(prefix)]
        return max(found, key=lambda figure: figure.value or 0.0, default=None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """What the child is to measure; `budget_s` is for one figure, `sections` are taken in order.

    `gpu` is the index in NVML's order, None without CUDA. `nvme_dir` is an existing folder of our own.
    """

    device: DeviceKind
    sections: tuple[str, ...]
    threads: int
    cores: int
    ranks: int = 1
    budget_s: float = 1.0
    gpu: int | None = None
    nvme_dir: str | None = None
    scratch_dir: str = ""
    token: str = "0"  # of the names that DeepSpeed gives to its shared buffers (`scratch.new_token`)


# What each section of the child measures, by the beginnings of its keys.
SECTIONS: dict[str, tuple[tuple[str, str], ...]] = {
    "context": (("context", BYTES),),
    "matrix": (("matrix.bf16", FLOPS), ("matrix.fp16", FLOPS), ("matrix.fp32", FLOPS)),
    "attention": (("attention", FLOPS),),
    "device memory": (("device.stream", RATE),),
    "launch": (("launch.operation", SECONDS),),
    "copies": (
        ("h2d.pinned", RATE), ("d2h.pinned", RATE), ("h2d.pageable", RATE), ("d2h.pageable", RATE),
        ("link.duplex", SHARE),
    ),
    "host memory": (("host.copy", RATE), ("host.stream", RATE)),
    "CPU Adam": (("adam", ELEMENTS),),
    "storage": (("nvme.read", RATE), ("nvme.write", RATE)),
    "collectives": (("collective", RATE),),
    "layers": (("launch.layer", SECONDS),),
}  # fmt: skip
