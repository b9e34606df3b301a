"""Formats of an export: what stays a number, what becomes "auto", what goes beside it and what is said."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from report_fakes import DS_CONFIG, make_run, make_study
from typer.testing import CliRunner

from offtune.cli import app
from offtune.errors import UsageError
from offtune.export_formats import FORMATS, Export, Purpose, make
from offtune.export_note import note_text, quartiles
from offtune.store import Store
from offtune.trial import LossCheck, Status

FULL: dict[str, Any] = {
    **DS_CONFIG,
    "gradient_clipping": 1.0,
    "fp16": {"enabled": False},
    "optimizer": {
        "type": "AdamW",
        "params": {
            "lr": 1e-4,
            "betas": [0.9, 0.95],
            "eps": 1e-8,
            "weight_decay": 0.01,
            "torch_adam": False,
        },
    },
}


def exported(
    format_name: str, ds_config: dict[str, Any] = FULL, path: str | None = None, **more: Any
) -> Export:
    fields: dict[str, Any] = {"world_size": 1, "activation_checkpointing": False, **more}
    return make(format_name, ds_config, Purpose(path=Path(path) if path else None, **fields))


def test_the_trainers_file_keeps_what_was_tuned_and_leaves_the_rest_to_the_training() -> None:
    content = json.loads(exported("hf").text)
    assert content["train_micro_batch_size_per_gpu"] == 4
    assert content["gradient_accumulation_steps"] == 2
    assert content["train_batch_size"] == 8
    assert content["bf16"]["enabled"] is True
    assert content["zero_optimization"] == FULL["zero_optimization"]
    assert content["gradient_clipping"] == "auto"
    assert content["optimizer"]["params"] == {
        "lr": "auto", "betas": "auto", "eps": "auto", "weight_decay": "auto", "torch_adam": False,
    }  # fmt: skip


def test_the_arguments_for_the_trainer_are_named_with_their_values() -> None:
    made = exported("hf", activation_checkpointing=True)
    assert made.must_match == (
        "--per_device_train_batch_size 4", "--gradient_accumulation_steps 2", "--bf16",
        "--gradient_checkpointing",
    )  # fmt: skip
    assert set(made.chosen) == {
        "--learning_rate 0.0001", "--weight_decay 0.01", "--max_grad_norm 1.0",
        "--adam_beta1 0.9", "--adam_beta2 0.95", "--adam_epsilon 1e-08",
    }  # fmt: skip
    assert "--optim has no effect" in made.remarks[0]


def test_the_trainer_would_fill_lions_betas_with_adams_so_they_stay_and_must_match() -> None:
    lion = {**FULL, "optimizer": {"type": "Lion", "params": {"lr": 1e-5, "betas": [0.9, 0.99]}}}
    made = exported("hf", lion)
    assert json.loads(made.text)["optimizer"]["params"] == {"lr": "auto", "betas": [0.9, 0.99]}
    assert "--adam_beta2 0.99" in made.must_match


@pytest.mark.parametrize(("kind", "flag"), [("bf16", "--bf16"), ("fp16", "--fp16"), ("none", "")])
def test_the_precision_flag_is_that_of_the_trial(kind: str, flag: str) -> None:
    config = {**FULL, "bf16": {"enabled": kind == "bf16"}, "fp16": {"enabled": kind == "fp16"}}
    flags = [argument for argument in exported("hf", config).must_match if argument in ("--bf16", "--fp16")]
    assert flags == ([flag] if flag else [])


def test_a_scheduler_of_the_persons_file_is_filled_by_the_trainer_and_left_out_for_accelerate(
    tmp_path,
) -> None:
    scheduler = {"type": "WarmupLR", "params": {"warmup_max_lr": 1e-4, "warmup_num_steps": 100}}
    config = {**FULL, "scheduler": scheduler}
    assert set(json.loads(exported("hf", config).text)["scheduler"]["params"].values()) == {"auto"}
    assert "scheduler" not in exported("accelerate", config, str(tmp_path / "a.yaml")).ds_config


def test_a_file_without_an_optimizer_has_no_optimizer_arguments() -> None:
    config = {key: value for key, value in FULL.items() if key != "optimizer"}
    made = exported("hf", config)
    assert made.chosen == ("--max_grad_norm 1.0",)
    assert made.remarks == ()


def test_accelerate_gets_a_yaml_that_points_to_the_json_beside_it(tmp_path: Path) -> None:
    made = exported("accelerate", path=str(tmp_path / "my run.yaml"), world_size=4)
    content = yaml.safe_load(made.text)
    assert content["distributed_type"] == "DEEPSPEED"
    assert content["num_processes"] == 4
    assert content["deepspeed_config"] == {
        "deepspeed_config_file": str(tmp_path / "my run.json"),
        "zero3_init_flag": True,
    }
    assert "mixed_precision" not in content  # said in the ds_config; accelerate refuses it twice
    assert made.beside_path == tmp_path / "my run.json"
    assert made.beside is not None
    beside = json.loads(made.beside)
    assert "optimizer" not in beside
    assert beside["zero_optimization"] == FULL["zero_optimization"]


@pytest.mark.parametrize(("path", "what"), [(None, "two files"), ("a.json", "beside it")])
def test_accelerate_needs_two_names(path: str | None, what: str) -> None:
    with pytest.raises(UsageError, match=what) as caught:
        exported("accelerate", path=path)
    assert "-o accelerate.yaml" in caught.value.hint


def test_the_remark_on_the_optimizer_depends_on_the_offload(tmp_path: Path) -> None:
    path = str(tmp_path / "a.yaml")
    assert "zero_force_ds_cpu_optimizer" in exported("accelerate", path=path).remarks[0]
    on_device = {**FULL, "zero_optimization": {"stage": 2}}
    assert "as it is" in exported("accelerate", on_device, path).remarks[0]


@pytest.mark.parametrize("format_name", FORMATS)
def test_no_format_changes_the_recorded_configuration(format_name: str, tmp_path: Path) -> None:
    before = json.dumps(FULL)
    exported(format_name, path=str(tmp_path / "a.yaml"))
    assert json.dumps(FULL) == before


def test_an_unknown_format_names_those_that_exist() -> None:
    with pytest.raises(UsageError) as caught:
        exported("toml")
    assert "deepspeed, hf, accelerate" in caught.value.hint


def test_the_note_has_origin_figures_and_their_spread() -> None:
    study = make_study(machine={"cpu": "a processor"}, workload={"seq_len": 1024, "global_batch": 8})
    run = make_run(
        3, samples_per_s=10.0, used_gb=30, finished_at="2026-01-31T08:32:00.000000+00:00", spread=0.02
    )
    text = note_text(study, run, ["a.yaml", "a.json"], ["--bf16"])
    for piece in (
        "Provenance of a.yaml and a.json", "study calm-otter, trial 3", "2026-01-31 08:32 UTC",
        "10.0 samples/s, middle half 9.80 to 10.2 samples/s",
        "median 800 ms of 5, middle half 784 ms to 816 ms",
        "30.0 GB at its peak", "spread of memory: unknown", "model: llama-1b", "budget: 40.0 GB a rank",
        "cpu: a processor", "deepspeed: 0.19.8", "- `--bf16`", "samples a step: 8",
    ):  # fmt: skip
        assert piece in text, piece


@pytest.mark.parametrize(
    ("check", "words"),
    [(LossCheck(verdict="agrees", reference_trial=1), "agrees with trial 1"), (LossCheck(verdict="reference"),
     "it is the reference"), (LossCheck(verdict="noted", reason="By design."), "noted: By design.")],
)  # fmt: skip
def test_the_note_says_whether_it_still_trains(check: LossCheck, words: str) -> None:
    run = make_run(3, samples_per_s=10.0, used_gb=30)
    assert run.result is not None
    assert words in note_text(
        make_study(), replace(run, result=replace(run.result, loss_check=check)), [], []
    )


def test_the_note_of_a_run_without_figures_invents_none() -> None:
    text = note_text(make_study(), make_run(4, samples_per_s=None, used_gb=None, host_gb=None), [], [])
    assert "throughput: -" in text
    assert "device memory: - at" in text
    assert "an unknown time" in text


def test_quartiles_need_two_values() -> None:
    assert quartiles((1.0,)) is None
    assert quartiles((1.0, 2.0, 3.0, 4.0, 5.0)) == (2.0, 3.0, 4.0)


@pytest.fixture
def stored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    with Store.open("studies.db", write=True) as store:
        store.add_study(make_study(workload={"world_size": 2}))
        store.add_run(make_run(0, None, ds_config=FULL))
        finished = make_run(0, samples_per_s=10.0, used_gb=30).result
        assert finished is not None
        store.finish_run("calm-otter", 0, finished)
    return tmp_path


def invoke(*arguments: str) -> Any:
    return CliRunner().invoke(app, ["export", *arguments])


def test_the_command_writes_all_files_and_says_what_must_match(stored: Path) -> None:
    done = invoke("--format", "accelerate", "-o", "run.yaml", "--note", "run.md")
    assert done.exit_code == 0, done.stderr
    assert done.stdout == ""
    assert {file.name for file in stored.glob("run.*")} == {"run.yaml", "run.json", "run.md"}
    assert "Wrote run.yaml, run.json, run.md: trial 0" in done.stderr
    assert "Must match: DataLoader(batch_size=4)" in done.stderr
    assert "run.yaml and run.json" in (stored / "run.md").read_text()


def test_one_existing_file_keeps_all_from_being_written(stored: Path) -> None:
    (stored / "run.json").write_text("mine")
    done = invoke("--format", "accelerate", "-o", "run.yaml")
    assert done.exit_code == 2
    assert "run.json exists already" in done.stderr
    assert not (stored / "run.yaml").exists()
    assert invoke("--format", "accelerate", "-o", "run.yaml", "--force").exit_code == 0
    assert (stored / "run.json").read_text() != "mine"


def test_two_files_of_one_name_are_refused(stored: Path) -> None:
    done = invoke("-o", "run.json", "--note", "./run.json")
    assert done.exit_code == 2
    assert "same name" in done.stderr


def test_stdout_stays_data_and_the_arguments_go_to_stderr(stored: Path) -> None:
    done = invoke("--format", "hf")
    assert json.loads(done.stdout)["gradient_clipping"] == "auto"
    assert "--per_device_train_batch_size 4" in done.stderr


def test_the_json_document_has_the_arguments(stored: Path) -> None:
    document = json.loads(invoke("--format", "hf", "--json").stdout)
    assert document["must_match"][0] == "--per_device_train_batch_size 4"
    assert "--learning_rate 0.0001" in document["chosen"]
    assert document["ds_config"]["optimizer"]["params"]["lr"] == "auto"


def test_a_trial_that_diverged_is_not_exported_even_when_asked_for(stored: Path) -> None:
    with Store.open("studies.db", write=True) as store:
        store.add_run(make_run(1, None))
        lost = make_run(1, Status.DIVERGED, samples_per_s=20.0, used_gb=20, reason="Step 2 departs.").result
        assert lost is not None
        store.finish_run("calm-otter", 1, lost)
    done = invoke("--trial", "1")
    assert done.exit_code == 2
    assert "Step 2 departs." in done.stderr
    assert json.loads(invoke("--json").stdout)["trial"] == 0


def test_a_note_alone_may_be_asked_for(stored: Path) -> None:
    done = invoke("--note", "why.md")
    assert done.exit_code == 0, done.stderr
    assert json.loads(done.stdout)["train_batch_size"] == 8
    assert "Provenance of a ds_config" in (stored / "why.md").read_text()
