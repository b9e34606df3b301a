"""Exported files at work: a real training step with each, in programs that know nothing of offtune."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from conftest import workload
from ports import free_port
from report_fakes import make_run, make_study
from typer.testing import CliRunner

from offtune import ds_config, ops
from offtune.cli import app
from offtune.config import Options, with_base
from offtune.launch import child_environment
from offtune.store import Store
from offtune.trial import Facts, as_dict

pytestmark = pytest.mark.train

HERE = Path(__file__).parent
PLACEMENTS = ("zero2", "zero2 opt=cpu", "zero3 opt=cpu param=cpu")
# Over nothing, and over a file as people have it for the Trainer: "auto" all over, a scheduler.
WITH_AND_WITHOUT_BASE = [
    ("zero2", None),
    ("zero2 opt=cpu", None),
    ("zero3 opt=cpu param=cpu", HERE / "data" / "ds_configs" / "trainer.json"),
]
LIMIT_S = 900


@pytest.fixture(scope="module", autouse=True)
def _ready_ops() -> None:
    states = ops.prepare(ops.needed_ops("cpu", "adamw", PLACEMENTS, nvme=False), "cpu", print)
    lacking = [f"{state.op}: {state.error}" for state in states.values() if state.state != "ready"]
    assert not lacking, lacking


@pytest.fixture
def study(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Store a study whose best trial has a placement; exports find it in the working directory."""
    monkeypatch.chdir(tmp_path)

    def make(placement: str, world_size: int = 1, own: Path | None = None) -> None:
        work = workload(world_size=world_size, global_batch=4)
        facts = Facts(
            workload=work, device="cpu", parameter_numels=(4096 * 256,) * 2, nvme_dir=None,
            ops=frozenset({"cpu_adam", "fused_adam"}), deepspeed_version="0.19.8",
        )  # fmt: skip
        options = Options(base=str(own) if own else None, global_batch=4)
        _, base = with_base(options, work.model_config, "cpu", world_size)
        under = base.ds_config if base else {}
        config = ds_config.build(under, {"placement": placement, "micro_batch": 2}, facts, None)
        record = make_study("cpu", workload=as_dict(work), base=as_dict(base) if base else None)
        run = make_run(0, samples_per_s=10.0, used_gb=1, ds_config=config, study=record.name)
        with Store.open("studies.db", write=True) as store:
            store.add_study(record)
            store.add_run(replace(run, status=None))

    return make


def export(*arguments: str) -> str:
    """Export; returns what was said on stderr."""
    done = CliRunner().invoke(app, ["export", *arguments])
    assert done.exit_code == 0, done.stderr
    return done.stderr


def train(command: Sequence[str], folder: Path) -> dict[str, Any]:
    """Run a training program; returns what it saw of DeepSpeed."""
    done = attempt(command, folder)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads((folder / "seen.json").read_text())


def attempt(command: Sequence[str], folder: Path) -> subprocess.CompletedProcess[str]:
    environment = {
        **child_environment("cpu", 1),
        "SEEN": str(folder / "seen.json"),
        "CUDA_VISIBLE_DEVICES": "",
    }
    return subprocess.run([sys.executable, *command], cwd=folder, env=environment, capture_output=True,
                          text=True, timeout=LIMIT_S, check=False)  # fmt: skip


def torchrun(*command: str) -> list[str]:
    return [
        "-m",
        "torch.distributed.run",
        "--nproc_per_node",
        "1",
        "--master_port",
        str(free_port()),
        *command,
    ]


def launch(*command: str) -> list[str]:
    return ["-m", "accelerate.commands.launch", "--main_process_port", str(free_port()), *command]


def said(stderr: str) -> list[str]:
    """The arguments that must match, as the export printed them."""
    line = next(line for line in stderr.splitlines() if line.startswith("Must match:"))
    return line.removeprefix("Must match:").split()


HF = (
    str(HERE / "train_hf.py"), "--output_dir", "out", "--max_steps", "2", "--use_cpu",
    "--report_to", "none", "--save_strategy", "no",
)  # fmt: skip


@pytest.mark.parametrize(("placement", "own"), WITH_AND_WITHOUT_BASE)
def test_the_trainer_trains_with_the_file_and_the_arguments_that_were_printed(
    study, tmp_path, placement, own
):
    study(placement, own=own)
    flags = said(export("--format", "hf", "-o", "ds_config.json"))
    chosen = ["--learning_rate", "0.003", "--max_grad_norm", "0.5"]
    seen = train(torchrun(*HF, "--deepspeed", "ds_config.json", *flags, *chosen), tmp_path)
    assert (seen["steps"], seen["micro_batch"], seen["accumulation"]) == (2, 2, 2)
    assert seen["bf16"] is True
    assert seen["loss"] > 0
    assert (seen["lr"], seen["clipping"]) == (0.003, 0.5)  # the training's own, through "auto"
    # The person's file has one of DeepSpeed's, whose numbers are "auto" too.
    assert (seen["scheduler"] == "WarmupDecayLR") == (own is not None)
    assert seen["stage"] == int(placement[4])
    if "opt=cpu" in placement:
        assert seen["optimizer"] == "DeepSpeedCPUAdam"


def test_the_trainer_refuses_arguments_that_are_not_those_measured(study, tmp_path):
    study("zero2 opt=cpu")
    export("--format", "hf", "-o", "ds_config.json")
    wrong = ["--per_device_train_batch_size", "4", "--gradient_accumulation_steps", "1", "--bf16"]
    done = attempt(torchrun(*HF, "--deepspeed", "ds_config.json", *wrong), tmp_path)
    assert done.returncode != 0
    assert "train_micro_batch_size_per_gpu=2 vs hf per_device_train_batch_size=4" in done.stderr


@pytest.mark.parametrize(("placement", "own"), WITH_AND_WITHOUT_BASE)
def test_accelerate_launches_a_script_with_its_own_optimizer(study, tmp_path, placement, own):
    study(placement, own=own)
    export("--format", "accelerate", "-o", "accelerate.yaml")
    assert (tmp_path / "accelerate.json").exists()
    script = launch("--config_file", "accelerate.yaml", str(HERE / "train_accelerate.py"), "2", "2")
    seen = train(script, tmp_path)
    assert (seen["steps"], seen["micro_batch"], seen["accumulation"], seen["micro_steps"]) == (2, 2, 2, 4)
    assert seen["bf16"] is True
    assert seen["stage"] == int(placement[4])
    assert seen["optimizer"] == ("DeepSpeedCPUAdam" if "opt=cpu" in placement else "AdamW")


def test_accelerate_starts_as_many_processes_as_the_study_had_ranks(study, tmp_path):
    study("zero3 opt=cpu param=cpu", world_size=2)
    export("--format", "accelerate", "-o", "accelerate.yaml")
    script = launch("--config_file", "accelerate.yaml", str(HERE / "train_accelerate.py"), "2", "1")
    seen = train(script, tmp_path)
    assert (seen["processes"], seen["micro_batch"], seen["accumulation"]) == (2, 2, 1)


def test_the_trainer_trains_under_accelerate_launch_with_offload(study, tmp_path):
    study("zero3 opt=cpu param=cpu")
    export("--format", "accelerate", "-o", "accelerate.yaml")
    flags = ["--per_device_train_batch_size", "2", "--gradient_accumulation_steps", "2", "--bf16"]
    seen = train(launch("--config_file", "accelerate.yaml", *HF, *flags), tmp_path)
    assert (seen["steps"], seen["micro_batch"], seen["accumulation"]) == (2, 2, 2)
    assert (seen["stage"], seen["optimizer"]) == (3, "DeepSpeedCPUAdam")


def test_plain_deepspeed_trains_with_the_file(study, tmp_path):
    study("zero3 opt=cpu param=cpu")
    export("-o", "ds_config.json")
    seen = train(torchrun(str(HERE / "train_plain.py"), "ds_config.json"), tmp_path)
    assert (seen["steps"], seen["stage"], seen["optimizer"]) == (2, 3, "DeepSpeedCPUAdam")
