"""The machine a search runs on: GPUs, memory, shared memory, limits, disks, threads.

Covered: what makes a trial fail or its figures wrong, seen without starting one. Not covered: software
(`software_checks.py`). `root` is where /proc, /sys and /dev hang; tests give a tree of their own.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from offtune import hardware, host, installed, toolchain
from offtune.check import Check
from offtune.hardware import Gpu, Machine
from offtune.units import format_bytes

_ROOT = Path("/")
# A rank of the default CPU trial peaks at 1.1 to 1.3 GB, the warm server at about 1 GB (measured, two cores).
_HOST_LEAST_BYTES = 2 * 10**9
_HOST_COMFORT_BYTES = 6 * 10**9
_SHM_NAME = "deepspeed_allreduce_buffer_"
_SHM_RANK_BYTES = 69 * 10**6  # one such buffer per rank (csrc/cpu/comm/shm.cpp, DeepSpeed 0.19.8)
_SHM_COMFORT_BYTES = 512 * 10**6  # Docker's default of 64 MB is too small for two ranks or for NCCL
_SWAP_BYTES_PER_PARAMETER = 18  # 16 of optimizer state and gradient, 2 of 16-bit parameter
_DISK_LEAST_BYTES = 200 * 10**6  # the studies' database with its log and the copy before a migration
_GPU_BUSY_BYTES = 10**9  # an idle card shows 0.4 to 0.7 GB of driver; more belongs to somebody
_MEMLOCK_LEAST_BYTES = 2**30  # buffers of NVMe offload are locked; DeepSpeed aborts beyond the limit
_BINDING = ("OMP_PROC_BIND", "OMP_PLACES", "GOMP_CPU_AFFINITY", "KMP_AFFINITY")


def gpus(machine: Machine) -> tuple[Check, ...]:
    """Cards, whether they are free, and whether driver, torch and toolkit belong together."""
    if not machine.gpus:
        return (_no_gpu(),)
    visible = hardware.cuda_gpus(machine)
    if not visible:
        detail = f"{len(machine.gpus)} in the machine, none visible: CUDA_VISIBLE_DEVICES hides them"
        return (Check(name="GPUs", state="warning", detail=detail, remedy="unset CUDA_VISIBLE_DEVICES"),)
    return (*(_gpu(gpu) for gpu in visible), _cuda_versions(machine), _toolkit())


def _no_gpu(root: Path = _ROOT) -> Check:
    if (root / "dev/nvidiactl").exists() or (root / "proc/driver/nvidia").exists():
        detail = "an NVIDIA driver is loaded, but does not answer (nvidia-smi says why)"
        return Check(name="GPUs", state="failed", detail=detail, remedy="nvidia-smi")
    return Check(name="GPUs", state="ok", detail="none: searches run on DeepSpeed's CPU accelerator")


def _gpu(gpu: Gpu) -> Check:
    used = hardware.device_used_bytes(gpu.index)
    detail = f"{gpu.name}, {format_bytes(gpu.memory_bytes)}, {format_bytes(used)} in use"
    if used is not None and used > _GPU_BUSY_BYTES:
        detail += ": somebody else's work spoils memory and speed of trials"
        return Check(name=f"GPU {gpu.index}", state="warning", detail=detail, remedy="nvidia-smi")
    return Check(name=f"GPU {gpu.index}", state="ok" if used is not None else "unknown", detail=detail)


def _cuda_versions(machine: Machine) -> Check:
    """Minor versions mix freely within a major one; a major version newer than the driver's cannot run."""
    build, newest = installed.torch_build(), hardware.driver_cuda()
    name, driver = "driver and torch", f"driver {machine.driver_version or 'unknown'}"
    if build is None or (build.cuda is None and build.hip is None):
        detail = f"{driver}, but torch is built without CUDA: searches run on the CPU accelerator"
        return Check(name=name, state="warning", detail=detail, remedy="pip install --force-reinstall torch")
    if build.cuda is None or newest is None:
        return Check(name=name, state="unknown", detail=f"{driver}, torch {build.version}")
    detail = f"{driver} runs CUDA up to {newest}, torch is built for {build.cuda}"
    if int(build.cuda.split(".")[0]) > int(newest.split(".")[0]):
        remedy = f"update the driver, or install a torch built for CUDA {newest.split('.')[0]}"
        return Check(name=name, state="failed", detail=detail, remedy=remedy)
    return Check(name=name, state="ok", detail=detail)


def _toolkit() -> Check:
    """The CUDA compiler, which only FusedAdam needs: configurations without optimizer offload."""
    found, build = toolchain.cuda_toolkit(), installed.torch_build()
    wanted = build.cuda if build is not None else None
    remedy = toolchain.NO_CUDA_TOOLKIT.remedy
    if found is None:
        detail = f"{toolchain.NO_CUDA_TOOLKIT.what}: FusedAdam cannot be compiled"
        return Check(name="CUDA toolkit", state="warning", detail=detail, remedy=remedy)
    if wanted is not None and found.split(".")[0] != wanted.split(".")[0]:
        detail = f"{found}, but torch is built for {wanted}: FusedAdam cannot be compiled"
        return Check(name="CUDA toolkit", state="warning", detail=detail, remedy=remedy)
    return Check(name="CUDA toolkit", state="ok", detail=found)


def host_memory(root: Path = _ROOT) -> Check:
    """What trials may use of the host's memory now, and whether a control group is what limits it."""
    available, allowed = host.available_host_bytes(root), host.memory_bytes(root)
    detail = (
        f"{format_bytes(available)} available of {format_bytes(allowed)} (control group limits respected)"
    )
    remedy = "end other programs, or raise the container's limit (docker run --memory)"
    if available < _HOST_LEAST_BYTES:
        detail += f"; a trial needs about {format_bytes(_HOST_LEAST_BYTES)}"
        return Check(name="host memory", state="failed", detail=detail, remedy=remedy)
    if available < _HOST_COMFORT_BYTES:
        detail += "; little for offload"
        return Check(name="host memory", state="warning", detail=detail, remedy=remedy)
    return Check(name="host memory", state="ok", detail=detail)


def shared_memory(root: Path = _ROOT) -> Check:
    """Free space in /dev/shm, through which ranks of one machine exchange data."""
    place = root / "dev/shm"
    name, remedy = "/dev/shm", "sudo mount -o remount,size=4G /dev/shm  (or: docker run --shm-size=4g)"
    if not place.is_dir():
        return Check(name=name, state="failed", detail="missing: ranks cannot exchange data", remedy=remedy)
    free = shutil.disk_usage(place).free
    if free < _SHM_RANK_BYTES:
        detail = f"{format_bytes(free)} free, and each rank needs {format_bytes(_SHM_RANK_BYTES)}"
        return Check(name=name, state="failed", detail=detail, remedy=remedy)
    if free < _SHM_COMFORT_BYTES:
        return Check(name=name, state="warning", detail=f"only {format_bytes(free)} free", remedy=remedy)
    return Check(name=name, state="ok", detail=f"{format_bytes(free)} free")


def shared_leftovers(root: Path = _ROOT) -> Check:
    """Buffers that DeepSpeed left in /dev/shm and that no living process maps; each holds 69 MB of memory."""
    ours = [
        path for path in sorted((root / "dev/shm").glob(f"{_SHM_NAME}*")) if path.stat().st_uid == os.getuid()
    ]
    mapped = set(_mapped_buffers(root)) if ours else set()
    left = [path for path in ours if path.name not in mapped]
    if not left:
        return Check(name="shared buffers", state="ok", detail="none left behind")
    size = sum(path.stat().st_size for path in left)
    detail = f"{len(left)} left by ended processes, {format_bytes(size)} of memory"
    remedy = f"rm {' '.join(str(path) for path in left)}"
    return Check(name="shared buffers", state="warning", detail=detail, remedy=remedy)


def _mapped_buffers(root: Path) -> Iterator[str]:
    """Names of DeepSpeed's buffers in the memory maps of processes we may look into."""
    for maps in (root / "proc").glob("[0-9]*/maps"):
        try:
            lines = maps.read_text(errors="replace").splitlines()
        except OSError:
            continue  # it has ended, or is somebody else's, who has buffers of their own
        yield from (line.rpartition("/")[2].split(" ")[0] for line in lines if _SHM_NAME in line)


def locked_memory(nvme_path: str | None, root: Path = _ROOT) -> Check:
    """How much memory may be locked; DeepSpeed's buffers for NVMe offload are."""
    limit = host.memlock_bytes(root)
    if limit is None or limit >= _MEMLOCK_LEAST_BYTES:
        return Check(
            name="locked memory", state="ok", detail="unlimited" if limit is None else format_bytes(limit)
        )
    detail = f"limit {format_bytes(limit)}: larger buffers for NVMe offload end a trial with signal 6"
    if nvme_path is None:
        return Check(name="locked memory", state="ok", detail=f"{detail} (no --nvme-path given)")
    remedy = "ulimit -l unlimited  (as root, or: docker run --ulimit memlock=-1)"
    return Check(name="locked memory", state="warning", detail=detail, remedy=remedy)


def swap_disk(nvme_path: str | None) -> Check:
    """Room for swap files, and whether they can be written."""
    name = "NVMe path"
    if nvme_path is None:
        return Check(name=name, state="unknown", detail="not given: --nvme-path")
    place = Path(nvme_path).expanduser()
    if not place.is_dir():
        return Check(name=name, state="failed", detail=f"{place} is no folder", remedy=f"mkdir -p {place}")
    if (problem := _unwritable(place)) is not None:
        return Check(name=name, state="failed", detail=problem, remedy=f"sudo chown $USER {place}")
    free = shutil.disk_usage(place).free
    billions = free / _SWAP_BYTES_PER_PARAMETER / 1e9
    detail = f"{format_bytes(free)} free, enough for {billions:.1f} billion parameters"
    if free < 10**9:
        return Check(name=name, state="warning", detail=detail, remedy=f"df -h {place}")
    return Check(name=name, state="ok", detail=detail)


def storage(location: str) -> Check:
    """Whether studies can be written where they are kept."""
    name = "storage"
    text = location.removeprefix("sqlite:///")
    if "://" in text:
        return Check(
            name=name, state="unknown", detail="a database server; 'offtune list' shows whether it answers"
        )
    path = Path(text).expanduser()
    folder = path.parent
    if not folder.is_dir():
        return Check(
            name=name, state="failed", detail=f"there is no folder {folder}", remedy=f"mkdir -p {folder}"
        )
    if path.exists() and not os.access(path, os.R_OK | os.W_OK):
        detail = f"{path} cannot be written"
        return Check(
            name=name,
            state="failed",
            detail=detail,
            remedy=f"chmod u+rw {path}  (or: --storage elsewhere.db)",
        )
    if (problem := _unwritable(folder)) is not None:
        return Check(
            name=name,
            state="failed",
            detail=problem,
            remedy="offtune search --storage /writable/studies.db ...",
        )
    free = shutil.disk_usage(folder).free
    detail = f"{path}, {format_bytes(free)} free"
    if free < _DISK_LEAST_BYTES:
        return Check(name=name, state="warning", detail=detail, remedy=f"df -h {folder}")
    return Check(name=name, state="ok", detail=detail)


def _unwritable(folder: Path) -> str | None:
    """Why nothing can be written in a folder; None when it can. Tried, since permissions do not tell all."""
    try:
        with tempfile.TemporaryFile(dir=folder):
            return None
    except OSError as error:
        return f"{folder} cannot be written: {error.strerror}"


def threads() -> Check:
    """Settings that pin the threads of every rank to the same cores; offtune sets thread counts itself."""
    bound = [f"{name}={os.environ[name]}" for name in _BINDING if os.environ.get(name)]
    if not bound:
        return Check(
            name="OpenMP", state="ok", detail=f"{host.usable_cores()} cores, threads are set per rank"
        )
    detail = f"{', '.join(bound)}: all ranks would share the same cores"
    return Check(name="OpenMP", state="warning", detail=detail, remedy=f"unset {' '.join(_BINDING)}")
