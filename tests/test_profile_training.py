"""`offtune profile` for real, on the CPU accelerator: figures that add up, a trace and a page on disk."""

import json
import sys
from pathlib import Path
from statistics import mean

import pytest
from disks import is_in_memory
from typer.testing import CliRunner

from offtune.cli import app

pytestmark = pytest.mark.train

EXAMPLE = Path(__file__).parent.parent / "examples" / "plain_deepspeed.py"
# What DeepSpeed's design moves, and how near the kernel's count has to be (`benchmarks/profile_check.py`).
NVME_WITHIN, PHASES_WITHIN = 0.10, 0.03


def ds_config(**zero):
    return {
        "train_batch_size": 4,
        "train_micro_batch_size_per_gpu": 2,
        "bf16": {"enabled": True},
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-4}},
        "zero_optimization": zero,
    }


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run(*arguments: str):
    done = CliRunner().invoke(app, ["profile", "ds.json", "--device", "cpu", "--steps", "3", "--json",
                                    "--trace", "trace.json", "--close-steps", "1", *arguments])  # fmt: skip
    assert done.exit_code == 0, done.stderr
    return json.loads(done.stdout)


def test_an_nvme_run_adds_up_and_leaves_nothing_behind(here):
    disk = here / "disk"
    disk.mkdir()
    nvme = {"device": "nvme", "nvme_path": str(disk), "buffer_count": 4}
    (here / "ds.json").write_text(json.dumps(ds_config(stage=3, offload_optimizer=nvme)))
    found = run("--seq-len", "64", "--html", "page.html")
    phases = {phase["name"]: phase for phase in found["analysis"]["phases"]}
    assert {"forward", "backward", "update"} <= phases.keys()
    parts = {part["name"]: part["figures"] for part in found["analysis"]["parts"]}
    assert "nvme_read_bytes_per_s" in parts["update.nvme_read"]
    total = sum(phase["seconds"] for phase in phases.values())
    assert total == pytest.approx(mean(found["result"]["step_s"]), rel=PHASES_WITHIN)
    if not is_in_memory(disk):
        checks = {(one["phase"], one["path"]): one["difference_share"] for one in found["traffic_checks"]}
        for place in (("step", "NVMe read"), ("step", "NVMe write"), ("update", "NVMe read")):
            assert abs(checks[place]) <= NVME_WITHIN, (place, checks)
    (look,) = found["close_looks"]
    assert look["copies"] is None and "CPU accelerator" in look["copies_reason"]
    assert {"forward", "backward", "update"} <= look["phase_s"].keys()
    assert any(op["name"].startswith("aten::") for op in look["ops"])
    events = json.loads((here / "trace.json").read_text())["traceEvents"]
    assert {"step", "forward", "update"} <= {event["name"] for event in events if event["ph"] == "X"}
    assert "Measured: step" in (here / "page.html").read_text()
    assert list(disk.iterdir()) == [], "swap files are removed"
    assert not list(here.glob("offtune-*/profile*/*")), "and so is the run's own folder"


def test_a_command_of_ones_own_is_looked_at_closely_too(here):
    (here / "ds.json").write_text(json.dumps(ds_config(stage=2)))
    command = [
        sys.executable,
        str(EXAMPLE),
        "--deepspeed_config",
        "{ds_config}",
        "--output",
        "{trial_dir}/out",
    ]
    found = run("--", *command)
    assert found["result"]["status"] == "ok"
    assert found["predicted"]["step_s"] > 0  # its length of samples was seen in this very run
    (look,) = found["close_looks"]
    assert look["steps"] == 1 and {"forward", "backward", "update"} <= look["phase_s"].keys()
