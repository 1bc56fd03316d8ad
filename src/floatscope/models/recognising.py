"""Which family a checkpoint is of: from its config and the names of its tensors, and never by a silent guess."""

import re
from collections.abc import Collection, Mapping
from difflib import get_close_matches
from typing import Any

from floatscope.errors import UserError
from floatscope.models.families import FAMILIES
from floatscope.models.family import Family


def recognise(
    config: Mapping[str, Any], source: str, tensors: Collection[str] | None = None, mask: object = None
) -> Family:
    """The family of a checkpoint; a merged fork states it as floatscope_family.

    tensors: the names in its files, where they are known. mask: the mask token that its tokenizer or its generation
    config states, which no causal model needs.
    """
    if (named := config.get("floatscope_family")) is not None:
        if named not in FAMILIES:
            raise UserError(f"{source}: config field floatscope_family is {named!r}, not one of {', '.join(FAMILIES)}")
        return FAMILIES[named]
    model_type, stated = config.get("model_type"), config.get("architectures")
    architectures = tuple(str(name) for name in stated) if isinstance(stated, list) else ()
    by_architecture = [row for row in FAMILIES.values() if set(architectures) & set(row.architectures)]
    meant = by_architecture + [row for row in FAMILIES.values() if model_type in row.model_types]
    for family in meant:
        if tensors is None or any(re.search(family.tensors, name) for name in tensors):
            return family
    found = f"model_type {model_type!r}, architectures {list(architectures)}"
    if meant:
        raise UserError(
            f"{source}: its config says {meant[0].name} ({found}), but no tensor is like {meant[0].tensors!r}, so "
            "its backbone is another: pass the family that it is of by name, or declare your own in a TOML file"
        )
    if str(model_type).startswith("a2d-") and model_type in FAMILIES:
        raise UserError(
            f"{source} is a model of dllm ({found}), which sees everything or blocks without saying which: pass family "
            f"{model_type!r}, and the block size too if it was trained with blocks"
        )
    if "auto_map" not in config and isinstance(model_type, str):
        native = _native(model_type, architectures)
        if native is not None and native.is_arm and mask is not None:
            raise UserError(
                f"{source} looks causal ({found}) and states a mask token ({mask!r}), so it may be a model that "
                "denoises: pass family 'causal' if it writes from left to right, 'open-dcoder' or 'fork-dream' if the "
                "row before a mask predicts it, 'fork-llada' if the mask's own row does"
            )
        if native is not None:
            return native
    raise UserError(
        f"{source}: unknown family ({found}); {WHY_NOT.get(str(model_type).lower(), '')}"
        f"{suggested(str(model_type), tensors or ())}supported are {', '.join(FAMILIES)}; name one of them "
        "(family, --family) or declare your own in a TOML file (docs/howto/families.md)"
    )


def suggested(model_type: str, tensors: Collection[str]) -> str:
    """Which family an unknown checkpoint may be of, by the name of its type and by its tensors; nothing for neither."""
    names = {name.lower(): row.name for row in FAMILIES.values() for name in row.model_types}
    names |= {name: name for name in FAMILIES}
    word = re.sub(r"[\W_]+", "-", model_type.lower())
    near = [name for name in names if name in word.split("-")] or get_close_matches(word, names, n=1, cutoff=0.6)
    alike = [
        row.name for row in FAMILIES.values() if row.tensors and any(re.search(row.tensors, one) for one in tensors)
    ]
    told = f"did you mean {names[near[0]]!r}? " if near else ""
    return told + (f"its tensors are called as those of {', '.join(alike)}; " if alike else "")


_DIFFUSION = "an encoder with time steps of its own that no class of transformers computes, so it cannot be read; "
WHY_NOT = {
    "wedlm": "WeDLM reorders its tokens while it decodes, which no position of a canvas can follow; ",
    "mdlm": f"MDLM is {_DIFFUSION}",
    "bd3lm": f"BD3-LM is {_DIFFUSION}",
    "sedd": f"SEDD is {_DIFFUSION}",
}
"""What is known and not read, by its model_type in small letters."""


def _native(model_type: str, architectures: tuple[str, ...]) -> Family | None:
    """A class of transformers itself: a masked LM or a causal one."""
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
    return None
