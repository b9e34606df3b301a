"""Bytes that a forward keeps, counted from the configuration, are those that autograd saves."""

import json
import subprocess
import sys

import pytest

from offtune.activations import HUGGING_FACE, MEGATRON, Stack, head_bytes, layer_bytes
from offtune.decoder import read_decoder
from offtune.decoder_families import FAMILIES

_TOKENS, _BATCH = 32, 2
_SIZES = {"hidden_size": 64, "intermediate_size": 176, "num_attention_heads": 4, "num_key_value_heads": 2,
          "num_hidden_layers": 3, "vocab_size": 1000, "pad_token_id": 0, "bos_token_id": 1,
          "eos_token_id": 2}  # fmt: skip
_OTHERS = {
    "gpt2": {"n_inner": 176, "resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0},
    "gpt_neo": {"attention_types": [[["global"], 3]]},
    "opt": {"ffn_dim": 176, "word_embed_proj_dim": 64, "dropout": 0.0},
    "mixtral": {"num_local_experts": 4},
    "qwen2_moe": {"num_experts": 4, "moe_intermediate_size": 48, "num_experts_per_tok": 2,
                  "shared_expert_intermediate_size": 64},
    "qwen3_moe": {"num_experts": 4, "moe_intermediate_size": 48, "num_experts_per_tok": 2, "head_dim": 16},
    **{family: {"head_dim": 16} for family in ("gemma", "gemma2", "gemma3_text", "qwen3")},
}  # fmt: skip
CONFIGS = {family: {"model_type": family, **_SIZES, **_OTHERS.get(family, {})} for family in FAMILIES}
del CONFIGS["gpt_neo"]["num_hidden_layers"]
CONFIGS["gpt_neo"]["num_layers"] = 3

# Sums the storages that autograd saves, each once, parameters left out; marks the sum around each layer.
_MEASURE = """
import json, logging, sys
import torch
from transformers import AutoConfig, AutoModelForCausalLM
logging.disable(logging.WARNING)
torch.set_num_threads(1)

def measure(config, attention, dtype):
    torch.set_default_dtype(dtype)
    settings = AutoConfig.for_model(config.pop("model_type"), **config)
    settings.use_cache = False
    model = AutoModelForCausalLM.from_config(settings, attn_implementation=attention).train()
    torch.set_default_dtype(torch.float32)
    fixed = {t.untyped_storage().data_ptr() for t in (*model.parameters(), *model.buffers())}
    seen, marks = {}, []
    def pack(tensor):
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in fixed:
            seen[storage.data_ptr()] = (storage.nbytes(), tensor)
        return tensor
    def mark(*arguments):
        marks.append(sum(size for size, _ in seen.values()))
    layers = next(m for n, m in model.named_modules() if n.split(".")[-1] in ("layers", "h"))
    layers[0].register_forward_pre_hook(mark)
    for layer in layers:
        layer.register_forward_hook(mark)
    tokens = torch.randint(0, 1000, (BATCH, TOKENS))
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        model(input_ids=tokens, labels=tokens)
    mark()
    return marks[2] - marks[1], marks[-1] - marks[-2]

found = {}
for family, config in json.load(sys.stdin).items():
    for attention in ("sdpa", "eager"):
        for element, dtype in ((2, torch.bfloat16), (4, torch.float32)):
            try:
                found[f"{family} {attention} {element}"] = measure(dict(config), attention, dtype)
            except ValueError:  # no such attention for this family
                pass
print(json.dumps(found))
"""


@pytest.fixture(scope="module")
def measured():
    code = _MEASURE.replace("BATCH", str(_BATCH)).replace("TOKENS", str(_TOKENS))
    done = subprocess.run(
        [sys.executable, "-c", code], input=json.dumps(CONFIGS), capture_output=True, text=True, check=True
    )
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.parametrize("element", [2, 4])
@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("family", sorted(FAMILIES))
def test_a_layer_keeps_what_autograd_saves(family, attention, element, measured):
    key = f"{family} {attention} {element}"
    if key not in measured:
        assert family in ("gemma2", "gpt_neo") and attention == "sdpa"
        return
    layer, head = measured[key]
    decoder = read_decoder(CONFIGS[family])
    stack = Stack(attention="flash" if attention == "sdpa" else "eager")
    # Experts get a random share of the tokens; everything else is counted.
    tolerance = 0.04 if decoder.experts else 0.012
    assert layer_bytes(decoder, 1, _TOKENS, _BATCH, element, stack).kept == pytest.approx(
        layer, rel=tolerance
    )
    assert head_bytes(decoder, _TOKENS, _BATCH, element).kept == pytest.approx(head, rel=0.01)


def test_scores_grow_with_the_square_of_the_length_only_where_they_are_kept():
    decoder = read_decoder(CONFIGS["llama"])
    flash, eager = (Stack(attention=kind) for kind in ("flash", "eager"))
    short, long = (layer_bytes(decoder, 0, n, 1, 2, flash).kept for n in (512, 1024))
    assert long == 2 * short
    short, long = (layer_bytes(decoder, 0, n, 1, 2, eager).kept for n in (512, 1024))
    assert long > 3 * short


def test_a_loss_needs_more_in_backward_than_in_forward_but_megatron_works_in_place():
    decoder = read_decoder(CONFIGS["llama"])
    usual = head_bytes(decoder, 128, 1, 2, HUGGING_FACE)
    in_place = head_bytes(decoder, 128, 1, 2, MEGATRON)
    assert usual.kept < usual.forward < usual.backward
    assert in_place.backward < in_place.forward == usual.forward
