"""What compiling DeepSpeed's ops needs on this machine, looked for before anything is compiled.

Covered: compiler, ninja, headers, CUDA toolkit, each with the command that brings it. Not covered: whether an
op compiles (`ops.py`).
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import sysconfig
from dataclasses import dataclass
from pathlib import Path

_NVCC_ANSWER_S = 10.0  # it prints its version in milliseconds, unless its disk is gone


@dataclass(frozen=True, slots=True, kw_only=True)
class Lack:
    """Something that is missing: what, and the command that brings it."""

    what: str
    remedy: str


NO_COMPILER = Lack(
    what="no C++ compiler", remedy="sudo apt install g++  (or: conda install -c conda-forge gxx)"
)
NO_NINJA = Lack(what="no ninja", remedy="pip install ninja")
NO_HEADERS = Lack(
    what="no Python headers (Python.h)",
    remedy=f"sudo apt install python3.{sys.version_info.minor}-dev  (or use a Python from conda or uv)",
)
NO_LIBAIO = Lack(
    what="no libaio headers", remedy="sudo apt install libaio-dev  (or: conda install -c conda-forge libaio)"
)
NO_CUDA_TOOLKIT = Lack(
    what="no CUDA toolkit (nvcc)",
    remedy="conda install -c nvidia cuda-toolkit  (of the version torch was built for; or set CUDA_HOME)",
)


def search_path() -> str:
    """PATH for child processes: the interpreter's own folder first.

    A virtual environment that was not activated has ninja there and not on PATH, where torch looks for it.
    """
    own = str(Path(sys.executable).parent)
    inherited = os.environ.get("PATH", os.defpath)
    return inherited if inherited.split(os.pathsep)[0] == own else os.pathsep.join((own, inherited))


def child_paths() -> dict[str, str]:
    """Environment in which a child finds this interpreter's programs and this very offtune."""
    source = str(Path(__file__).resolve().parent.parent)
    inherited = os.environ.get("PYTHONPATH")
    return {
        "PATH": search_path(),
        "PYTHONPATH": os.pathsep.join((source, inherited)) if inherited else source,
    }


def compiler() -> str | None:
    """The C++ compiler torch would call: $CXX or c++; None when there is no such program."""
    return shutil.which((os.environ.get("CXX") or "c++").split()[0], path=search_path())


def ninja() -> str | None:
    """The ninja torch would call."""
    return shutil.which("ninja", path=search_path())


def python_headers() -> Path | None:
    """Python.h of this interpreter."""
    header = Path(sysconfig.get_path("include")) / "Python.h"
    return header if header.exists() else None


def libaio_header() -> Path | None:
    """libaio.h where a compiler looks by itself, or where CPATH, CFLAGS or a conda environment point."""
    flags = re.findall(r"-I\s*(\S+)", os.environ.get("CFLAGS", ""))
    listed = [
        part for name in ("CPATH", "C_INCLUDE_PATH") for part in os.environ.get(name, "").split(":") if part
    ]
    places = [*flags, *listed, f"{sys.prefix}/include", "/usr/local/include", "/usr/include"]
    return next((Path(place) / "libaio.h" for place in places if (Path(place) / "libaio.h").exists()), None)


def nvcc() -> Path | None:
    """The CUDA compiler torch would call: under CUDA_HOME or CUDA_PATH, on PATH, or in /usr/local/cuda."""
    home = os.environ.get("CUDA_HOME") or os.environ.get("CUDA_PATH")
    if home:
        given = Path(home) / "bin" / "nvcc"
        return given if given.exists() else None
    found = shutil.which("nvcc", path=search_path()) or "/usr/local/cuda/bin/nvcc"
    return Path(found) if Path(found).exists() else None


def cuda_toolkit() -> str | None:
    """The toolkit's version, such as '12.6'; None without nvcc or when it does not answer."""
    program = nvcc()
    if program is None:
        return None
    try:
        answer = subprocess.run(
            [program, "-V"], capture_output=True, text=True, timeout=_NVCC_ANSWER_S, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return None
    release = re.search(r"release (\d+\.\d+)", answer.stdout)
    return release.group(1) if release else None


def lacks() -> tuple[Lack, ...]:
    """What every op build needs and this machine has not."""
    needs = ((compiler(), NO_COMPILER), (ninja(), NO_NINJA), (python_headers(), NO_HEADERS))
    return tuple(lack for present, lack in needs if present is None)
