"""`offtune plan`: verdicts, the ladder, budgets, cost, and an export that DeepSpeed takes."""

import json
from pathlib import Path

import pytest
from test_ds_config import ask_deepspeed
from typer.testing import CliRunner

from offtune import hardware_profile
from offtune.cli import app
from offtune.errors import UsageError
from offtune.hardware import Gpu, Machine
from offtune.machine_profile import profile_for
from offtune.plan import FRONT_BUDGETS_GB, make_plan
from offtune.plan_ladder import climb, faster
from offtune.plan_request import PlanOptions, parse_count, resolve
from offtune.report.plan_document import plan_document
from offtune.report.plan_page import plan_page

ASKED = ["plan", "--model", "llama-13b", "--hardware", "a100-40gb", "--gpus", "4", "--budget", "40GB"]


def request(**changes):
    fields = {"model": "llama-1b", "hardware": "a100-40gb", "gpus": 1, "budget": "30GB", **changes}
    return resolve(PlanOptions(**fields))


def offtune(*arguments: str):
    return CliRunner().invoke(app, list(arguments))


def test_a_small_model_fits_and_the_choices_are_distinct_and_fastest_first():
    plan = make_plan(request())
    assert plan.verdict == "fits"
    rates = [one.prediction.samples_per_s for one in plan.choices]
    assert rates == sorted(rates, reverse=True)
    assert len({one.placement for one in plan.choices}) == len(plan.choices) > 1
    assert plan.best is plan.choices[0]
    assert plan.close is None or plan.close.prediction.samples_per_s > rates[0]


def test_the_front_grows_with_the_budget_and_marks_what_the_card_has_not():
    front = make_plan(request()).front
    rates = [entry.choice.prediction.samples_per_s if entry.choice else 0.0 for entry in front]
    assert [entry.budget_bytes // 10**9 for entry in front] == list(FRONT_BUDGETS_GB)
    assert rates == sorted(rates)
    assert [entry.beyond_card for entry in front] == [False, False, False, True, True]


def test_tokens_take_time_and_cost_by_the_gpu_hour():
    plan = make_plan(request(gpus=2), 1e9, 3.0)
    rate = plan.best.prediction.tokens_per_s
    assert plan.training.seconds == pytest.approx(1e9 / rate)
    assert plan.training.cost == pytest.approx(3.0 * plan.training.gpu_hours)
    assert plan.training.gpu_hours == pytest.approx(2 * plan.training.seconds / 3600)
    assert make_plan(request(gpus=2), 1e9).training.cost is None


def test_the_ladder_names_the_first_single_change_that_fits():
    asked = request(model="llama-7b", hardware="l4", budget="20GB", seq_len=4096)
    plan = make_plan(asked)
    assert plan.verdict == "over"
    rungs = climb(asked, plan.nearest)
    assert [rung.fits for rung in rungs] == [False] * (len(rungs) - 1) + [True]
    assert rungs[-1].option == "--activation-checkpointing"
    assert make_plan(rungs[-1].request).verdict == "fits"


def test_the_ladder_ends_with_a_budget_that_is_enough():
    few = {"seq_len": 128, "global_batch": 3, "activation_checkpointing": True}
    asked = request(model="llama-7b", hardware="h100-80gb", budget="6GB", **few)
    plan = make_plan(asked)
    last = climb(asked, plan.nearest)[-1]
    assert last.fits
    assert last.option.startswith("--budget ")
    assert make_plan(last.request).verdict == "fits"
    assert resolve(PlanOptions(model="llama-7b", hardware="h100-80gb", budget=last.option.split()[1]))


def test_checkpointing_is_offered_where_it_gains_and_only_there():
    asked = request(model="llama-13b", gpus=4, budget="40GB")
    plan = make_plan(asked)
    found = faster(asked, plan.best)
    assert found.option == "--activation-checkpointing"
    assert found.candidate.prediction.samples_per_s > 1.1 * plan.best.prediction.samples_per_s
    assert make_plan(found.request).verdict == "fits"
    assert "With activation checkpointing: " in repr(plan_page(plan, (), found))
    assert plan_document(plan, (), found)["faster"]["option"] == found.option
    assert faster(request(activation_checkpointing=True), make_plan(request()).best) is None
    roomy = request(model="llama-1b", hardware="h200", budget="140GB", global_batch=8)
    assert faster(roomy, make_plan(roomy).best) is None


def test_a_front_without_a_choice_says_which_memory_is_short(tmp_path: Path):
    config = tmp_path / "config.json"
    config.write_text(json.dumps({"model_type": "llama", "hidden_size": 8192, "num_hidden_layers": 80,
                                  "num_attention_heads": 64, "num_key_value_heads": 8,
                                  "intermediate_size": 28672, "vocab_size": 32000}))  # fmt: skip
    asked = request(model=str(config), hardware="h100", gpus=8, budget="80GB", activation_checkpointing=True)
    plan = make_plan(asked)
    assert plan.verdict == "over"
    assert plan.front[-1].short == "host"
    long = request(model="llama-13b", seq_len=4096, host_budget="4000GB")
    assert make_plan(long).front[0].short == "device"
    page = repr(plan_page(plan, ()))
    assert "host memory is short" in page
    assert "Nothing fits. Nearest: zero3" in page


def test_mixtures_of_experts_are_planned_and_other_kinds_of_model_refused_by_name(tmp_path: Path):
    config = tmp_path / "config.json"
    config.write_text(json.dumps({"model_type": "mixtral", "num_hidden_layers": 4, "vocab_size": 32000}))
    plan = make_plan(request(model=str(config), gpus=2))
    assert 5e9 < plan.request.shape.n_params < 7e9
    assert plan.looked_at > 0
    config.write_text(json.dumps({"model_type": "mamba", "hidden_size": 64, "vocab_size": 100}))
    with pytest.raises(UsageError, match="'mamba'"):
        request(model=str(config))


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"budget": "90GB"}, "--budget"),
        ({"seq_len": 100_000}, "--seq-len"),
        ({"global_batch": 3, "gpus": 2}, "--global-batch"),
        ({"precision": "fp8"}, "--precision"),
        ({"gpus": 0}, "--gpus"),
        ({"hardware": "a1000"}, "a1000"),
    ],
)
def test_what_cannot_be_planned_is_refused_by_name(changes, named):
    with pytest.raises(UsageError) as caught:
        request(**changes)
    assert named in caught.value.message


@pytest.mark.parametrize(("text", "count"), [("300B", 3e11), ("3e11", 3e11), ("1.5t", 1.5e12), ("20", 20)])
def test_tokens_are_read_as_people_write_them(text, count):
    assert parse_count(text, "--tokens") == pytest.approx(count)


@pytest.mark.parametrize("text", ["", "many", "-3B", "0", "3GB"])
def test_other_texts_are_no_number_of_tokens(text):
    with pytest.raises(UsageError):
        parse_count(text, "--tokens")


def test_the_document_is_strict_json_and_says_that_it_is_predicted():
    asked = request(nvme=True)
    plan = make_plan(asked, 1e9)
    shown = json.loads(json.dumps(plan_document(plan, ()), allow_nan=False))
    assert shown["predicted"] is True
    choice = shown["choices"][0]
    assert choice["reason"].startswith("Predicted")
    assert sum(choice["device_bytes"].values()) == choice["used_device_bytes"]
    assert set(choice["bound"]) == {"forward", "backward", "update"}
    assert choice["step_error_share"] > 0
    assert max(choice["allocated_bytes_by_phase"].values()) <= choice["used_device_bytes"]
    assert all(0 <= seconds <= choice["step_s"] for seconds in choice["exposed_s"].values())
    assert shown["timeline"][-1]["end_s"] == pytest.approx(choice["step_s"])
    assert {stretch["phase"] for stretch in shown["timeline"]} == {"forward", "backward", "update"}
    assert plan_page(plan, ())


def test_a_plan_on_the_command_line_and_its_exit_codes(tmp_path: Path):
    done = offtune(*ASKED, "--activation-checkpointing", "--json", "--tokens", "1B")
    assert done.exit_code == 0
    assert json.loads(done.stdout)["verdict"] == "fits"
    assert "predicted" in offtune(*ASKED).stdout
    large = ("--model", "llama-7b", "--hardware", "l4", "--budget", "20GB", "--seq-len", "4096")
    nothing = offtune("plan", *large)
    assert nothing.exit_code == 3
    assert "--activation-checkpointing" in nothing.stdout


@pytest.mark.parametrize(
    ("options", "named"),
    [
        (["--price-per-gpu-hour", "2"], "--tokens"),
        (["--price-per-gpu-hour", "-2", "--tokens", "1B"], "--price-per-gpu-hour"),
        (["--export", "no/such/folder.json"], "no/such"),
        (["--tokens", ""], "--tokens"),
    ],
)
def test_what_is_asked_for_beside_the_plan_is_checked_before_it(options, named):
    done = offtune(*ASKED, *options)
    assert done.exit_code == 2
    assert done.stdout == ""
    assert named in done.stderr


@pytest.mark.parametrize("key", ["hidden_size", "num_hidden_layers", "num_attention_heads", "vocab_size"])
def test_a_model_without_width_or_layers_is_refused_by_key(tmp_path: Path, key: str):
    config = tmp_path / "config.json"
    config.write_text(json.dumps({"model_type": "llama", key: 0}))
    with pytest.raises(UsageError, match=key):
        request(model=str(config))


def test_an_export_is_not_overwritten_unasked(tmp_path: Path):
    target = tmp_path / "ds_config.json"
    assert offtune(*ASKED, "--export", str(target)).exit_code == 0
    before = target.read_text()
    assert offtune(*ASKED, "--export", str(target)).exit_code == 2
    assert offtune(*ASKED, "--export", str(target), "--force").exit_code == 0
    assert target.read_text() == before


@pytest.mark.train
def test_deepspeeds_own_configuration_class_takes_the_export(tmp_path: Path):
    target = tmp_path / "ds_config.json"
    assert offtune(*ASKED, "--nvme-path", "/nvme", "--json", "--export", str(target)).exit_code == 0
    ask_deepspeed([(4, json.loads(target.read_text()))], tmp_path / "answer.json")


def card(name: str, memory_bytes: int) -> Machine:
    gpu = Gpu(index=0, name=name, memory_bytes=memory_bytes, uuid="GPU-1")
    return Machine(cpu_model="p", cores=8, memory_bytes=10**11, gpus=(gpu,), driver_version="1", hostname="h",
                   boot_id="b")  # fmt: skip


@pytest.mark.parametrize(
    ("name", "profile"),
    [
        ("NVIDIA A100-SXM4-40GB", "a100-40gb"),
        ("NVIDIA A100-SXM4-80GB", "a100-80gb"),
        ("NVIDIA H100 80GB HBM3", "h100-80gb"),
        ("NVIDIA H200", "h200"),
        ("NVIDIA L4", "l4"),
        ("NVIDIA GeForce RTX 4090", "rtx4090"),
    ],
)
def test_a_card_finds_its_profile_by_name(name, profile, monkeypatch):
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    found = profile_for("cuda", card(name, 10**10))
    assert (found.name, found.device_memory_bytes) == (hardware_profile.load(profile).name, 10**10)


def test_an_unknown_card_borrows_and_says_so(monkeypatch):
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    found = profile_for("cuda", card("NVIDIA B9000", 82 * 10**9))
    assert found.device_memory_bytes == 82 * 10**9
    assert not found.is_own("adam_elements_per_s")
    assert profile_for("cpu", card("x", 1)) == hardware_profile.load("cpu")
