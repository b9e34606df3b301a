"""Trials of adaptive length and finals, trained for real: what is stored, shown and exported agrees."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from offtune import scratch
from offtune.store import Store
from offtune.trial import Status

pytestmark = pytest.mark.train

SEARCH = (
    *("search", "--budget", "2GB", "--trials", "2", "--space", "ladder", "--seq-len", "32"),
    *("--global-batch", "2", "--warmup-steps", "1", "--json"),
)


def offtune(folder: Path, *arguments: str) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, "-m", "offtune", *arguments], cwd=folder, capture_output=True, text=True,
        timeout=280, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    document: dict[str, Any] = json.loads(done.stdout)
    return document


def test_a_search_ends_with_finals_and_everybody_names_their_winner(tmp_path: Path) -> None:
    document = offtune(tmp_path, *SEARCH)
    finals = document["finals"]
    assert finals["winner"] == document["best"]["trial"]
    assert finals["rounds"] >= (2 if len(finals["plan"]["contenders"]) > 1 else 0)
    assert finals["confirmed_steps"] >= 3
    for trial in document["trials"]:
        assert trial["stopped"] in ("tight", "worse", "drift", "most")
        low, high = trial["step_interval_s"]
        assert 0 <= low <= high > 0
    with Store.open(str(tmp_path / "studies.db"), write=False) as store:
        made = store.repeats.of("study-1")
        lengths = [len(run.result.step_s) for run in store.runs("study-1") if run.result]
    assert all(each.status is Status.OK for each in made)
    assert all(5 <= length <= 8 for length in lengths)  # baselines
    assert not any(Path(each.trial_dir or "").exists() for each in made)
    assert all(scratch.shm_files(each.token) == [] for each in made)
    assert offtune(tmp_path, "show", "--json")["best"]["trial"] == finals["winner"]
    assert offtune(tmp_path, "export", "--json")["trial"] == finals["winner"]
    assert offtune(tmp_path, "resume", "--json")["finals"] == finals
