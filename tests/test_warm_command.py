"""Which commands start from the warm server: Python scripts of the interpreter that runs offtune."""

import shutil
import sys
from pathlib import Path

import pytest

from offtune.script_start import Program
from offtune.warm_command import SWITCH, is_our_interpreter, warm_program


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "train.py").touch()
    monkeypatch.delenv(SWITCH, raising=False)


@pytest.mark.parametrize(
    ("rest", "program"),
    [
        (["train.py", "-m", "7"], Program(kind="script", name="train.py", arguments=("-m", "7"))),
        (["-u", "train.py"], Program(kind="script", name="train.py")),
        (["-m", "train", "--x"], Program(kind="module", name="train", arguments=("--x",))),
        (["-m", "torch.distributed.run", "train.py"], None),
        (["-m", "accelerate.commands.launch", "train.py"], None),
        (["-m", "deepspeed.launcher.runner", "train.py"], None),
        (["-X", "dev", "train.py"], None),
        (["-c", "pass"], None),
        (["-m"], None),
        (["missing.py"], None),
        ([], None),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_scripts_and_modules_are_read_and_everything_else_starts_cold(tmp_path, rest, program):
    assert warm_program([sys.executable, *rest], str(tmp_path)) == program


def test_a_launcher_is_no_interpreter(tmp_path):
    assert warm_program(["torchrun", "train.py"], str(tmp_path)) is None


def test_the_switch_keeps_every_command_cold(tmp_path, monkeypatch):
    monkeypatch.setenv(SWITCH, "1")
    assert warm_program([sys.executable, "train.py"], str(tmp_path)) is None
    monkeypatch.setenv(SWITCH, "0")
    assert warm_program([sys.executable, "train.py"], str(tmp_path)) is not None


def test_the_same_program_in_another_environment_is_another_interpreter(tmp_path):
    assert is_our_interpreter(sys.executable, str(tmp_path))
    other = tmp_path / "other"
    (other / "bin").mkdir(parents=True)
    (other / "bin" / "python").symlink_to(Path(sys.executable).resolve())
    (other / "pyvenv.cfg").write_text("home = /usr/bin\n")
    assert not is_our_interpreter(str(other / "bin" / "python"), str(tmp_path))
    assert not is_our_interpreter("other/bin/python", str(tmp_path))


def test_a_script_that_calls_itself_python_is_another_interpreter(tmp_path):
    shutil.copy("/bin/sh", tmp_path / "python")
    assert not is_our_interpreter("./python", str(tmp_path))
    assert not is_our_interpreter("no-such-python", str(tmp_path))
