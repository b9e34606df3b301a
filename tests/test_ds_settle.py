"""What a person's ds_config decides: "auto" as the Trainer fills it, batch sizes, precision, conflicts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from space_samples import facts

from offtune import ds_config
from offtune.ds_change import BaseRefused, Change
from offtune.ds_settle import Settled, Wishes, settle_file
from offtune.export import portable
from offtune.models import PRESETS
from offtune.trial import DsConfig

DATA = Path(__file__).parent / "data" / "ds_configs"
VERSION = "0.19.8"
LLAMA = PRESETS["llama-5m"].config
HIDDEN = 256


def wishes(**changes: Any) -> Wishes:
    fields: dict[str, Any] = {
        "device": "cuda",
        "world_size": 1,
        "model_config": LLAMA,
        "optimizers": ("adamw", "adam", "lion", "adagrad"),
        "default_batch": 8,
    }
    return Wishes(**{**fields, **changes})


def settled(name: str, **changes: Any) -> Settled:
    return settle_file(DATA / name, VERSION, wishes(**changes))


@pytest.fixture
def settle(tmp_path: Path):
    """Settle a ds_config given as a dict; keyword arguments are wishes."""

    def run(config: DsConfig, **changes: Any) -> Settled:
        path = tmp_path / "ds_config.json"
        path.write_text(json.dumps(config, indent=0))
        return settle_file(path, VERSION, wishes(**changes))

    return run


def about(found: Settled, path: str) -> list[Change]:
    return [change for change in found.base.changes if change.path == path]


def sizes(config: DsConfig) -> tuple[int, int, int]:
    names = ("train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps")
    micro = tuple(config[name] for name in names)
    return micro[0], micro[1], micro[2]


def test_auto_is_filled_with_the_trainers_formulas_and_defaults() -> None:
    config = settled("trainer.json").base.ds_config
    zero = config["zero_optimization"]
    assert zero["reduce_bucket_size"] == HIDDEN * HIDDEN
    assert zero["stage3_prefetch_bucket_size"] == int(0.9 * HIDDEN * HIDDEN)
    assert zero["stage3_param_persistence_threshold"] == 10 * HIDDEN
    assert zero["offload_optimizer"]["device"] == "none"
    assert "overlap_comm" not in zero
    assert config["optimizer"]["params"] == {"lr": 3e-4, "betas": [0.9, 0.999], "weight_decay": 0.0}
    assert config["scheduler"]["params"]["warmup_max_lr"] == 3e-4
    assert config["gradient_clipping"] == 1.0
    assert (config["bf16"]["enabled"], config["fp16"]["enabled"]) == (True, False)
    assert sizes(config) == (8, 4, 2)
    assert '"auto"' not in json.dumps(config)


def test_every_filled_auto_is_in_the_log_with_its_line_and_its_reason() -> None:
    found = settled("trainer.json")
    lines = {change.path: change.line for change in found.base.changes if change.kind == "filled"}
    assert lines["zero_optimization.reduce_bucket_size"] == 13
    assert lines["scheduler.params.total_num_steps"] == 7
    assert lines["train_batch_size"] == 18
    [bucket] = about(found, "zero_optimization.reduce_bucket_size")
    assert "h x h with h = 256" in bucket.text
    text = (DATA / "trainer.json").read_text()
    assert sum(change.kind == "filled" for change in found.base.changes) == text.count('"auto"')


def test_the_formulas_are_those_of_the_installed_transformers() -> None:
    """The Trainer's own class fills the same file with the same numbers."""
    script = """
import json, sys, types
from transformers.integrations.deepspeed import HfTrainerDeepSpeedConfig
config = HfTrainerDeepSpeedConfig(json.loads(sys.stdin.read()))
arguments = types.SimpleNamespace(world_size=1, per_device_train_batch_size=4, gradient_accumulation_steps=2,
    max_grad_norm=1.0, learning_rate=3e-4, adam_beta1=0.9, adam_beta2=0.999, adam_epsilon=1e-8,
    weight_decay=0.0, save_on_each_node=False, fp16=False, fp16_full_eval=False, bf16=True,
    bf16_full_eval=False,
    get_warmup_steps=lambda steps: 0)
config.trainer_config_process(arguments)
model = types.SimpleNamespace(config=types.SimpleNamespace(hidden_size=256))
config.trainer_config_finalize(arguments, model, 1_000_000)
print(json.dumps(config.config))
"""
    import subprocess
    import sys

    done = subprocess.run(
        [sys.executable, "-c", script], input=(DATA / "trainer.json").read_text(), capture_output=True,
        text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    theirs = json.loads(done.stdout.splitlines()[-1])
    ours = settled("trainer.json").base.ds_config
    # These two the Trainer leaves to accelerate's plugin and to DeepSpeed.
    theirs["zero_optimization"]["offload_optimizer"]["device"] = "none"
    del theirs["zero_optimization"]["overlap_comm"]
    assert ours == theirs


def test_below_stage_3_the_stage_3_sizes_are_left_to_deepspeed(settle) -> None:
    zero = {"stage": 2, "reduce_bucket_size": "auto", "stage3_prefetch_bucket_size": "auto"}
    found = settle({"zero_optimization": zero, "train_batch_size": "auto"})
    assert found.base.ds_config["zero_optimization"] == {"stage": 2, "reduce_bucket_size": HIDDEN**2}
    assert "50000000" in about(found, "zero_optimization.stage3_prefetch_bucket_size")[0].text


def test_the_hidden_size_is_found_under_other_names_and_missed_with_its_line(settle) -> None:
    config = {"zero_optimization": {"reduce_bucket_size": "auto"}}
    gpt2 = settle(config, model_config=PRESETS["gpt2-124m"].config)
    assert gpt2.base.ds_config["zero_optimization"]["reduce_bucket_size"] == 768**2
    with pytest.raises(BaseRefused, match=r"line 3: zero_optimization.reduce_bucket_size: .*hidden_size"):
        settle(config, model_config={"model_type": "x"})


def test_zenflows_own_auto_is_left_alone(settle) -> None:
    zenflow = {"select_strategy": "auto", "topk_ratio": "0.1"}
    found = settle(
        {
            "zero_optimization": {
                "stage": 2,
                "offload_optimizer": {"device": "cpu"},
                "zenflow": zenflow,
            },
            "train_batch_size": 8,
        }
    )
    assert found.base.ds_config["zero_optimization"]["zenflow"] == {
        "select_strategy": "auto",
        "topk_ratio": 0.1,
    }


@pytest.mark.parametrize(
    ("written", "ranks", "expected"),
    [
        ({"train_batch_size": 24, "train_micro_batch_size_per_gpu": 3}, 1, (24, 3, 8)),
        ({"train_batch_size": 24, "train_micro_batch_size_per_gpu": 3}, 4, (24, 3, 2)),
        ({"train_batch_size": 256, "gradient_accumulation_steps": 1}, 2, (256, 128, 1)),
        ({"train_batch_size": 16}, 2, (16, 8, 1)),
        ({"train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": 8}, 2, (32, 2, 8)),
        ({"train_micro_batch_size_per_gpu": 4}, 2, (8, 4, 1)),
        ({"train_micro_batch_size_per_gpu": 1, "gradient_accumulation_steps": "auto"}, 1, (8, 1, 8)),
        ({"gradient_accumulation_steps": "8", "train_batch_size": "auto"}, 1, (8, 1, 8)),
        ({"gradient_accumulation_steps": 3, "train_batch_size": "auto"}, 1, (6, 2, 3)),
        ({"train_batch_size": 12, "train_micro_batch_size_per_gpu": 5}, 1, (12, 4, 3)),
        ({}, 2, (8, 4, 1)),
    ],
)
def test_batch_sizes_are_made_to_agree_for_the_ranks_at_hand(
    settle, written: dict[str, Any], ranks: int, expected: tuple[int, int, int]
) -> None:
    found = settle({"zero_optimization": {"stage": 2}, **written}, world_size=ranks)
    assert sizes(found.base.ds_config) == expected
    assert found.global_batch == expected[0]
    for key, value in written.items():
        if value not in ("auto", "8") and found.base.ds_config[key] != value:
            assert about(found, key)[0].kind == "changed"


def test_a_batch_that_cannot_be_split_is_refused_with_the_option_that_helps(settle) -> None:
    config = {"zero_optimization": {"stage": 2}, "train_batch_size": 25}
    with pytest.raises(BaseRefused, match=r"line 5: train_batch_size: .*--global-batch 24"):
        settle(config, world_size=4)
    assert settle(config, world_size=4, global_batch=32).global_batch == 32


def test_the_precision_is_the_files_unless_the_person_says_another(settle) -> None:
    fp16 = {"fp16": {"enabled": True, "loss_scale": 128}, "zero_optimization": {"stage": 1}}
    assert settle(fp16).precision == "fp16"
    assert settle({"zero_optimization": {"stage": 1}}).precision == "fp32"
    assert settle({"bf16": {"enabled": "auto"}, "fp16": {"enabled": "auto"}}).precision == "bf16"
    assert settle({"fp16": {"enabled": "auto"}}).precision == "fp16"
    other = settle(fp16, precision="bf16")
    assert other.precision == "bf16"
    assert about(other, "fp16.enabled")[0].kind == "changed"


def test_fp16_gives_way_on_the_cpu_accelerator_and_that_is_said(settle) -> None:
    found = settle({"fp16": {"enabled": True, "loss_scale": 128}}, device="cpu")
    assert found.precision == "bf16"
    assert found.base.ds_config["fp16"] == {"enabled": False, "loss_scale": 128}
    assert "no fp16" in about(found, "fp16.enabled")[0].text


def test_both_precisions_at_once_are_refused(settle) -> None:
    with pytest.raises(BaseRefused, match="both on"):
        settle({"fp16": {"enabled": True}, "bf16": {"enabled": True}})


def test_the_optimizer_is_the_files_and_a_foreign_one_is_refused(settle) -> None:
    assert settle({"optimizer": {"type": "Lion"}}).optimizer == "lion"
    with pytest.raises(BaseRefused, match=r"line 3: optimizer.type: .*OneBitAdam.*--optimizer"):
        settle({"optimizer": {"type": "OneBitAdam", "params": {"freeze_step": 3}}})
    replaced = settle({"optimizer": {"type": "Lamb", "params": {"lr": 1}}}, optimizer="adamw")
    assert replaced.base.ds_config["optimizer"] == {"type": "adamw"}


def test_what_does_nothing_is_left_out_with_its_reason() -> None:
    found = settled("without_effect.json")
    assert found.base.ds_config["zero_optimization"] == {"stage": 2, "offload_optimizer": {"device": "cpu"}}
    [ratio] = about(found, "zero_optimization.offload_optimizer.ratio")
    [param] = about(found, "zero_optimization.offload_param")
    assert (ratio.kind, ratio.line, param.kind, param.line) == ("ignored", 6, "ignored", 7)
    assert "0.4 is left out" in ratio.text
    assert "stage 3 only" in param.text


@pytest.mark.parametrize(
    ("optimizer", "offload", "word"),
    [
        ("AdamW", {"device": "nvme", "ratio": 0.5}, "device nvme"),
        ("AdamW", {"device": "none", "ratio": 0.5}, "device none"),
        ("Lion", {"device": "cpu", "ratio": 0.5}, "CPU Adam"),
    ],
)
def test_a_ratio_that_does_nothing_at_stage_3_is_left_out(
    settle, optimizer: str, offload: dict[str, Any], word: str
) -> None:
    found = settle(
        {"optimizer": {"type": optimizer}, "zero_optimization": {"stage": 3, "offload_optimizer": offload}}
    )
    assert word in about(found, "zero_optimization.offload_optimizer.ratio")[0].text
    assert "ratio" not in found.base.ds_config["zero_optimization"]["offload_optimizer"]


def test_deepspeeds_own_autotuning_is_left_out() -> None:
    found = settled("alternatives.json")
    assert "autotuning" not in found.base.ds_config
    assert [(change.kind, change.line) for change in about(found, "autotuning")] == [("ignored", 3)]


def test_what_needs_cuda_is_switched_off_on_the_cpu_accelerator_only(settle) -> None:
    config = {"zero_optimization": {"stage": 3, "zero_quantized_weights": True, "zero_hpz_partition_size": 8}}
    here = settle(config, device="cpu").base.ds_config["zero_optimization"]
    there = settle(config, world_size=8).base.ds_config["zero_optimization"]
    assert here == {"stage": 3, "zero_quantized_weights": False}
    assert there == config["zero_optimization"]


def test_the_files_own_nvme_folder_is_used_where_it_exists(settle, tmp_path: Path) -> None:
    def config(folder: str) -> DsConfig:
        offload = {"device": "nvme", "nvme_path": folder}
        return {"zero_optimization": {"stage": 3, "offload_optimizer": offload}}

    assert settle(config(str(tmp_path))).nvme_path == str(tmp_path)
    missing = settle(config("/no/such/folder"))
    assert missing.nvme_path is None
    [change] = about(missing, "zero_optimization.offload_optimizer.nvme_path")
    assert change.kind == "ignored"
    assert "--nvme-path" in change.text


def test_the_log_is_in_the_order_of_the_file() -> None:
    lines = [change.line or 0 for change in settled("trainer.json").base.changes]
    assert lines == sorted(lines)


OWN: DsConfig = {
    "train_batch_size": 8,
    "bf16": {"enabled": True, "immediate_grad_update": True},
    "fp16": {"enabled": False, "loss_scale_window": 77},
    "optimizer": {"type": "Adam", "params": {"lr": 3e-5, "bias_correction": False}},
    "scheduler": {"type": "WarmupLR", "params": {"warmup_num_steps": 100}},
    "steps_per_print": 5,
    "wall_clock_breakdown": True,
    "tensorboard": {"enabled": True, "output_path": "logs"},
    "flops_profiler": {"enabled": True, "profile_step": 3},
    "activation_checkpointing": {"number_checkpoints": None},
    "zero_optimization": {"stage": 2, "ignore_unused_parameters": False},
    "aio": {"queue_depth": 16},
    "train-iters": 320000,
    "comment": "ours",
}


def test_what_is_not_tuned_is_in_every_trial_and_reports_are_off() -> None:
    built = ds_config.build(
        OWN, {"placement": "zero3 opt=cpu", "micro_batch": 2}, facts(optimizer="adam"), None
    )
    assert built["zero_optimization"]["stage"] == 3
    assert built["zero_optimization"]["ignore_unused_parameters"] is False
    assert built["scheduler"] == OWN["scheduler"]
    assert built["optimizer"]["params"]["bias_correction"] is False
    assert built["optimizer"]["params"]["adam_w_mode"] is True, "as DeepSpeed takes Adam when it is not told"
    assert built["tensorboard"] == {"enabled": False, "output_path": "logs"}
    assert built["flops_profiler"]["enabled"] is False
    assert built["wall_clock_breakdown"] is False


def test_the_export_has_everything_of_the_file_that_is_not_tuned() -> None:
    built = ds_config.build(
        OWN, {"placement": "zero3 opt=cpu", "micro_batch": 2}, facts(optimizer="adam"), None
    )
    exported = portable(built, None, OWN)
    untouched = {
        key: value for key, value in OWN.items() if key not in ("zero_optimization", "optimizer", "bf16")
    }
    assert {key: exported[key] for key in untouched} == untouched
    assert OWN["optimizer"]["params"].items() <= exported["optimizer"]["params"].items()
    assert OWN["bf16"].items() <= exported["bf16"].items()


def test_an_optimizer_the_file_leaves_to_the_script_is_not_exported() -> None:
    own = {key: value for key, value in OWN.items() if key != "optimizer"}
    built = ds_config.build(own, {}, facts(), None)
    assert built["optimizer"]["type"] == "AdamW"
    assert "optimizer" not in portable(built, None, own)
