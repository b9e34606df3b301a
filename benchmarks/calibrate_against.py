"""Holds what `offtune calibrate` measures against independent tools, in turn, on this machine.

    python benchmarks/calibrate_against.py --nvme-path /mnt/nvme [--rounds 3]

Each round runs offtune's own measuring child and then the other tools, so that both meet the same weather;
the table has the median of each and of the ratios, with the range of the ratios over the rounds. Tools: fio
(storage; the same block size, queue depth and direct I/O), a plain loop of torch.matmul, numpy (OpenBLAS),
mbw (memcpy). One that is missing is skipped, with the reason.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable

from offtune import host
from offtune.calibration import Task
from offtune.launch import child_environment
from offtune.trial import dump

FIO_SECONDS = 3
MBW_MIB = 128
# torch.matmul of this width, timed by time.time around a whole loop: nothing of offtune's.
TORCH_LOOP = """
import time, torch
torch.set_num_threads({threads})
a, b = (torch.randn(1024, 1024, dtype=torch.{dtype}) for _ in range(2))
a @ b
start, n = time.time(), 0
while time.time() - start < 1.5:
    a @ b
    n += 1
print(2 * 1024**3 * n / (time.time() - start))
"""
NUMPY_LOOP = """
import time, numpy
a, b = (numpy.random.rand(1024, 1024).astype("float32") for _ in range(2))
a @ b
start, n = time.time(), 0
while time.time() - start < 1.5:
    a @ b
    n += 1
print(2 * 1024**3 * n / (time.time() - start))
"""
Tool = Callable[[], "float | str"]  # a rate, or why there is none


def ours(sections: tuple[str, ...], nvme_dir: str | None, threads: int) -> dict[str, float]:
    """One run of offtune's measuring child."""
    task = Task(
        device="cpu", sections=sections, threads=threads, cores=host.usable_cores(), budget_s=1.0,
        nvme_dir=nvme_dir,
    )  # fmt: skip
    done = subprocess.run(
        [sys.executable, "-m", "offtune.worker.calibrate", dump(task)],
        env=child_environment("cpu", host.usable_cores()), capture_output=True, text=True, check=True,
    )  # fmt: skip
    events = [json.loads(line) for line in done.stdout.splitlines()]
    return {event["key"]: event["value"] for event in events if event["event"] == "figure"}


def fio(folder: str, direction: str) -> float | str:
    """Bytes per second of fio with DeepSpeed's settings: libaio, O_DIRECT, 1 MiB blocks, depth 8."""
    if shutil.which("fio") is None:
        return "fio is not installed (apt-get install fio)"
    command = [
        "fio", "--name=offtune", f"--filename={folder}/fio.swp", f"--rw={direction}", "--bs=1m",
        "--iodepth=8", "--ioengine=libaio", "--direct=1", "--size=256m", "--time_based",
        f"--runtime={FIO_SECONDS}",
        "--output-format=json",
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        return f"fio ended with code {done.returncode}: {done.stderr.strip()[-100:]}"
    return float(json.loads(done.stdout[done.stdout.index("{") :])["jobs"][0][direction]["bw_bytes"])


def loop(program: str, threads: int) -> float | str:
    """FLOP/s that a loop in a process of its own prints."""
    environment = {
        **os.environ,
        **{f"{name}_NUM_THREADS": str(threads) for name in ("OMP", "MKL", "OPENBLAS")},
    }
    done = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=False
    )
    return float(done.stdout) if done.returncode == 0 else done.stderr.strip().splitlines()[-1]


def mbw() -> float | str:
    """Bytes per second copied by memcpy, one thread: the median of ten."""
    if shutil.which("mbw") is None:
        return "mbw is not installed (apt-get install mbw)"
    done = subprocess.run(
        ["mbw", "-t0", "-n", "10", str(MBW_MIB)], capture_output=True, text=True, check=True
    )
    # One line a copy, "0 Method: MEMCPY Elapsed: 0.03 MiB: 128.0 Copy: 4000 MiB/s", then a mean.
    rates = re.findall(r"^\d+\s+Method: MEMCPY.*Copy: ([\d.]+) MiB/s", done.stdout, flags=re.MULTILINE)
    return statistics.median(float(rate) for rate in rates) * 2**20


def tools(nvme_dir: str | None) -> list[tuple[str, str, Tool]]:
    """Our key, what it is held against, and how."""
    none = "no folder on NVMe was named: --nvme-path"
    return [
        ("nvme.write", "fio write", lambda: fio(nvme_dir, "write") if nvme_dir else none),
        ("nvme.read", "fio read", lambda: fio(nvme_dir, "read") if nvme_dir else none),
        ("matrix.bf16", "torch loop", lambda: loop(TORCH_LOOP.format(threads=1, dtype="bfloat16"), 1)),
        ("matrix.fp32", "torch loop", lambda: loop(TORCH_LOOP.format(threads=1, dtype="float32"), 1)),
        ("matrix.fp32", "numpy loop", lambda: loop(NUMPY_LOOP, 1)),
        ("host.copy.threads_1", "mbw memcpy", mbw),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--nvme-path")
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    pairs: dict[tuple[str, str], list[tuple[float, float]]] = {}
    skipped: dict[tuple[str, str], str] = {}
    print(f"load {host.load_per_core():.1f} per core of {host.usable_cores()}; one thread")
    for _ in range(options.rounds):
        one_round(options.nvme_path, pairs, skipped)
    report(pairs, skipped)


def one_round(
    nvme_path: str | None,
    pairs: dict[tuple[str, str], list[tuple[float, float]]],
    skipped: dict[tuple[str, str], str],
) -> None:
    """Ours of one kind, then the tools for it at once: a minute later the machine may be another."""
    with tempfile.TemporaryDirectory(prefix="offtune-against-", dir=nvme_path) as folder:
        nvme_dir = folder if nvme_path else None
        for section, prefix in (("storage", "nvme"), ("matrix", "matrix"), ("host memory", "host")):
            found = ours((section,), nvme_dir, threads=1)
            for key, name, tool in tools(nvme_dir):
                if key.startswith(prefix):
                    rate = tool()
                    if isinstance(rate, str):
                        skipped[key, name] = rate
                    elif found.get(key):
                        pairs.setdefault((key, name), []).append((found[key], rate))


def report(
    pairs: dict[tuple[str, str], list[tuple[float, float]]], skipped: dict[tuple[str, str], str]
) -> None:
    """The table."""
    print(f"{'figure':<22}{'tool':<13}{'offtune':>10}{'tool':>10}{'ratio':>7}  range over rounds")
    for (key, name), both in pairs.items():
        mine, theirs = (statistics.median(values) / 1e9 for values in zip(*both, strict=True))
        ratios = [first / second for first, second in both]
        span = f"{min(ratios):.2f} to {max(ratios):.2f}"
        print(f"{key:<22}{name:<13}{mine:>10.2f}{theirs:>10.2f}{statistics.median(ratios):>7.2f}  {span}")
    print("in 10^9 bytes per second (nvme, host) or operations per second (matrix)")
    for (key, name), reason in skipped.items():
        print(f"{key} against {name}: skipped, {reason}")


if __name__ == "__main__":
    main()
