"""Activation checkpointing searched for real: with and without it, over an interruption, up to the export."""

import json
from pathlib import Path

import pytest
from test_search_end_to_end import offtune, runs_of  # noqa: F401  (a fixture)
from typer.testing import CliRunner

from offtune.cli import app
from offtune.knob_workload import CHECKPOINTING

pytestmark = pytest.mark.train

# Large enough micro-batches for activations to be most of what is used.
SPACE = """
about: "One placement and micro-batch, with activations kept or not."
knobs:
  placement: {about: "Where.", choices: [zero2], default: zero2}
  micro_batch: {about: "How many.", choices: [16], default: 16}
  activation_checkpointing: {about: "Again or kept.", choices: [false, true], default: false}
"""


def test_both_are_trained_one_saves_memory_and_its_export_says_what_it_needs(offtune, tmp_path: Path):  # noqa: F811
    (tmp_path / "own.yaml").write_text(SPACE)
    shape = ("--seq-len", "256", "--global-batch", "16", "--steps", "2", "--warmup-steps", "1")
    one = ("--space", "own.yaml", "--sampler", "grid", "--trials", "1", "--no-finals")
    first = offtune("search", "--budget", "2GB", *shape, *one)
    assert first.returncode == 0, first.stderr
    second = offtune("resume", "--trials", "2")
    assert second.returncode == 0, second.stderr
    kept, again = (run for run in runs_of(tmp_path) if run.reuse_of is None)
    assert again.number == 1
    assert (kept.point[CHECKPOINTING], again.point[CHECKPOINTING]) == (False, True)
    assert kept.ds_config == again.ds_config
    assert again.result.memory.used_device_bytes < 0.9 * kept.result.memory.used_device_bytes
    assert again.result.loss_check.verdict == "agrees"
    assert again.result.forecast.used_device_bytes < kept.result.forecast.used_device_bytes
    storage = ("--storage", str(tmp_path / "studies.db"))
    told = CliRunner().invoke(app, ["export", "--trial", "1", "--format", "hf", "--json", *storage])
    assert "--gradient_checkpointing" in json.loads(told.stdout)["must_match"]
