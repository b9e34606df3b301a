"""What a look at a person's model finds: transformers' models, one's own, one that ZeRO-3 has cut up."""

import json

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from offtune.model_guess import GUESSED, described
from offtune.model_shape import shape_of
from offtune.rank_report import ProbeReport
from offtune.trial import dump, load
from offtune.worker import seen_model

CONFIG = LlamaConfig(
    vocab_size=300, hidden_size=64, intermediate_size=192, num_hidden_layers=3, num_attention_heads=4,
    num_key_value_heads=2, id2label=dict.fromkeys(range(300), "x"),
)  # fmt: skip


@pytest.fixture(scope="module")
def llama():
    with torch.device("meta"):
        return LlamaForCausalLM(CONFIG)


def test_a_transformers_model_is_recognised_exactly(llama):
    config = seen_model.configuration(llama)
    assert "id2label" not in config
    json.dumps(config, allow_nan=False)
    shape = shape_of(described(config, seen_model.matrix_shapes(llama)), seen_model.numels(llama))
    assert shape.exact
    assert shape.n_params == sum(parameter.numel() for parameter in llama.parameters())
    assert seen_model.hidden_size(llama) == 64


def test_checkpointing_is_seen(llama):
    assert not seen_model.checkpoints_activations(llama)
    enable = getattr(llama, "activation_checkpointing_enable", llama.gradient_checkpointing_enable)
    enable()
    assert seen_model.checkpoints_activations(llama)
    disable = getattr(llama, "activation_checkpointing_disable", llama.gradient_checkpointing_disable)
    disable()
    assert not seen_model.checkpoints_activations(torch.nn.Linear(2, 2))


class Own(torch.nn.Module):
    """A decoder of somebody's own: joint projections, an MLP, tied head."""

    def __init__(self):
        super().__init__()
        self.table = torch.nn.Embedding(300, 64)
        self.layers = torch.nn.ModuleList(
            torch.nn.Sequential(
                torch.nn.Linear(64, 192), torch.nn.Linear(64, 64), torch.nn.LayerNorm(64),
                torch.nn.Linear(64, 256), torch.nn.Linear(256, 64),
            )
            for _ in range(7)
        )  # fmt: skip


def test_a_model_of_ones_own_is_guessed_from_its_matrices():
    model = Own()
    assert seen_model.configuration(model) == {}
    config = described({}, seen_model.matrix_shapes(model))
    assert (config["model_type"], config["num_hidden_layers"], config["vocab_size"]) == (GUESSED, 7, 300)
    assert config["intermediate_size"] == 256
    shape = shape_of(config, seen_model.numels(model))
    assert not shape.exact
    assert shape.n_params == sum(parameter.numel() for parameter in model.parameters())


def test_what_zero3_has_partitioned_counts_whole_and_what_is_frozen_not_at_all():
    model = torch.nn.Linear(8, 4)
    model.weight.ds_numel, model.weight.ds_shape = 3200, torch.Size((80, 40))
    model.bias.requires_grad_(False)
    assert seen_model.numels(model) == (3200,)
    assert seen_model.matrix_shapes(model) == ((80, 40),)
    assert seen_model.numels(None) == ()


def test_what_was_seen_crosses_to_the_parent_unchanged(llama):
    report = ProbeReport(
        rank=0, world_size=1, parameter_numels=seen_model.numels(llama), ds_config={},
        model_config=seen_model.configuration(llama), matrix_shapes=seen_model.matrix_shapes(llama),
    )  # fmt: skip
    assert load(ProbeReport, dump(report)) == report
