"""The manifest of a run: versions, seed, and hashes of weights and samples, so that a result can be traced back."""

from __future__ import annotations

import hashlib
import json
import platform
import re
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from floatscope import __version__
from floatscope.errors import UserError
from floatscope.study.plan import Study

FILE = "manifest.json"
PACKAGES = ("torch", "transformers", "tokenizers", "numpy", "polars", "safetensors", "bm25s", "scipy")
_READ_AT_ONCE = 1 << 22


def describe(study: Study, tasks: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """What is known before a model is loaded; `models` is filled as they are."""
    return {
        "study": study.name,
        "seed": study.seed,
        "versions": {"floatscope": __version__, "python": platform.python_version()} | _versions(),
        "platform": f"{platform.system()} {platform.machine()}",
        "tasks": dict(tasks),
        "models": {},
    }


def read_manifest(folder: Path) -> dict[str, Any]:
    """The manifest of a run, empty where there is none yet."""
    try:
        return json.loads((folder / FILE).read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise UserError(f"{folder / FILE} cannot be read ({error}): remove it, and run again.") from error


def write_manifest(folder: Path, manifest: Mapping[str, Any]) -> None:
    """Replace the manifest in one move."""
    replace_text(folder / FILE, json.dumps(manifest, indent=2) + "\n")


def replace_text(path: Path, text: str) -> None:
    """Write under another name, then rename: the file is the old one or the new one, never half of it."""
    temporary = path.with_name(f".{path.name}.partial")
    try:
        temporary.write_text(text, encoding="utf-8")
        temporary.replace(path)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise UserError(f"{path} cannot be written ({error.strerror}): check the folder and its free space.") from error


def refuse_changes(old: Mapping[str, Any], new: Mapping[str, Any], part: str) -> None:
    """The samples or weights of a run that goes on must be those that it began with."""
    for name, about in new.get(part, {}).items():
        before = old.get(part, {}).get(name)
        if before is not None and before["sha256"] != about["sha256"]:
            raise UserError(
                f"The {part[:-1]} {name!r} is not what it was when this run began (its content has changed): "
                "give another folder for a new run."
            )


def describe_model(source: str) -> dict[str, Any]:
    """Where a model comes from and one hash over its files."""
    from floatscope.models.loading import locate

    files = locate(source).files()
    digest = hashlib.sha256("".join(f"{file.name} {file_hash(file)}\n" for file in files).encode())
    return {"source": source, "sha256": digest.hexdigest()}


def file_hash(path: Path) -> str:
    """sha256 of a file; the hub's cache names large files by theirs."""
    blob = path.resolve().name
    if path.is_symlink() and re.fullmatch(r"[0-9a-f]{64}", blob):
        return blob
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while part := file.read(_READ_AT_ONCE):
            digest.update(part)
    return digest.hexdigest()


def _versions() -> dict[str, str]:
    found = {}
    for package in PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found
