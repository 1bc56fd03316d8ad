"""Tiny random models of transformers' own classes, one a kind of attention that floatscope must honour."""

from collections.abc import Callable
from typing import Any

import torch
import transformers

SIZES: dict[str, Any] = {
    "vocab_size": 96,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "max_position_embeddings": 64,
    "initializer_range": 0.3,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
GROUPED: dict[str, Any] = SIZES | {"num_key_value_heads": 2}
SLIDING: dict[str, Any] = {
    "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
    "sliding_window": 9,
}
CAPPED: dict[str, Any] = {"attn_logit_softcapping": 1.5, "final_logit_softcapping": 3.0}
ROBERTA: dict[str, Any] = SIZES | {"pad_token_id": 1, "max_position_embeddings": 66}
LOCAL: dict[str, Any] = {
    "layer_types": ["full_attention", "sliding_attention", "sliding_attention"],
    "local_attention": 8,
}

CAUSAL: dict[str, Callable[[], Any]] = {
    "llama": lambda: transformers.LlamaForCausalLM(transformers.LlamaConfig(**GROUPED)),
    "qwen2": lambda: transformers.Qwen2ForCausalLM(transformers.Qwen2Config(**GROUPED, tie_word_embeddings=True)),
    "qwen3": lambda: transformers.Qwen3ForCausalLM(transformers.Qwen3Config(**GROUPED, head_dim=8)),
    "gemma3": lambda: transformers.Gemma3ForCausalLM(
        transformers.Gemma3TextConfig(**GROUPED, **SLIDING, head_dim=8, query_pre_attn_scalar=8)
    ),
    "gemma2": lambda: transformers.Gemma2ForCausalLM(
        transformers.Gemma2Config(**GROUPED, **SLIDING, **CAPPED, head_dim=8, query_pre_attn_scalar=8)
    ),
    "mistral": lambda: transformers.MistralForCausalLM(transformers.MistralConfig(**GROUPED, sliding_window=9)),
    "gpt2": lambda: transformers.GPT2LMHeadModel(
        transformers.GPT2Config(vocab_size=96, n_embd=32, n_head=4, n_layer=3, n_positions=64, initializer_range=0.3)
    ),
}
MASKED: dict[str, Callable[[], Any]] = {
    "bert": lambda: transformers.BertForMaskedLM(transformers.BertConfig(**SIZES)),
    "roberta": lambda: transformers.RobertaForMaskedLM(transformers.RobertaConfig(**ROBERTA)),
    "modernbert": lambda: transformers.ModernBertForMaskedLM(transformers.ModernBertConfig(**SIZES, **LOCAL)),
}
EVERY = CAUSAL | MASKED


def tiny(name: str, seed: int = 0) -> Any:
    """A random model in eval mode."""
    torch.manual_seed(seed)
    return EVERY[name]().eval()
