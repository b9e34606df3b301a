"""Activation checkpointing as a knob: where it is searched; trials, predictions and exports with it."""

import json
import random
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from report_fakes import POINT, make_run, make_study
from search_fakes import MACHINE, imagined, make_search  # noqa: F401  (a fixture)
from space_samples import facts
from typer.testing import CliRunner

from offtune import ds_config, hardware_profile, prepare, session, verify
from offtune.beliefs import Seen
from offtune.cli import app
from offtune.command import parse_command
from offtune.config import Options, resolve
from offtune.errors import UsageError
from offtune.export_formats import Purpose, make
from offtune.guesses import Guesses
from offtune.knob_workload import CHECKPOINTING, checkpoints, facts_at, same_training, workload_at
from offtune.model_shape import shape_of
from offtune.models import PRESETS
from offtune.pool import every_point, starting_points
from offtune.predict import Bounds, Predictor
from offtune.report.setup_page import dry_run_page
from offtune.report.study_report import make_side, study_report
from offtune.report.summary import summarise
from offtune.score import DEVICE_MEMORY
from offtune.space import load_space
from offtune.store import Store
from offtune.strategy import Strategy

ROOT = Path(__file__).parent.parent
ON, OFF = {CHECKPOINTING: True}, {CHECKPOINTING: False}
OPEN = facts(
    device="cpu", nvme_dir=None, ops=frozenset({"cpu_adam", "fused_adam"}), activation_checkpointing=None
)
COMMAND = parse_command(["python", "train.py", "{ds_config}"], "/", "here")


def names_of(space):
    return [knob.name for knob in space.knobs]


def predictor(on: bool | None, model: str = "llama-25m", budget: float = 10e9) -> Predictor:
    config = PRESETS[model].config
    shape = shape_of(config)
    known = replace(OPEN, device="cuda", parameter_numels=tuple(shape.parameter_numels))
    work = replace(known.workload, model_config=config, activation_checkpointing=on, global_batch=16,
                   seq_len=1024)  # fmt: skip
    return Predictor(
        facts=replace(known, workload=work), shape=shape, hardware=hardware_profile.load("a100-40gb"),
        bounds=Bounds(device_bytes=int(budget)),
    )  # fmt: skip


@pytest.mark.parametrize(("own", "point", "on"), [
    (None, {}, False), (None, ON, True), (None, OFF, False), (True, {}, True), (False, {}, False),
    (True, {"micro_batch": 4}, True),
])  # fmt: skip
def test_the_point_decides_and_what_it_leaves_open_is_the_workloads_own(own, point, on):
    assert checkpoints(point, own) is on
    work = replace(OPEN.workload, activation_checkpointing=own)
    assert workload_at(point, work) == replace(work, activation_checkpointing=on)
    assert facts_at(point, replace(OPEN, workload=work)).workload.activation_checkpointing is on


def test_points_that_differ_in_it_alone_train_unlike_and_off_is_as_before():
    assert same_training("f", OFF, OPEN.workload) == same_training("f", {}, OPEN.workload) == "f"
    assert same_training("f", ON, OPEN.workload) != "f"
    fixed = replace(OPEN.workload, activation_checkpointing=True)
    assert same_training("f", {}, fixed) == "f"


def test_it_is_searched_where_nothing_decides_it_and_left_out_with_the_reason_where_something_does():
    default = load_space("default")
    assert CHECKPOINTING in names_of(default.fit(OPEN))
    for own, words in ((True, "it is on in every trial"), (False, "it is off in every trial")):
        fitted = default.fit(facts(activation_checkpointing=own))
        assert CHECKPOINTING not in names_of(fitted)
        assert any(words in note for note in fitted.notes)
    script = default.fit(facts(activation_checkpointing=False, command=COMMAND))
    assert CHECKPOINTING not in names_of(script)
    assert "Activation checkpointing left out: the script decides it." in script.notes


def test_the_baselines_are_as_the_model_comes():
    assert all(point[CHECKPOINTING] is False for _, point in load_space("default").fit(OPEN).baselines())


@pytest.mark.parametrize(("options", "own"), [
    ({}, None), ({"activation_checkpointing": True}, True), ({"activation_checkpointing": False}, False),
    ({"space": "ladder"}, False),
])  # fmt: skip
def test_an_option_or_a_space_without_it_decides_before_the_first_trial(options, own):
    config, _ = prepare.with_space(resolve(Options(budget="1GB", **options), MACHINE))
    assert config.workload.activation_checkpointing is own


def test_beside_a_command_it_is_the_scripts_affair_either_way():
    for given in (True, False):
        with pytest.raises(UsageError, match="--activation-checkpointing has no meaning beside a command"):
            resolve(Options(budget="1GB", command=COMMAND.arguments, activation_checkpointing=given), MACHINE)


def test_a_trial_trains_what_its_point_says_and_both_are_trained(make_search):  # noqa: F811
    specs = []

    def runner(spec):
        specs.append(spec)
        return imagined(spec)

    search = make_search(runner, space="checkpointing", known=OPEN, baselines=(), sampler="grid", trials=16)
    assert search.config.workload.activation_checkpointing is None
    search.run()
    runs = {run.number: run for run in search.store.runs("s") if run.reuse_of is None}
    assert {run.point[CHECKPOINTING] for run in runs.values()} == {True, False}
    assert {spec.number: spec.workload.activation_checkpointing for spec in specs} == {
        number: run.point[CHECKPOINTING] for number, run in runs.items()
    }
    assert len({run.fingerprint for run in runs.values()}) == len(runs)


def test_a_prediction_at_a_point_is_that_of_a_workload_that_always_does_it():
    point = {"placement": "zero3", "micro_batch": 16}
    config = ds_config.build({}, point, predictor(None).facts, None)
    for on in (True, False):
        found = predictor(None).at({**point, CHECKPOINTING: on}).predict(config)
        assert found == predictor(on).predict(config)
    kept, again = predictor(False).predict(config), predictor(True).predict(config)
    assert again.used_device_bytes < 0.9 * kept.used_device_bytes
    assert again.samples_per_s < kept.samples_per_s


def test_a_guess_knows_it_apart_and_the_pool_has_both():
    known = predictor(None)
    guess = Guesses(base={}, facts=known.facts, nvme_path=None, predictor=lambda: known)
    point = {"placement": "zero3", "micro_batch": 16}
    kept, again = guess({**point, **OFF}), guess({**point, **ON})
    assert kept is not None
    assert again is not None
    assert kept.key != again.key
    assert kept.samples_per_s > again.samples_per_s
    pool = starting_points(load_space("default").fit(known.facts), random.Random(0))
    assert {(one["micro_batch"], one[CHECKPOINTING]) for one in pool} >= {(16, True), (16, False), (1, True)}


def tried(budget: float, trials: int) -> tuple[list[Seen], float]:
    """What the strategy measures on a machine three tenths slower than predicted, and the best there is."""
    known = predictor(None, "llama-1b", budget)
    guess = Guesses(base={}, facts=known.facts, nvme_path=None, predictor=lambda: known)
    space = load_space("checkpointing").fit(known.facts)
    strategy = Strategy(space=space, guess=guess)
    seen: list[Seen] = []
    queued = [point for _, point in space.baselines()]
    while len(seen) < trials:
        point = queued.pop(0) if queued else strategy.propose(seen, [], len(seen)).point
        found = guess(point)
        seen.append(Seen(point=point, samples_per_s=0.7 * found.samples_per_s, shares=found.shares))
    every = [guess(point) for point in every_point(space)]
    return seen, max(0.7 * one.samples_per_s for one in every if one.shares[DEVICE_MEMORY] <= 1)


def test_where_memory_binds_the_strategy_finds_it_and_where_it_is_plenty_it_stays_away():
    seen, best = tried(16e9, trials=10)
    fastest = max((one for one in seen if one.feasible), key=lambda one: one.samples_per_s)
    assert fastest.point[CHECKPOINTING]
    assert fastest.samples_per_s > 0.95 * best
    seen, best = tried(300e9, trials=10)
    assert sum(one.point[CHECKPOINTING] for one in seen) <= 1
    assert max(one.samples_per_s for one in seen) > 0.95 * best


@pytest.mark.parametrize(("point", "own", "said"), [
    ({**POINT, **ON}, None, True), ({**POINT, **OFF}, None, False), (POINT, True, True),
])  # fmt: skip
def test_an_export_says_beside_the_file_what_the_model_has_to_be_told(point, own, said, tmp_path):
    study = make_study(workload={CHECKPOINTING: own, "world_size": 1})
    run = make_run(3, samples_per_s=10.0, used_gb=30, point=point)
    purpose = Purpose.of(study, run, tmp_path / "a.yaml")
    for name in ("deepspeed", "accelerate"):
        assert (
            "model.gradient_checkpointing_enable()" in make(name, run.ds_config, purpose).must_match
        ) is said
    made = make("hf", run.ds_config, purpose)
    assert ("--gradient_checkpointing" in made.must_match) is said
    assert CHECKPOINTING not in made.ds_config


def test_the_export_command_says_it_in_the_note_on_stderr_and_in_json(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with Store.open("studies.db", write=True) as store:
        store.add_study(make_study(workload={CHECKPOINTING: None}))
        store.add_run(replace(make_run(0, samples_per_s=9.0, used_gb=20, point={**POINT, **ON}), status=None))
    done = CliRunner().invoke(app, ["export", "-o", "a.json", "--note", "a.md", "--json"])
    assert done.exit_code == 0, done.stderr
    assert "Must match: model.gradient_checkpointing_enable()" in done.stderr
    document = json.loads(done.stdout)
    assert document[CHECKPOINTING] is True
    assert document["must_match"] == ["model.gradient_checkpointing_enable()"]
    note = Path("a.md").read_text()
    assert "activation checkpointing: True" in note
    assert "- `model.gradient_checkpointing_enable()`" in note


def test_an_export_is_verified_as_its_trial_trained():
    config = resolve(Options(budget="1GB"), MACHINE)
    for on in (True, False):
        run = make_run(1, samples_per_s=9.0, used_gb=1, point={**POINT, CHECKPOINTING: on})
        spec = verify._spec(config, run, run.ds_config, ())
        assert spec.workload.activation_checkpointing is on


def test_the_change_from_the_baseline_to_the_winner_names_it():
    winner = make_run(1, samples_per_s=9.0, used_gb=20, point={**POINT, **ON})
    baseline = make_run(0, samples_per_s=8.0, used_gb=20, origin="baseline", label="your file", point={})
    study = make_study(workload={CHECKPOINTING: None})
    sides = (make_side("Winner", winner, []), make_side("Baseline", baseline, []))
    (change,) = study_report(summarise(study, [baseline, winner]), sides).changes
    assert (change.key, change.before, change.after) == ("(model) gradient checkpointing", "false", "true")


def test_the_dry_run_says_that_it_is_searched():
    config = resolve(Options(budget="1GB"), MACHINE)
    assert "('checkpointing', 'searched')" in repr(dry_run_page(config, load_space("default").fit(OPEN)))


@pytest.mark.parametrize("name", ["default-search", "landscape"])
def test_studies_from_before_the_knob_search_the_space_they_had(name, tmp_path, monkeypatch):
    monkeypatch.chdir(ROOT)
    with Store.open(str(shutil.copy("studies.db", tmp_path / "studies.db")), write=False) as store:
        record = store.study(name)
    work = session.stored_config(record).workload
    numels = tuple(shape_of(work.model_config).parameter_numels)
    known = facts(device="cpu", nvme_dir=record.settings["nvme_path"], parameter_numels=numels)
    fitted = load_space(record.settings["space"]).fit(replace(known, workload=work))
    assert fitted.digest() == record.settings["space_digest"]
