"""Predicted and measured on a card: calibrate it, then six configurations of the ladder."""

import json
import subprocess
import sys
from statistics import median

import pytest

pytestmark = [pytest.mark.gpu, pytest.mark.train]

# A small model is mostly context and launches, of which profiles know least: wider than the errors of
# docs/accuracy.md, where models fill their cards.
MEMORY_SHARE, STEP_SHARE = 0.5, 1.0


def test_six_configurations_are_predicted_from_this_cards_own_calibration(tmp_path):
    def offtune(*arguments: str) -> str:
        command = [sys.executable, "-m", "offtune", *arguments, "--storage", "s.db", "--json"]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=600, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout

    offtune("calibrate", "--quick", "--gpus", "1")
    plan = json.loads(offtune("plan", "--model", "llama-160m", "--budget", "20GB"))
    assert plan["request"]["hardware"] == "this machine"
    study = json.loads(
        offtune("search", "--budget", "20GB", "--model", "llama-160m", "--seq-len", "512", "--gpus", "1",
                "--space", "ladder", "--global-batch", "16", "--steps", "3", "--trials", "6")
    )  # fmt: skip
    pairs = [
        (trial["predicted"]["used_device_bytes"] / trial["used_device_bytes"],
         trial["predicted"]["samples_per_s"] / trial["samples_per_s"])
        for trial in study["trials"]
        if trial["samples_per_s"] is not None
    ]  # fmt: skip
    assert len(pairs) >= 5, study["trials"]
    assert median(abs(memory - 1) for memory, _ in pairs) < MEMORY_SHARE, pairs
    assert median(abs(speed - 1) for _, speed in pairs) < STEP_SHARE, pairs
