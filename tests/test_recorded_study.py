"""The study that ships at the top level opens with today's code; a copy of it, never the file itself."""

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from offtune.cli import app

RECORDED = Path(__file__).parent.parent / "studies.db"


@pytest.fixture
def storage(tmp_path: Path) -> str:
    """The file as it was committed: a search in this checkout adds its own study to it."""
    copy = tmp_path / "studies.db"
    committed = subprocess.run(
        ["git", "show", "HEAD:studies.db"], cwd=RECORDED.parent, capture_output=True, check=False
    )
    copy.write_bytes(committed.stdout if committed.returncode == 0 else RECORDED.read_bytes())
    return str(copy)


def asked(*arguments: str) -> dict[str, object]:
    done = CliRunner().invoke(app, [*arguments, "--json"])
    assert done.exit_code == 0, done.stderr
    document: dict[str, object] = json.loads(done.stdout)
    return document


def test_it_holds_a_search_that_ended_by_itself_with_baselines_finals_and_a_winner(storage: str) -> None:
    shown = asked("show", "default-search", "--storage", storage)
    assert shown["device"] == "cpu"
    assert 5 < shown["measured"] < shown["target_trials"]  # type: ignore[operator]
    assert len(shown["baselines"]) == 5  # type: ignore[arg-type]
    assert shown["best"]["used_device_bytes"] <= shown["limit_bytes"]  # type: ignore[index]


def test_it_holds_a_landscape_measured_point_by_point_with_a_budget_that_binds(storage: str) -> None:
    shown = asked("show", "landscape", "--storage", storage)
    assert shown["measured"] == shown["target_trials"] == 336
    trials: Any = shown["trials"]
    assert {trial["status"] for trial in trials} == {"ok", "over_budget"}
    assert any("nvme" in trial["point"]["placement"] for trial in trials if trial["status"] == "ok")
    fastest = max(trials, key=lambda trial: trial["samples_per_s"])
    assert fastest["used_device_bytes"] > shown["limit_bytes"]


def test_it_can_be_listed_and_exported(storage: str) -> None:
    assert len(asked("list", "--storage", storage)["studies"]) == 2  # type: ignore[arg-type]
    for study in ("default-search", "landscape"):
        exported = asked("export", study, "--storage", storage)
        assert exported["ds_config"]["zero_optimization"]["stage"] in (1, 2, 3)  # type: ignore[index]


def test_nothing_in_it_tells_of_the_machine_it_was_recorded_on_but_its_kind(storage: str) -> None:
    content = Path(storage).read_bytes()
    assert b"/tmp/" not in content
    assert b"site-packages" not in content


def test_reading_it_leaves_it_as_it_is(storage: str) -> None:
    before = Path(storage).read_bytes()
    asked("show", "--storage", storage)
    assert Path(storage).read_bytes() == before
