"""Doctor: each thing that can be wrong, on fake machines, and the command that mends it."""

from __future__ import annotations

import os
import re
import resource
import sys
from collections import namedtuple
from pathlib import Path

import pytest

from offtune import doctor, hardware, installed, machine_checks, op_cache, software_checks, toolchain
from offtune.check import Check, worst
from offtune.hardware import Gpu, Machine

GB = 10**9
CARD = Gpu(index=0, name="NVIDIA H100", memory_bytes=80 * GB, uuid="GPU-aaaa")
MACHINE = Machine(
    cpu_model="EPYC",
    cores=8,
    memory_bytes=64 * GB,
    gpus=(CARD,),
    driver_version="570.86",
    hostname="h",
    boot_id="b",
)
Usage = namedtuple("Usage", "total used free")


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An op cache of our own: the real one belongs to the person."""
    folder = tmp_path / "op_cache"
    monkeypatch.setenv("TORCH_EXTENSIONS_DIR", str(folder))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    return folder


def probe(line: str, code: int = 0) -> list[str]:
    """A child that prints this in place of the importing one."""
    return [sys.executable, "-c", f"import sys; print({line!r}); sys.exit({code})"]


def torch_for(monkeypatch: pytest.MonkeyPatch, cuda: str | None) -> None:
    build = installed.TorchBuild(version="2.13.0", cuda=cuda, hip=None)
    monkeypatch.setattr(installed, "torch_build", lambda: build)


def test_the_gravest_check_decides() -> None:
    lines = [
        Check(name="a", state="ok", detail=""),
        Check(name="b", state="unknown", detail=""),
        Check(name="c", state="warning", detail="", remedy="x"),
        Check(name="d", state="failed", detail="", remedy="x"),
    ]
    assert [worst(lines[:count]) for count in range(5)] == ["ok", "ok", "unknown", "warning", "failed"]


def test_a_complaint_without_a_remedy_is_a_bug() -> None:
    with pytest.raises(ValueError, match="what to do"):
        Check(name="x", state="failed", detail="broken")


def test_a_quick_examination_is_complete_and_starts_nothing(tmp_path: Path) -> None:
    found = doctor.checks(quick=True, storage=str(tmp_path / "studies.db"), probe=["/nonexistent"])
    names = [check.name for check in found]
    assert len(set(names)) == len(names)
    assert {"Python", "torch", "C++ compiler", "op cpu_adam", "host memory", "storage", "/dev/shm"} <= set(
        names
    )
    assert next(check for check in found if check.name == "training environment").state == "unknown"
    assert list(tmp_path.iterdir()) == []


def test_required_versions_are_those_of_the_package() -> None:
    text = (Path(__file__).parent.parent / "pyproject.toml").read_text()
    for name, needed in software_checks.NEEDED.items():
        assert re.search(rf'"{name}>={re.escape(needed)}"', text), name


@pytest.mark.parametrize(
    ("found", "state", "words"),
    [
        (None, "failed", "not installed"),
        ("0.9.5", "failed", "needs 0.19.6"),
        ("0.19.6", "ok", "0.19.6"),
        ("0.19.8+cu126", "ok", "0.19.8"),
        ("0.21.0", "warning", "newer"),
    ],
)
def test_deepspeed_may_be_missing_old_fine_or_too_new(
    monkeypatch: pytest.MonkeyPatch, found: str | None, state: str, words: str
) -> None:
    monkeypatch.setattr(installed, "version", lambda name: found if name == "deepspeed" else "99")
    check = next(check for check in software_checks.packages() if check.name == "deepspeed")
    assert check.state == state
    assert words in check.detail
    assert ("pip install" in check.remedy) == (state != "ok")


def test_an_old_python_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("platform.python_version", lambda: "3.9.18")
    assert software_checks.python().state == "failed"


def test_a_machine_without_compiler_says_so_for_the_tool_and_for_each_op(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler")
    tool = next(check for check in software_checks.tools() if check.name == "C++ compiler")
    compiled = {check.name: check for check in software_checks.compiled_ops("cpu")}
    assert tool.state == compiled["op cpu_adam"].state == "failed"
    assert "g++" in tool.remedy
    assert "g++" in compiled["op cpu_adam"].remedy


def test_without_libaio_only_nvme_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(toolchain, "libaio_header", lambda: None)
    monkeypatch.setattr(toolchain, "lacks", lambda: ())
    states = {check.name: check.state for check in software_checks.compiled_ops("cpu")}
    assert states == {
        "op deepspeed_shm_comm": "ok",
        "op cpu_adam": "ok",
        "op fused_adam": "ok",
        "op async_io": "warning",
    }
    assert "libaio-dev" in software_checks.libaio().remedy


def test_ops_say_whether_the_first_search_will_have_to_compile_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(toolchain, "lacks", lambda: ())
    monkeypatch.setattr(op_cache, "built", lambda op: op == "cpu_adam")
    details = {check.name: check.detail for check in software_checks.compiled_ops("cpu")}
    assert details["op cpu_adam"] == "compiled"
    assert "about 1 min 20 s" in details["op fused_adam"]


def test_a_lock_of_a_killed_build_comes_with_its_removal(own_cache: Path) -> None:
    assert software_checks.stale_locks().state == "ok"
    lock = own_cache / "cpu_adam" / "lock"
    lock.parent.mkdir(parents=True)
    lock.touch()
    check = software_checks.stale_locks()
    assert check.state == "warning"
    assert check.remedy == f"rm {lock}"
    assert lock.exists()


def test_an_environment_that_loads_shows_the_accelerator() -> None:
    line = '{"seconds": 12.2, "accelerator": "cpu", "cuda_devices": 0}'
    (check,) = software_checks.imports(False, quick=False, command=probe(f"noise\n{line}"))
    assert check.state == "ok"
    assert check.detail == "loads in 12 s, DeepSpeed chooses cpu"


def test_the_environment_of_these_tests_loads_without_building_anything(own_cache: Path) -> None:
    (check,) = software_checks.imports(False, quick=False)
    assert check.state == "ok", check.detail
    assert not own_cache.exists()


@pytest.mark.parametrize(
    ("command", "words"),
    [
        (probe('{"error": "ImportError: libcudart.so.12"}', 1), "libcudart"),
        (probe("garbage"), "ended the process"),
        (probe(""), "ended the process"),
        (probe("[1]"), "ended the process"),
        (["/nonexistent"], "ended the process"),
    ],
)
def test_an_environment_that_does_not_load_says_why(command: list[str], words: str) -> None:
    (check,) = software_checks.imports(False, quick=False, command=command)
    assert check.state == "failed"
    assert words in check.detail
    assert "import torch" in check.remedy


def test_an_import_that_hangs_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(software_checks, "_IMPORT_S", 0.2)
    command = [sys.executable, "-c", "import time; time.sleep(60)"]
    (check,) = software_checks.imports(False, quick=False, command=command)
    assert "did not load within" in check.detail


@pytest.mark.parametrize(("count", "state"), [(2, "ok"), (0, "failed")])
def test_torch_must_reach_the_cards_that_the_driver_has(count: int, state: str) -> None:
    line = f'{{"seconds": 1.0, "accelerator": "cuda", "cuda_devices": {count}}}'
    checks = software_checks.imports(True, quick=False, command=probe(line))
    assert checks[1].state == state


def test_no_gpu_is_fine_unless_a_driver_is_there_and_silent(tmp_path: Path) -> None:
    assert machine_checks._no_gpu(tmp_path).state == "ok"
    (tmp_path / "dev").mkdir()
    (tmp_path / "dev/nvidiactl").touch()
    assert machine_checks._no_gpu(tmp_path).state == "failed"


def test_hidden_cards_are_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    (check,) = machine_checks.gpus(MACHINE)
    assert check.state == "warning"
    assert check.remedy == "unset CUDA_VISIBLE_DEVICES"


@pytest.mark.parametrize(("used", "state"), [(GB // 2, "ok"), (30 * GB, "warning"), (None, "unknown")])
def test_a_card_in_use_by_others_is_said(
    monkeypatch: pytest.MonkeyPatch, used: int | None, state: str
) -> None:
    monkeypatch.setattr(hardware, "device_used_bytes", lambda index: used)
    assert machine_checks.gpus(MACHINE)[0].state == state


@pytest.mark.parametrize(
    ("torch", "driver", "state"),
    [
        ("12.6", "12.4", "ok"),
        ("13.0", "12.4", "failed"),
        ("11.8", "12.4", "ok"),
        (None, "12.4", "warning"),
        ("12.6", None, "unknown"),
    ],
)
def test_torch_may_not_be_a_major_version_ahead_of_the_driver(
    monkeypatch: pytest.MonkeyPatch, torch: str | None, driver: str | None, state: str
) -> None:
    torch_for(monkeypatch, torch)
    monkeypatch.setattr(hardware, "driver_cuda", lambda: driver)
    check = next(check for check in machine_checks.gpus(MACHINE) if check.name == "driver and torch")
    assert check.state == state


@pytest.mark.parametrize(("toolkit", "state"), [("12.1", "ok"), ("13.0", "warning"), (None, "warning")])
def test_the_toolkit_must_be_of_torchs_major_version(
    monkeypatch: pytest.MonkeyPatch, toolkit: str | None, state: str
) -> None:
    torch_for(monkeypatch, "12.6")
    monkeypatch.setattr(toolchain, "cuda_toolkit", lambda: toolkit)
    assert machine_checks.gpus(MACHINE)[-1].state == state


@pytest.mark.parametrize(("available_gb", "state"), [(1, "failed"), (4, "warning"), (20, "ok")])
def test_little_host_memory_is_said(tmp_path: Path, available_gb: int, state: str) -> None:
    (tmp_path / "proc").mkdir()
    kilobytes = available_gb * GB // 1024
    (tmp_path / "proc/meminfo").write_text(f"MemTotal: {64 * GB // 1024} kB\nMemAvailable: {kilobytes} kB\n")
    assert machine_checks.host_memory(tmp_path).state == state


@pytest.mark.parametrize(
    ("free", "state"), [(64_000_000, "failed"), (200_000_000, "warning"), (8 * GB, "ok")]
)
def test_little_shared_memory_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, free: int, state: str
) -> None:
    assert machine_checks.shared_memory(tmp_path).state == "failed"
    (tmp_path / "dev/shm").mkdir(parents=True)
    monkeypatch.setattr("shutil.disk_usage", lambda place: Usage(free, 0, free))
    assert machine_checks.shared_memory(tmp_path).state == state


def test_only_buffers_that_nobody_maps_are_leftovers(tmp_path: Path) -> None:
    assert machine_checks.shared_leftovers(tmp_path).state == "ok"
    (tmp_path / "dev/shm").mkdir(parents=True)
    for port in ("29500", "29501"):
        (tmp_path / f"dev/shm/deepspeed_allreduce_buffer_0_127.0.0.1_{port}_0").write_bytes(b"x" * 100)
    (tmp_path / "dev/shm/psm_other").touch()
    (tmp_path / "proc/12").mkdir(parents=True)
    line = "7f00-7f01 rw-s 00000000 00:01 9 /dev/shm/deepspeed_allreduce_buffer_0_127.0.0.1_29500_0\n"
    (tmp_path / "proc/12/maps").write_text(line)
    check = machine_checks.shared_leftovers(tmp_path)
    assert check.state == "warning"
    assert check.remedy == f"rm {tmp_path}/dev/shm/deepspeed_allreduce_buffer_0_127.0.0.1_29501_0"


@pytest.mark.parametrize(
    ("limit", "capabilities", "nvme", "state"),
    [
        (resource.RLIM_INFINITY, "0", "/nvme", "ok"),
        (8 * 2**20, "0", "/nvme", "warning"),
        (8 * 2**20, "0", None, "ok"),
        (8 * 2**20, "4000", "/nvme", "ok"),
    ],
)
def test_a_low_limit_of_locked_memory_matters_for_nvme_unless_it_may_be_passed(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    limit: int,
    capabilities: str,
    nvme: str | None,
    state: str,
) -> None:
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/status").write_text(f"Name:\tpython\nCapEff:\t{capabilities.zfill(16)}\n")
    monkeypatch.setattr(resource, "getrlimit", lambda which: (limit, limit))
    assert machine_checks.locked_memory(nvme, tmp_path).state == state


def test_the_swap_folder_is_looked_at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert machine_checks.swap_disk(None).state == "unknown"
    assert machine_checks.swap_disk(str(tmp_path / "none")).remedy == f"mkdir -p {tmp_path / 'none'}"
    monkeypatch.setattr("shutil.disk_usage", lambda place: Usage(0, 0, 180 * GB))
    assert "10.0 billion" in machine_checks.swap_disk(str(tmp_path)).detail
    monkeypatch.setattr("shutil.disk_usage", lambda place: Usage(0, 0, 5))
    assert machine_checks.swap_disk(str(tmp_path)).state == "warning"
    assert list(tmp_path.iterdir()) == []


def test_the_storage_is_looked_at_and_not_made(tmp_path: Path) -> None:
    assert machine_checks.storage(str(tmp_path / "studies.db")).state == "ok"
    assert machine_checks.storage(f"sqlite:///{tmp_path}/studies.db").state == "ok"
    assert machine_checks.storage("postgresql://host/name").state == "unknown"
    assert machine_checks.storage(str(tmp_path / "no" / "studies.db")).state == "failed"
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_refuses_writing_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(dir: Path) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("tempfile.TemporaryFile", refuse)
    assert "Permission denied" in machine_checks.storage(str(tmp_path / "studies.db")).detail
    assert machine_checks.swap_disk(str(tmp_path)).state == "failed"


def test_pinned_threads_are_said(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.startswith(("OMP_", "GOMP_", "KMP_")):
            monkeypatch.delenv(name)
    assert machine_checks.threads().state == "ok"
    monkeypatch.setenv("OMP_PROC_BIND", "true")
    assert machine_checks.threads().state == "warning"


def test_a_cpu_build_of_torch_examines_the_ops_of_the_cpu(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(hardware, "detect", lambda: MACHINE)
    torch_for(monkeypatch, None)
    names = [check.name for check in doctor.checks(quick=True, storage=str(tmp_path / "s.db"))]
    assert "op deepspeed_shm_comm" in names
    torch_for(monkeypatch, "12.6")
    names = [check.name for check in doctor.checks(quick=True, storage=str(tmp_path / "s.db"))]
    assert "op deepspeed_shm_comm" not in names
