"""Files as the project writes and reads them: replaced whole or not at all, one hash, trouble as one sentence."""

import hashlib
import json
import os
import re
import secrets
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from safetensors import SafetensorError

from floatscope.errors import UserError

PARTIAL = ".partial"
"""How the name of a file ends that is being written, or that a killed process left."""

SEAL = "sha256"
"""The key of a JSON file of ours that holds the hash of all others."""


@contextmanager
def replacing(path: str | Path) -> Iterator[Path]:
    """A temporary name beside `path`; what is written there takes its place when the block ends without an error.

    The file is the old one or the new one at any moment, also after a kill or a crash of the system.
    """
    path = writable(path)
    temporary = path.with_name(f".{path.name}.{os.getpid()}-{secrets.token_hex(4)}{PARTIAL}")
    with write_errors(path):
        try:
            temporary.touch()
            mode = temporary.stat().st_mode  # as the user's umask has it; some libraries write for the owner alone
            yield temporary
            temporary.chmod(mode)
            with temporary.open("rb+") as file:
                os.fsync(file.fileno())
            os.replace(temporary, path)
        finally:
            temporary.unlink(missing_ok=True)


def replace_bytes(path: str | Path, content: bytes) -> None:
    """Write a file in one move."""
    with replacing(path) as temporary:
        temporary.write_bytes(content)


def replace_text(path: str | Path, text: str) -> None:
    """Write a text in one move, as UTF-8."""
    replace_bytes(path, text.encode())


def replace_json(path: str | Path, content: Any) -> None:
    """Write indented JSON in one move."""
    replace_text(path, json.dumps(content, indent=2) + "\n")


def replace_sealed(path: str | Path, content: dict[str, Any]) -> None:
    """Write JSON with a hash of its content in it, so that `unsealed` notices what changes on the disk."""
    replace_json(path, content | {SEAL: _digest(content)})


def unsealed(content: dict[str, Any]) -> dict[str, Any] | None:
    """What was given to `replace_sealed`; None where it is not that."""
    kept = {key: value for key, value in content.items() if key != SEAL}
    return kept if content.get(SEAL) == _digest(kept) else None


def _digest(content: Any) -> str:
    return hashlib.sha256(json.dumps(content).encode()).hexdigest()


@contextmanager
def making_folder(folder: Path, replace: bool = False) -> Iterator[Path]:
    """A temporary name beside `folder`, whose parents are made; the folder that is made there becomes `folder`.

    One that is there already, as another process may have been faster, stays unless it is to be replaced.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".new-", dir=folder.parent, ignore_cleanup_errors=True) as scratch:
        made = Path(scratch) / folder.name
        yield made
        if replace and folder.exists():
            os.replace(folder, Path(scratch) / f"{folder.name}-before")
        if not folder.exists():
            os.replace(made, folder)


@contextmanager
def write_errors(path: Path) -> Iterator[None]:
    """What the disk refuses becomes one sentence; safetensors tells of it in an error of its own."""
    try:
        yield
    except (OSError, SafetensorError) as error:
        words = getattr(error, "strerror", None) or error
        raise UserError(
            f"{path} cannot be written ({words}): check its folder, its rights and the free space."
        ) from error


def writable(path: str | Path) -> Path:
    """The path, if a file can be put there; renaming over a device or a pipe would remove it from the system."""
    path = Path(path)
    try:
        with suppress(FileNotFoundError):
            os.lstat(path)  # refuses what can be no path
        possible = path.parent.is_dir() and (path.is_file() or not os.path.lexists(path))
    except (OSError, ValueError) as error:
        raise UserError(f"{str(path)!r} cannot be written ({error}): name a file in an existing folder.") from error
    if not possible:
        raise UserError(f"{path} cannot be written: name a file in an existing folder.")
    return path


def refuse_device(path: Path) -> None:
    """A device such as /dev/zero may have no end, and would be read until the memory is full."""
    try:
        mode = path.stat().st_mode
    except (OSError, ValueError):
        return  # whoever opens it says why it cannot be
    if stat.S_ISCHR(mode) or stat.S_ISBLK(mode):
        raise UserError(f"{path} is a device: give a file.")


def read_text(path: Path) -> str:
    """The text of a file."""
    refuse_device(path)
    try:
        return path.read_text(encoding="utf-8-sig")  # a byte order mark is no text
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror}.") from error
    except UnicodeDecodeError as error:
        raise UserError(f"{path} is not UTF-8 text (byte {error.start}): save it as UTF-8.") from error
    except ValueError as error:
        raise UserError(f"{str(path)!r} is no path: {error}.") from error


def read_json(path: Path) -> dict[str, Any]:
    """The object of a JSON file."""
    text = read_text(path)
    try:
        found = json.loads(text)
    except ValueError as error:  # a number of thousands of digits too
        raise UserError(f"{path} is not valid JSON: {error}.") from error
    except RecursionError as error:
        raise UserError(f"{path} is not valid JSON: it is nested too deeply.") from error
    if not isinstance(found, dict):
        raise UserError(f"{path} should hold a JSON object, not a {type(found).__name__}.")
    return found


def file_hash(path: Path) -> str:
    """SHA-256 of a file; the hub's cache names large files by theirs, so that they need not be read."""
    try:
        blob = path.resolve().name
        if path.is_symlink() and re.fullmatch(r"[0-9a-f]{64}", blob):
            return blob
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except (OSError, ValueError) as error:
        raise UserError(f"{str(path)!r} cannot be read: {getattr(error, 'strerror', error)}.") from error
