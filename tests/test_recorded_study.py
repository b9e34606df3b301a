"""The study that ships at the top level opens with today's code; a copy of it, never the file itself."""

import json
import shutil
from pathlib import Path

import pytest
from typer.testing import CliRunner

from offtune.cli import app

RECORDED = Path(__file__).parent.parent / "studies.db"


@pytest.fixture
def storage(tmp_path: Path) -> str:
    return str(shutil.copy(RECORDED, tmp_path / "studies.db"))


def asked(*arguments: str) -> dict[str, object]:
    done = CliRunner().invoke(app, [*arguments, "--json"])
    assert done.exit_code == 0, done.stderr
    document: dict[str, object] = json.loads(done.stdout)
    return document


def test_it_holds_one_finished_search_with_baselines_and_a_winner(storage: str) -> None:
    shown = asked("show", "--storage", storage)
    assert shown["device"] == "cpu"
    assert shown["measured"] == shown["target_trials"]
    assert len(shown["baselines"]) == 5  # type: ignore[arg-type]
    assert shown["best"]["used_device_bytes"] <= shown["limit_bytes"]  # type: ignore[index]


def test_it_can_be_listed_and_exported(storage: str) -> None:
    assert len(asked("list", "--storage", storage)["studies"]) == 1  # type: ignore[arg-type]
    exported = asked("export", "--storage", storage)
    assert exported["ds_config"]["zero_optimization"]["stage"] in (1, 2, 3)  # type: ignore[index]


def test_reading_it_leaves_it_as_it_is(storage: str) -> None:
    before = Path(storage).read_bytes()
    asked("show", "--storage", storage)
    assert Path(storage).read_bytes() == before
