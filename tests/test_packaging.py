"""The built wheel holds what a user needs: the spaces, the command, nothing of the tests."""

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    command = [
        sys.executable,
        "-m",
        "pip",
        "wheel",
        "--quiet",
        "--no-deps",
        "--wheel-dir",
        str(folder),
        str(ROOT),
    ]
    subprocess.run(command, check=True)
    return next(folder.glob("offtune-*.whl"))


def test_the_wheel_carries_spaces_and_child_programs_and_no_tests(wheel):
    names = set(zipfile.ZipFile(wheel).namelist())
    spaces = {f"offtune/search_spaces/{path.name}" for path in (ROOT / "search_spaces").glob("*.yaml")}
    profiles = {
        f"offtune/hardware_profiles/{path.name}" for path in (ROOT / "hardware_profiles").glob("*.yaml")
    }
    assert len(spaces) >= 5 and len(profiles) >= 10
    assert spaces | profiles <= names
    assert "offtune/worker/server.py" in names
    assert {f"offtune/report/web/report.{kind}" for kind in ("html", "css", "js")} <= names
    assert not any(name.startswith("tests") for name in names)


def test_the_installed_package_finds_its_spaces_away_from_the_source(wheel, tmp_path):
    target = tmp_path / "site"
    zipfile.ZipFile(wheel).extractall(target)
    code = (
        "import offtune.space as s; print(s.__file__); print(','.join(s.space_names()));"
        "s.load_space('default')"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, env={"PYTHONPATH": str(target)},
                          capture_output=True, text=True, check=True)  # fmt: skip
    place, names = done.stdout.splitlines()
    assert place.startswith(str(target))
    assert {"default", "ladder", "nvme", "partial", "buckets"} <= set(names.split(","))
