"""Where indices and converted weights are kept between runs: folders by content hash, each complete or absent."""

import json
import os
import shutil
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from floatscope.files import file_hash, making_folder

T = TypeVar("T")
VARIABLE = "FLOATSCOPE_CACHE"
SUMS = "sha256.json"
"""The file of a cached folder that says what the others held when it was made."""


def cache_folder() -> Path:
    """$FLOATSCOPE_CACHE, or the platform's place for such files."""
    if chosen := os.environ.get(VARIABLE):
        return Path(chosen).expanduser()
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches" / "floatscope"
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local") / "floatscope" / "Cache"
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "floatscope"


def cached(
    kind: str, key: str, load: Callable[[Path], T], build: Callable[[], T], save: Callable[[T, Path], None]
) -> T:
    """What `build` gives, taken from the cache where it is there and loads, put there where not.

    A folder that is there is complete. A damaged or altered one is built anew. A cache that cannot be written costs
    time, not the run.
    """
    folder = cache_folder() / kind / key
    if folder.is_dir():
        try:
            if json.loads((folder / SUMS).read_text()) != _sums(folder):
                raise ValueError("its files are not what they were")
            return load(folder)
        except (OSError, ValueError, EOFError, KeyError) as error:
            warnings.warn(f"What was cached as {kind}/{key} is damaged and is built anew ({error}).", stacklevel=2)
            shutil.rmtree(folder, ignore_errors=True)
    value = build()
    try:
        with making_folder(folder) as made:
            save(value, made)
            (made / SUMS).write_text(json.dumps(_sums(made)))
    except OSError as error:
        warnings.warn(f"What {kind} needs could not be cached in {folder.parent}: {error}.", stacklevel=2)
    return value


def _sums(folder: Path) -> dict[str, str]:
    files = [file for file in sorted(folder.rglob("*")) if file.is_file() and file.name != SUMS]
    return {file.relative_to(folder).as_posix(): file_hash(file) for file in files}
