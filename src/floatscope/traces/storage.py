"""The trace file: safetensors whose metadata holds a JSON header, written atomically and read lazily.

Every array carries a checksum, so a damaged file is a sentence and never a wrong number.
What the parts of a trace mean is left to `trace`.
"""

import json
import zlib
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, cast

import msgspec
import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from floatscope.errors import UserError
from floatscope.files import replacing
from floatscope.traces.arrays import ARRAYS, LazyArrays

FORMAT = "floatscope-trace"
VERSION = 2
_DTYPES = {"F16": "float16", "F32": "float32", "F64": "float64", "I32": "int32", "I64": "int64", "U8": "uint8"}


def write(path: str | Path, header: Mapping[str, Any], tensors: Mapping[str, NDArray[Any]]) -> Path:
    """Write a trace file under a temporary name in the same folder, then rename it: never half a file."""
    listing = {
        name: {"dtype": str(values.dtype), "shape": list(values.shape), "crc32": zlib.crc32(values.data)}
        | ({"axes": list(ARRAYS[name].axes)} if name in ARRAYS else {})
        for name, values in tensors.items()
    }
    text = plain_json({**header, "arrays": listing})
    envelope = {"version": VERSION, "crc32": zlib.crc32(text.encode()), "header": text}
    metadata = {FORMAT: json.dumps(envelope)}  # one entry: safetensors writes several in any order
    with replacing(path) as temporary:
        save_file(dict(tensors), temporary, metadata)
    return Path(path)


def read_array(path: Path, listing: Mapping[str, Mapping[str, Any]], name: str) -> NDArray[Any]:
    """One tensor of a file, its checksum verified."""
    expected = listing[name]
    try:
        with safe_open(path, framework="numpy") as file:
            values = cast(NDArray[Any], file.get_tensor(name))
    except (OSError, SafetensorError) as error:
        raise UserError(f"The array {name!r} could not be read from {path} ({error}).") from error
    values = np.ascontiguousarray(values).reshape(tuple(expected["shape"]))
    if zlib.crc32(values.data) != expected.get("crc32"):
        raise UserError(f"The array {name!r} of {path} is damaged; trace the sample again.")
    confidence = name == "fixed.confidence"  # the one that may be unknown, NaN
    if confidence or (name in ARRAYS and not ARRAYS[name].whole):
        sound = values.dtype.kind == "f" and (np.isfinite(values) | (np.isnan(values) & confidence)).all()
    else:
        sound = values.dtype.kind in "iu"
    if not sound:
        raise UserError(f"The array {name!r} of {path} holds what no trace has; trace the sample again.")
    return values.astype(np.float32) if values.dtype == np.float16 else values


def read(path: Path, types: Mapping[str, Any]) -> tuple[dict[str, Any], LazyArrays]:
    """The verified header, of whose JSON `types` says what may be there, and the arrays; any damage is a sentence."""
    if path.is_dir():
        raise UserError(f"{path} is a folder, not a trace; give one of the .safetensors files in it.")
    if not path.exists():
        raise UserError(f"There is no trace at {path}; check the path or run 'floatscope trace' first.")
    try:
        with safe_open(path, framework="numpy") as file:
            metadata = file.metadata() or {}
            found = {name: file.get_slice(name) for name in file.keys()}  # noqa: SIM118
            listing = {name: (_DTYPES.get(s.get_dtype()), list(s.get_shape())) for name, s in found.items()}
    except (OSError, SafetensorError) as error:
        with path.open("rb") as file:
            pickled = file.read(2).startswith((b"\x80", b"PK"))
        if pickled:
            raise UserError(
                f"{path} is a pickle or zip archive, not a trace, and is never opened as one; save traces with "
                "Trace.save, or import the reference's npz with import_reference."
            ) from error
        raise UserError(f"{path} is truncated or no trace ({error}); trace the sample again.") from error
    if FORMAT not in metadata:
        raise UserError(f"{path} is a safetensors file but no floatscope trace; give one of Trace.save.")
    try:
        envelope = json.loads(metadata[FORMAT])
        version, crc32, text = envelope["version"], envelope.get("crc32"), envelope.get("header", "")
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise UserError(f"The header of {path} is damaged; trace the sample again.") from error
    if version != VERSION:
        raise UserError(
            f"{path} has trace version {version} and this floatscope reads {VERSION}; upgrade floatscope or trace the "
            "sample again."
        )
    if zlib.crc32(str(text).encode()) != crc32:
        raise UserError(f"The header of {path} is damaged; trace the sample again.")
    try:
        header = json.loads(text)
        json.dumps(header, ensure_ascii=False).encode()  # half a surrogate pair could be shown nowhere
        header = {name: msgspec.convert(value, types[name]) for name, value in header.items() if name in types}
        listed = {name: (entry["dtype"], entry["shape"]) for name, entry in header["arrays"].items()}
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise UserError(f"The header of {path} is none of a trace ({error}); trace the sample again.") from error
    if listing != listed:
        raise UserError(f"{path} does not hold the arrays its header lists; trace the sample again.")
    # what a later version adds is left alone
    shapes = {name: tuple(entry["shape"]) for name, entry in header["arrays"].items() if name in ARRAYS}
    return header, LazyArrays(shapes, partial(read_array, path, header["arrays"]))


def metadata_of_samples(given: Mapping[str, Any] | Sequence[Mapping[str, Any]], samples: int) -> list[dict[str, Any]]:
    """One table per sample, from one for all or a list of them, as a trace's file will give it back: tuples are lists,
    keys are texts, numpy values plain ones."""
    tables = [given] * samples if isinstance(given, Mapping) else list(given)
    if len(tables) != samples:
        raise UserError(f"metadata has {len(tables)} entries for {samples} prompts: give one for all or one per prompt")
    if not all(isinstance(table, Mapping) for table in tables):
        raise UserError("metadata should be a table of names and values, or a list of them, one per prompt")
    return [json.loads(plain_json(dict(table))) for table in tables]


def plain_json(values: Mapping[str, Any]) -> str:
    try:
        return json.dumps(values, default=_plain)
    except (TypeError, ValueError, RecursionError) as error:
        raise UserError(
            f"{error}: a trace's file holds texts, numbers, lists and tables, in its metadata and sampler settings too."
        ) from error


def _plain(value: Any) -> Any:
    """numpy values and mappings in sampler settings or metadata, as JSON knows them."""
    if isinstance(value, np.ndarray | np.generic):
        return value.tolist()
    if isinstance(value, Mapping):
        return dict(value)
    raise TypeError(f"{value!r} cannot be stored")
