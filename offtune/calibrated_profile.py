"""Makes a hardware profile of a calibration: what was measured, over the packaged profile that is nearest.

Covered: which figure is which number of a profile, and the source of each. Not covered: numbers that no
calibration measures (fabric, shared link); they are taken over, and their sources say so.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from offtune import hardware_profile
from offtune.calibration import BYTES, Calibration, Figure
from offtune.export import write_export
from offtune.hardware_profile import HardwareProfile
from offtune.machine_profile import packaged_for

_PRECISIONS = ("bf16", "fp16", "fp32")
_LIKE_UNKNOWN = "a100-40gb"  # the packaged card with most published runs
_NO_LINK = "; there is no link"


def document(calibration: Calibration) -> dict[str, Any]:
    """The profile as `hardware_profiles/*.yaml` has it."""
    return {
        "about": _about(calibration),
        "like": like(calibration),
        "device": calibration.device,
        "gpus_per_node": calibration.ranks,
        "matrix_flops_per_s": {name: _matrix(calibration, name) for name in _PRECISIONS},
        "numbers": {
            name: {"value": value, "source": source} for name, value, source in _numbers(calibration)
        },
    }


def write(calibration: Calibration, path: Path, force: bool) -> None:
    """Write the profile as a file that `--hardware` takes. Raises UsageError, OfftuneError as exports do."""
    write_export(hardware_profile.dumps(document(calibration)), path, force)


def profile(calibration: Calibration) -> HardwareProfile:
    """The profile itself, through the same reader as one from a file."""
    with tempfile.TemporaryDirectory(prefix="offtune-profile-") as folder:
        path = Path(folder) / "calibrated.yaml"
        path.write_text(hardware_profile.dumps(document(calibration)), encoding="utf-8")
        return hardware_profile.load(str(path))


def taken_over(calibration: Calibration) -> list[str]:
    """The numbers of the profile that were not measured but are those of another machine."""
    own = set(document(calibration)["numbers"])
    return [name for name in hardware_profile.NUMBERS if name not in own]


def like(calibration: Calibration) -> str:
    """The packaged profile that fills in what was not measured."""
    if calibration.device == "cpu":
        return "cpu"
    return packaged_for(calibration.fingerprint.get("GPUs", "")) or _LIKE_UNKNOWN


def _about(calibration: Calibration) -> str:
    machine = ", ".join(f"{name} {value}" for name, value in calibration.fingerprint.items())
    return f"measured by offtune calibrate on {calibration.measured_at[:10]}: {machine}"


def _matrix(calibration: Calibration, precision: str) -> dict[str, Any]:
    figure = calibration.figure(f"matrix.{precision}")
    if figure is None or figure.value is None:
        reason = figure.detail if figure is not None else "nobody asked for it"
        return {"value": 0, "source": f"not measured by offtune calibrate: {reason}"}
    return {"value": _rounded(figure.value), "source": _source(calibration, figure)}


def _numbers(calibration: Calibration) -> Iterator[tuple[str, float, str]]:
    """Name, value and source of every number that was measured."""
    for name, figure, remark in _choices(calibration):
        if figure is not None and figure.value is not None:
            value = figure.value if figure.unit == BYTES else _rounded(figure.value)
            yield name, value, _source(calibration, figure) + remark
    yield from _efficiencies(calibration)


def _choices(calibration: Calibration) -> Iterator[tuple[str, Figure | None, str]]:
    """Which figure is which number; links are those of the largest copies."""
    copying = calibration.figure(f"host.copy.threads_{calibration.threads}")
    on_cpu = calibration.device == "cpu"
    for number, prefix in (
        ("h2d_bytes_per_s", "h2d.pinned"), ("d2h_bytes_per_s", "d2h.pinned"),
        ("pageable_h2d_bytes_per_s", "h2d.pageable"), ("pageable_d2h_bytes_per_s", "d2h.pageable"),
    ):  # fmt: skip
        # On the CPU accelerator "copies to the device" copy within the host's memory.
        yield number, copying if on_cpu else calibration.best(prefix), _NO_LINK if on_cpu else ""
    yield "layer_launch_s", calibration.figure("launch.layer"), ""
    yield "device_memory_bytes", calibration.figure("memory.device"), ""
    yield "device_bytes_per_s", calibration.figure("device.stream"), ""
    yield "context_bytes", calibration.figure("context"), ""
    yield "duplex_share", calibration.figure("link.duplex"), ""
    yield "collective_bytes_per_s", calibration.best("collective."), ""
    yield "host_memory_bytes", calibration.figure("memory.host"), ""
    yield "host_bytes_per_s", calibration.best("host.stream."), ""
    yield "host_copy_bytes_per_s", copying, ""
    yield "adam_elements_per_s", calibration.best("adam."), ""
    yield "nvme_read_bytes_per_s", calibration.figure("nvme.read"), ""
    yield "nvme_write_bytes_per_s", calibration.figure("nvme.write"), ""


def _efficiencies(calibration: Calibration) -> Iterator[tuple[str, float, str]]:
    """Shares of the matrix rate, which is measured, so that matrix products reach all of it."""
    when = _when(calibration)
    if calibration.best("matrix.") is not None:
        yield "matrix_efficiency", 1.0, f"{when}: the matrix rates are what products reach, no peak"
    attention = calibration.best("attention.")
    if attention is None or attention.value is None:
        return
    matrix = calibration.figure(attention.key.replace("attention", "matrix"))
    if matrix is not None and matrix.value:
        share = min(1.0, attention.value / matrix.value)
        source = f"{_source(calibration, attention)}; as a share of the matrix rate"
        yield "attention_efficiency", _rounded(share), source


def _source(calibration: Calibration, figure: Figure) -> str:
    spread = "" if figure.spread is None else f"; {figure.count} repeats, spread {100 * figure.spread:.0f} %"
    return f"{_when(calibration)}: {figure.detail}{spread}"


def _when(calibration: Calibration) -> str:
    return f"measured by offtune calibrate on {calibration.measured_at[:10]}"


def _rounded(value: float) -> float:
    """Four figures, more than any measurement here is good for."""
    return float(f"{value:.4g}")
