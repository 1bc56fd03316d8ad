"""Arrays of one sample: as columns with a row per cell, and as means and shares of which some are unknown (nan)."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]


def cell_columns(keys: Sequence[str], **numbers: Mapping[Any, Array]) -> dict[str, Any]:
    """Columns of one sample from arrays by label, given for `value` and, where they exist, `uniform` and `random`.

    A label is a text, or a tuple of them, for the first keys; the axes of its array are the other keys, such as layer.
    """
    found = numbers["value"]
    labels = [label if isinstance(label, tuple) else (label,) for label in found]
    sizes = [values.size for values in found.values()]
    axes = np.concatenate([np.indices(values.shape).reshape(values.ndim, -1) for values in found.values()], axis=1)
    named = (np.repeat(names, sizes) for names in zip(*labels, strict=True))
    columns = dict(zip(keys, (*named, *axes), strict=True))
    return columns | {
        name: np.concatenate([np.ravel(values[label]) for label in found]) for name, values in numbers.items()
    }


def ratio(values: Array, totals: Array, otherwise: float = np.nan) -> Array:
    """values / totals, and `otherwise` where the total is 0."""
    kind = np.result_type(values, totals, np.float32)
    shape = np.broadcast_shapes(np.shape(values), np.shape(totals))
    return np.divide(values, totals, out=np.full(shape, otherwise, kind), where=totals > 0)


def mean_known(values: Array, known: Array) -> Array:
    """Mean over the first axis, such as steps, of the values that are known; nan where none is."""
    return ratio(np.where(known, values, 0).sum(axis=0), known.sum(axis=0))
