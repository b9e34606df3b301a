"""Parameters of a decoder, counted without torch, are those transformers makes of the same configuration."""

import json
import subprocess
import sys
from types import SimpleNamespace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from offtune.decoder_families import FAMILIES
from offtune.errors import UsageError
from offtune.model_shape import shape_of
from offtune.models import PRESETS

_COUNTER = """
import json, logging, sys
import torch
from transformers import AutoConfig, AutoModelForCausalLM
logging.disable(logging.WARNING)
for line in sys.stdin:
    config = json.loads(line)
    try:
        with torch.device("meta"):
            model = AutoModelForCausalLM.from_config(AutoConfig.for_model(config.pop("model_type"), **config))
        print(json.dumps([p.numel() for p in model.parameters() if p.requires_grad]), flush=True)
    except Exception as error:
        print(json.dumps(str(error)), flush=True)
"""

# Published sizes, by what their config.json files say about shape.
_SHAPE = ("hidden_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads",
          "intermediate_size", "vocab_size")  # fmt: skip


def _config(family, *shape, **more):
    return {"model_type": family, **dict(zip(_SHAPE, shape, strict=False)), **more}


PUBLISHED = {
    "llama-2-7b": _config("llama", 4096, 32, 32, 32, 11008, 32000),
    "llama-3-8b": _config("llama", 4096, 32, 32, 8, 14336, 128256),
    "llama-3.2-1b": _config("llama", 2048, 16, 32, 8, 8192, 128256, tie_word_embeddings=True, head_dim=64),
    "mistral-7b": _config("mistral", 4096, 32, 32, 8, 14336),
    "qwen2.5-0.5b": _config("qwen2", 896, 24, 14, 2, 4864, 151936, tie_word_embeddings=True),
    "qwen2.5-7b": _config("qwen2", 3584, 28, 28, 4, 18944, 152064),
    "qwen3-14b": _config("qwen3", 5120, 40, 40, 8, 17408, 151936, head_dim=128),
    "gpt2": _config("gpt2"),
    "gpt2-xl": _config("gpt2", n_embd=1600, n_layer=48, n_head=25),
    "gpt-neo-1.3b": _config("gpt_neo"),
    "gpt-neox-20b": _config("gpt_neox"),
    "pythia-1b": _config("gpt_neox", 2048, 16, 8, intermediate_size=8192, vocab_size=50304),
    "opt-125m": _config("opt"),
    "opt-350m": _config(
        "opt", 1024, 24, 16, ffn_dim=4096, word_embed_proj_dim=512, do_layer_norm_before=False
    ),
    "opt-13b": _config("opt", 5120, 40, 40, ffn_dim=20480, word_embed_proj_dim=5120),
    "phi-2": _config("phi", 2560, 32, 32, intermediate_size=10240),
    "phi-3-mini": _config("phi3", 3072, 32, intermediate_size=8192),
    "gemma-2b": _config("gemma", 2048, 18, 8, 1, 16384, head_dim=256),
    "gemma-2-9b": _config("gemma2", 3584, 42, 16, 8, 14336, head_dim=256),
    "gemma-3-1b": _config("gemma3_text", 1152, 26, 4, 1, 6912, 262144, head_dim=256),
    "mixtral-8x7b": _config("mixtral"),
    "qwen1.5-moe-a2.7b": _config("qwen2_moe"),
    "qwen3-30b-a3b": _config(
        "qwen3_moe",
        2048,
        48,
        32,
        4,
        head_dim=128,
        moe_intermediate_size=768,
        num_experts=128,
        num_experts_per_tok=8,
    ),
}


@pytest.fixture(scope="module")
def transformers_counts():
    """Ask one long-lived process: loading transformers takes seconds."""
    command = [sys.executable, "-c", _COUNTER]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as child:

        def ask(config):
            child.stdin.write(json.dumps(config) + "\n")
            child.stdin.flush()
            answer = json.loads(child.stdout.readline())
            assert isinstance(answer, list), answer
            return tuple(answer)

        yield SimpleNamespace(of=ask)
        child.stdin.close()


@pytest.mark.parametrize("name", [*PUBLISHED, *PRESETS])
def test_a_published_model_has_exactly_the_parameters_transformers_gives_it(name, transformers_counts):
    config = PUBLISHED[name] if name in PUBLISHED else PRESETS[name].config
    assert shape_of(config).parameter_numels == transformers_counts.of(config)


@pytest.mark.parametrize("family", sorted(FAMILIES))
def test_an_empty_configuration_means_what_transformers_makes_of_it(family, transformers_counts):
    config = {"model_type": family}
    assert shape_of(config).parameter_numels == transformers_counts.of(config)


_SMALL = st.integers(1, 3)


@st.composite
def small_configs(draw):
    """A random small shape of a random family, with the switches that change its parameters."""
    family = draw(st.sampled_from(sorted(FAMILIES)))
    kv_heads, groups, head_dim = draw(_SMALL), draw(_SMALL), 2 * draw(st.integers(1, 4))
    heads = kv_heads * groups
    config = {
        "model_type": family,
        "hidden_size": heads * head_dim,
        "num_hidden_layers": draw(_SMALL),
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "intermediate_size": 8 * draw(st.integers(1, 9)),
        "vocab_size": draw(st.integers(60, 300)),
        "max_position_embeddings": draw(st.integers(8, 64)),
        "tie_word_embeddings": draw(st.booleans()),
        "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
    }  # fmt: skip
    if family in ("llama", "qwen3", "gemma", "gemma2", "gemma3_text", "qwen3_moe"):
        config |= {"attention_bias": draw(st.booleans()), "head_dim": 2 * draw(st.integers(1, 6))}
    if family == "llama":
        config["mlp_bias"] = draw(st.booleans())
    if family == "gpt_neo":
        # Its own name for the same number, which decides how many attention types it wants.
        del config["num_hidden_layers"]
    return config | draw(_switches(family))


def _switches(family):
    both = st.booleans()
    if family == "gpt_neo":
        return st.just({"num_layers": 2, "attention_types": [[["global", "local"], 1]]})
    if family == "gpt_neox":
        return st.fixed_dictionaries({"attention_bias": both, "use_parallel_residual": both})
    if family == "phi":
        return st.fixed_dictionaries({"qk_layernorm": both})
    if family == "opt":
        keys = (
            "do_layer_norm_before",
            "enable_bias",
            "layer_norm_elementwise_affine",
            "_remove_final_layer_norm",
        )
        return st.fixed_dictionaries({**dict.fromkeys(keys, both), "ffn_dim": st.just(24),
                                      "word_embed_proj_dim": st.sampled_from((4, 8))})  # fmt: skip
    if family == "mixtral":
        return st.fixed_dictionaries({"num_local_experts": _SMALL, "num_experts_per_tok": st.just(1)})
    if family in ("qwen2_moe", "qwen3_moe"):
        sizes = {
            "num_experts": _SMALL, "num_experts_per_tok": st.just(1), "moe_intermediate_size": st.just(16),
            "decoder_sparse_step": _SMALL, "mlp_only_layers": st.lists(st.integers(0, 2), max_size=2),
        }  # fmt: skip
        return st.fixed_dictionaries(sizes | ({"qkv_bias": both} if family == "qwen2_moe" else {}))
    return st.just({})


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(config=small_configs())
def test_any_small_shape_has_exactly_the_parameters_transformers_gives_it(config, transformers_counts):
    assert shape_of(config).parameter_numels == transformers_counts.of(config)


def test_an_unknown_family_is_refused_unless_its_parameters_were_counted():
    config = {"model_type": "falcon", "hidden_size": 8, "num_hidden_layers": 2, "num_attention_heads": 2,
              "vocab_size": 10}  # fmt: skip
    with pytest.raises(UsageError, match="falcon"):
        shape_of(config)
    counted = (80, *(64, 8) * 2, 8, 80)
    guess = shape_of(config, counted)
    assert guess.parameter_numels == counted and not guess.exact and guess.layer_params == (72, 72)


def test_flops_are_six_per_weight_and_token_and_eight_with_checkpointing():
    shape = shape_of(PUBLISHED["llama-2-7b"])
    weights = sum(shape.layer_matmul_numels) + shape.head_numel
    flops = shape.flops(1, checkpointing=False)
    assert flops.total == pytest.approx(6 * weights, rel=1e-3)
    layers = 8 * sum(shape.layer_matmul_numels)
    assert shape.flops(1, checkpointing=True).total == pytest.approx(layers + 6 * shape.head_numel, rel=1e-3)


def test_only_the_experts_that_work_on_a_token_cost_operations():
    mixtral = shape_of(PUBLISHED["mixtral-8x7b"])
    # Published: 46.7 B parameters, 12.9 B of them active for a token (both token tables counted).
    assert mixtral.n_params == pytest.approx(46.7e9, rel=0.002)
    active = sum(mixtral.layer_matmul_numels) + 2 * mixtral.head_numel
    assert active == pytest.approx(12.9e9, rel=0.005)


def test_eager_attention_computes_the_scores_a_causal_kernel_skips():
    shape = shape_of(PRESETS["llama-7b"].config)
    eager, flash = (sum(shape.layer_forward_flops(2048, a)) for a in ("eager", "flash"))
    assert eager - flash == pytest.approx(2 * 2048**2 * shape.decoder.query * shape.decoder.layers)
