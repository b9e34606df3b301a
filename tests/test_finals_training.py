"""Trials of adaptive length and finals, trained for real: what is stored, shown and exported agrees."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from offtune import scratch
from offtune.finals_notes import kept
from offtune.repeats import Outcome
from offtune.rounds import LEAST_ROUNDS
from offtune.store import Store
from offtune.trial import Status
from offtune.trial_length import CONFIRMATION_LEAST_STEPS, REPEAT_STEPS

pytestmark = pytest.mark.train

SEARCH = (
    *("search", "--budget", "2GB", "--trials", "2", "--space", "ladder", "--seq-len", "32"),
    *("--global-batch", "2", "--warmup-steps", "1", "--json"),
)


def offtune(folder: Path, *arguments: str) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, "-m", "offtune", *arguments], cwd=folder, capture_output=True, text=True,
        timeout=900, check=False,
    )  # fmt: skip
    assert done.returncode in (0, 3), done.stderr  # 3: nothing that fits held
    document: dict[str, Any] = json.loads(done.stdout)
    return document


def test_a_search_ends_with_finals_and_everybody_names_their_winner(tmp_path: Path) -> None:
    """Holds whatever the noise: a busy machine may slow a training from step to step, which is a drift."""
    document = offtune(tmp_path, *SEARCH)
    for trial in document["trials"]:
        assert trial["stopped"] in ("tight", "worse", "drift", "most")
        low, high = trial["step_interval_s"]
        assert 0 <= low <= high > 0
    with Store.open(str(tmp_path / "studies.db"), write=False) as store:
        made = store.repeats.of("study-1")
        outcome = kept(store, "study-1", Outcome)
        baselines = [run.result for run in store.runs("study-1") if run.origin == "baseline" and run.result]
    assert all(3 <= len(each.step_s) <= 8 or each.stopped in ("drift", "over") for each in baselines)
    assert all(each.status is not None for each in made)
    assert not any(Path(each.trial_dir or "").exists() for each in made)
    assert all(scratch.shm_files(each.token) == [] for each in made)
    assert outcome is not None
    rejected = {each.run for each in outcome.rejected}
    assert {each.run for each in made if each.status is not Status.OK} <= rejected
    repeated = [each.result for each in made if each.kind == "repeat" and each.result]
    assert all(len(each.step_s) <= REPEAT_STEPS for each in repeated)
    holding = set(outcome.plan.contenders) - rejected
    assert outcome.winner in holding or not holding
    if not rejected:
        assert (outcome.confirmed_steps or 0) >= CONFIRMATION_LEAST_STEPS
        assert outcome.rounds >= (LEAST_ROUNDS if len(holding) > 1 else 0)
    best, finals = document["best"] and document["best"]["trial"], document["finals"]
    assert (finals and finals["winner"]) == outcome.winner
    assert best == outcome.winner or not holding
    shown = offtune(tmp_path, "show", "--json")
    assert shown["finals"] == finals and (shown["best"] and shown["best"]["trial"]) == best
    listed = offtune(tmp_path, "list", "--json")["studies"][0]["best"]
    assert (listed and listed["trial"]) == best
    if best is not None:
        trial = offtune(tmp_path, "show", "--trial", str(best), "--json")
        again = [each for each in made if each.run == best]
        assert [each["round"] for each in trial["repeats"]] == [each.round for each in again]
        exported = offtune(tmp_path, "export", "--json", "--note", "note.md")
        assert exported["trial"] == best
        if outcome.confirmed_steps and best == outcome.winner:
            assert "- in the finals: " in (tmp_path / "note.md").read_text()
        assert offtune(tmp_path, "resume", "--json")["finals"] == finals
