"""A checkpoint's tokenizer without remote code: tokenizer.json as it stands, or the family's class.

The native classes of transformers rebuild the splitting rules from their own code when they read a tokenizer.json;
`PreTrainedTokenizerFast` keeps the file's. What older files leave to the class, the special tokens, is taken from it.
"""

import inspect
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from floatscope.errors import UserError
from floatscope.files import read_json
from floatscope.models.calls import transformers_call
from floatscope.models.family import Family

FILES = ("tokenizer.json", "vocab.json", "vocab.txt", "tokenizer.model", "spiece.model")
SPECIAL = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")


def load_tokenizer(folder: Path, family: Family, model_type: str | None) -> Any:
    """The tokenizer of a checkpoint folder, or None: token ids work without one."""
    import transformers

    if not any((folder / name).exists() for name in FILES):
        return None
    cls: Any = transformers.AutoTokenizer
    if own := (folder / "tokenizer.json").exists():
        cls = transformers.PreTrainedTokenizerFast
    elif family.tokenizer:
        cls = getattr(transformers, family.tokenizer, None)
        if not hasattr(cls, "from_pretrained"):
            raise UserError(f"family {family.name}: {family.tokenizer!r} is no tokenizer class of transformers")
    elif "AutoTokenizer" in (_stated(folder).get("auto_map") or ()):
        raise UserError(
            f"{folder}: its tokenizer is remote code, which is never run: add a tokenizer.json, or name a class of "
            'transformers in the TOML file of its family, such as tokenizer = "LlamaTokenizer"'
        )
    if not own and any(folder.glob("*.model")) and find_spec("sentencepiece") is None:
        raise UserError(f"{folder}: its tokenizer.model needs a package: pip install sentencepiece")
    with transformers_call(f"the tokenizer of {folder}"):
        tokenizer = cls.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
        if not isinstance(tokenizer.model_max_length, int | float):
            raise UserError(f"{folder}: model_max_length of its tokenizer is no number")
        if own:
            _complete(tokenizer, folder, family, model_type)
        tokenizer("\ue000")  # which no vocabulary has: one that names no token for such text would fail at a question
    return tokenizer


def _stated(folder: Path) -> dict[str, Any]:
    """What the checkpoint itself says of its tokenizer; a token stated as null is stated."""
    stated: dict[str, Any] = {}
    for name in ("special_tokens_map.json", "tokenizer_config.json"):
        if (folder / name).exists():
            stated |= read_json(folder / name)
    return stated


def _complete(tokenizer: Any, folder: Path, family: Family, model_type: str | None) -> None:
    """Add special tokens that only the native class knows (bert-base-uncased, gpt2), where the vocabulary has them."""
    import transformers
    from transformers.models.auto.tokenization_auto import TOKENIZER_MAPPING_NAMES

    stated = _stated(folder)
    names = (stated.get("tokenizer_class"), family.tokenizer, TOKENIZER_MAPPING_NAMES.get(model_type or ""))
    native = next((found for name in names if name and (found := getattr(transformers, name, None)) is not None), None)
    defaults = inspect.signature(native.__init__).parameters if native is not None else {}
    for slot in SPECIAL:
        token = defaults[slot].default if slot in defaults else None
        if slot in stated or not isinstance(token, str) or getattr(tokenizer, slot) is not None:
            continue
        if tokenizer.convert_tokens_to_ids(token) is not None and token in tokenizer.get_vocab():
            tokenizer.add_special_tokens({slot: token})
