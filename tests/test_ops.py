"""Ops: which are needed, and building them with children that work, hang, fail, die or talk nonsense."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from clock import Clock
from processes import is_running, wait_for

from offtune import installed, op_build, op_cache, ops, toolchain
from offtune.errors import OfftuneError

# What every fake child starts with: its ops, and a way to report on one.
PRELUDE = """
import json, os, subprocess, sys, time
ops = sys.argv[3:]
def report(op, state="ready", error="", cause=""):
    print(json.dumps({"op": op, "state": state, "seconds": 1.5, "error": error, "cause": cause}), flush=True)
"""


def child(body: str) -> list[str]:
    """A command that runs `body` in place of the building child."""
    return [sys.executable, "-c", PRELUDE + body]


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An op cache of our own: the real one belongs to the person."""
    folder = tmp_path / "cache"
    monkeypatch.setenv("TORCH_EXTENSIONS_DIR", str(folder))
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setattr(op_build, "_POLL_S", 0.02)
    monkeypatch.setattr(op_build, "_HEARTBEAT_S", 0.1)
    monkeypatch.setattr(ops, "_POLL_S", 0.02)
    monkeypatch.setattr(toolchain, "lacks", lambda: ())
    return folder


@pytest.fixture
def said() -> list[str]:
    return []


def make_lock(cache: Path, op: str) -> Path:
    lock = cache / op / "lock"
    lock.parent.mkdir(parents=True, exist_ok=True)
    lock.touch()
    return lock


def compile_fake(cache: Path, op: str) -> Path:
    """A compiled op: a library that ninja made from a recipe naming this environment's packages."""
    place = cache / op
    place.mkdir(parents=True)
    homes = [f"# -I{installed.folder(name)}/include" for name in ("torch", "deepspeed")]
    recipe = ["cxx = c++", "rule copy", "  command = cp $in $out", f"build {op}.so: copy source.cpp", ""]
    (place / "source.cpp").write_text("int x;")
    (place / "build.ninja").write_text("\n".join([*homes, *recipe]))
    subprocess.run([str(toolchain.ninja()), "-C", place], check=True, capture_output=True)
    return place


@pytest.fixture
def holding(tmp_path: Path) -> Iterator[Callable[[Path], subprocess.Popen[bytes]]]:
    """Start a process that has a lock file open, as torch's FileBaton keeps it."""
    started: list[subprocess.Popen[bytes]] = []

    def start(lock: Path) -> subprocess.Popen[bytes]:
        program = "import sys, time; file = open(sys.argv[1]); print('open', flush=True); time.sleep(60)"
        process = subprocess.Popen([sys.executable, "-c", program, str(lock)], stdout=subprocess.PIPE)
        started.append(process)
        assert process.stdout is not None
        assert process.stdout.readline() == b"open\n"
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()


@pytest.mark.parametrize(
    ("device", "optimizer", "placements", "nvme", "wanted"),
    [
        ("cpu", "adamw", ["zero1", "zero2"], False, ("deepspeed_shm_comm", "fused_adam")),
        ("cpu", "adamw", ["zero2 opt=cpu"], False, ("deepspeed_shm_comm", "cpu_adam")),
        ("cpu", "adam", ["zero3", "zero3 opt=cpu"], False, ("deepspeed_shm_comm", "cpu_adam", "fused_adam")),
        ("cuda", "adamw", ["zero3 opt=nvme"], True, ("cpu_adam", "async_io")),
        ("cuda", "lion", ["zero3 param=cpu", "zero3 opt=cpu"], False, ("cpu_lion", "fused_lion")),
        ("cuda", "adagrad", ["zero2", "zero2 opt=cpu"], False, ("cpu_adagrad",)),
    ],
)  # fmt: skip
def test_only_ops_that_some_configuration_loads_are_needed(
    device: str, optimizer: str, placements: list[str], nvme: bool, wanted: tuple[str, ...]
) -> None:
    assert ops.needed_ops(device, optimizer, placements, nvme) == wanted  # type: ignore[arg-type]


def test_compiled_ops_are_ready_in_silence_and_without_a_child(cache: Path, said: list[str]) -> None:
    compile_fake(cache, "cpu_adam")
    states = ops.prepare(["cpu_adam"], "cpu", said.append, command=["/nonexistent"])
    assert states["cpu_adam"].state == "ready"
    assert states["cpu_adam"].seconds is None
    assert said == []


def test_a_changed_source_means_not_compiled(cache: Path) -> None:
    place = compile_fake(cache, "cpu_adam")
    assert op_cache.built("cpu_adam")
    later = time.time() + 5
    os.utime(place / "source.cpp", (later, later))
    assert not op_cache.built("cpu_adam")


def test_a_library_of_another_environment_means_not_compiled(cache: Path) -> None:
    place = compile_fake(cache, "cpu_adam")
    recipe = place / "build.ninja"
    recipe.write_text(recipe.read_text().replace(str(installed.folder("torch")), "/elsewhere/torch"))
    assert not op_cache.built("cpu_adam")


def test_another_compiler_means_not_compiled(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compile_fake(cache, "cpu_adam")
    monkeypatch.setenv("CXX", "clang++")
    assert not op_cache.built("cpu_adam")


def test_looking_at_the_cache_changes_nothing_in_it(cache: Path) -> None:
    place = compile_fake(cache, "cpu_adam")
    before = {file.name: file.read_bytes() for file in place.iterdir()}
    op_cache.built("cpu_adam")
    assert {file.name: file.read_bytes() for file in place.iterdir()} == before


def test_async_io_is_compiled_only_with_the_op_it_links_against(cache: Path) -> None:
    compile_fake(cache, "async_io")
    assert not op_cache.built("async_io")
    compile_fake(cache, "pin_memory")
    assert op_cache.built("async_io")


def test_an_op_compiled_at_installation_needs_no_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    library = tmp_path / "deepspeed" / "ops" / "adam" / "cpu_adam_op.cpython-311-x86_64-linux-gnu.so"
    library.parent.mkdir(parents=True)
    library.touch()
    monkeypatch.setattr(installed, "folder", lambda name: tmp_path / name)
    assert op_cache.built("cpu_adam")
    assert not op_cache.built("cpu_lion")


@pytest.mark.parametrize(
    ("cuda", "hip", "tag"), [(None, None, "cpu"), ("12.6", None, "cu126"), (None, "6.2.41133", "rocm6241133")]
)
def test_the_cache_folder_follows_torchs_own_rule(
    monkeypatch: pytest.MonkeyPatch, cuda: str | None, hip: str | None, tag: str
) -> None:
    monkeypatch.delenv("TORCH_EXTENSIONS_DIR")
    monkeypatch.setenv("XDG_CACHE_HOME", "/caches")
    build = installed.TorchBuild(version="2.13.0", cuda=cuda, hip=hip)
    monkeypatch.setattr(installed, "torch_build", lambda: build)
    assert op_cache.root() == Path(f"/caches/torch_extensions/py3{sys.version_info.minor}_{tag}")


def test_a_build_is_announced_with_its_usual_length(said: list[str]) -> None:
    states = ops.prepare(["cpu_adam"], "cpu", said.append, command=child("[report(op) for op in ops]"))
    assert states["cpu_adam"] == op_build.OpState(op="cpu_adam", state="ready", seconds=1.5)
    assert said == ["building cpu_adam: about 1 min 50 s, once per machine"]


def test_the_child_is_told_the_device_and_finds_ninja_and_offtune(said: list[str], tmp_path: Path) -> None:
    body = f"""
import shutil, offtune
open({str(tmp_path / "seen")!r}, "w").write(" ".join(sys.argv[1:]) + " " + str(shutil.which("ninja")))
report(ops[0])
"""
    ops.prepare(["cpu_adam"], "cpu", said.append, command=child(body))
    told = (tmp_path / "seen").read_text()
    assert told.startswith("--device cpu cpu_adam ")
    assert told.endswith(str(toolchain.ninja()))


def test_a_long_build_says_how_long_it_has_taken(said: list[str]) -> None:
    ops.prepare(["cpu_adam"], "cpu", said.append, command=child("time.sleep(0.5); report(ops[0])"))
    assert any(line.startswith("building cpu_adam: ") and line.endswith("so far") for line in said)


def test_garbage_and_megabytes_on_the_childs_output_are_ignored(said: list[str]) -> None:
    body = """
sys.stdout.write("x" * 3_000_000 + "\\n" + "[1/2] c++ ...\\n" + '{"op": "cpu_adam"}\\n' + "null\\n"
                 + '{"op": "other", "state": "ready", "seconds": 1, "error": "", "cause": ""}\\n')
report(ops[0], state="splendid")
report(ops[0])
sys.stderr.write("y" * 3_000_000)
"""
    states = ops.prepare(["cpu_adam"], "cpu", said.append, command=child(body))
    assert states["cpu_adam"].state == "ready"


def test_a_failed_op_keeps_its_error_and_gets_a_remedy_while_others_go_on(said: list[str]) -> None:
    body = "report(ops[0], 'failed', 'cc1plus: out of memory', 'compile'); report(ops[1])"
    states = ops.prepare(["cpu_adam", "fused_adam"], "cpu", said.append, command=child(body))
    assert states["cpu_adam"].state == "failed"
    assert "out of memory" in states["cpu_adam"].error
    assert "doctor" in states["cpu_adam"].remedy
    assert states["fused_adam"].state == "ready"


def test_missing_libaio_is_unavailable_with_the_package_to_install(
    said: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(toolchain, "libaio_header", lambda: None)
    body = "report(ops[0], 'unavailable', 'requires libaio', 'incompatible')"
    states = ops.prepare(["async_io"], "cpu", said.append, command=child(body))
    assert states["async_io"].state == "unavailable"
    assert "libaio-dev" in states["async_io"].remedy


@pytest.mark.parametrize("cause", ["no_cuda_toolkit", "cuda_mismatch"])
def test_a_cuda_toolkit_that_lacks_or_differs_has_its_remedy(said: list[str], cause: str) -> None:
    body = f"report(ops[0], 'unavailable', 'nvcc', {cause!r})"
    states = ops.prepare(["fused_adam"], "cuda", said.append, command=child(body))
    assert "cuda-toolkit" in states["fused_adam"].remedy


def test_an_op_that_kills_the_child_does_not_take_the_others_along(said: list[str]) -> None:
    body = """
for op in ops:
    if op == "cpu_adam":
        sys.stderr.write("internal compiler error"); sys.stderr.flush()
        os.abort()
    report(op)
"""
    states = ops.prepare(
        ["deepspeed_shm_comm", "cpu_adam", "fused_adam"], "cpu", said.append, command=child(body)
    )
    assert [state.state for state in states.values()] == ["ready", "failed", "ready"]
    assert "code -6: internal compiler error" in states["cpu_adam"].error


def test_a_hanging_build_is_killed_with_its_compilers_at_the_deadline(
    said: list[str], tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lock = make_lock(cache, "fused_adam")
    lock.unlink()
    body = f"""
import signal
signal.signal(signal.SIGTERM, signal.SIG_IGN)
compiler = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
report(ops[0])
with open({str(tmp_path / "pid")!r}, "w") as file:
    file.write(str(compiler.pid))
lock = open({str(lock)!r}, "w")
time.sleep(600)
"""
    # The deadline passes when the second op is being built.
    monkeypatch.setattr(op_build, "time", Clock(lambda: lock.exists() and "fused_adam" in " ".join(said)))
    states = ops.prepare(["cpu_adam", "fused_adam"], "cpu", said.append, command=child(body))
    assert states["cpu_adam"].state == "ready"
    assert states["fused_adam"].state == "failed"
    assert "deadline" in states["fused_adam"].error
    compiler = int((tmp_path / "pid").read_text())
    wait_for(lambda: not is_running(compiler))
    assert op_cache.all_locks() == ()


def test_without_a_compiler_nothing_is_started_and_the_package_is_named(
    said: list[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.undo()
    monkeypatch.setenv("TORCH_EXTENSIONS_DIR", str(tmp_path))
    monkeypatch.setenv("CXX", "no-such-compiler")
    states = ops.prepare(["cpu_adam"], "cpu", said.append, command=["/nonexistent"])
    assert states["cpu_adam"].state == "unavailable"
    assert "C++ compiler" in states["cpu_adam"].error
    assert "g++" in states["cpu_adam"].remedy
    assert said == []


def test_a_lock_nobody_holds_is_removed_and_said(cache: Path, said: list[str]) -> None:
    compile_fake(cache, "cpu_adam")
    lock = make_lock(cache, "cpu_adam")
    ops.prepare(["cpu_adam"], "cpu", said.append, command=["/nonexistent"])
    assert not lock.exists()
    assert said == ["cpu_adam: removed a lock that a killed build had left"]


def test_a_lock_of_the_linked_op_blocks_as_well(cache: Path, said: list[str]) -> None:
    lock = make_lock(cache, "pin_memory")
    ops.prepare(["async_io"], "cpu", said.append, command=child("report(ops[0])"))
    assert not lock.exists()


def test_a_living_builder_is_named_and_waited_for(
    cache: Path, said: list[str], holding: Callable[[Path], subprocess.Popen[bytes]]
) -> None:
    compile_fake(cache, "cpu_adam")
    lock = make_lock(cache, "cpu_adam")
    builder = holding(lock)

    def say(line: str) -> None:
        said.append(line)
        builder.kill()
        builder.wait()

    assert ops.prepare(["cpu_adam"], "cpu", say, command=["/nonexistent"])["cpu_adam"].state == "ready"
    assert f"(process {builder.pid}); waiting for it" in said[0]
    assert "removed a lock" in said[-1]


def test_a_builder_that_outlives_the_deadline_is_an_error_and_keeps_its_lock(
    cache: Path, said: list[str], holding: Callable[[Path], subprocess.Popen[bytes]]
) -> None:
    lock = make_lock(cache, "cpu_adam")
    builder = holding(lock)
    with pytest.raises(OfftuneError, match=f"process {builder.pid}") as caught:
        ops.prepare(["cpu_adam"], "cpu", said.append, deadline_s=0.2, command=["/nonexistent"])
    assert str(lock) in caught.value.hint
    assert lock.exists()


def test_a_builder_that_gets_in_between_is_named_while_our_child_waits(
    cache: Path, said: list[str], holding: Callable[[Path], subprocess.Popen[bytes]]
) -> None:
    lock = cache / "cpu_adam" / "lock"

    seen = cache / "seen"

    def say(line: str) -> None:
        if not said:
            holding(make_lock(cache, "cpu_adam"))
        said.append(line)
        if "waiting for python" in line:
            seen.touch()

    # The other one is in the way until it was named, or for a minute.
    body = f"""
give_up = time.monotonic() + 60
while not os.path.exists({str(seen)!r}) and time.monotonic() < give_up:
    time.sleep(0.05)
os.remove({str(lock)!r})
report(ops[0])
"""
    ops.prepare(["cpu_adam"], "cpu", say, command=child(body))
    assert any("waiting for python" in line for line in said)


def test_a_file_of_torchs_later_kernel_lock_is_left_alone(
    cache: Path, said: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    compile_fake(cache, "cpu_adam")
    lock = make_lock(cache, "cpu_adam")
    monkeypatch.setattr(op_cache, "locks_outlive_builders", lambda: False)
    ops.prepare(["cpu_adam"], "cpu", said.append, command=["/nonexistent"])
    assert lock.exists()
    assert said == []


def test_somebody_elses_lock_counts_as_held(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lock = make_lock(cache, "cpu_adam")
    monkeypatch.setattr(os, "getuid", lambda: lock.stat().st_uid + 1)
    assert str(op_cache.holder(lock)) == f"user {lock.stat().st_uid}"
