"""The first control: the trace that the same canvas gives when every row spreads its attention evenly.

A causal model piles mass on early columns whatever its weights; this is how much. The analyses run on this
trace exactly as on the captured one. Which rows see which columns follows from the visibility and `seen_by`.
"""

import dataclasses
import re
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from floatscope.canvas import positions
from floatscope.errors import UserError
from floatscope.traces import ARRAYS, Trace
from floatscope.traces.trace import array_shape

_MADE = (
    "received",
    "received_answer",
    "received_masked",
    "seen_by",
    "group_rows",
    "region_attention",
    "commit_mass",
    "commit_entropy",
)


def uniform_layers(trace: Trace) -> tuple[Trace, NDArray[np.int64]]:
    """The same with one head and one layer of each kind, and the kind of each layer: most models have one kind."""
    arrays = UniformArrays(trace, reduced=True)
    return dataclasses.replace(trace, arrays=arrays), arrays.which


def uniform_trace(trace: Trace) -> Trace:
    """The trace of uniform attention under the same visibility; arrays are made when first used."""
    return dataclasses.replace(trace, arrays=UniformArrays(trace))


def even_attention(trace: Trace) -> NDArray[np.float64]:
    """[layer, row, token] the matrices themselves: every row evenly over what it sees."""
    first, last, which = visible_spans(trace)
    token = np.arange(len(trace.canvas))
    seen = (token >= first[..., None]) & (token < last[..., None])  # [kind, row, token]
    return (seen / np.maximum(seen.sum(axis=-1, keepdims=True), 1))[which]


def visible_spans(trace: Trace) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """first, last [kind of layer, row]: the columns a row sees; which [layer]: each layer's kind.

    Layers with a sliding window are seen by fewer rows: under causal visibility the widest column tells the
    window, under bidirectional the first one, which half a window of rows sees.
    """
    tokens = len(trace.canvas)
    rows = np.arange(int(trace.rows[-1]))
    kinds, which = np.unique(trace.seen_by, axis=0, return_inverse=True)
    widest = kinds.max(axis=1)[:, None].astype(np.int64)
    if trace.visibility == "bidirectional":
        edge = kinds[:, :1].astype(np.int64)
        half = np.where(edge >= tokens, tokens, edge - 1)
        first, last = rows - half, rows + half + 1
    elif trace.visibility == "causal":
        first, last = rows + 1 - widest, np.broadcast_to(rows + 1, (len(kinds), len(rows)))
    elif match := re.fullmatch(r"block_causal\((\d+)\)", trace.visibility):
        block = int(match.group(1))
        last = np.broadcast_to((rows // block + 1) * block, (len(kinds), len(rows)))
        first = np.zeros_like(last)
    else:
        raise UserError(
            f"The visibility {trace.visibility!r} of the trace of {trace.model!r} is not known; use "
            "bidirectional, causal or block_causal(k)."
        )
    return np.clip(first, 0, tokens), np.clip(last, 0, tokens), which.reshape(-1)


class UniformArrays(Mapping[str, NDArray[Any]]):
    """Arrays of uniform attention; heads, and layers of one kind, share their memory."""

    def __init__(self, trace: Trace, reduced: bool = False) -> None:
        self._trace = trace
        self._held: dict[str, NDArray[Any]] = {}
        self._first, self._last, self.which = visible_spans(trace)
        self._layers = np.arange(len(self._first)) if reduced else self.which
        self._heads = 1 if reduced else trace.heads if "region_attention" in trace.arrays else 1
        self._share = 1.0 / np.maximum(self._last - self._first, 1)  # [kind, row]

    def __getitem__(self, name: str) -> NDArray[Any]:
        if name not in self:
            raise KeyError(name)
        if name not in self._held:
            self._held[name] = self._make(name)
        return self._held[name]

    def __contains__(self, name: object) -> bool:
        return name in _MADE and name in self._trace.arrays

    def __iter__(self) -> Iterator[str]:
        return (name for name in _MADE if name in self)

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def shape_of(self, name: str) -> tuple[int, ...]:
        """Shapes are those of the captured trace, but for the layers and heads left out."""
        shape = array_shape(self._trace.arrays, name)
        sizes = {"layer": len(self._layers), "head": self._heads}
        return tuple(sizes.get(axis, size) for axis, size in zip(ARRAYS[name].axes, shape, strict=True))

    def _make(self, name: str) -> NDArray[Any]:
        trace = self._trace
        if name == "group_rows":
            return trace.group_rows
        if name == "seen_by":
            return np.unique(trace.seen_by, axis=0)[self._layers]
        if name.startswith("received"):
            return self._received(name)
        if name == "region_attention":
            return self._region_attention()
        rows = trace.slots - (trace.logits != "same")
        values = self._column_mass()[:, rows] if name == "commit_mass" else -np.log(self._share[:, rows])
        return self._over_heads(np.moveaxis(self._over_layers(values, 0), 0, 1), name)  # [answer, layer, ...]

    def _received(self, name: str) -> NDArray[Any]:
        """[step, layer, token]"""
        chosen = np.stack([self._rows(name, step) for step in range(self._trace.steps)])  # [step, row]
        distinct, back = np.unique(chosen, axis=0, return_inverse=True)
        tokens = len(self._trace.canvas)
        made = np.zeros((len(distinct), len(self._share), tokens), np.float32)
        for number, rows in enumerate(distinct):
            if not rows.any():
                continue
            for kind, share in enumerate(self._share):
                weights = np.where(rows, share, 0.0)
                starts = np.bincount(self._first[kind], weights, tokens + 1)
                stops = np.bincount(self._last[kind], weights, tokens + 1)
                made[number, kind] = np.cumsum(starts - stops)[:tokens] / rows.sum()
        return self._over_layers(made[back.reshape(-1)], 1)

    def _rows(self, name: str, step: int) -> NDArray[np.bool_]:
        """[row] which rows a received array averages at a step."""
        trace = self._trace
        number = np.arange(self._share.shape[1])
        present = number < trace.rows[step]
        if name == "received":
            return present
        answer = present & np.isin(number, trace.slots)
        if name == "received_answer":
            return answer
        masked = np.zeros_like(present)
        if trace.kind != "arm":
            masked[trace.slots] = trace.masked[step]
        return answer & masked

    def _column_mass(self) -> NDArray[np.float64]:
        """[kind, row, column] a row's mass on each column set."""
        trace = self._trace
        inside = np.zeros((len(trace.canvas) + 1, len(trace.column_labels)))
        for number, label in enumerate(trace.column_labels):
            places = trace.marks[label] if label in trace.marks else positions(trace.regions, label)
            inside[places + 1, number] = 1
        before = np.cumsum(inside, axis=0)  # [token + 1, column] members up to a token
        return (before[self._last] - before[self._first]) * self._share[..., None]

    def _region_attention(self) -> NDArray[Any]:
        """[step, layer, head, group, column]"""
        trace = self._trace
        mass = self._column_mass()
        groups = len(trace.group_labels)
        made = np.zeros((trace.steps, len(self._share), groups, mass.shape[-1]), np.float32)
        for step in range(trace.steps):
            member = np.eye(groups)[row_groups(trace, step)]  # [row, group]
            counts = np.maximum(member.sum(axis=0), 1)
            made[step] = np.einsum("rg,krc->kgc", member / counts, mass[:, : len(member)])
        return self._over_heads(self._over_layers(made, 1), "region_attention")

    def _over_layers(self, values: NDArray[Any], axis: int) -> NDArray[Any]:
        if len(self._share) > 1:
            return np.take(values, self._layers, axis=axis)
        shape = list(values.shape)
        shape[axis] = len(self._layers)
        return np.broadcast_to(values, shape)

    def _over_heads(self, values: NDArray[Any], name: str) -> NDArray[Any]:
        axis = ARRAYS[name].axes.index("head")
        widened = np.expand_dims(values, axis)
        shape = list(widened.shape)
        shape[axis] = self._heads
        return np.broadcast_to(widened, shape)


def row_groups(trace: Trace, step: int) -> NDArray[np.int64]:
    """[row] the number of each row's query group at a step."""
    labels = trace.group_labels
    of_token = np.zeros(len(trace.canvas), np.int64)
    for region in trace.regions:
        label = region.label if region.label in labels else f"{region.label}:committed"
        of_token[region.start : region.stop] = labels.index(label)
    if trace.kind != "arm" and "answer:masked" in labels:
        of_token[trace.slots[trace.masked[step]]] = labels.index("answer:masked")
    return of_token[: int(trace.rows[step])]
