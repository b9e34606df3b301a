"""The dashboard's copy of a study: what it holds, that it is a copy, and that it is served."""

from __future__ import annotations

import json
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import pytest
from ports import free_port
from report_fakes import make_study, rich_study
from typer.testing import CliRunner
from web_fakes import write_study

from offtune import dashboard
from offtune.cli import app
from offtune.records import Limits

LIMITS = Limits(device_bytes=38 * 10**9, host_bytes=200 * 10**9)


def test_the_copy_has_every_ended_trial_and_what_one_sorts_by() -> None:
    copied = dashboard.copy_of(make_study(), rich_study(), LIMITS)
    trials = copied.get_trials()
    assert len(trials) == 11
    best = copied.best_trial
    assert (best.user_attrs["trial"], best.value) == (3, 10.9)
    assert best.user_attrs["used_device_gb"] == 36.8
    assert best.params["reduce_bucket_size"] == 2**22
    assert json.loads(best.user_attrs["ds_config"])["zero_optimization"]["stage"] == 3
    over = next(trial for trial in trials if trial.user_attrs["trial"] == 4)
    assert max(over.system_attrs["constraints"]) > 0
    assert (over.value, over.user_attrs["feasible"], over.user_attrs["samples_per_s"]) == (0.0, False, 12.0)


def test_without_the_package_the_command_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "optuna_dashboard", None)
    done = CliRunner().invoke(app, ["dashboard"])
    assert done.exit_code == 2
    assert "pip install" in done.stderr


def test_it_is_served_from_a_copy_and_the_database_stays_as_it_was(tmp_path: Path) -> None:
    pytest.importorskip("optuna_dashboard", reason="the optional extra 'dashboard' is not installed")
    location = write_study(tmp_path)
    before = Path(location).read_bytes()
    port = free_port()
    command = [sys.executable, "-m", "offtune", "dashboard", "--port", str(port), "--storage", location]
    server = subprocess.Popen(command, stderr=subprocess.PIPE)
    try:
        studies = _json(f"http://127.0.0.1:{port}/api/studies")
        assert studies["study_summaries"][0]["study_name"] == "calm-otter"
        study = _json(f"http://127.0.0.1:{port}/api/studies/0?after=0")
        assert len(study["trials"]) > 20
    finally:
        server.terminate()
        server.wait(300)
    assert Path(location).read_bytes() == before
    assert server.returncode == 0


def _json(url: str, timeout_s: float = 300) -> dict[str, object]:
    """The document at a local address, once the server has come up."""
    give_up = time.monotonic() + timeout_s
    while True:
        try:
            with urllib.request.urlopen(url, timeout=60) as answer:
                return json.load(answer)  # type: ignore[no-any-return]
        except OSError:
            if time.monotonic() > give_up:
                raise
            time.sleep(0.2)
