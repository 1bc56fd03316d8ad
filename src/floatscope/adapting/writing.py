"""The folder of a trained fork: PEFT's own files, what they fork, the mask embedding. Reading: `models.adapters`."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

from floatscope.adapting.forks import Fork
from floatscope.errors import UserError
from floatscope.models import adapters
from floatscope.models.loading import load

MERGED = "merged"
SHIPPED = (adapters.ADAPTER_CONFIG, adapters.ADAPTER_WEIGHTS, adapters.FORK, adapters.MASK_EMBEDDING)


def write_adapter(fork: Fork, out: Path, merge: bool = False) -> None:
    """The adapter in fp32; with `merge` the whole model too, which needs neither adapter nor parent."""
    fork.peft.peft_config["default"].base_model_name_or_path = fork.name
    fork.peft.save_pretrained(out, safe_serialization=True, save_embedding_layers=False)
    (out / "README.md").unlink(missing_ok=True)  # peft's form to fill in; the card is written by `cards`
    config = json.loads((out / adapters.ADAPTER_CONFIG).read_text())
    # A set in peft, which would come in another order in every run.
    config["target_modules"] = sorted(config["target_modules"])
    (out / adapters.ADAPTER_CONFIG).write_text(json.dumps(config, indent=2) + "\n")
    if fork.mask_embedding is not None:
        save_file({"mask_embedding": fork.mask_embedding.detach().cpu().clone()}, out / adapters.MASK_EMBEDDING)
    local = Path(fork.name).expanduser()
    parent = str(local.resolve()) if local.exists() else fork.name  # a path must mean the same from every folder
    about = adapters.Fork(parent, fork.to, fork.mask_id, fork.parent_sha256)  # pyright: ignore[reportArgumentType]
    adapters.write_fork(out, about)
    if merge:
        write_merged(out)


def write_merged(out: Path) -> Path:
    """out/merged: the fork as a checkpoint of its own, made from its adapter folder."""
    model = load(out, dtype="float32", device="cpu", check=False)
    config = model.backbone.config
    config.floatscope_family = model.family.name
    if model.mask_id is not None:
        config.mask_token_id = model.mask_id
    folder = out / MERGED
    try:
        model.backbone.save_pretrained(folder)
        model.tokenizer.save_pretrained(folder)
    except OSError as error:
        raise UserError(f"The merged model cannot be written to {folder}: {error}") from None
    return folder


def ship(folder: Path, out: Path) -> Path:
    """A copy of an adapter in fp16, with its card, its gates and its log, and without anything of its data."""
    out.mkdir(parents=True, exist_ok=True)
    for name in (*SHIPPED, "README.md", "gates.json", "log.jsonl"):
        if not (folder / name).exists():
            continue
        if name.endswith(".safetensors"):
            tensors = {key: tensor.to(torch.float16) for key, tensor in load_file(folder / name).items()}
            save_file(tensors, out / name, metadata={"format": "pt"})
        else:
            shutil.copyfile(folder / name, out / name)
    return out
