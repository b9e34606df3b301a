"""Toolchain: programs and headers, found where the build would find them."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pytest

from offtune import toolchain


def test_everything_missing_is_named_with_the_command_that_brings_it(monkeypatch: pytest.MonkeyPatch) -> None:
    for tool in ("compiler", "ninja", "python_headers"):
        monkeypatch.setattr(toolchain, tool, lambda: None)
    assert [lack.what for lack in toolchain.lacks()] == [
        "no C++ compiler",
        "no ninja",
        "no Python headers (Python.h)",
    ]
    assert all(" install " in lack.remedy for lack in toolchain.lacks())


def test_the_compiler_is_the_one_torch_would_call(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    program = tmp_path / "my-c++"
    program.touch(mode=0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("CXX", "my-c++ -pipe")
    assert toolchain.compiler() == str(program)
    monkeypatch.setenv("CXX", "gone-c++")
    assert toolchain.compiler() is None


def test_children_find_this_very_offtune_before_any_other(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", "/theirs")
    source = Path(toolchain.__file__).parent.parent
    assert toolchain.child_paths()["PYTHONPATH"] == f"{source}:/theirs"
    monkeypatch.delenv("PYTHONPATH")
    assert toolchain.child_paths()["PYTHONPATH"] == str(source)


def test_the_interpreters_own_folder_comes_first_on_the_childs_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/usr/bin")
    own = str(Path(sys.executable).parent)
    assert toolchain.search_path() == f"{own}:/usr/bin"
    monkeypatch.setenv("PATH", f"{own}:/usr/bin")
    assert toolchain.search_path() == f"{own}:/usr/bin"


@pytest.mark.parametrize("place", ["CPATH", "CFLAGS"])
def test_libaio_is_found_where_the_compiler_is_told_to_look(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    (tmp_path / "libaio.h").touch()
    monkeypatch.setenv(place, f"-I{tmp_path}" if place == "CFLAGS" else str(tmp_path))
    assert toolchain.libaio_header() == tmp_path / "libaio.h"


def test_the_cuda_toolkit_is_asked_for_its_version(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nvcc = tmp_path / "bin" / "nvcc"
    nvcc.parent.mkdir()
    nvcc.write_text("#!/bin/sh\necho 'Cuda compilation tools, release 12.6, V12.6.20'\n")
    nvcc.chmod(0o755)
    monkeypatch.setenv("CUDA_HOME", str(tmp_path))
    assert toolchain.cuda_toolkit() == "12.6"
    shutil.rmtree(tmp_path / "bin")
    assert toolchain.cuda_toolkit() is None
