"""Fits the time model's constants to the runs of calibration_set.py, from the values now in use.

    python benchmarks/fit_constants.py

Prints old and new value of each; nothing is written. Logarithms of predicted over measured are made small,
outliers weighed down, and every constant is held near where it starts: loosely where runs decide it, tightly
where something better than these runs does (the matrix efficiencies). Needs scipy (the dev dependencies).
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
from calibration_set import fitted_to
from published import Case, cases
from scipy.optimize import least_squares

from offtune import step_rates, time_model
from offtune.hardware_profile import HardwareProfile

SHARED = (
    (time_model, "_OVERLAP"),
    (time_model, "_LAUNCH_OVERLAP"),
    (step_rates, "_HALF_RATE_TOKENS"),
    (step_rates, "_SCORE_TOUCHES"),
    (step_rates, "_STATE_TOUCHES"),
    (step_rates, "_LAUNCH_SHARE_BELOW_3"),
    (step_rates, "_UNBOUND_SHARE"),
    (step_rates, "_UNBOUND_ONE_RANK"),
)
_GPU = ("matrix_efficiency", "attention_efficiency", "layer_launch_s")
MACHINES = {
    "a100": (*_GPU, "fabric_bytes_per_s", "host_copy_bytes_per_s", "adam_elements_per_s", "pageable"),
    "h100": (*_GPU, "shared_link_bytes_per_s", "host_copy_bytes_per_s", "adam_elements_per_s"),
    "cxl": (
        "collective_bytes_per_s",
        "host_copy_bytes_per_s",
        "adam_elements_per_s",
        "nvme_read_bytes_per_s",
        "nvme_write_bytes_per_s",
    ),
}
_PAGEABLE = ("pageable_h2d_bytes_per_s", "pageable_d2h_bytes_per_s")
_FAMILY = {"polaris": "a100", "jlse": "h100", "cxl": "cxl", "vtrain-a100": "a100", "mpt-h100-80gb": "h100"}
_LOOSE, _TIGHT, _OUTLIER = 0.15, 4.0, 0.05


def family(case: Case) -> str:
    return _FAMILY.get(case.row["machine"], "a100")


def main() -> None:
    runs = [case for case in cases() if fitted_to(case.row)]
    names = [(machine, name) for machine, group in MACHINES.items() for name in group]
    start = [math.log(getattr(module, name)) for module, name in SHARED]
    start += [math.log(_current(runs, machine, name)) for machine, name in names]
    held = np.array(
        [_LOOSE] * len(SHARED) + [_TIGHT if n == "matrix_efficiency" else _LOOSE for _, n in names]
    )

    def residuals(values: Any) -> Any:
        off = [error for case in runs for error in _errors(case, values, names)]
        return np.concatenate([off, held * (values - np.array(start))])

    found = least_squares(residuals, start, loss="soft_l1", f_scale=_OUTLIER).x
    print(f"{len(runs)} runs")
    labels = [("shared", name) for _, name in SHARED] + names
    for (machine, name), old, new in zip(labels, start, found, strict=True):
        print(f"{machine:7} {name:26} {math.exp(old):10.4g} -> {math.exp(new):10.4g}")


def _current(runs: list[Case], machine: str, name: str) -> float:
    hardware = next(case.hardware for case in runs if family(case) == machine)
    return float(getattr(hardware, _PAGEABLE[0] if name == "pageable" else name))


def _errors(case: Case, values: Any, names: list[tuple[str, str]]) -> list[float]:
    for (module, name), value in zip(SHARED, values[: len(SHARED)], strict=True):
        setattr(module, name, math.exp(value))
    found = time_model.predict_time(case.work, _hardware(case, values[len(SHARED) :], names))
    phases = {"forward": found.forward_s, "backward": found.backward_s, "update": found.update_s}
    if not case.measured["forward"]:
        phases = {"step": found.step_s + case.harness_s}
    return [math.log(seconds / (case.measured[name] or seconds)) for name, seconds in phases.items()]


def _hardware(case: Case, values: Any, names: list[tuple[str, str]]) -> HardwareProfile:
    """The case's machine with fitted values; the one without NVLink has the other's GPUs."""
    changed: dict[str, Any] = {}
    for (machine, name), value in zip(names, values, strict=True):
        same = machine == family(case) or (family(case) == "cxl" and machine == "h100" and name in _GPU)
        for key in _PAGEABLE if name == "pageable" else (name,):
            changed |= {key: math.exp(value)} if same else {}
    return replace(case.hardware, **changed)


if __name__ == "__main__":
    main()
