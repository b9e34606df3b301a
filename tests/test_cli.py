"""The command line without training: usage errors, exit codes, streams, broken pipes, and what is stored."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from study_samples import result, run
from typer.testing import CliRunner

from offtune import session
from offtune.cli import app
from offtune.errors import StudyMismatch
from offtune.export import deepspeed_text
from offtune.records import StudyRecord
from offtune.session import Changes
from offtune.store import Store
from offtune.trial import Status

DS_CONFIG = {"train_batch_size": 8, "zero_optimization": {"stage": 2}, "steps_per_print": 10**9}


@pytest.fixture
def storage(tmp_path: Path) -> str:
    """A database with one study: two ok runs, one over the budget, one crashed."""
    path = str(tmp_path / "studies.db")
    with Store.open(path, write=True) as store:
        store.add_study(
            StudyRecord(name="s", created_at="2026-08-01T10:00:00+00:00", settings={"limit_bytes": 1000},
                        target_trials=4, model="llama-5m", device="cpu", budget_bytes=1000)
        )  # fmt: skip
        outcomes = (
            result(10.0, used=500),
            result(12.0, used=900),
            result(20.0, used=1500, status=Status.OVER_BUDGET),
            result(None, used=None, status=Status.CRASHED),
        )
        for number, outcome in enumerate(outcomes):
            store.add_run(run(number, "s", ds_config=DS_CONFIG))
            store.finish_run("s", number, outcome)
    return path


def offtune(*arguments: str):
    return CliRunner().invoke(app, list(arguments))


def test_json_is_one_document_on_stdout_and_nothing_else(storage):
    for arguments in (["list"], ["show", "s"], ["show", "s", "--trial", "1"], ["export", "s"]):
        done = offtune(*arguments, "--storage", storage, "--json")
        assert done.exit_code == 0, done.stderr
        assert json.loads(done.stdout)["schema"].startswith("offtune.")


def test_export_prints_strict_json_without_what_only_served_the_trial(storage):
    done = offtune("export", "--storage", storage)
    assert json.loads(done.stdout) == {"train_batch_size": 8, "zero_optimization": {"stage": 2}}
    assert done.stdout == deepspeed_text({"train_batch_size": 8, "zero_optimization": {"stage": 2}})


@pytest.mark.parametrize(("budget", "trial"), [(None, 1), ("600B", 0), ("2KB", 2)])
def test_export_takes_the_best_measured_trial_under_the_asked_budget(storage, budget, trial):
    done = offtune("export", "--storage", storage, "--json", *(["--budget", budget] if budget else []))
    assert json.loads(done.stdout)["trial"] == trial


def test_export_says_when_nothing_fits_and_ends_with_3(storage):
    done = offtune("export", "--storage", storage, "--budget", "100B")
    assert (done.exit_code, done.stdout) == (3, "")
    assert "No trial of study 's' fits" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["export", "--trial", "3"], "ended as crashed"),
        (["export", "--trial", "77"], "no trial 77"),
        (["export", "--trial", "1", "--budget", "1GB"], "both choose"),
        (["export", "--format", "yaml"], "--format"),
        (["show", "t"], "no study 't'"),
        (["resume", "t"], "no study 't'"),
        (["search"], "--budget is missing"),
        (["search", "--budget", "40"], "no unit"),
        (["search", "--budget", "1GB", "--space", "nowhere"], "no space 'nowhere'"),
        (["search", "--budget", "1GB", "--study", "s"], "a study 's' already"),
        (["search", "--budget", "1GB", "--sampler", "best"], "no 'best'"),
    ],
)
def test_bad_input_ends_with_2_and_one_message_on_stderr(storage, arguments, said, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    done = offtune(*arguments, "--storage", storage)
    assert (done.exit_code, done.stdout) == (2, "")
    assert said in done.stderr
    assert "Traceback" not in done.stderr


def test_an_unknown_option_ends_with_2():
    assert offtune("search", "--bugdet", "2GB").exit_code == 2


def test_export_refuses_to_overwrite_without_force(storage, tmp_path):
    target = tmp_path / "ds_config.json"
    target.write_text("mine")
    done = offtune("export", "--storage", storage, "-o", str(target))
    assert done.exit_code == 2
    assert target.read_text() == "mine"
    assert offtune("export", "--storage", storage, "-o", str(target), "--force").exit_code == 0
    assert json.loads(target.read_text())["train_batch_size"] == 8


def test_a_reader_that_has_seen_enough_is_no_error(storage):
    """As in `offtune show | head -1`, with the reading end closed before anything is written."""
    read, write = os.pipe()
    os.close(read)
    done = subprocess.run([sys.executable, "-m", "offtune", "show", "--storage", storage], stdout=write,
                          stderr=subprocess.PIPE, text=True, check=False)  # fmt: skip
    os.close(write)
    assert (done.returncode, done.stderr) == (0, "")


def test_python_m_offtune_is_offtune():
    done = subprocess.run(
        [sys.executable, "-m", "offtune", "--version"], capture_output=True, text=True, check=True
    )
    assert done.stdout.startswith("offtune ")


def test_no_database_is_said_with_the_way_to_make_one(tmp_path):
    done = offtune("list", "--storage", str(tmp_path / "none.db"))
    assert done.exit_code == 2
    assert "offtune search" in done.stderr
    assert not (tmp_path / "none.db").exists()


@pytest.fixture
def real_record(monkeypatch):
    """A study made here and now, as `resume` finds it."""
    from offtune import hardware, prepare
    from offtune.config import Options, resolve
    from offtune.trial import as_dict

    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    config = resolve(Options(budget="1GB"), hardware.detect())
    settings = {**as_dict(config), "versions": prepare.recorded_versions()}
    return StudyRecord(name="s", created_at="", settings=settings, target_trials=1, model="m", device="cpu",
                       budget_bytes=10**9)  # fmt: skip


@pytest.mark.parametrize(
    ("where", "key", "said"),
    [("machine", None, "machine"), ("versions", "torch", "version of torch: 0.1 then")],
)
def test_resume_names_what_differs(real_record, where, key, said):
    key = key or next(iter(real_record.settings["machine"]))
    real_record.settings[where][key] = "0.1"
    config = session.stored_config(real_record)
    with pytest.raises(StudyMismatch, match=said):
        session._refuse_differences(real_record, config, Changes())
    session._refuse_differences(real_record, config, Changes(anyway=True))


def test_resume_under_the_same_conditions_is_let_through(real_record):
    session._refuse_differences(real_record, session.stored_config(real_record), Changes(budget_bytes=10**9))


def test_resume_never_mixes_budgets(real_record):
    config = session.stored_config(real_record)
    with pytest.raises(StudyMismatch, match="budget"):
        session._refuse_differences(real_record, config, Changes(budget_bytes=2 * 10**9, anyway=True))
