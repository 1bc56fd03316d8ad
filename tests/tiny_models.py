"""Tiny random models of every family, made on the spot."""

import torch
import transformers

from floatscope.models.families import FAMILIES
from floatscope.models.model import Model

MASK = 95
SIZES = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "vocab_size": 96,
    "max_position_embeddings": 128,
}
GROUPED = SIZES | {"num_key_value_heads": 2}
SPECIAL = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
WINDOWED = {"layer_types": ["sliding_attention", "full_attention", "sliding_attention"], "sliding_window": 6}

BACKBONES = {
    "llama": lambda: transformers.LlamaForCausalLM(transformers.LlamaConfig(**GROUPED, **SPECIAL)),
    "qwen2": lambda: transformers.Qwen2ForCausalLM(transformers.Qwen2Config(**GROUPED, **SPECIAL)),
    "qwen3": lambda: transformers.Qwen3ForCausalLM(transformers.Qwen3Config(**GROUPED, **SPECIAL, head_dim=8)),
    "gemma2": lambda: transformers.Gemma2ForCausalLM(
        transformers.Gemma2Config(**GROUPED, **SPECIAL, head_dim=8, sliding_window=6, attn_logit_softcapping=2.0)
    ),
    "gemma3": lambda: transformers.Gemma3ForCausalLM(
        transformers.Gemma3TextConfig(**GROUPED, **SPECIAL, **WINDOWED, head_dim=8)
    ),
    "bert": lambda: transformers.BertForMaskedLM(transformers.BertConfig(**SIZES, pad_token_id=0)),
    "modernbert": lambda: transformers.ModernBertForMaskedLM(
        transformers.ModernBertConfig(
            **SIZES, **SPECIAL, cls_token_id=1, sep_token_id=2, local_attention=12, global_attn_every_n_layers=2
        )
    ),
}

MODELS = {
    "llama": ("llama", "causal"),
    "qwen2": ("qwen2", "causal"),
    "qwen3": ("qwen3", "causal"),
    "gemma2": ("gemma2", "causal"),
    "gemma3": ("gemma3", "causal"),
    "bert": ("bert", "bert"),
    "modernbert": ("modernbert", "bert"),
    "llada": ("llama", "llada"),
    "dream": ("qwen2", "dream"),
    "sdar": ("qwen3", "sdar"),
    "fast-dllm-v2": ("qwen2", "fast-dllm-v2"),
}


def tiny_model(name: str, seed: int = 0, spread: float = 3.0) -> Model:
    """A model by its name in MODELS; weights are spread out so that attention is far from uniform."""
    backbone, family = MODELS[name]
    torch.manual_seed(seed)
    built = BACKBONES[backbone]()
    with torch.no_grad():
        for parameter in built.parameters():
            if parameter.ndim == 2:
                parameter.mul_(spread)
    return Model(built, FAMILIES[family], name=name, mask_id=None if FAMILIES[family].is_arm else MASK)
