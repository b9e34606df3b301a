"""The public NVML traces against their published phase averages, side by side.

    python benchmarks/published_traces.py ../shared/traces

Figures of docs/report.md. The published ones are the averages of iterations 4 to n-1; GiB/s, GiB, percent.
"""

from __future__ import annotations

import sys
from pathlib import Path

from offtune.nvml_trace import read_trace, steady_steps
from offtune.phase_analysis import analyse, combined

GIB = 2**30
PHASES = ("forward", "backward", "update")
HEADINGS = ("D2H", "H2D", "D2H peak", "H2D peak", "memory peak", "GPU busy")
PUBLISHED = {
    "13B_ratio1": (
        (0.003, 0.012, 0.008, 0.015, 26.842, 50.583),
        (5.752, 2.725, 23.809, 26.067, 31.504, 47.701),
        (0.338, 3.027, 2.051, 18.262, 24.688, 15.225),
    ),
    "20B_ratio0.5": (
        (0.195, 1.681, 0.985, 8.908, 49.330, 77.715),
        (4.963, 3.891, 19.898, 23.409, 55.281, 42.259),
        (0.294, 3.273, 0.998, 11.677, 45.209, 16.026),
    ),
}
SERIES = (
    ("d2h_bytes_per_s", "mean"),
    ("h2d_bytes_per_s", "mean"),
    ("d2h_bytes_per_s", "peak"),
    ("h2d_bytes_per_s", "peak"),
    ("device_used_bytes", "peak"),
)


def main(folder: Path) -> None:
    """Print one line a run and phase: published / ours."""
    print(f"{'run':<14}{'phase':<10}" + "".join(f"{heading:>15}" for heading in HEADINGS))
    for run, published in PUBLISHED.items():
        timelines = read_trace(folder / f"{run}_nvml.csv", folder / f"{run}_phases.csv")
        found = combined([one for line in timelines if (one := analyse(line, steady_steps(line)))])
        assert found is not None
        for name, figures in zip(PHASES, published, strict=True):
            phase = found.find(name)
            assert phase is not None
            ours = [getattr(phase.figures[key], what) / GIB for key, what in SERIES]
            ours.append(100 * phase.figures["gpu_busy_share"].mean)
            cells = (f"{a:.2f} / {b:.2f}" for a, b in zip(figures, ours, strict=True))
            print(f"{run:<14}{name:<10}" + "".join(f"{cell:>15}" for cell in cells))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
