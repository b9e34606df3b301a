"""A person's command: its placeholders, its words, and what it leaves to be said before anything runs."""

import pytest

from offtune.cli import app
from offtune.command import absolute_paths, command_name, fill, is_plain_python, parse_command
from offtune.command_ranks import environment
from offtune.errors import UsageError

VALUES = {"ds_config": "/t/ds.json", "micro_batch": 4, "grad_accum": 2, "trial_dir": "/t"}


def test_placeholders_are_replaced_wherever_they_stand_in_a_word():
    words = ["python", "train.py", "--deepspeed={ds_config}", "{micro_batch}x{grad_accum}", "{trial_dir}/out"]
    assert fill(words, VALUES) == ["python", "train.py", "--deepspeed=/t/ds.json", "4x2", "/t/out"]


@pytest.mark.parametrize("word", ['{"lr": 1e-4}', "{}", "a{b c}", "{1}", "{{ds_config}"])
def test_other_braces_stay_as_they_are(word):
    assert fill(parse_command([word], "/", "here").arguments, VALUES) == [word]


def test_doubled_braces_stand_for_single_ones():
    assert fill(["{{ds_config}}", "{{foo}}"], VALUES) == ["{ds_config}", "{foo}"]
    parse_command(["{{foo}}"], "/", "here")


def test_an_unknown_placeholder_is_refused_with_those_that_exist():
    with pytest.raises(UsageError) as caught:
        parse_command(["python", "--out", "{foo}"], "/", "here")
    assert "{foo} is no placeholder" in caught.value.message
    assert "{micro_batch}" in caught.value.hint
    assert "{{foo}}" in caught.value.hint


def test_a_command_is_called_by_its_script_or_its_module():
    assert command_name(["torchrun", "--nproc_per_node", "2", "src/train.py", "--x"]) == "train.py"
    assert command_name(["python", "-m", "llm.train"]) == "llm.train"
    assert command_name(["/opt/bin/train-it"]) == "train-it"


def test_only_an_interpreter_that_starts_a_script_is_a_single_process():
    assert is_plain_python(["/usr/bin/python3.11", "train.py"])
    assert not is_plain_python(["torchrun", "train.py"])
    assert not is_plain_python(["python", "-m", "torch.distributed.run", "train.py"])


def test_in_another_folder_the_words_still_find_the_script_and_its_files(tmp_path):
    (tmp_path / "train.py").touch()
    (tmp_path / "data").mkdir()
    words = ["python", "train.py", "data", "missing.txt", "--lr"]
    found = absolute_paths(words, str(tmp_path))
    assert found == ["python", str(tmp_path / "train.py"), str(tmp_path / "data"), "missing.txt", "--lr"]


def test_a_command_finds_its_trial_in_the_environment(make_spec, tmp_path, monkeypatch):
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.delenv("RANK", raising=False)
    spec = own(make_spec, ["python", "train.py"])
    found = environment(spec, tmp_path / "spec.json")
    assert found["OFFTUNE_MICRO_BATCH"] == "2"
    assert found["OFFTUNE_GRAD_ACCUM"] == "2"
    assert found["OFFTUNE_DS_CONFIG"].startswith(spec.trial_dir)
    assert found["PYTHONPATH"].split(":")[0].endswith("inject")
    assert found["WANDB_MODE"] == "offline"
    assert found["WORLD_SIZE"] == "1"
    assert "RANK" not in environment(own(make_spec, ["torchrun", "train.py"]), tmp_path / "spec.json")


def own(make_spec, words):
    from conftest import workload

    batch = {"train_batch_size": 4, "train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": 2}
    return make_spec(batch, workload=workload(command=parse_command(words, "/", "here"), seq_len=None))


def run(arguments, capsys):
    with pytest.raises(SystemExit) as ended:
        app(arguments)
    return ended.value.code, capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["search", "--budget", "2GB", "train.py"], "train.py"),
        (["search", "--budget", "2GB", "--"], "Nothing follows"),
        (["search", "--budget", "2GB", "--", "python", "{foo}"], "{foo} is no placeholder"),
        (["search", "--budget", "2GB", "--model", "llama-5m", "--", "python", "t.py"], "--model"),
        (["search", "--budget", "2GB", "--seq-len", "64", "--", "python", "t.py"], "--seq-len"),
        (["search", "--budget", "2GB", "--trial-cwd", "there", "--", "python", "t.py"], "--trial-cwd"),
    ],
)
def test_wrong_use_is_said_before_anything_runs(arguments, said, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    code, told = run(arguments, capsys)
    assert code == 2
    assert said in told
    assert list(tmp_path.iterdir()) == []
