"""Tiny checkpoints on disk in the dialects of the published ones: their config fields and their tensor names.

Names are written out here and not taken from the families, so that a wrong key map cannot agree with itself.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save_file

from tests.models.plain_transformer import Shape, Weights

MASK = 94


def llada_config(shape: Shape, **changes: Any) -> dict[str, Any]:
    """Every field of LLaDA-8B's config.json, in the words of OLMo."""
    return {
        "activation_type": "silu",
        "alibi": False,
        "alibi_bias_max": 8.0,
        "architectures": ["LLaDAModelLM"],
        "attention_dropout": 0.0,
        "attention_layer_norm": False,
        "attention_layer_norm_with_affine": True,
        "auto_map": {
            "AutoConfig": "configuration_llada.LLaDAConfig",
            "AutoModel": "modeling_llada.LLaDAModelLM",
            "AutoModelForCausalLM": "modeling_llada.LLaDAModelLM",
        },
        "bias_for_layer_norm": False,
        "block_group_size": 1,
        "block_type": "llama",
        "d_model": shape.hidden,
        "embedding_dropout": 0.0,
        "embedding_size": shape.vocabulary,
        "eos_token_id": 81,
        "flash_attention": False,
        "include_bias": False,
        "include_qkv_bias": False,
        "init_cutoff_factor": None,
        "init_device": "meta",
        "init_fn": "mitchell",
        "init_std": 0.02,
        "input_emb_norm": False,
        "layer_norm_type": "rms",
        "layer_norm_with_affine": True,
        "mask_token_id": MASK,
        "max_sequence_length": 64,
        "mlp_hidden_size": shape.inner,
        "mlp_ratio": 4,
        "model_type": "llada",
        "multi_query_attention": None,
        "n_heads": shape.heads,
        "n_kv_heads": shape.kv_heads,
        "n_layers": shape.layers,
        "pad_token_id": 81,
        "precision": "amp_bf16",
        "residual_dropout": 0.0,
        "rms_norm_eps": shape.eps,
        "rope": True,
        "rope_full_precision": True,
        "rope_theta": shape.theta,
        "scale_logits": False,
        "transformers_version": "4.46.3",
        "use_cache": False,
        "vocab_size": shape.vocabulary,
        "weight_tying": False,
    } | changes


def llada_tensors(weights: Weights) -> dict[str, Any]:
    names = {
        "norm1": "attn_norm", "q": "q_proj", "k": "k_proj", "v": "v_proj", "o": "attn_out",
        "norm2": "ff_norm", "gate": "ff_proj", "up": "up_proj", "down": "ff_out",
    }  # fmt: skip
    tensors = {"model.transformer.wte.weight": weights.embedding, "model.transformer.ln_f.weight": weights.norm}
    for index, layer in enumerate(weights.layers):
        tensors |= {f"model.transformer.blocks.{index}.{names[key]}.weight": value for key, value in layer.items()}
    if weights.head is not weights.embedding:
        tensors["model.transformer.ff_out.weight"] = weights.head
    return tensors


def qwen_config(shape: Shape, **changes: Any) -> dict[str, Any]:
    """The fields that Dream, SDAR and Fast-dLLM v2 share with Qwen."""
    return {
        "attention_dropout": 0.0,
        "bos_token_id": 83,
        "eos_token_id": 83,
        "hidden_act": "silu",
        "hidden_size": shape.hidden,
        "initializer_range": 0.02,
        "intermediate_size": shape.inner,
        "max_position_embeddings": 128,
        "max_window_layers": shape.layers,
        "num_attention_heads": shape.heads,
        "num_hidden_layers": shape.layers,
        "num_key_value_heads": shape.kv_heads,
        "pad_token_id": 83,
        "rms_norm_eps": shape.eps,
        "rope_scaling": None,
        "rope_theta": shape.theta,
        "sliding_window": None,
        "tie_word_embeddings": False,
        "torch_dtype": "bfloat16",
        "transformers_version": "4.46.2",
        "use_cache": True,
        "use_sliding_window": False,
        "vocab_size": shape.vocabulary,
    } | changes


def dream_config(shape: Shape, **changes: Any) -> dict[str, Any]:
    own = {
        "architectures": ["DreamModel"],
        "auto_map": {"AutoConfig": "configuration_dream.DreamConfig", "AutoModel": "modeling_dream.DreamModel"},
        "mask_token_id": MASK,
        "model_type": "Dream",
        "use_mrope": False,
    }
    return qwen_config(shape) | own | changes


def sdar_config(shape: Shape, **changes: Any) -> dict[str, Any]:
    own = {
        "architectures": ["SDARForCausalLM"],
        "attention_bias": False,
        "auto_map": {
            "AutoConfig": "configuration_sdar.SDARConfig",
            "AutoModel": "modeling_sdar.SDARForCausalLM",
            "AutoModelForCausalLM": "modeling_sdar.SDARForCausalLM",
        },
        "block_size": 4,
        "debug": False,
        "ep_size": 1,
        "fuse_cross_entropy": True,
        "head_dim": shape.head,
        "mask_token_id": MASK,
        "model_type": "sdar",
    }
    return qwen_config(shape) | own | changes


def fast_dllm_config(shape: Shape, **changes: Any) -> dict[str, Any]:
    own = {
        "architectures": ["Fast_dLLM_QwenForCausalLM"],
        "auto_map": {
            "AutoConfig": "configuration.Fast_dLLM_QwenConfig",
            "AutoModel": "modeling.Fast_dLLM_QwenModel",
            "AutoModelForCausalLM": "modeling.Fast_dLLM_QwenForCausalLM",
        },
        "bd_size": 8,
        "layer_types": ["full_attention"] * shape.layers,
        "mask_token_id": MASK,
        "model_type": "Fast_dLLM_Qwen",
    }
    return qwen_config(shape) | own | changes


def qwen_tensors(weights: Weights) -> dict[str, Any]:
    """Hugging Face names, as Llama, Qwen2, Qwen3 and the diffusion models made from them have."""
    names = {
        "norm1": "input_layernorm.weight", "norm2": "post_attention_layernorm.weight",
        "o": "self_attn.o_proj.weight", "gate": "mlp.gate_proj.weight", "up": "mlp.up_proj.weight",
        "down": "mlp.down_proj.weight", "q_norm": "self_attn.q_norm.weight", "k_norm": "self_attn.k_norm.weight",
    }  # fmt: skip
    for key in "qkv":
        names |= {key: f"self_attn.{key}_proj.weight", f"{key}_bias": f"self_attn.{key}_proj.bias"}
    tensors = {"model.embed_tokens.weight": weights.embedding, "model.norm.weight": weights.norm}
    for index, layer in enumerate(weights.layers):
        tensors |= {f"model.layers.{index}.{names[key]}": value for key, value in layer.items()}
    if weights.head is not weights.embedding:
        tensors["lm_head.weight"] = weights.head
    return tensors


def llada2_config(shape: Shape, **changes: Any) -> dict[str, Any]:
    """The fields of LLaDA2.0-mini's config.json."""
    return {
        "architectures": ["LLaDA2MoeModelLM"],
        "attention_dropout": 0.0,
        "auto_map": {
            "AutoConfig": "configuration_llada2_moe.LLaDA2MoeConfig",
            "AutoModel": "modeling_llada2_moe.LLaDA2MoeModel",
            "AutoModelForCausalLM": "modeling_llada2_moe.LLaDA2MoeModelLM",
        },
        "embedding_dropout": 0.0,
        "first_k_dense_replace": shape.dense_layers,
        "head_dim": shape.head,
        "hidden_act": "silu",
        "hidden_size": shape.hidden,
        "initializer_range": 0.02,
        "intermediate_size": shape.inner,
        "max_position_embeddings": 256,
        "max_window_layers": 28,
        "model_type": "llada2_moe",
        "moe_intermediate_size": shape.expert_inner,
        "moe_router_enable_expert_bias": True,
        "n_group": shape.groups,
        "norm_head": False,
        "norm_topk_prob": True,
        "num_attention_heads": shape.heads,
        "num_experts": shape.experts,
        "num_experts_per_tok": shape.chosen,
        "num_hidden_layers": shape.layers,
        "num_key_value_heads": shape.kv_heads,
        "num_shared_experts": 1,
        "output_dropout": 0.0,
        "output_router_logits": False,
        "pad_token_id": 81,
        "partial_rotary_factor": shape.rotary,
        "rms_norm_eps": shape.eps,
        "rope_scaling": None,
        "rope_theta": shape.theta,
        "rotary_dim": int(shape.head * shape.rotary),
        "routed_scaling_factor": shape.scaling,
        "router_dtype": "fp32",
        "score_function": "sigmoid",
        "sliding_window": 4096,
        "tie_word_embeddings": False,
        "topk_group": shape.chosen_groups,
        "torch_dtype": "bfloat16",
        "use_bias": False,
        "use_qk_norm": True,
        "use_qkv_bias": False,
        "use_rmsnorm": True,
        "use_sliding_window": False,
        "vocab_size": shape.vocabulary,
    } | changes


def llada2_tensors(weights: Weights) -> dict[str, Any]:
    """Queries, keys and values in one tensor; experts one by one."""
    names = {
        "norm1": "input_layernorm.weight", "norm2": "post_attention_layernorm.weight", "o": "attention.dense.weight",
        "q_norm": "attention.query_layernorm.weight", "k_norm": "attention.key_layernorm.weight",
        "router": "mlp.gate.weight", "router_bias": "mlp.gate.expert_bias",
    } | {f"shared_{part}": f"mlp.shared_experts.{part}_proj.weight" for part in ("gate", "up", "down")}  # fmt: skip
    tensors = {"model.word_embeddings.weight": weights.embedding, "model.norm.weight": weights.norm}
    for index, layer in enumerate(weights.layers):
        here = f"model.layers.{index}"
        tensors |= {f"{here}.{names[key]}": value for key, value in layer.items() if key in names}
        tensors[f"{here}.attention.query_key_value.weight"] = np.concatenate([layer[part] for part in "qkv"])
        tensors |= expert_tensors(layer, here)
    return tensors if weights.head is weights.embedding else tensors | {"lm_head.weight": weights.head}


def expert_tensors(layer: Mapping[str, Any], here: str) -> dict[str, Any]:
    """The feed-forward part of a layer, expert by expert where it has them."""
    parts = {part: layer[part] for part in ("gate", "up", "down")}
    if "router" not in layer:
        return {f"{here}.mlp.{part}_proj.weight": value for part, value in parts.items()}
    return {
        f"{here}.mlp.experts.{expert}.{part}_proj.weight": value[expert]
        for part, value in parts.items()
        for expert in range(len(value))
    }


def moe_tensors(weights: Weights) -> dict[str, Any]:
    """The names of Qwen3Moe, which LLaDA-MoE, SDAR-30B-A3B and RND1 have."""
    routers = [layer.pop("router") for layer in (dict(layer) for layer in weights.layers)]
    dense = [{name: one for name, one in layer.items() if name not in EXPERTS} for layer in weights.layers]
    tensors = qwen_tensors(Weights(weights.embedding, weights.norm, weights.head, dense))
    for index, (layer, router) in enumerate(zip(weights.layers, routers, strict=True)):
        tensors[f"model.layers.{index}.mlp.gate.weight"] = router
        tensors |= expert_tensors(layer, f"model.layers.{index}")
    return tensors


EXPERTS = ("gate", "up", "down", "router")


def moe_config(shape: Shape, **changes: Any) -> dict[str, Any]:
    """What SDAR-30B-A3B and RND1 share with Qwen3Moe."""
    own = {
        "attention_bias": False, "decoder_sparse_step": 1, "head_dim": shape.head, "mask_token_id": MASK,
        "mlp_only_layers": [], "moe_intermediate_size": shape.expert_inner, "norm_topk_prob": True,
        "num_experts": shape.experts, "num_experts_per_tok": shape.chosen, "output_router_logits": False,
    }  # fmt: skip
    return qwen_config(shape) | own | changes


def llada_moe_config(shape: Shape, **changes: Any) -> dict[str, Any]:
    """LLaDA-MoE-7B-A1B: the `model_type` of LLaDA, and words of its own."""
    return {
        "architectures": ["LLaDAMoEModelLM"], "attention_bias": False, "attention_dropout": 0.0,
        "auto_map": {"AutoModel": "modeling_lladamoe.LLaDAMoEModelLM"}, "clip_qkv": None,
        "dense_intermediate_size": 64, "eos_token_id": 81, "expert_intermediate_size": shape.expert_inner,
        "hidden_act": "silu", "hidden_size": shape.hidden, "mask_token_id": MASK, "max_position_embeddings": 128,
        "model_type": "llada", "moe_layer_freq": [1] * shape.layers, "moe_router_enable_expert_bias": False,
        "moe_router_score_function": "softmax", "norm_topk_prob": None, "num_attention_heads": shape.heads,
        "num_experts": shape.experts, "num_experts_per_tok": shape.chosen, "num_hidden_layers": shape.layers,
        "num_key_value_heads": shape.kv_heads, "pad_token_id": 81, "partial_rotary_factor": 1, "qk_layernorm": True,
        "rms_norm_eps": shape.eps, "rope_scaling": None, "rope_theta": shape.theta, "routed_scaling_factor": 1,
        "router_num_group": None, "shared_expert_intermediate_size": None, "tie_word_embeddings": False,
        "vocab_size": shape.vocabulary,
    } | changes  # fmt: skip


def llama_config(shape: Shape, **changes: Any) -> dict[str, Any]:
    """Llama's words, which iLLaDA and Nemotron-Labs-Diffusion have."""
    return {
        "attention_bias": False, "bos_token_id": 83, "eos_token_id": 81, "head_dim": shape.head, "hidden_act": "silu",
        "hidden_size": shape.hidden, "intermediate_size": shape.inner, "max_position_embeddings": 128,
        "mlp_bias": False, "num_attention_heads": shape.heads, "num_hidden_layers": shape.layers,
        "num_key_value_heads": shape.kv_heads, "pad_token_id": 81, "rms_norm_eps": shape.eps,
        "rope_theta": shape.theta, "tie_word_embeddings": False, "vocab_size": shape.vocabulary,
    } | changes  # fmt: skip


def write_checkpoint(
    folder: Path,
    config: Mapping[str, Any],
    tensors: Mapping[str, Any],
    *,
    dtype: torch.dtype = torch.float32,
    shards: int = 1,
) -> Path:
    """config.json and one model.safetensors, or shards with an index."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config, indent=2))
    stored = {name: torch.from_numpy(np.asarray(value)).to(dtype).contiguous() for name, value in tensors.items()}
    if shards == 1:
        save_file(stored, folder / "model.safetensors", metadata={"format": "pt"})
        return folder
    places = {name: f"model-{i % shards + 1:05}-of-{shards:05}.safetensors" for i, name in enumerate(stored)}
    for file in set(places.values()):
        part = {name: stored[name] for name, place in places.items() if place == file}
        save_file(part, folder / file, metadata={"format": "pt"})
    total = sum(tensor.nbytes for tensor in stored.values())
    index = {"metadata": {"total_size": total}, "weight_map": places}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    return folder
