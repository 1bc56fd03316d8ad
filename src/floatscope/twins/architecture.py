"""The one architecture of all twins, and the dialects in which their weights are saved. Training is left to others."""

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from floatscope.errors import UserError
from floatscope.models.calls import transformers_call
from floatscope.twins.tokenizer import BOS_ID, CONTEXT, EOS_ID, MASK_ID, PAD_ID, make_tokenizer

WEIGHTS = Path(__file__).parent / "weights"
SHIPPED = ("twin-parent", "twin-arm", "twin-dream", "twin-llada")
UNTRAINED_SEED = 0


@dataclass(frozen=True)
class Shape:
    """A small Llama with tied embeddings; the defaults are what ships (under a million parameters)."""

    width: int = 128
    layers: int = 5
    heads: int = 4
    hidden: int = 256
    eps: float = 1e-5
    theta: float = 100000.0
    spread: float = 0.06  # of the first weights; at transformers' 0.02 a model this narrow is slow to learn to copy


SHIPPED_SHAPE = Shape()


def make_model(
    tokenizer: PreTrainedTokenizerFast, seed: int, shape: Shape = SHIPPED_SHAPE, head_start: bool = True
) -> LlamaForCausalLM:
    """An untrained Llama whose weights follow from the seed; without `head_start` they are plainly random."""
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=shape.width,
        intermediate_size=shape.hidden,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        num_key_value_heads=shape.heads,
        max_position_embeddings=CONTEXT,
        rms_norm_eps=shape.eps,
        rope_parameters={"rope_type": "default", "rope_theta": shape.theta},
        tie_word_embeddings=True,
        initializer_range=shape.spread,
        bos_token_id=BOS_ID,
        eos_token_id=EOS_ID,
        pad_token_id=PAD_ID,
    )
    state = torch.get_rng_state()
    torch.manual_seed(seed)
    model = LlamaForCausalLM(config)
    if head_start:
        _head_start(model, shape)
    torch.set_rng_state(state)
    return model


# How many tokens back the heads of the first layer begin by looking, and how firmly (in nats).
LOOK_BACK = (1, 2, 3, 4)
FIRMNESS = 10.0


@torch.no_grad()
def _head_start(model: LlamaForCausalLM, shape: Shape) -> None:
    """Random weights with the bones of induction (Olsson et al. 2022), else found in hours, if at all.

    - All embeddings share one random direction c: heads that look at a relative position need a part of q and k that
      is the same for all tokens, and Llama has no biases to give it.
    - The first layer's heads look back by LOOK_BACK: q and k lie along c, with phases such that the score
      sum_p w^2 cos((i - j - offset) f_p) over the faster rotary frequencies f_p is highest at that offset.
    - Later layers are mimetic (Trockman and Kolter 2023): W_K = W_Q and W_O = W_V^T, so that heads begin by looking for
      tokens that are like their own, or come after like ones, and by copying what they see.
    """
    size = shape.width // shape.heads
    shared = torch.randn(shape.width)
    shared /= shared.norm()
    model.model.embed_tokens.weight.add_(shape.spread * shape.width**0.5 * shared)  # as long as a token's own part
    _look_back(model.model.layers[0].self_attn, shared, shape, size)
    for layer in model.model.layers[1:]:
        attention: Any = layer.self_attn
        attention.k_proj.weight.copy_(attention.q_proj.weight)
        attention.o_proj.weight.copy_(attention.v_proj.weight.T)


def _look_back(attention: Any, shared: torch.Tensor, shape: Shape, size: int) -> None:
    frequencies = shape.theta ** (-torch.arange(size // 2) / (size // 2))
    weight = (FIRMNESS * size**0.5) ** 0.5 / (shape.width / 2) ** 0.5 * (frequencies > 0.03)  # [size/2]
    for head, offset in enumerate(LOOK_BACK[: shape.heads]):
        rows = slice(head * size, (head + 1) * size)
        query = torch.cat([weight, torch.zeros(size // 2)])
        key = torch.cat([weight * torch.cos(offset * frequencies), weight * torch.sin(offset * frequencies)])
        attention.q_proj.weight[rows] = torch.outer(query, shared)
        attention.k_proj.weight[rows] = torch.outer(key, shared)


def set_visibility(model: LlamaForCausalLM, bidirectional: bool) -> None:
    """Who may see whom. transformers builds the mask from the config and the kernel asks each attention module."""
    model.config.is_causal = not bidirectional
    for layer in model.model.layers:
        attention: Any = layer.self_attn
        attention.is_causal = not bidirectional


def load_parent(folder: Path | None = None) -> LlamaForCausalLM:
    """The trained parent in fp32, ready to be forked."""
    folder = folder or WEIGHTS / "twin-parent"
    config = folder / "config.json"
    if not config.exists() or json.loads(config.read_text()).get("model_type") != LlamaDialect.model_type:
        raise UserError(f"{folder} holds no trained parent; train one with twin 'parent' first, or name its folder.")
    with transformers_call(str(folder)):
        return LlamaForCausalLM.from_pretrained(
            folder, dtype=torch.float32, local_files_only=True, trust_remote_code=False
        )


def save_twin(twin: str, model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, folder: Path) -> None:
    """config.json, model.safetensors (fp16) and the tokenizer, each twin in the dialect of its family."""
    dialect = _DIALECTS[twin]
    folder.mkdir(parents=True, exist_ok=True)
    state = {name: tensor.detach().to(torch.float16) for name, tensor in model.state_dict().items()}
    state.pop("lm_head.weight")  # tied to the embeddings
    save_file(dialect.state(state), folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "config.json").write_text(json.dumps(dialect.config(model.config), indent=2) + "\n")
    tokenizer.save_pretrained(folder)


def write_untrained(name: str, folder: Path) -> Path:
    """Write the untrained version of a shipped twin ("twin-arm", ...), made from its seed, into a folder.

    It is a control, so its weights are plainly random: without the head start from which the parent was trained.
    """
    if name not in SHIPPED:
        raise UserError(f"There is no twin called {name!r}; the twins are {', '.join(SHIPPED)}.")
    tokenizer = make_tokenizer()
    save_twin(name.removeprefix("twin-"), make_model(tokenizer, UNTRAINED_SEED, head_start=False), tokenizer, folder)
    return folder


class LlamaDialect:
    """Plain transformers Llama: parent and ARM."""

    model_type = "llama"
    architecture = "LlamaForCausalLM"

    def config(self, config: Any) -> dict[str, Any]:
        return {
            "model_type": self.model_type,
            "architectures": [self.architecture],
            "vocab_size": config.vocab_size,
            "hidden_size": config.hidden_size,
            "intermediate_size": config.intermediate_size,
            "num_hidden_layers": config.num_hidden_layers,
            "num_attention_heads": config.num_attention_heads,
            "num_key_value_heads": config.num_key_value_heads,
            "max_position_embeddings": config.max_position_embeddings,
            "rms_norm_eps": config.rms_norm_eps,
            "rope_theta": config.rope_parameters["rope_theta"],
            "hidden_act": "silu",
            "tie_word_embeddings": True,
            "bos_token_id": BOS_ID,
            "eos_token_id": EOS_ID,
            "pad_token_id": PAD_ID,
            "dtype": "float16",
        }

    def state(self, state: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        return state


class DreamDialect(LlamaDialect):
    """Dream speaks Qwen2, which has biases on q, k and v: they are zero."""

    model_type = "Dream"
    architecture = "DreamModel"

    def config(self, config: Any) -> dict[str, Any]:
        return {**super().config(config), "mask_token_id": MASK_ID}

    def state(self, state: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        biases = {
            name.replace(".weight", ".bias"): torch.zeros(tensor.shape[0], dtype=tensor.dtype)
            for name, tensor in state.items()
            if re.search(r"[qkv]_proj\.weight$", name)
        }
        return {**state, **biases}


class LladaDialect(LlamaDialect):
    """LLaDA speaks OLMo."""

    names = (
        (r"^model\.embed_tokens\.", "model.transformer.wte."),
        (r"^model\.norm\.", "model.transformer.ln_f."),
        (r"^model\.layers\.", "model.transformer.blocks."),
        (r"\.input_layernorm\.", ".attn_norm."),
        (r"\.post_attention_layernorm\.", ".ff_norm."),
        (r"\.self_attn\.o_proj\.", ".attn_out."),
        (r"\.self_attn\.", "."),
        (r"\.mlp\.gate_proj\.", ".ff_proj."),
        (r"\.mlp\.up_proj\.", ".up_proj."),
        (r"\.mlp\.down_proj\.", ".ff_out."),
    )

    def config(self, config: Any) -> dict[str, Any]:
        return {
            "model_type": "llada",
            "architectures": ["LLaDAModelLM"],
            "d_model": config.hidden_size,
            "n_heads": config.num_attention_heads,
            "n_kv_heads": config.num_key_value_heads,
            "n_layers": config.num_hidden_layers,
            "mlp_hidden_size": config.intermediate_size,
            "vocab_size": config.vocab_size,
            "embedding_size": config.vocab_size,
            "max_sequence_length": config.max_position_embeddings,
            "rope": True,
            "rope_theta": config.rope_parameters["rope_theta"],
            "rms_norm_eps": config.rms_norm_eps,
            "layer_norm_type": "rms",
            "activation_type": "silu",
            "block_type": "llama",
            "include_bias": False,
            "include_qkv_bias": False,
            "weight_tying": True,
            "mask_token_id": MASK_ID,
            "bos_token_id": BOS_ID,
            "eos_token_id": EOS_ID,
            "pad_token_id": PAD_ID,
            "torch_dtype": "float16",
        }

    def state(self, state: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        renamed = {}
        for name, tensor in state.items():
            for pattern, replacement in self.names:
                name = re.sub(pattern, replacement, name)
            renamed[name] = tensor
        return renamed


_DIALECTS: dict[str, LlamaDialect] = {
    "parent": LlamaDialect(),
    "arm": LlamaDialect(),
    "dream": DreamDialect(),
    "llada": LladaDialect(),
}
