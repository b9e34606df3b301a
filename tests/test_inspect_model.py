"""Model profiles: real models on the meta device, in a process of their own as in real use."""

from __future__ import annotations

import json
import subprocess
import sys

from offtune.models import PRESETS, ModelProfile, sub_group_numels
from offtune.trial import load

# One process for all cases: importing transformers takes seconds, counting a model takes milliseconds.
PROGRAM = """
import json, sys
from offtune.trial import as_dict
from offtune.worker.inspect_model import profile
def outcome(config):
    try:
        return as_dict(profile(config))
    except ValueError as error:
        return {"error": str(error)}
print(json.dumps([outcome(config) for config in json.load(sys.stdin)]))
"""


def run(command: list[str], text: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, *command], input=text, capture_output=True, text=True, timeout=600)


def test_presets_have_the_sizes_they_claim_and_wrong_configurations_say_why() -> None:
    wrong = [
        {"model_type": "no-such-model"},
        {"model_type": "vit"},
        {"model_type": "llama", "hidden_size": 10, "num_attention_heads": 3},
        {"model_type": "llama", "hidden_size": "wide"},
    ]
    names = ["llama-5m", "gpt2-124m", "llama-1b", "llama-7b"]
    configs = [*(PRESETS[name].config for name in names), *wrong]
    answer = run(["-c", PROGRAM], json.dumps(configs))
    assert answer.returncode == 0, answer.stderr
    outcomes = json.loads(answer.stdout)
    # Published counts of GPT-2 (embeddings tied, so counted once), TinyLlama and Llama 2 7B.
    sizes = {name: outcome["n_params"] for name, outcome in zip(names, outcomes, strict=False)}
    assert sizes == {
        "llama-5m": 5_261_568,
        "gpt2-124m": 124_439_808,
        "llama-1b": 1_100_048_384,
        "llama-7b": 6_738_415_616,
    }
    errors = [outcome["error"] for outcome in outcomes[len(names) :]]
    assert "no-such-model" in errors[0]
    assert "AutoModelForCausalLM" in errors[1]
    assert "hidden size" in errors[2]
    assert "hidden_size" in errors[3]
    assert all("\n" not in error and len(error) <= 300 for error in errors)


def test_the_program_prints_a_profile_that_the_arithmetic_can_use() -> None:
    answer = run(["-m", "offtune.worker.inspect_model"], json.dumps(PRESETS["llama-5m"].config))
    assert answer.returncode == 0, answer.stderr
    profile = load(ModelProfile, answer.stdout)
    assert profile.n_params == sum(profile.parameter_numels) == 5_261_568
    assert profile.largest_numel == 4096 * 256
    assert (profile.vocab_size, profile.max_positions) == (4096, 4096)
    assert sum(sub_group_numels(profile.parameter_numels, 2, 500_000)) >= profile.n_params // 2


def test_text_that_is_no_json_ends_with_an_error_document() -> None:
    answer = run(["-m", "offtune.worker.inspect_model"], "{")
    assert answer.returncode == 1
    assert set(json.loads(answer.stdout)) == {"error"}
