"""Families as data: how a checkpoint maps onto a transformers class. One row of FAMILIES each; no modelling code."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal, get_args

from floatscope.decoding import Sampler, make_sampler
from floatscope.errors import UserError
from floatscope.models.visibility import BIDIRECTIONAL, CAUSAL, Visibility
from floatscope.registry import Registry
from floatscope.validation import Mistake, mistakes_in, read_toml, validated

Logits = Literal["same", "shifted", "next"]


@dataclass(frozen=True)
class Family:
    """One kind of checkpoint. To support a new one is to add one of these to FAMILIES, or to write a TOML file."""

    name: str
    """How it is called in code, CLI and traces."""
    backbone: str
    """A transformers class, or `AutoModelForCausalLM` / `AutoModelForMaskedLM` to let transformers choose."""
    visibility: Visibility
    """Who may see whom."""
    logits: Logits
    """Which row scores position i: `same` row i, `shifted` row i-1 (row 0 for position 0), `next` the ARM's i-1."""
    sampler: Mapping[str, Any]
    """Name and settings of the sampler the model's authors use."""
    mask_id: int | None = None
    """Fallback for checkpoints that state no mask token."""
    eos_ids: tuple[int, ...] = ()
    """Ends of turn beside the checkpoint's own eos."""
    block_field: str | None = None
    """Config field that states the block size of a block_causal family."""
    model_types: tuple[str, ...] = ()
    """config.json `model_type` values that mean this family."""
    architectures: tuple[str, ...] = ()
    """config.json `architectures` values that mean this family."""
    keys: Mapping[str, str] = field(default_factory=dict)
    """Regular expressions on tensor names, and what their match becomes; only the first that matches is used."""
    config: Mapping[str, str] = field(default_factory=dict)
    """Config fields of the checkpoint's dialect, and the transformers names they become."""
    requires: Mapping[str, Any] = field(default_factory=dict)
    """Config fields that must have this value where stated: another value would change the mathematics."""
    tokenizer: str | None = None
    """Tokenizer class for checkpoints whose own needs remote code."""
    examples: str = ""
    """Checkpoints known to be of this family."""

    def __post_init__(self) -> None:
        if self.logits not in get_args(Logits):
            raise UserError(f"family {self.name}: logits {self.logits!r} should be same, shifted or next")
        if not isinstance(self.sampler.get("name"), str):
            raise UserError(f"family {self.name}: the sampler has no name, such as llada or autoregressive")
        if self.is_arm and self.visibility != CAUSAL:
            raise UserError(f"family {self.name}: logits next need causal visibility, not {self.visibility}")
        for pattern, replacement in self.keys.items():
            try:
                re.compile(f"(?:{pattern})|").sub(replacement, "")  # an empty match tries the replacement's groups
            except re.error as error:
                told = f"{pattern!r} = {replacement!r} is not a regular expression and its replacement"
                raise UserError(f"family {self.name}: {told} ({error})") from error

    @property
    def is_arm(self) -> bool:
        """Whether the model generates left to right (no mask token)."""
        return self.logits == "next"

    def make_sampler(self, wishes: Mapping[str, Any] | None = None, /, **overrides: Any) -> Sampler:
        """The family's own sampler, or the one named, with settings overridden, as in `Model.sampler`."""
        given = {setting: value for setting, value in overrides.items() if value is not None}
        name = given.pop("name", self.sampler["name"])
        usual = self.sampler if name == self.sampler["name"] else {}
        own = {setting: value for setting, value in usual.items() if setting not in ("name", *(wishes or ()))}
        return make_sampler(name, wishes, **own | given)

    def backbone_name(self, tensor: str) -> str:
        """What the backbone calls a tensor of the checkpoint."""
        for pattern, replacement in self.keys.items():
            new, found = re.subn(pattern, replacement, tensor)
            if found:
                return new
        return tensor


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

LLADA_CONFIG = {
    "d_model": "hidden_size",
    "n_heads": "num_attention_heads",
    "n_kv_heads": "num_key_value_heads",
    "n_layers": "num_hidden_layers",
    "mlp_hidden_size": "intermediate_size",
    "vocab_size": "vocab_size",
    "embedding_size": "vocab_size",  # rows of the embedding, where they are more than the tokens
    "max_sequence_length": "max_position_embeddings",
    "rope_theta": "rope_theta",
    "rms_norm_eps": "rms_norm_eps",
    "weight_tying": "tie_word_embeddings",
    "bos_token_id": "bos_token_id",
    "eos_token_id": "eos_token_id",
    "pad_token_id": "pad_token_id",
    "mask_token_id": "mask_token_id",
}

# The OLMo dialect can say many things that a Llama cannot do; LLaDA uses none of them.
LLADA_REQUIRES = {
    "activation_type": "silu",
    "alibi": False,
    "attention_layer_norm": False,
    "block_group_size": 1,
    "block_type": "llama",
    "clip_qkv": None,
    "include_bias": False,
    "include_qkv_bias": False,
    "input_emb_norm": False,
    "layer_norm_type": "rms",
    "rope": True,
    "scale_logits": False,
}

_ROWS = (
    Family(
        name="llada",
        backbone="LlamaForCausalLM",
        visibility=BIDIRECTIONAL,
        logits="same",
        mask_id=126336,
        sampler={"name": "llada", "mask_is_candidate": True},
        model_types=("llada",),
        architectures=("LLaDAModelLM",),
        keys=LLADA_KEYS,
        config=LLADA_CONFIG,
        requires=LLADA_REQUIRES,
        examples="LLaDA-8B-Base, LLaDA-8B-Instruct, LLaDA-1.5",
    ),
    Family(
        name="dream",
        backbone="Qwen2ForCausalLM",
        visibility=BIDIRECTIONAL,
        logits="shifted",
        mask_id=151666,
        eos_ids=(151645,),
        # Published generation takes what is not given from the model's config: top_k = 50 under transformers 4.46.
        sampler={"name": "dream", "alg": "entropy", "top_k": 50, "mask_is_candidate": True},
        model_types=("Dream", "dream"),
        architectures=("DreamModel",),
        requires={"use_sliding_window": False, "use_mrope": False},
        tokenizer="Qwen2Tokenizer",
        examples="Dream-v0-Base-7B, Dream-v0-Instruct-7B, Dream-Coder, DiffuCoder",
    ),
    Family(
        name="sdar",
        backbone="Qwen3ForCausalLM",
        visibility=Visibility("block_causal", 4),
        logits="same",
        mask_id=151669,
        block_field="block_size",
        sampler={"name": "threshold", "threshold": 0.85},
        model_types=("sdar",),
        architectures=("SDARForCausalLM",),
        requires={"use_sliding_window": False},
        tokenizer="Qwen2Tokenizer",
        examples="SDAR-1.7B-Chat, SDAR-8B-Chat, TraDo-4B, TraDo-8B",
    ),
    Family(
        name="fast-dllm-v2",
        backbone="Qwen2ForCausalLM",
        visibility=Visibility("block_causal", 32),
        logits="shifted",
        mask_id=151665,
        eos_ids=(151645,),
        block_field="bd_size",
        sampler={"name": "threshold", "threshold": 0.9, "small_block": 8, "first_alone": True},
        model_types=("Fast_dLLM_Qwen",),
        architectures=("Fast_dLLM_QwenForCausalLM",),
        requires={"use_sliding_window": False},
        tokenizer="Qwen2Tokenizer",
        examples="Fast_dLLM_v2_1.5B, Fast_dLLM_v2_7B",
    ),
    Family(
        name="fork-dream",
        backbone="AutoModelForCausalLM",
        visibility=BIDIRECTIONAL,
        logits="shifted",
        sampler={"name": "llada", "hold_eos": True},
        examples="smollm2-dream and other causal models made into MDMs by floatscope adapt --to dream",
    ),
    Family(
        name="fork-llada",
        backbone="AutoModelForCausalLM",
        visibility=BIDIRECTIONAL,
        logits="same",
        sampler={"name": "llada", "hold_eos": True},
        examples="smollm2-llada and other causal models made into MDMs by floatscope adapt --to llada",
    ),
    Family(
        name="bert",
        backbone="AutoModelForMaskedLM",
        visibility=BIDIRECTIONAL,
        logits="same",
        sampler={"name": "llada"},
        examples="BERT, RoBERTa, ModernBERT and every other masked-LM class of transformers",
    ),
    Family(
        name="causal",
        backbone="AutoModelForCausalLM",
        visibility=CAUSAL,
        logits="next",
        sampler={"name": "autoregressive"},
        examples="Llama, Qwen, Gemma, Mistral, SmolLM and every other causal-LM class of transformers",
    ),
)
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
        called = "a family" if base else "a family without a base"
        return validated(Family, values | {"name": path.stem} | table, called)


def recognise(config: Mapping[str, Any], source: str) -> Family:
    """The family of a checkpoint, from its config.json; a merged fork states it as floatscope_family."""
    if (named := config.get("floatscope_family")) is not None:
        if named not in FAMILIES:
            raise UserError(f"{source}: config field floatscope_family is {named!r}, not one of {', '.join(FAMILIES)}")
        return FAMILIES[named]
    model_type, stated = config.get("model_type"), config.get("architectures")
    architectures = tuple(str(name) for name in stated) if isinstance(stated, list) else ()
    for family in FAMILIES.values():
        if model_type in family.model_types or set(architectures) & set(family.architectures):
            return family
    if "auto_map" not in config and isinstance(model_type, str):
        from transformers.models.auto.modeling_auto import (
            MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
            MODEL_FOR_MASKED_LM_MAPPING_NAMES,
        )

        causal = model_type in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
        masked = model_type in MODEL_FOR_MASKED_LM_MAPPING_NAMES
        # Some types (BERT) are in both tables: the architecture decides, and without one the only table they are in.
        if any("MaskedLM" in name for name in architectures) or (masked and not causal):
            return FAMILIES["bert"]
        if any(name.endswith(("ForCausalLM", "LMHeadModel")) for name in architectures) or (causal and not masked):
            return FAMILIES["causal"]
    found = f"model_type {model_type!r}, architectures {list(architectures)}"
    raise UserError(
        f"{source}: unknown family ({found}); supported are {', '.join(FAMILIES)}; "
        "pass one of them by name, or declare your own in a TOML file (docs/howto/families.md)"
    )
