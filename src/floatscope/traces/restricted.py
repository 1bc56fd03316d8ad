"""Opening an npz that may hold object arrays, without running anything it carries.

Numeric members are read by numpy with pickle off. Object members go through an unpickler that can build numpy
arrays, numpy scalars and plain Python containers, and refuses every other global by name.
"""

import io
import pickle
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.lib import format as npy

from floatscope.errors import UserError

_DAMAGE = (
    OSError,
    EOFError,
    ValueError,
    TypeError,
    LookupError,
    AttributeError,
    RuntimeError,
    MemoryError,
    zlib.error,
    zipfile.BadZipFile,
    pickle.UnpicklingError,
)
"""What zipfile, numpy and pickle raise on bytes that are not what they claim to be."""


class Members(Mapping[str, Any]):
    """The members of an npz by name, each read on access; 0-d arrays come as the value they hold."""

    def __init__(self, path: Path, names: frozenset[str]) -> None:
        self._path = path
        self._names = names

    def __getitem__(self, name: str) -> Any:
        if name not in self._names:
            raise KeyError(name)
        try:
            with zipfile.ZipFile(self._path) as archive:
                content = archive.read(f"{name}.npy")
            value = read_npy(content)
        except _DAMAGE as error:
            raise UserError(f"The member {name!r} of {self._path} cannot be opened: {error}") from error
        return value.item() if isinstance(value, np.ndarray) and value.ndim == 0 else value

    def __iter__(self) -> Iterator[str]:
        return iter(sorted(self._names))

    def __len__(self) -> int:
        return len(self._names)


def open_npz(path: Path) -> Members:
    """The members of an npz file; a path that is none is one sentence."""
    if not path.is_file():
        raise UserError(f"There is no npz file at {path}; check the path.")
    try:
        with zipfile.ZipFile(path) as archive:
            names = archive.namelist()
    except _DAMAGE as error:
        raise UserError(f"{path} is truncated or no npz ({error}); extract it again.") from error
    return Members(path, frozenset(name.removesuffix(".npy") for name in names if name.endswith(".npy")))


def read_npy(content: bytes) -> Any:
    """One npy member; a pickled payload only through the restricted unpickler."""
    file = io.BytesIO(content)
    version = npy.read_magic(file)
    read_header = npy.read_array_header_1_0 if version == (1, 0) else npy.read_array_header_2_0
    shape, _, dtype = read_header(file)
    if not dtype.hasobject:
        return npy.read_array(io.BytesIO(content), allow_pickle=False)
    value = _NumpyUnpickler(file).load()
    return value.reshape(shape) if isinstance(value, np.ndarray) else value


class _ArrayType:
    """Stands for `numpy.ndarray` inside a pickle, where it is only ever an argument: never called."""


def _reconstruct(_kind: Any, shape: tuple[int, ...], _code: Any) -> np.ndarray:
    """numpy pickles an array as an empty one whose state follows; any other shape is refused."""
    if tuple(shape) != (0,):
        raise pickle.UnpicklingError(f"an array is announced with shape {shape}, not as empty")
    return np.ndarray((0,), np.int8)


class _NumpyUnpickler(pickle.Unpickler):
    """Knows numpy's own array reconstruction and nothing else."""

    _GLOBALS: Mapping[tuple[str, str], Any] = {
        ("numpy", "ndarray"): _ArrayType(),
        ("numpy", "dtype"): np.dtype,
        ("numpy.core.multiarray", "_reconstruct"): _reconstruct,
        ("numpy._core.multiarray", "_reconstruct"): _reconstruct,
        ("numpy.core.multiarray", "scalar"): np._core.multiarray.scalar,  # type: ignore[attr-defined]
        ("numpy._core.multiarray", "scalar"): np._core.multiarray.scalar,  # type: ignore[attr-defined]
    }

    def find_class(self, module_name: str, global_name: str) -> Any:
        if (module_name, global_name) not in self._GLOBALS:
            raise pickle.UnpicklingError(
                f"its pickle asks for {module_name}.{global_name}, and only numpy arrays are opened; "
                "do not trust this file"
            )
        return self._GLOBALS[module_name, global_name]
