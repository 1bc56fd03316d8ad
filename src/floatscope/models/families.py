"""The families: one row each, and nothing but data. What a row says is told by `Family`; no modelling code."""

from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from floatscope.errors import UserError
from floatscope.models.family import Family
from floatscope.models.visibility import BIDIRECTIONAL, CAUSAL, Visibility
from floatscope.registry import Registry
from floatscope.validation import Mistake, mistakes_in, mistakes_under, read_toml, validated

# LLaDA's names of the parts of a Llama, and of those of each of its layers.
LLADA_PARTS = {"wte": "model.embed_tokens", "ln_f": "model.norm", "ff_out": "lm_head"}
LLADA_LAYER = {
    "attn_norm": "input_layernorm",
    "ff_norm": "post_attention_layernorm",
    "attn_out": "self_attn.o_proj",
    "ff_proj": "mlp.gate_proj",
    "up_proj": "mlp.up_proj",
    "ff_out": "mlp.down_proj",
    **{f"{part}_proj": f"self_attn.{part}_proj" for part in "qkv"},
}
LLADA_KEYS = {rf"^model\.transformer\.{theirs}\.": f"{ours}." for theirs, ours in LLADA_PARTS.items()} | {
    rf"^model\.transformer\.blocks\.(\d+)\.{theirs}\.": rf"model.layers.\1.{ours}."
    for theirs, ours in LLADA_LAYER.items()
}

# An embedding may have more rows than there are tokens: embedding_size goes after vocab_size.
LLADA_CONFIG = {
    "d_model": "hidden_size", "n_heads": "num_attention_heads", "n_kv_heads": "num_key_value_heads",
    "n_layers": "num_hidden_layers", "mlp_hidden_size": "intermediate_size", "vocab_size": "vocab_size",
    "embedding_size": "vocab_size", "max_sequence_length": "max_position_embeddings", "rope_theta": "rope_theta",
    "rms_norm_eps": "rms_norm_eps", "weight_tying": "tie_word_embeddings", "bos_token_id": "bos_token_id",
    "eos_token_id": "eos_token_id", "pad_token_id": "pad_token_id", "mask_token_id": "mask_token_id",
}  # fmt: skip

# The OLMo dialect can say many things that a Llama cannot do; LLaDA uses none of them.
LLADA_REQUIRES = {
    "activation_type": "silu", "alibi": False, "attention_layer_norm": False, "block_group_size": 1,
    "block_type": "llama", "clip_qkv": None, "include_bias": False, "include_qkv_bias": False, "input_emb_norm": False,
    "layer_norm_type": "rms", "rope": True, "scale_logits": False,
}  # fmt: skip

# LLaDA2's names of the parts of a Glm4Moe. Queries, keys and values are one tensor, experts are held one by one.
LLADA2_KEYS = {
    r"^model\.word_embeddings\.": "model.embed_tokens.",
    r"\.attention\.query_key_value\.": tuple(f".self_attn.{part}_proj." for part in "qkv"),
    r"\.attention\.dense\.": ".self_attn.o_proj.",
    r"\.attention\.query_layernorm\.": ".self_attn.q_norm.",
    r"\.attention\.key_layernorm\.": ".self_attn.k_norm.",
    r"\.mlp\.gate\.expert_bias$": ".mlp.gate.e_score_correction_bias",
}
LLADA2_CONFIG = {
    name: name
    for name in (
        "vocab_size", "hidden_size", "intermediate_size", "moe_intermediate_size", "num_hidden_layers", "head_dim",
        "num_attention_heads", "num_key_value_heads", "hidden_act", "max_position_embeddings", "rms_norm_eps",
        "rope_theta", "partial_rotary_factor", "tie_word_embeddings", "use_qk_norm", "num_experts_per_tok", "n_group",
        "topk_group", "routed_scaling_factor", "first_k_dense_replace", "bos_token_id", "eos_token_id", "pad_token_id",
        "mask_token_id", "block_size",
    )
} | {"num_experts": "n_routed_experts", "num_shared_experts": "n_shared_experts"}  # fmt: skip
LLADA2_REQUIRES = {
    "use_bias": False, "use_qkv_bias": False, "norm_head": False, "norm_topk_prob": True, "rope_scaling": None,
    "score_function": "sigmoid", "use_sliding_window": False,
}  # fmt: skip

# LLaDA-MoE's words for a Qwen3Moe, and what it would have to be otherwise.
LLADA_MOE_CONFIG = {
    name: name
    for name in (
        "vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads", "head_dim",
        "hidden_act", "max_position_embeddings", "rms_norm_eps", "rope_theta", "tie_word_embeddings", "attention_bias",
        "num_experts", "num_experts_per_tok", "norm_topk_prob", "bos_token_id", "eos_token_id", "pad_token_id",
        "mask_token_id",
    )
} | {"dense_intermediate_size": "intermediate_size", "expert_intermediate_size": "moe_intermediate_size"}  # fmt: skip
LLADA_MOE_REQUIRES = {
    "clip_qkv": None, "moe_router_enable_expert_bias": False, "moe_router_score_function": "softmax",
    "partial_rotary_factor": 1.0, "qk_layernorm": True, "rope_scaling": None, "routed_scaling_factor": 1.0,
    "shared_expert_intermediate_size": None,
}  # fmt: skip
QWEN_REQUIRES = {"use_sliding_window": False}
# Tensors that only one kind of backbone has.
QWEN2, QWEN3, EXPERTS = r"\.self_attn\.q_proj\.bias$", r"\.self_attn\.q_norm\.", r"\.mlp\.experts\."

_SDAR = Family(
    name="sdar", backbone="Qwen3ForCausalLM", visibility=Visibility("block_causal", 4), logits="same", mask_id=151669,
    block_field="block_size", sampler={"name": "threshold", "threshold": 0.85}, model_types=("sdar",),
    architectures=("SDARForCausalLM",), tensors=QWEN3, requires=QWEN_REQUIRES, tokenizer="Qwen2Tokenizer",
    examples="SDAR-1.7B-Chat, SDAR-8B-Chat, TraDo-4B, TraDo-8B",
)  # fmt: skip
_LLADA2 = Family(
    name="llada2", backbone="Glm4MoeForCausalLM", visibility=Visibility("block_causal", 32), logits="same",
    mask_id=156895, eos_ids=(156892,), block_field="block_size",
    sampler={
        "name": "threshold", "threshold": 0.95, "steps_per_block": 32, "whole_blocks": True, "mask_is_candidate": True
    },
    model_types=("llada2_moe",), architectures=("LLaDA2MoeModelLM",), tensors=r"\.attention\.query_key_value\.",
    keys=LLADA2_KEYS, config=LLADA2_CONFIG, requires=LLADA2_REQUIRES, examples="LLaDA2.0-mini, LLaDA2.0-flash",
)  # fmt: skip
_FORK_LLADA = Family(
    name="fork-llada", backbone="AutoModelForCausalLM", visibility=BIDIRECTIONAL, logits="same",
    sampler={"name": "llada", "hold_eos": True},
    examples="smollm2-llada and other causal models made into MDMs by floatscope adapt --to llada",
)  # fmt: skip

_ROWS = (
    Family(
        name="llada", backbone="LlamaForCausalLM", visibility=BIDIRECTIONAL, logits="same", mask_id=126336,
        sampler={"name": "llada", "mask_is_candidate": True}, model_types=("llada",), architectures=("LLaDAModelLM",),
        tensors=r"\btransformer\.blocks\.", keys=LLADA_KEYS, config=LLADA_CONFIG, requires=LLADA_REQUIRES,
        examples="LLaDA-8B-Base, LLaDA-8B-Instruct, LLaDA-1.5",
    ),
    Family(
        name="illada", backbone="LlamaForCausalLM", visibility=BIDIRECTIONAL, logits="same", mask_id=5,
        sampler={"name": "llada", "mask_is_candidate": True}, model_types=("illada",),
        architectures=("ILLaDAForCausalLM",), examples="iLLaDA-8B-Base, iLLaDA-8B-Instruct",
    ),
    Family(
        name="llada-moe", backbone="Qwen3MoeForCausalLM", visibility=BIDIRECTIONAL, logits="same", mask_id=156895,
        eos_ids=(156892,), sampler={"name": "llada", "mask_is_candidate": True}, model_types=("llada", "llada_moe"),
        architectures=("LLaDAMoEModel", "LLaDAMoEModelLM"), tensors=EXPERTS, config=LLADA_MOE_CONFIG,
        requires=LLADA_MOE_REQUIRES, examples="LLaDA-MoE-7B-A1B-Base, LLaDA-MoE-7B-A1B-Instruct",
    ),
    _LLADA2,
    # its checkpoints state nothing that LLaDA2.0's do not: it is asked for by name
    replace(
        _LLADA2, name="llada2.1",
        sampler={"name": "threshold", "threshold": 0.95, "whole_blocks": True, "edit_threshold": 0.9}, model_types=(),
        architectures=(), examples="LLaDA2.1-mini, LLaDA2.1-flash (asked for by name)",
    ),
    # Published generation takes what is not given from the model's config: top_k = 50 under transformers 4.46.
    Family(
        name="dream", backbone="Qwen2ForCausalLM", visibility=BIDIRECTIONAL, logits="shifted", mask_id=151666,
        eos_ids=(151645,), sampler={"name": "dream", "alg": "entropy", "top_k": 50, "mask_is_candidate": True},
        model_types=("Dream", "dream"), architectures=("DreamModel",), tensors=QWEN2,
        requires=QWEN_REQUIRES | {"use_mrope": False}, tokenizer="Qwen2Tokenizer",
        examples="Dream-v0-Base-7B, Dream-v0-Instruct-7B, Dream-Coder, DiffuCoder",
    ),
    replace(
        _SDAR, name="dream-reasoner", visibility=Visibility("block_causal", 32), eos_ids=(151645,),
        sampler={"name": "threshold", "threshold": 0.9, "whole_blocks": True}, model_types=("Dream", "dream"),
        architectures=("DreamForCausalLM",), examples="DreamReasoner-8B, DreamReasoner-8B-Base",
    ),
    _SDAR,
    replace(
        _SDAR, name="sdar-moe", backbone="Qwen3MoeForCausalLM", model_types=("sdar_moe",),
        architectures=("SDARMoeForCausalLM",), tensors=EXPERTS, examples="SDAR-30B-A3B-Chat",
    ),
    Family(
        name="rnd1", backbone="Qwen3MoeForCausalLM", visibility=BIDIRECTIONAL, logits="shifted", mask_id=151669,
        eos_ids=(151645,), sampler={"name": "dream", "alg": "entropy"}, model_types=("rnd1",),
        architectures=("RND1LM",), tensors=EXPERTS, requires=QWEN_REQUIRES, tokenizer="Qwen2Tokenizer",
        examples="RND1-Base-0910",
    ),
    Family(
        name="fast-dllm-v2", backbone="Qwen2ForCausalLM", visibility=Visibility("block_causal", 32), logits="shifted",
        mask_id=151665, eos_ids=(151645,), block_field="bd_size",
        sampler={"name": "threshold", "threshold": 0.9, "small_block": 8, "first_alone": True},
        model_types=("Fast_dLLM_Qwen",), architectures=("Fast_dLLM_QwenForCausalLM",), tensors=QWEN2,
        requires=QWEN_REQUIRES, tokenizer="Qwen2Tokenizer", examples="Fast_dLLM_v2_1.5B, Fast_dLLM_v2_7B",
    ),
    Family(
        name="nemotron-diffusion", backbone="Ministral3ForCausalLM", visibility=Visibility("active_block", 32),
        logits="block_next", mask_id=100, block_field="block_size",
        sampler={"name": "threshold", "threshold": 0.9, "block": 32, "first_alone": True, "whole_blocks": True},
        model_types=("nemotron_labs_diffusion",), architectures=("NemotronLabsDiffusionModel",),
        tensors=r"^diffusion_head\.", keys={r"^encoder\.": "model.", r"^diffusion_head\.": "lm_head."},
        examples="Nemotron-Labs-Diffusion-3B, -8B, -14B",
    ),
    Family(
        name="diffusion-gemma", backbone="DiffusionGemmaForBlockDiffusion", visibility=Visibility("active_block", 256),
        logits="same", noise=True, block_field="canvas_length", sampler={"name": "entropy_bound"},
        model_types=("diffusion_gemma",), architectures=("DiffusionGemmaForBlockDiffusion",),
        examples="diffusiongemma-26B-A4B-it",
    ),
    *(
        # whether they see everything or blocks is stated nowhere: they are asked for by name
        replace(
            _FORK_LLADA, name=f"a2d-{backbone.lower()}", backbone=f"{backbone}ForCausalLM", sampler={"name": "llada"},
            examples=f"dllm's Tiny-A2D models made of {backbone} (asked for by name)",
        )
        for backbone in ("Llama", "Qwen2", "Qwen3")
    ),
    replace(
        _FORK_LLADA, name="open-dcoder", backbone="Qwen2ForCausalLM", logits="shifted",
        sampler={"name": "dream", "alg": "maskgit_plus"}, examples="open-dcoder-0.5B (asked for by name)",
    ),
    Family(
        name="fork-dream", backbone="AutoModelForCausalLM", visibility=BIDIRECTIONAL, logits="shifted",
        sampler={"name": "llada", "hold_eos": True},
        examples="smollm2-dream and other causal models made into MDMs by floatscope adapt --to dream",
    ),
    _FORK_LLADA,
    Family(
        name="bert", backbone="AutoModelForMaskedLM", visibility=BIDIRECTIONAL, logits="same",
        sampler={"name": "llada"},
        examples="BERT, RoBERTa, ModernBERT and every other masked-LM class of transformers",
    ),
    Family(
        name="causal", backbone="AutoModelForCausalLM", visibility=CAUSAL, logits="next",
        sampler={"name": "autoregressive"},
        examples="Llama, Qwen, Gemma, Mistral, SmolLM and every other causal-LM class of transformers",
    ),
)  # fmt: skip
FAMILIES = Registry("family", {row.name: row for row in _ROWS})


def get_family(name: str | Path | Family) -> Family:
    """A registered family by name, one declared in a TOML file, or the family itself."""
    if isinstance(name, Family):
        return name
    if str(name).endswith(".toml"):
        return read_family(Path(name))
    return FAMILIES.named(str(name))


def read_family(path: Path, derived: tuple[Path, ...] = ()) -> Family:
    """A user's own family: a TOML table with the fields of `Family`; `base` names a family or file to start from.

    derived: the files that name this one as their base.
    """
    if path.resolve() in derived:
        raise UserError(f"the family file {path} is its own base: name one of {', '.join(FAMILIES)}")
    table = read_toml(path)
    with mistakes_in(path):
        values: dict[str, Any] = {}
        if (base := table.pop("base", None)) is not None:
            if not isinstance(base, str):
                raise Mistake(f"base should be a text, not {base!r}.", "base")
            file = base.endswith(".toml")
            values = asdict(read_family(path.parent / base, (*derived, path.resolve())) if file else get_family(base))
        for key in table.get("keys", {}):
            if key == "base" or key in Family.__dataclass_fields__:
                raise Mistake(
                    f"{key} stands in the table [keys]: move it above the first table of the file.", "keys", key
                )
        called = "a family" if base else "a family without a base"
        family = validated(Family, values | {"name": path.stem} | table, called)
        with mistakes_under("sampler"):
            family.make_sampler()
        return family
