"""A person's own training, tuned by one command: the example scripts, by each of the launchers."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from disks import is_in_memory
from ports import free_port

pytestmark = pytest.mark.train

ROOT = Path(__file__).parent.parent
EXAMPLES = ROOT / "examples"
BIN = Path(sys.executable).parent
QUICK = (
    *("--budget", "2GB", "--space", "ladder", "--steps", "3", "--warmup-steps", "1"),
    *("--json", "--no-finals"),
)
PLAIN = (
    str(EXAMPLES / "plain_deepspeed.py"),
    "--deepspeed_config",
    "{ds_config}",
    "--output",
    "{trial_dir}/out",
)
HF = (
    str(EXAMPLES / "hf_trainer.py"), "--output_dir", "{trial_dir}/out", "--deepspeed", "{ds_config}",
    "--per_device_train_batch_size", "{micro_batch}", "--gradient_accumulation_steps", "{grad_accum}",
    "--bf16", "--use_cpu", "--report_to", "none",
    "--eval_strategy", "steps", "--eval_steps", "2", "--logging_steps", "1", "--save_steps", "2",
)  # fmt: skip
ACCELERATE = (
    str(BIN / "accelerate"), "launch", "--num_processes", "1", "--mixed_precision", "bf16",
    "--use_deepspeed", "--deepspeed_config_file", "{ds_config}",
    str(EXAMPLES / "accelerate_loop.py"), "--micro-batch", "{micro_batch}", "--output", "{trial_dir}/out",
)  # fmt: skip
TORCHRUN = (str(BIN / "torchrun"), "--standalone", "--nproc_per_node", "1")


@pytest.fixture
def offtune(tmp_path):
    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "offtune", *arguments],
            cwd=tmp_path, capture_output=True, text=True, timeout=900, check=False,
        )  # fmt: skip

    return run


def tuned(done: subprocess.CompletedProcess[str]) -> dict:
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert {trial["status"] for trial in document["trials"]} == {"ok"}, done.stderr
    assert document["best"]["tokens_per_s"] == pytest.approx(128 * document["best"]["samples_per_s"])
    return document


def test_a_plain_loop_started_by_python_is_tuned_exported_and_verified(offtune, tmp_path):
    document = tuned(offtune("search", *QUICK, "--trials", "2", "--", sys.executable, *PLAIN))
    assert document["model"] == "plain_deepspeed.py"
    assert {trial["start"] for trial in document["trials"]} == {"warm"}
    assert "optimizer" in document["best"]["ds_config"]
    first, second = document["trials"]
    assert first["predicted"] is None  # how long its samples are is only known after it
    assert second["predicted"]["samples_per_s"] > 0
    assert document["predictions"]["trials"] == 1
    off_share = abs(second["predicted"]["used_device_bytes"] / second["used_device_bytes"] - 1)
    assert document["predictions"]["memory_error_share"] == pytest.approx(off_share)
    assert off_share < 0.5  # what a process needs besides its tensors is the machine's affair
    assert any("llama family" in note for note in document["notes"])
    exported = offtune("export", "-o", "ds_config.json", "--verify", "--json")
    assert exported.returncode == 0, exported.stderr
    assert json.loads(exported.stdout)["verification"]["status"] == "ok"
    other = offtune("resume", "--trials", "3", "--", sys.executable, "other.py")
    assert other.returncode == 2
    assert "other.py" in other.stderr


def test_the_hugging_face_trainer_started_by_torchrun_is_tuned_and_the_study_resumed(offtune):
    document = tuned(offtune("search", *QUICK, "--trials", "1", "--", *TORCHRUN, *HF))
    assert "optimizer" not in document["best"]["ds_config"]
    assert {trial["start"] for trial in document["trials"]} == {"cold"}
    assert document["best"]["ds_config"]["gradient_clipping"] == 1.0
    again = tuned(offtune("resume", "--trials", "2", "--json"))
    assert again["measured"] == 2
    assert again["trials"][1]["point"]["placement"] == "zero2 opt=cpu"


def test_a_loop_with_accelerate_is_tuned_in_a_scratch_directory(offtune, tmp_path):
    tuned(offtune("search", *QUICK, "--trials", "2", "--trial-cwd", "scratch", "--", *ACCELERATE))
    assert [path.name for path in tmp_path.iterdir() if not path.name.startswith("offtune-")] == [
        "studies.db"
    ]


def test_two_ranks_of_the_deepspeed_launcher_are_measured_together(offtune):
    # A file for the rendezvous would do, but the launcher wants a port.
    launcher = (str(BIN / "deepspeed"), "--master_port", str(free_port()), "--num_gpus", "2")
    document = tuned(offtune("search", *QUICK, "--trials", "1", "--", *launcher, *PLAIN))
    assert document["best"]["ds_config"]["train_batch_size"] == 16
    assert document["best"]["used_host_bytes"] > 1.5 * document["best"]["used_device_bytes"]


def test_arguments_of_the_trainer_that_contradict_the_file_are_named(offtune):
    wrong = [word if word != "{micro_batch}" else "3" for word in HF]
    done = offtune("search", *QUICK, "--trials", "1", "--", *TORCHRUN, *wrong)
    assert done.returncode == 1
    assert "contradict the ds_config" in done.stderr
    assert "per_device_train_batch_size=3" in done.stderr


def test_nvme_offload_in_a_script_of_ones_own_writes_to_disk_and_leaves_nothing(offtune, tmp_path):
    swap, space = tmp_path / "nvme", tmp_path / "own.yaml"
    swap.mkdir()
    space.write_text("about: 'States on NVMe.'\ninclude: [nvme]\nonly: {placement: [zero3 opt=nvme]}\n")
    chosen = ("--space", str(space), "--nvme-path", str(swap), "--trials", "1", "--no-predict")
    document = tuned(offtune("search", *QUICK, *chosen, "--", sys.executable, *PLAIN))
    assert document["trials"][0]["point"]["placement"] == "zero3 opt=nvme"
    shown = offtune("show", "--trial", "0", "--json")
    result = json.loads(shown.stdout)["result"]
    traffic, analysis = result["traffic"], result["analysis"]
    assert traffic["nvme_write_bytes"] > 0 or is_in_memory(swap), traffic
    summed = sum(phase["seconds"] for phase in analysis["phases"])
    assert summed == pytest.approx(analysis["step_s"], rel=0.03)
    parts = {part["name"] for part in analysis["parts"]}
    assert parts >= {"update.cpu_optimizer", "update.nvme_read", "update.nvme_write"}
    assert list(swap.iterdir()) == []


OWN_OPTIMIZER = """
import sys, torch, deepspeed
sys.path.insert(0, {examples!r})
from text_data import Bytes, small_model
model = small_model()
optimizer = torch.optim.AdamW(model.parameters())
engine, _, loader, _ = deepspeed.initialize(
    model=model, optimizer=optimizer, config=sys.argv[1], training_data=Bytes(128, 512))
for batch in loader:
    engine.backward(engine(**batch).loss)
    engine.step()
"""


def test_an_optimizer_deepspeed_does_not_offload_narrows_the_space_and_is_named(offtune, tmp_path):
    (tmp_path / "own.py").write_text(OWN_OPTIMIZER.format(examples=str(EXAMPLES)))
    done = offtune("search", *QUICK, "--trials", "1", "--", sys.executable, "own.py", "{ds_config}")
    document = tuned(done)
    assert any("torch.optim.adamw.AdamW" in note for note in document["notes"]), document["notes"]
    assert not any("opt=cpu" in trial["point"]["placement"] for trial in document["trials"])


def test_a_trainers_file_with_auto_is_filled_by_its_own_arguments_and_model(offtune, tmp_path):
    base = ROOT / "tests" / "data" / "ds_configs" / "trainer.json"
    own = ("--learning_rate", "3e-4", "--weight_decay", "0.02")
    search = ("search", *QUICK, "--trials", "2", "--global-batch", "8", "--base", str(base))
    document = tuned(offtune(*search, "--", sys.executable, *HF, *own))
    assert document["trials"][0]["label"] == "your file"
    assert {trial["start"] for trial in document["trials"]} == {"warm"}
    for trial in document["trials"]:  # whichever of them is the best
        config = json.loads(offtune("export", "--trial", str(trial["number"])).stdout)
        assert config["optimizer"]["params"]["weight_decay"] == 0.02
        assert config["zero_optimization"]["reduce_bucket_size"] == 128 * 128
        assert config["scheduler"]["params"]["total_num_steps"] == 192
