"""A search over a person's own ds_config: its place among the baselines, the dry run, and one for real."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import optuna
import pytest
from space_samples import facts
from study_samples import LIMITS, measure, result, small_space, study_record
from test_search import MACHINE, imagined, make_search  # noqa: F401 the fixture of the loop's own tests
from typer.testing import CliRunner

from offtune import ds_config
from offtune.base_check import check_base, fit_to_base
from offtune.cli import app
from offtune.config import Options, resolve
from offtune.ds_change import Base
from offtune.errors import ConfigError, UsageError
from offtune.records import Run
from offtune.report.summary import summarise
from offtune.space import load_space
from offtune.store import Store
from offtune.study import Study
from offtune.trial import Status, as_dict, load

DATA = Path(__file__).parent / "data" / "ds_configs"
ROOT = Path(__file__).parent.parent


def base(**content: Any) -> Base:
    return Base(path="ds_config.json", ds_config=content)


@pytest.fixture
def store(tmp_path: Path):
    with Store.open(str(tmp_path / "studies.db"), write=True) as store:
        store.add_study(study_record())
        yield store


def open_study(store: Store, sampler: str = "tpe") -> Study:
    return Study(store, "study-1", small_space(), limits=LIMITS, seed=0, sampler=sampler)


def add(store: Store, number: int, point: dict[str, Any], **more: Any) -> Run:
    run = Run(study="study-1", number=number, origin="baseline", label="your file", point=point,
              ds_config={"zero_optimization": {"stage": 0}}, fingerprint=f"f{number}", **more)  # fmt: skip
    return store.add_run(run)


def optuna_trials(store: Store) -> list[optuna.trial.FrozenTrial]:
    arguments = store.optuna_arguments()
    storage = optuna.storages.RDBStorage(**arguments)
    return optuna.load_study(study_name="study-1", storage=storage).get_trials()


def test_the_file_is_proposed_first_once_and_as_an_empty_point(store: Store) -> None:
    study = open_study(store)
    study.enqueue_as_is("your file")
    study.enqueue({"placement": "zero1"}, "baseline", "stage 1")
    study.enqueue_as_is("your file")
    first, second, third = study.ask(), study.ask(), study.ask()
    assert (first.point, first.origin, first.label) == ({}, "baseline", "your file")
    assert second.label == "stage 1"
    assert third.origin == "search"


@pytest.mark.parametrize("sampler", ["tpe", "random", "gp", "qmc", "grid"])
def test_the_sampler_learns_nothing_from_the_file_and_goes_on_as_without_it(
    tmp_path: Path, sampler: str
) -> None:
    points = []
    for own in (False, True):
        with Store.open(str(tmp_path / f"{own}.db"), write=True) as store:
            store.add_study(study_record())
            study = open_study(store, sampler)
            if own:
                study.enqueue_as_is("your file")
                study.tell(tell_row(store, study.ask().number, {}, 99.0), result(99.0))
                assert [trial.params for trial in optuna_trials(store)] == [{}]
            points.append([draw(store, study) for _ in range(6)])
    assert points[0] == points[1]


def tell_row(store: Store, number: int, point: dict[str, Any], speed: float) -> int:
    add(store, number, point)
    store.finish_run("study-1", number, result(speed))
    return number


def draw(store: Store, study: Study) -> dict[str, Any]:
    proposal = study.ask()
    add(store, proposal.number, proposal.point)
    outcome = measure(proposal.point)
    store.finish_run("study-1", proposal.number, outcome)
    study.tell(proposal.number, outcome)
    return proposal.point


def test_the_file_counts_and_can_win(store: Store) -> None:
    study = open_study(store)
    study.enqueue_as_is("your file")
    number = study.ask().number
    study.tell(tell_row(store, number, {}, 50.0), result(50.0))
    assert study.measured_count() == 1
    best = study.best()
    assert best is not None
    assert (best.number, best.label) == (number, "your file")


def test_an_interrupted_file_is_tried_again_under_its_name(store: Store) -> None:
    study = open_study(store)
    study.enqueue_as_is("your file")
    number = study.ask().number
    add(store, number, {})
    study.abandon(number)
    again = study.ask()
    assert (again.point, again.label) == ({}, "your file")
    study.tell(tell_row(store, again.number, {}, 5.0), result(5.0))
    gains = summarise(store.study("study-1"), store.runs("study-1")).gains
    assert [(gain.label, gain.samples_per_s) for gain in gains] == [("your file", 5.0)]


def test_a_file_whose_row_was_finished_before_a_crash_is_repaired(store: Store) -> None:
    study = open_study(store)
    study.enqueue_as_is("your file")
    tell_row(store, study.ask().number, {}, 5.0)
    study = open_study(store)
    assert [repair.action for repair in study.reconcile()] == ["told"]
    assert study.reconcile() == []


def options(tmp_path: Path, content: dict[str, Any]) -> dict[str, Any]:
    path = tmp_path / "mine.json"
    path.write_text(json.dumps(content))
    return {"base": str(path), "trials": 3}


def test_the_loop_runs_the_file_and_puts_it_under_every_point(make_search, tmp_path: Path) -> None:  # noqa: F811
    mine = {
        "train_batch_size": 8,
        "train_micro_batch_size_per_gpu": 2,
        "bf16": {"enabled": True},
        "zero_optimization": {"stage": 3, "stage3_max_live_parameters": 12345},
        "scheduler": {"type": "x"},
    }
    seen: list[dict[str, Any]] = []

    def runner(spec):
        seen.append(spec.ds_config)
        return imagined(spec)

    search = make_search(runner, **{**options(tmp_path, mine), "trials": 7})
    search.study.enqueue_as_is("your file")
    search.run()
    [own] = [run for run in search.store.runs("s") if run.label == "your file"]
    assert (own.point, own.origin, own.status) == ({}, "baseline", Status.OK)
    assert own.ds_config["zero_optimization"]["stage3_max_live_parameters"] == 12345
    assert own.ds_config["train_micro_batch_size_per_gpu"] == 2
    assert own.ds_config in seen
    assert all(config["scheduler"] == {"type": "x"} for config in seen)
    assert len(seen) == 7


def test_the_file_decides_what_the_options_leave_open(tmp_path: Path) -> None:
    given = options(tmp_path, {
        "train_batch_size": 12, "optimizer": {"type": "Lion"}, "zero_optimization": {"stage": 1},
    })  # fmt: skip
    config = resolve(Options(budget="1GB", device="cpu", **given), MACHINE)
    work = config.workload
    assert (work.global_batch, work.optimizer, work.precision) == (12, "lion", "fp32")
    said = resolve(Options(budget="1GB", device="cpu", precision="bf16", global_batch=4, **given), MACHINE)
    assert (said.workload.global_batch, said.workload.precision) == (4, "bf16")
    assert said.base is not None
    assert said.base.ds_config["train_batch_size"] == 4


def test_settings_with_a_base_are_stored_and_read_back(tmp_path: Path) -> None:
    given = options(tmp_path, {"train_batch_size": "8", "zero_optimization": {"stage": 1}})
    config = resolve(Options(budget="1GB", device="cpu", **given), MACHINE)
    assert load(type(config), json.dumps(as_dict(config))) == config
    assert config.base is not None
    assert config.base.changes


def test_without_a_base_the_defaults_are_as_ever() -> None:
    work = resolve(Options(budget="1GB", device="cpu"), MACHINE).workload
    assert (work.precision, work.optimizer) == ("bf16", "adamw")
    with pytest.raises(UsageError, match="--optimizer"):
        resolve(Options(budget="1GB", device="cpu", optimizer="sgd"), MACHINE)


def test_a_base_narrows_the_space_to_what_can_run_beside_it() -> None:
    here = facts(device="cpu", global_batch=8, nvme_dir=None)
    zenflow = base(zero_optimization={"stage": 2, "offload_optimizer": {"device": "cpu"},
                                      "zenflow": {"update_interval": 4}})  # fmt: skip
    fitted = fit_to_base(load_space("ladder").fit(here), zenflow, here)
    placements = next(knob.choices for knob in fitted.knobs if knob.name == "placement")
    assert placements == ("zero1 opt=cpu", "zero2 opt=cpu")
    assert next(knob.values for knob in fitted.knobs if knob.name == "micro_batch") == (2,)
    assert any("zenflow" in note for note in fitted.notes)


def test_a_plain_base_leaves_the_space_as_it_is() -> None:
    here = facts(device="cpu", nvme_dir=None)
    space = load_space("default").fit(here)
    assert fit_to_base(space, base(zero_optimization={"stage": 2}), here) == space
    assert fit_to_base(space, None, here) == space


def test_a_base_with_which_nothing_can_run_is_refused_with_the_reasons() -> None:
    here = facts(device="cpu", nvme_dir=None)
    with pytest.raises(ConfigError, match="param_dtype") as refused:
        fit_to_base(
            load_space("ladder").fit(here),
            base(gradient_allreduce_op="sum", prescale_gradients=True, data_types={"param_dtype": "fp16"}),
            here,
        )
    assert refused.value.exit_code == 2


def test_a_ratio_without_effect_is_said_and_does_not_keep_the_file_from_running() -> None:
    ratio = {"stage": 3, "offload_optimizer": {"device": "cpu", "ratio": 0.3}}
    own = base(train_batch_size=8, optimizer={"type": "AdamW"}, zero_optimization=ratio)
    assert "does nothing" in check_base(own, facts())[0]
    assert "CPU accelerator" in check_base(own, facts(device="cpu"))[0]
    fine = {**ratio, "sub_group_size": 100_000}
    assert check_base(base(**{**own.ds_config, "zero_optimization": fine}), facts()) == ()
    built = ds_config.build(own.ds_config, {}, facts(), None)
    assert built["zero_optimization"]["offload_optimizer"]["ratio"] == 1.0


def offtune(*arguments: str):
    return CliRunner().invoke(app, list(arguments))


def test_a_refused_file_ends_the_dry_run_with_2_and_every_reason(tmp_path: Path) -> None:
    done = offtune("search", "--budget", "1GB", "--dry-run", "--base", str(DATA / "shell_template.json"))
    assert done.exit_code == 2
    assert "line 2: train_batch_size: $GLOBAL_BATCH" in done.stderr
    assert "line 4: zero_optimization.stage" in done.stderr
    assert "refused" in done.stdout


def test_a_refused_file_as_json_is_one_document(tmp_path: Path) -> None:
    done = offtune(
        "search", "--budget", "1GB", "--dry-run", "--json", "--base", str(DATA / "shell_template.json")
    )
    assert done.exit_code == 2
    document = json.loads(done.stdout)
    assert document["schema"] == "offtune.plan/1"
    assert document["base"]["usable"] is False
    assert len(document["base"]["reasons"]) == 3
    assert {"kind", "line", "path", "text"} == set(document["base"]["changes"][0])


def test_a_missing_file_is_a_usage_error(tmp_path: Path) -> None:
    done = offtune("search", "--budget", "1GB", "--dry-run", "--base", str(tmp_path / "none.json"))
    assert done.exit_code == 2
    assert "cannot be read" in done.stderr


def run_offtune(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "offtune", *arguments],
        cwd=folder, capture_output=True, text=True, timeout=900, check=False,
    )  # fmt: skip


def test_the_dry_run_shows_the_log_the_base_the_space_and_the_length(tmp_path: Path) -> None:
    done = run_offtune(
        tmp_path, "search", "--budget", "40GB", "--base", str(DATA / "trainer.json"), "--dry-run"
    )
    assert done.returncode == 0, done.stderr
    for expected in ("h x h with h = 256", "The base, resolved", "points", "expected length", "your file;"):
        assert expected in " ".join(done.stdout.split()), expected
    assert list(tmp_path.iterdir()) == []


@pytest.mark.train
def test_a_search_over_a_file_runs_it_first_and_exports_the_rest_of_it(tmp_path: Path) -> None:
    mine = tmp_path / "mine.json"
    mine.write_text("""{
      "train_batch_size": "4",  // all ranks
      "train_micro_batch_size_per_gpu": 1,
      "steps_per_print": 7,
      "bf16": {"enabled": true},
      "optimizer": {"type": "AdamW", "params": {"lr": 3e-5, "weight_decay": 0.1}},
      "zero_optimization": {"stage": 3, "cpu_offload": true, "stage3_max_live_parameters": 1e6},
      "our_key": 1,
    }""")
    arguments = (
        "--base",
        str(mine),
        "--space",
        "ladder",
        "--steps",
        "2",
        "--warmup-steps",
        "1",
        "--seq-len",
        "32",
    )
    done = run_offtune(
        tmp_path, "search", "--budget", "2GB", "--trials", "3", *arguments, "--json", "--no-finals"
    )
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert document["trials"][0]["label"] == "your file"
    assert document["trials"][0]["status"] == Status.OK.value
    assert [baseline["label"] for baseline in document["baselines"]][:2] == ["your file", "stage 2"]
    exported = json.loads(run_offtune(tmp_path, "export").stdout)
    assert exported["our_key"] == 1
    assert exported["steps_per_print"] == 7
    assert exported["optimizer"]["params"]["weight_decay"] == 0.1
    own = json.loads(run_offtune(tmp_path, "export", "--trial", "0").stdout)
    assert own["zero_optimization"]["stage"] == 3
    assert own["zero_optimization"]["offload_optimizer"]["device"] == "cpu"
    assert own["zero_optimization"]["stage3_max_live_parameters"] == 1_000_000
    check_verify(tmp_path)


def check_verify(folder: Path) -> None:
    """The exported file trains, reports and all."""
    done = run_offtune(folder, "export", "--trial", "0", "--verify", "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["verification"]
