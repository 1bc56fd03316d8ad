"""The twins' architecture: one small Llama, its first weights, and the dialects that its checkpoints are written in."""

import hashlib
import json
import re
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import torch
from safetensors.torch import save_file
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from floatscope.cache import cache_folder
from floatscope.files import making_folder, write_errors
from floatscope.models.families import FAMILIES, LLADA_LAYER, LLADA_PARTS
from floatscope.models.shipped import UNTRAINED

FAMILY_OF = {"parent": "causal", "arm": "causal", "dream": "dream", "llada": "llada"}
UNTRAINED_SEED = 0
# How many tokens back the heads of the first layer begin by looking, and how firmly (in nats).
LOOK_BACK = (1, 2, 3, 4)
FIRMNESS = 10.0
STATED = (
    "vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads",
    "max_position_embeddings", "rms_norm_eps", "hidden_act", "tie_word_embeddings", "bos_token_id", "eos_token_id",
    "pad_token_id",
)  # fmt: skip


@dataclass(frozen=True)
class TwinShape:
    """A small Llama with tied embeddings; the defaults are what ships (under a million parameters)."""

    width: int = 128
    layers: int = 5
    heads: int = 4
    hidden: int = 256
    eps: float = 1e-5
    theta: float = 100000.0
    spread: float = 0.06  # of the first weights; at transformers' 0.02 a model this narrow is slow to learn to copy


SHIPPED_SHAPE = TwinShape()


def make_model(
    tokenizer: Any, seed: int, shape: TwinShape = SHIPPED_SHAPE, head_start: bool = True
) -> LlamaForCausalLM:
    """An untrained Llama whose weights follow from the seed; without `head_start` they are plainly random."""
    config = LlamaConfig(
        vocab_size=len(tokenizer), hidden_size=shape.width, intermediate_size=shape.hidden,
        num_hidden_layers=shape.layers, num_attention_heads=shape.heads, num_key_value_heads=shape.heads,
        rms_norm_eps=shape.eps,
        rope_parameters={"rope_type": "default", "rope_theta": shape.theta}, initializer_range=shape.spread,
        max_position_embeddings=tokenizer.model_max_length, tie_word_embeddings=True,
        bos_token_id=tokenizer.bos_token_id, eos_token_id=tokenizer.eos_token_id, pad_token_id=tokenizer.pad_token_id,
    )  # fmt: skip
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = LlamaForCausalLM(config)
        if head_start:
            _head_start(model, shape)
    return model


@torch.no_grad()
def _head_start(model: LlamaForCausalLM, shape: TwinShape) -> None:
    """Random weights with the bones of induction (Olsson et al. 2022), else hardly found: see docs/twins.md."""
    # All embeddings share one random direction: heads that look at a relative position need a part of q and k that is
    # the same for all tokens, and Llama has no biases to give it.
    shared = torch.randn(shape.width)
    shared /= shared.norm()
    model.model.embed_tokens.weight.add_(shape.spread * shape.width**0.5 * shared)  # as long as a token's own part
    size = shape.width // shape.heads
    frequencies = shape.theta ** (-torch.arange(size // 2) / (size // 2))
    weight = (FIRMNESS * size**0.5) ** 0.5 / (shape.width / 2) ** 0.5 * (frequencies > 0.03)  # [size/2]
    first: Any = model.model.layers[0].self_attn
    # q and k lie along it with phases for which the score, the sum of w^2 cos((i - j - offset) f_p) over the faster
    # rotary frequencies f_p, is highest at the offset.
    for head, offset in enumerate(LOOK_BACK[: shape.heads]):
        rows = slice(head * size, (head + 1) * size)
        query = torch.cat([weight, torch.zeros(size // 2)])
        key = torch.cat([weight * torch.cos(offset * frequencies), weight * torch.sin(offset * frequencies)])
        first.q_proj.weight[rows] = torch.outer(query, shared)
        first.k_proj.weight[rows] = torch.outer(key, shared)
    for layer in model.model.layers[1:]:  # mimetic (Trockman and Kolter 2023): look for like tokens, copy what is seen
        attention: Any = layer.self_attn
        attention.k_proj.weight.copy_(attention.q_proj.weight)
        attention.o_proj.weight.copy_(attention.v_proj.weight.T)


def untrained_twin(trained: Path) -> Path:
    """The folder of a shipped twin's untrained control, plainly random from a seed and kept in the cache.

    The cache's key is a hash of all that it follows from in this package: this file, the twin's config and tokenizer.
    """
    kept = [trained / name for name in ("config.json", "tokenizer.json", "tokenizer_config.json")]
    key = hashlib.sha256(b"".join(file.read_bytes() for file in (Path(__file__), *kept))).hexdigest()[:16]
    folder = cache_folder() / "twins" / key / f"{trained.name}-{UNTRAINED}"
    if not folder.is_dir():
        with write_errors(folder), making_folder(folder) as made:
            made.mkdir()
            for file in kept:
                shutil.copy(file, made)
            tokenizer = PreTrainedTokenizerFast.from_pretrained(trained, local_files_only=True, trust_remote_code=False)
            drawn = make_model(tokenizer, UNTRAINED_SEED, head_start=False)
            save_weights(trained.name.removeprefix("twin-"), drawn, made)
    return folder


def save_twin(twin: str, model: LlamaForCausalLM, tokenizer: Any, folder: Path) -> None:
    """config.json, model.safetensors and the tokenizer, each twin in the dialect of its family."""
    folder.mkdir(parents=True, exist_ok=True)
    save_weights(twin, model, folder)
    family, config = FAMILIES[FAMILY_OF[twin]], cast(Any, model.config)
    values = {name: getattr(config, name) for name in STATED} | {"rope_theta": config.rope_parameters["rope_theta"]}
    if family.is_arm:
        values["floatscope_family"] = family.name  # its tokenizer has a mask token all the same
    else:
        values["mask_token_id"] = tokenizer.mask_token_id
    if family.config:  # in the words that the family reads it by
        values = {word: values[name] for word, name in family.config.items()}
    stated = {
        "model_type": (*family.model_types, config.model_type)[0],
        "architectures": [(*family.architectures, type(model).__name__)[0]],
        **values,
        **family.requires,
        "dtype": "float16",
    }
    (folder / "config.json").write_text(json.dumps(stated, indent=2) + "\n")
    tokenizer.save_pretrained(folder)


def save_weights(twin: str, model: LlamaForCausalLM, folder: Path) -> None:
    """model.safetensors in fp16, under the names of the twin's family."""
    state = {name: tensor.detach().to(torch.float16) for name, tensor in model.state_dict().items()}
    state.pop("lm_head.weight")  # tied to the embeddings
    if twin == "dream":  # speaks Qwen2, which has biases on q, k and v: they are zero
        projections = {name: tensor for name, tensor in state.items() if re.search(r"[qkv]_proj\.weight$", name)}
        for name, tensor in projections.items():
            state[name.replace(".weight", ".bias")] = tensor.new_zeros(len(tensor))
    elif twin == "llada":
        names = {ours: theirs for theirs, ours in LLADA_PARTS.items()}
        for layer in range(sum("input_layernorm" in name for name in state)):
            for theirs, ours in LLADA_LAYER.items():
                names[f"model.layers.{layer}.{ours}"] = f"blocks.{layer}.{theirs}"
        parts = {name: name.removesuffix(".weight") for name in state}
        state = {f"model.transformer.{names[part]}.weight": state[name] for name, part in parts.items()}
    save_file(state, folder / "model.safetensors", metadata={"format": "pt"})
