"""Families of decoders: what a Hugging Face configuration means where it is silent.

Covered: defaults as in transformers 5.24 (models/<family>/configuration_<family>.py), what no configuration
can change, and the other names that files use. Not covered: reading a configuration (`decoder`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """What a configuration of this family means where it is silent, and what no configuration can change.

    `other_names` lead from a name a file may use to the one used here.
    """

    defaults: Mapping[str, Any]
    fixed: Mapping[str, Any] = field(default_factory=dict)
    other_names: Mapping[str, str] = field(default_factory=dict)


_LLAMA_7B = {
    "hidden_size": 4096,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "intermediate_size": 11008,
    "vocab_size": 32000,
    "hidden_act": "silu",
}
_QWEN = {**_LLAMA_7B, "intermediate_size": 22016, "vocab_size": 151936, "num_key_value_heads": 32}
_GEMMA = {
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 256,
    "hidden_size": 2304,
    "num_hidden_layers": 26,
    "intermediate_size": 9216,
    "vocab_size": 256000,
    "hidden_activation": "gelu_pytorch_tanh",
    "tie_word_embeddings": True,
    "final_logit_softcapping": None,
}
_RMS = {"norm": "rms", "gated": True, "mlp_bias": False}
_LAYER = {"norm": "layer", "gated": False, "qkv_bias": True, "out_bias": True, "mlp_bias": True}
_ACTIVATION = {"hidden_activation": "hidden_act", "activation_function": "hidden_act"}
_GPT2_NAMES = {
    "n_embd": "hidden_size",
    "n_layer": "num_hidden_layers",
    "n_head": "num_attention_heads",
    # GPT-2 knows no other name for it, so that this one means nothing in its files.
    "intermediate_size": "unused",
    "n_inner": "intermediate_size",
    "n_positions": "max_position_embeddings",
    **_ACTIVATION,
}
_NEO_NAMES = {"num_layers": "num_hidden_layers", "num_heads": "num_attention_heads", **_ACTIVATION}
_EXPERT_NAMES = {"num_experts": "num_local_experts"}
_NO_SHARED = {"shared_expert_intermediate_size": "unused"}
# Older architectures have a key head for every query head, whatever a file says.
_UNGROUPED = {"grouped": False}
_NO_BIAS = {"qkv_bias": False, "out_bias": False}

FAMILIES: dict[str, Family] = {
    "llama": Family(defaults=_LLAMA_7B, fixed={"norm": "rms", "gated": True}),
    "mistral": Family(
        defaults={**_LLAMA_7B, "intermediate_size": 14336, "num_key_value_heads": 8}, fixed=_RMS | _NO_BIAS
    ),
    "qwen2": Family(defaults=_QWEN, fixed={**_RMS, "qkv_bias": True, "out_bias": False}),
    "qwen3": Family(defaults={**_QWEN, "head_dim": 128}, fixed={**_RMS, "head_norms": True}),
    "gemma": Family(
        defaults={
            **_GEMMA,
            "hidden_size": 3072,
            "intermediate_size": 24576,
            "num_hidden_layers": 28,
            "num_attention_heads": 16,
            "num_key_value_heads": 16,
        },
        fixed=_RMS,
        other_names=_ACTIVATION,
    ),
    "gemma2": Family(
        defaults={**_GEMMA, "final_logit_softcapping": 30.0}, fixed=_RMS, other_names=_ACTIVATION
    ),
    "gemma3_text": Family(
        defaults={**_GEMMA, "vocab_size": 262208},
        fixed={**_RMS, "head_norms": True},
        other_names=_ACTIVATION,
    ),
    "phi3": Family(
        defaults={
            **_LLAMA_7B,
            "hidden_size": 3072,
            "intermediate_size": 8192,
            "vocab_size": 32064,
            "max_position_embeddings": 4096,
        },
        fixed=_RMS | _NO_BIAS,
    ),
    "phi": Family(
        defaults={
            "hidden_size": 2048,
            "num_hidden_layers": 24,
            "num_attention_heads": 32,
            "intermediate_size": 8192,
            "vocab_size": 51200,
            "hidden_act": "gelu_new",
        },
        fixed={**_LAYER, "head_bias": True},
    ),
    "gpt2": Family(
        defaults={
            "hidden_size": 768,
            "num_hidden_layers": 12,
            "num_attention_heads": 12,
            "vocab_size": 50257,
            "max_position_embeddings": 1024,
            "hidden_act": "gelu_new",
            "tie_word_embeddings": True,
        },
        fixed={**_LAYER, **_UNGROUPED},
        other_names=_GPT2_NAMES,
    ),
    "gpt_neo": Family(
        defaults={
            "hidden_size": 2048,
            "num_hidden_layers": 24,
            "num_attention_heads": 16,
            "vocab_size": 50257,
            "max_position_embeddings": 2048,
            "hidden_act": "gelu_new",
            "tie_word_embeddings": True,
        },
        fixed={**_LAYER, **_UNGROUPED, "qkv_bias": False},
        other_names=_NEO_NAMES,
    ),
    "gpt_neox": Family(
        defaults={
            "hidden_size": 6144,
            "num_hidden_layers": 44,
            "num_attention_heads": 64,
            "intermediate_size": 24576,
            "vocab_size": 50432,
            "hidden_act": "gelu",
            "attention_bias": True,
        },
        fixed={"norm": "layer", "gated": False, "mlp_bias": True, **_UNGROUPED},
    ),
    "opt": Family(
        defaults={
            "hidden_size": 768,
            "num_hidden_layers": 12,
            "num_attention_heads": 12,
            "intermediate_size": 3072,
            "vocab_size": 50272,
            "max_position_embeddings": 2048,
            "hidden_act": "relu",
            "tie_word_embeddings": True,
            "word_embed_proj_dim": None,
            "enable_bias": True,
        },
        fixed={"norm": "layer", "gated": False, **_UNGROUPED},
        other_names={"ffn_dim": "intermediate_size", **_ACTIVATION},
    ),
    "mixtral": Family(
        defaults={
            **_LLAMA_7B,
            "intermediate_size": 14336,
            "num_key_value_heads": 8,
            "num_local_experts": 8,
            "num_experts_per_tok": 2,
        },
        fixed=_RMS | _NO_BIAS,
        other_names={**_EXPERT_NAMES, **_NO_SHARED, "moe_intermediate_size": "unused"},
    ),
    "qwen2_moe": Family(
        defaults={
            "hidden_size": 2048,
            "num_hidden_layers": 24,
            "num_attention_heads": 16,
            "num_key_value_heads": 16,
            "intermediate_size": 5632,
            "vocab_size": 151936,
            "hidden_act": "silu",
            "num_local_experts": 60,
            "num_experts_per_tok": 4,
            "moe_intermediate_size": 1408,
            "shared_expert_intermediate_size": 5632,
            "qkv_bias": True,
        },
        fixed={**_RMS, "out_bias": False},
        other_names=_EXPERT_NAMES,
    ),
    "qwen3_moe": Family(
        defaults={
            "hidden_size": 2048,
            "num_hidden_layers": 24,
            "num_attention_heads": 32,
            "num_key_value_heads": 4,
            "intermediate_size": 6144,
            "vocab_size": 151936,
            "hidden_act": "silu",
            "num_local_experts": 128,
            "num_experts_per_tok": 8,
            "moe_intermediate_size": 768,
        },
        fixed={**_RMS, "head_norms": True},
        other_names={**_EXPERT_NAMES, **_NO_SHARED},
    ),
}

# Families with a learned table of positions, and the rows it has beyond the longest sequence (OPT's offset:
# models/opt/modeling_opt.py).
LEARNED_POSITIONS = {"gpt2": 0, "gpt_neo": 0, "opt": 2}
