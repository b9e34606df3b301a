"""A person's own training, tuned by one command: the example scripts, by each of the launchers."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.train

ROOT = Path(__file__).parent.parent
EXAMPLES = ROOT / "examples"
BIN = Path(sys.executable).parent
QUICK = ("--budget", "2GB", "--space", "ladder", "--steps", "3", "--warmup-steps", "1", "--json")
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
# A file for the rendezvous would do, but the launcher wants a port; one that no other test uses.
TWO_RANKS = (str(BIN / "deepspeed"), "--master_port", "29781", "--num_gpus", "2")


@pytest.fixture
def offtune(tmp_path):
    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "offtune", *arguments],
            cwd=tmp_path, capture_output=True, text=True, timeout=280, check=False,
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
    assert "optimizer" in document["best"]["ds_config"]
    exported = offtune("export", "-o", "ds_config.json", "--verify", "--json")
    assert exported.returncode == 0, exported.stderr
    assert json.loads(exported.stdout)["verification"]["status"] == "ok"
    other = offtune("resume", "--trials", "3", "--", sys.executable, "other.py")
    assert other.returncode == 2
    assert "other.py" in other.stderr


def test_the_hugging_face_trainer_started_by_torchrun_is_tuned_and_the_study_resumed(offtune):
    document = tuned(offtune("search", *QUICK, "--trials", "1", "--", *TORCHRUN, *HF))
    assert "optimizer" not in document["best"]["ds_config"]
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
    document = tuned(offtune("search", *QUICK, "--trials", "1", "--", *TWO_RANKS, *PLAIN))
    assert document["best"]["ds_config"]["train_batch_size"] == 16
    assert document["best"]["used_host_bytes"] > 1.5 * document["best"]["used_device_bytes"]


def test_arguments_of_the_trainer_that_contradict_the_file_are_named(offtune):
    wrong = [word if word != "{micro_batch}" else "3" for word in HF]
    done = offtune("search", *QUICK, "--trials", "1", "--", *TORCHRUN, *wrong)
    assert done.returncode == 1
    assert "contradict the ds_config" in done.stderr
    assert "per_device_train_batch_size=3" in done.stderr


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
