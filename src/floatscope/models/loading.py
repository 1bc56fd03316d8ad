"""From a folder, a GGUF file or a hub id to a Model: safetensors or GGUF only, never remote code, never a pickle.

Which class and which names is said by the family; transformers does the reading (shards, dtypes, device maps).
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from floatscope.errors import UserError
from floatscope.models.check import require
from floatscope.models.families import Family, get_family, recognise
from floatscope.models.model import Model

HUB_PATTERNS = ["*.json", "*.safetensors", "*.txt", "*.model", "*.jinja"]
PICKLES = ("*.bin", "*.pt", "*.pth", "*.ckpt")


def load(
    source: str | Path,
    *,
    family: str | Path | Family | None = None,
    dtype: str | torch.dtype | None = None,
    device: str | torch.device | None = None,
    device_map: str | dict[str, Any] | None = None,
    mask_id: int | None = None,
    check: bool = True,
) -> Model:
    """Load a checkpoint for denoising and tracing.

    source: a folder, a .gguf file, or a hub id (the only thing that is ever downloaded).
    family: a registered name or a TOML file; recognised from config.json when left out.
    dtype: "float32", "bfloat16", ...; default: float32 on a CPU, the checkpoint's own elsewhere.
    device, device_map: where the weights go; device_map needs nothing else.
    mask_id: the mask token, where the checkpoint does not say and the family has no default.
    check: let the tap prove itself on the model, with a few forwards over a dozen tokens.
    """
    if device is not None and device_map is not None:
        raise UserError("give device or device_map, not both")
    path = resolve(source)
    target = torch.device(device) if device is not None else None
    on_cpu = device_map is None and (target is None or target.type == "cpu")
    resolved_dtype = _dtype(dtype) or (torch.float32 if on_cpu else "auto")
    common: dict[str, Any] = {"dtype": resolved_dtype}
    if device_map is not None:
        common["device_map"] = device_map
    if path.suffix == ".gguf":
        chosen = get_family(family) if family is not None else get_family("causal")
        backbone = _load_gguf(path, common)
        tokenizer = _load_tokenizer(path.parent, chosen, gguf=path.name)
    else:
        config = read_config(path)
        chosen = get_family(family) if family is not None else recognise(config, str(source))
        refuse_pickles(path)
        backbone = _load_safetensors(path, config, chosen, common)
        tokenizer = _load_tokenizer(path, chosen)
    if target is not None:
        backbone.to(target)
    refuse_broken(backbone, str(source))
    model = Model(backbone, chosen, tokenizer, name=_name(source), mask_id=mask_id)
    return require(model) if check else model


def resolve(source: str | Path) -> Path:
    """The local folder or file of a checkpoint; a hub id is downloaded into the hub's cache."""
    path = Path(source).expanduser()
    if path.suffix == ".gguf" and path.is_file():
        return path
    if path.is_dir():
        return path
    if path.is_file():
        raise UserError(f"{source} is a file: give the folder with config.json and *.safetensors, or a .gguf file")
    if re.fullmatch(r"[\w.-]+/[\w.-]+", str(source)) is None or str(source).startswith("."):
        raise UserError(f"no model at {source!r}: give a folder, a .gguf file or a hub id such as owner/name")
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

    try:
        return Path(snapshot_download(str(source), allow_patterns=HUB_PATTERNS))
    except (HfHubHTTPError, HFValidationError, LocalEntryNotFoundError, OSError) as error:
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise UserError(f"no folder {source!r} here, and the hub did not give it: {reason}") from error


def read_config(folder: Path) -> dict[str, Any]:
    """config.json as it stands."""
    path = folder / "config.json"
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        ggufs = ", ".join(sorted(p.name for p in folder.glob("*.gguf")))
        hint = f"; to load a GGUF give its path ({ggufs})" if ggufs else ""
        raise UserError(f"{folder} has no config.json{hint}") from error
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise UserError(f"{path} is not valid JSON: {error}") from error
    if not isinstance(config, dict):
        raise UserError(f"{path} should hold a JSON object, not a {type(config).__name__}")
    return config


def refuse_pickles(folder: Path) -> None:
    """Safetensors must be there; a pickle can run any code and is never read."""
    if any(folder.glob("*.safetensors")):
        return
    pickles = sorted(p.name for pattern in PICKLES for p in folder.glob(pattern))
    if pickles:
        raise UserError(
            f"{folder} has only pickled weights ({pickles[0]}), which can run code when read: "
            "convert them to safetensors (transformers: model.save_pretrained)"
        )
    raise UserError(f"{folder} has no *.safetensors weights")


def refuse_broken(backbone: torch.nn.Module, source: str) -> None:
    """NaN or infinite weights would give NaN attention everywhere."""
    for name, tensor in backbone.state_dict().items():
        if tensor.is_floating_point() and not tensor.is_meta and not bool(torch.isfinite(tensor).all()):
            raise UserError(f"{source}: tensor {name} has NaN or infinite values; the checkpoint is damaged")


def _load_safetensors(path: Path, config: Mapping[str, Any], family: Family, common: Mapping[str, Any]) -> Any:
    import transformers

    for key, wanted in family.requires.items():
        if key in config and config[key] is not None and config[key] != wanted:
            raise UserError(
                f"{path}: config field {key} is {config[key]!r}; family {family.name} needs {wanted!r}, "
                f"since {family.backbone} cannot compute anything else"
            )
    cls = getattr(transformers, family.backbone, None)
    if cls is None:
        raise UserError(f"family {family.name}: transformers has no class {family.backbone!r}")
    arguments = dict(common)
    if not family.backbone.startswith("Auto"):
        arguments["config"] = backbone_config(config, family, cls.config_class)
        arguments["key_mapping"] = dict(family.keys)
    with _sentences(f"{path}"):
        backbone, info = cls.from_pretrained(
            path, use_safetensors=True, trust_remote_code=False, local_files_only=True, output_loading_info=True,
            **arguments,
        )  # fmt: skip
    _refuse_mismatch(path, info)
    return backbone


def backbone_config(config: Mapping[str, Any], family: Family, config_class: Any) -> Any:
    """The transformers config of a dialect: renamed fields where the family names them, all fields otherwise."""
    if family.config:
        values = {new: config[old] for old, new in family.config.items() if config.get(old) is not None}
    else:
        drop = {"model_type", "architectures", "auto_map", "transformers_version", "torch_dtype", "dtype"}
        values = {key: value for key, value in config.items() if key not in drop}
    with _sentences(f"config.json ({family.name})"):
        return config_class(**values)


def _refuse_mismatch(path: Path, info: Mapping[str, Any]) -> None:
    problems = [
        f"{label} {_some(info.get(key) or ())}"
        for key, label in (
            ("missing_keys", "missing tensors"),
            ("unexpected_keys", "surplus tensors"),
            ("mismatched_keys", "tensors of another shape"),
        )
        if info.get(key)
    ]
    if problems:
        raise UserError(f"{path} does not fit its family: {'; '.join(problems)}; name another family if it is wrong")


def _some(names: Any) -> str:
    listed = sorted(str(n[0] if isinstance(n, tuple) else n) for n in names)
    return ", ".join(listed[:4]) + (f" and {len(listed) - 4} more" if len(listed) > 4 else "")


def _load_gguf(path: Path, common: Mapping[str, Any]) -> Any:
    from transformers import AutoModelForCausalLM

    with _sentences(str(path)):
        return AutoModelForCausalLM.from_pretrained(path.parent, gguf_file=path.name, **common)


def _load_tokenizer(folder: Path, family: Family, gguf: str | None = None) -> Any:
    """The checkpoint's tokenizer, or None: token ids work without one."""
    import transformers

    if gguf is not None:
        with _sentences(f"{folder / gguf}"):
            return transformers.AutoTokenizer.from_pretrained(folder, gguf_file=gguf)
    names = ("tokenizer.json", "vocab.json", "vocab.txt", "tokenizer.model")
    if not any((folder / name).exists() for name in names):
        return None
    cls = getattr(transformers, family.tokenizer) if family.tokenizer else transformers.AutoTokenizer
    # A plain tokenizer.json says everything; a class of its own may need remote code.
    if (folder / "tokenizer.json").exists():
        cls = transformers.PreTrainedTokenizerFast
    with _sentences(f"the tokenizer of {folder}"):
        return cls.from_pretrained(folder, local_files_only=True)


@contextmanager
def _sentences(where: str) -> Iterator[None]:
    """Turn what transformers and safetensors raise on a damaged checkpoint into one sentence."""
    from safetensors import SafetensorError

    try:
        yield
    except UserError:
        raise
    except (OSError, ValueError, TypeError, KeyError, RuntimeError, SafetensorError, ImportError) as error:
        reason = " ".join(str(error).split())[:300] or type(error).__name__
        raise UserError(f"{where} could not be loaded: {reason}") from error


def _dtype(dtype: str | torch.dtype | None) -> torch.dtype | None:
    if dtype is None or isinstance(dtype, torch.dtype):
        return dtype
    found = getattr(torch, dtype, None)
    if not isinstance(found, torch.dtype):
        raise UserError(f"unknown dtype {dtype!r}: use float32, float16 or bfloat16")
    return found


def _name(source: str | Path) -> str:
    return Path(source).name if Path(source).exists() else str(source)
