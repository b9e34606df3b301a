"""offtune's hook in scripts it knows nothing of, with a stand-in for DeepSpeed on the path."""

import os
import sys
import time
from dataclasses import replace
from pathlib import Path

import psutil
import pytest
from clock import Clock
from conftest import workload
from processes import is_running, wait_for

from offtune import runner
from offtune.command import parse_command
from offtune.command_ranks import CommandRanks
from offtune.recording import read_timelines
from offtune.runner import read_reports, run_trial
from offtune.trial import Status, StopRule

FAKE = Path(__file__).parent / "fake_deepspeed"
BATCH = {"train_batch_size": 4, "train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": 2}
CONFIG = {**BATCH, "zero_optimization": {"stage": 2}}

START = """
import json, os, sys, time
import torch
import deepspeed
config = json.load(open(os.environ["OFFTUNE_DS_CONFIG"]))
model = torch.nn.Linear(8, 1)
def start(**changes):
    return deepspeed.initialize(model=model, config={**config, **changes})[0]
def train(engine, steps, batch=2):
    data = torch.utils.data.DataLoader(torch.zeros(1000, 8, dtype=torch.long), batch_size=batch)
    for micro, ids in enumerate(data):
        loss = engine(input_ids=ids)
        engine.backward(loss)
        engine.step()
        if engine.global_steps and micro % 2:
            yield engine.global_steps
        if engine.global_steps == steps:
            return
"""


@pytest.fixture
def trial(make_spec, tmp_path, monkeypatch):
    """Run a script as a trial of 1 warm-up and 3 measured steps; returns spec and result."""
    monkeypatch.setenv("PYTHONPATH", str(FAKE))

    def run(text, python=(sys.executable,), **changes):
        script = tmp_path / "script.py"
        script.write_text(text)
        command = parse_command([*python, str(script), "{ds_config}"], str(tmp_path), "here")
        spec = make_spec(CONFIG, workload=workload(command=command, seq_len=None), **changes)
        return spec, run_trial(spec, CommandRanks, "cold")

    return run


def test_whole_steps_are_measured_without_evaluation_saving_and_logging(trial):
    spec, result = trial(
        START
        + """
engine = start()
for step in train(engine, 100):
    if step == 2:
        time.sleep(3.0)                          # logging
        for _ in range(3):
            engine.save_checkpoint("nowhere")    # a second each
    engine.eval()
    with torch.no_grad():
        for ids in torch.utils.data.DataLoader(torch.zeros(8, 8, dtype=torch.long), batch_size=2):
            engine(input_ids=ids)
    engine.train()
"""
    )
    assert result.status is Status.OK, result.reason + result.log_tail
    assert len(result.step_s) == 3
    assert all(0.04 <= seconds < 3.0 for seconds in result.step_s), result.step_s
    assert all(loss is not None for loss in result.losses)
    assert result.samples_per_s == pytest.approx(4 / sorted(result.step_s)[1])
    assert result.tokens_per_s == pytest.approx(8 * result.samples_per_s)
    assert result.phases is not None
    assert result.phases.forward_s is not None
    assert result.phases.forward_s >= 0.04
    assert result.analysis is not None
    assert result.analysis.step_s == pytest.approx(sum(result.step_s) / 3, rel=1e-4)
    (timeline,) = read_timelines(spec.trial_dir)
    assert len(timeline.steps()) == 3
    assert result.memory.used_device_bytes is not None
    assert result.memory.used_device_bytes < 100 * 2**20


def test_a_short_script_has_done_enough_where_a_trial_may_stop_early(trial):
    script = START + "engine = start()\nfor step in train(engine, 4):\n    pass\n"
    rule = StopRule(accuracy_share=1e-9, least_steps=3)
    _, enough = trial(script, steps=20, stop=rule)
    assert enough.status is Status.OK, enough.reason + enough.log_tail
    assert len(enough.step_s) == 3
    assert enough.stopped == ""
    _, short = trial(script, steps=20, stop=replace(rule, least_steps=4))
    assert short.status is Status.CRASHED
    assert "after 4 of 21 optimizer steps" in short.reason


@pytest.mark.parametrize(
    ("last", "error"),
    [("raise RuntimeError('no room')", "RuntimeError: no room"), ("break", "the script ended before")],
)
def test_a_script_that_ends_in_the_close_look_keeps_what_was_measured(trial, last, error):
    script = START + f"engine = start()\nfor step in train(engine, 9):\n    if step == 4:\n        {last}\n"
    spec, result = trial(script, close_steps=2)
    assert result.status is Status.OK, result.reason + result.log_tail
    assert len(result.step_s) == 3 and result.phases is not None and result.samples_per_s
    (report,) = read_reports(spec)
    assert report is not None and report.close_error.startswith(error)


def test_loading_counts_as_training(trial):
    _, result = trial(
        START
        + """
class Slow(torch.utils.data.Dataset):
    def __len__(self): return 1000
    def __getitem__(self, index):
        time.sleep(0.1)
        return torch.zeros(8, dtype=torch.long)
engine = start()
for ids in torch.utils.data.DataLoader(Slow(), batch_size=2):
    engine.backward(engine(input_ids=ids))
    engine.step()
"""
    )
    assert result.status is Status.OK, result.reason
    assert all(seconds >= 0.44 for seconds in result.step_s), result.step_s


CRASHED, INVALID = Status.CRASHED, Status.INVALID
FAILURES = {
    "never imports deepspeed": (
        "import sys; sys.exit(3)",
        (CRASHED, "exit code 3 without importing deepspeed"),
    ),
    "never initialises": ("import deepspeed", (CRASHED, "never called deepspeed.initialize")),
    "fails before": (
        "import deepspeed\nopen('/nowhere/data.txt')",
        (CRASHED, "failed before deepspeed.initialize: FileNotFoundError"),
    ),
    "never steps": (START + "engine = start()", (CRASHED, "ended without an optimizer step")),
    "ends early": (START + "list(train(start(), 2))", (CRASHED, "ended after 2 of 4 optimizer steps")),
    "fails on the way": (
        START + "for step in train(start(), 9):\n    raise RuntimeError('no more')",
        (CRASHED, "RuntimeError: no more"),
    ),
    "overrides": (
        START + "start(zero_optimization={'stage': 1})",
        (INVALID, "zero_optimization.stage 1 (offtune: 2)"),
    ),
    "another global batch": (
        START + "start(train_batch_size=8)",
        (INVALID, "train_batch_size 8 (offtune: 4)"),
    ),
    "feeds other batches": (
        START + "list(train(start(), 9, batch=1))",
        (INVALID, "batches of 1 samples, but the micro-batch of the ds_config is 2"),
    ),
}


@pytest.mark.parametrize("what", FAILURES)
def test_a_failing_script_is_told_what_was_seen_and_what_to_change(trial, what):
    text, (status, reason) = FAILURES[what]
    _, result = trial(text)
    assert (result.status, reason in result.reason) == (status, True), result.reason + result.log_tail


def test_an_interpreter_that_ignores_the_environment_is_noticed(trial):
    _, result = trial("import deepspeed", python=(sys.executable, "-I"))
    assert result.status is Status.CRASHED
    assert "no Python process of it loaded offtune's hook" in result.reason


def test_the_persons_own_sitecustomize_still_runs(trial, tmp_path, monkeypatch):
    own = tmp_path / "own"
    own.mkdir()
    (own / "sitecustomize.py").write_text("import builtins\nbuiltins.own_site = 'here'\n")
    monkeypatch.setenv("PYTHONPATH", f"{own}:{FAKE}")
    _, result = trial(START + "assert own_site == 'here'\nlist(train(start(), 9))")
    assert result.status is Status.OK, result.reason + result.log_tail


def test_nothing_heavy_is_imported_before_the_script_asks_for_it(trial, tmp_path):
    trial(f"import sys\nopen({str(tmp_path / 'loaded')!r}, 'w').write(' '.join(sys.modules))")
    loaded = (tmp_path / "loaded").read_text().split()
    assert not {"torch", "offtune", "pydantic", "deepspeed"} & set(loaded)


def test_at_the_deadline_no_process_is_left_not_even_one_that_hides(trial, tmp_path, monkeypatch):
    monkeypatch.setattr(runner, "time", Clock((tmp_path / "pid").exists))
    spec, result = trial(
        "import subprocess, time\n"
        f"hidden = 'echo $$ > {tmp_path}/draft; mv {tmp_path}/draft {tmp_path}/pid; sleep 300 & wait'\n"
        "child = subprocess.Popen(['setsid', 'sh', '-c', hidden])\n"
        "time.sleep(300)"
    )
    assert result.status is Status.TIMEOUT
    pid = int((tmp_path / "pid").read_text())
    assert not is_running(pid)
    assert marked(spec) == []


def test_when_offtune_is_killed_the_script_ends_too(tmp_path, make_spec, monkeypatch):
    script = tmp_path / "script.py"
    script.write_text("import time; time.sleep(300)")
    command = parse_command([sys.executable, str(script)], str(tmp_path), "here")
    spec = make_spec(CONFIG, workload=workload(command=command, seq_len=None))
    pid = os.fork()
    if pid == 0:
        CommandRanks(spec, Path(spec.trial_dir) / "spec.json")
        time.sleep(300)
    wait_for(lambda: list(Path(spec.trial_dir).glob("seen/loaded-*")))
    os.kill(pid, 9)
    os.waitpid(pid, 0)
    wait_for(lambda: marked(spec) == [])


def marked(spec):
    found = []
    for process in psutil.process_iter():
        try:
            if spec.trial_dir.encode() in Path(f"/proc/{process.pid}/environ").read_bytes():
                found.append(process.pid)
        except OSError:
            continue
    return [pid for pid in found if pid != os.getpid()]
