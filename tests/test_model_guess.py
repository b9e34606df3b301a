"""Decoders guessed from their matrices: real families, built small, and what is no decoder."""

import pytest

from offtune.decoder import read_decoder
from offtune.errors import UsageError
from offtune.model_guess import GUESSED, described, guessed_config
from offtune.model_layers import layers_of
from offtune.model_shape import shape_of

SIZES = {"hidden_size": 96, "num_hidden_layers": 5, "num_attention_heads": 4, "intermediate_size": 320,
         "vocab_size": 1000}  # fmt: skip
GPT2 = {"model_type": "gpt2", "n_embd": 96, "n_layer": 5, "n_head": 4, "vocab_size": 1000, "n_positions": 64}


def matrices(config):
    """The matrices of a known model, in the order of its parameters."""
    layers = layers_of(read_decoder(config))
    shapes = [*layers.before, *(shape for layer in layers.layers for shape in layer), *layers.after]
    return [shape for shape in shapes if len(shape) == 2]


@pytest.mark.parametrize("family", ["llama", "qwen2", "mistral", "gpt_neox", "opt", "phi3"])
def test_width_layers_and_vocabulary_of_known_families_are_found_from_their_matrices(family):
    found = guessed_config(
        matrices({"model_type": family, **SIZES, "word_embed_proj_dim": 96, "ffn_dim": 320})
    )
    assert found is not None
    shown = ("hidden_size", "num_hidden_layers", "vocab_size")
    assert {key: found[key] for key in shown} == {key: SIZES[key] for key in shown}
    assert found["intermediate_size"] in (320, 640)


def test_gpt2_keeps_its_matrices_the_other_way_round_and_is_found_too():
    found = guessed_config(matrices(GPT2))
    assert found is not None
    assert (found["hidden_size"], found["num_hidden_layers"], found["intermediate_size"]) == (96, 5, 384)
    assert found["tie_word_embeddings"]


@pytest.mark.parametrize("shapes", [[], [(10, 10)], [(8, 1)], [(100, 64), (64, 64), (64, 64)]])
def test_what_is_not_built_like_a_decoder_is_not_guessed(shapes):
    assert guessed_config(shapes) is None
    assert described({"model_type": "resnet"}, shapes) == {}


def test_a_known_configuration_needs_no_guess_and_a_guess_is_never_exact():
    config = {"model_type": "llama", **SIZES}
    assert described(config, matrices(config)) == config
    guess = described({"model_type": "somebodys-own"}, matrices(config))
    assert guess["model_type"] == GUESSED
    numels = shape_of(config).parameter_numels
    shape = shape_of(guess, numels)
    assert not shape.exact
    assert shape.parameter_numels == numels
    assert len(shape.layer_numels) == SIZES["num_hidden_layers"]
    with pytest.raises(UsageError):
        shape_of(guess)
