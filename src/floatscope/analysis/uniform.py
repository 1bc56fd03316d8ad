"""The first control: the trace that the same canvas gives when every row spreads its attention evenly.

A causal model piles mass on early columns whatever its weights; this is how much. The analyses run on this
trace exactly as on the captured one. Which rows see which columns follows from the visibility and `seen_by`.
"""

import dataclasses
import re
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from floatscope.canvas import positions
from floatscope.errors import UserError
from floatscope.traces import ARRAYS, Trace
from floatscope.traces.arrays import LazyArrays
from floatscope.traces.trace import array_shape

_MADE = (
    *("received", "received_answer", "received_masked", "seen_by", "group_rows"),
    *("region_attention", "commit_mass", "commit_entropy", "attention"),
)
_ROLLED = ("rollout", "commit_rollout")
"""Made with all layers only: each goes on from the one before."""


def on_uniform(trace: Trace, measured: Callable[[Trace], Mapping[Any, NDArray[Any]]]) -> dict[Any, NDArray[Any]]:
    """What a measure, an array [layer, ...] for each of its labels, gives for uniform attention."""
    if not has_uniform(trace):
        return {label: np.full(np.shape(values), np.nan) for label, values in measured(trace).items()}
    even, kinds = uniform_layers(trace)
    return {label: values[kinds] for label, values in measured(even).items()}


def uniform_trace(trace: Trace) -> Trace:
    """The trace of uniform attention under the same visibility; arrays are made when first used."""
    return uniform_layers(trace, reduced=False)[0]


def has_uniform(trace: Trace) -> bool:
    """Whether this control is made: not of steps that computed some rows over a cache, or an active block."""
    whole = trace.kind == "arm" or bool((trace.rows == len(trace.canvas)).all())
    return whole and not trace.visibility.startswith("active_block")


def uniform_layers(trace: Trace, reduced: bool = True) -> tuple[Trace, NDArray[np.int64]]:
    """The same with one head and one layer of each kind, and the kind of each layer: most models have one kind.

    Where it is not made, every number is nan. Not `reduced`: with all layers and heads.
    """
    if has_uniform(trace):
        even = UniformAttention(trace, reduced)
        return dataclasses.replace(trace, arrays=LazyArrays(even.shapes, even.make)), even.which
    shapes = {name: array_shape(trace.arrays, name) for name in _MADE if name in trace.arrays}
    unknown = LazyArrays(shapes, lambda name: np.full(shapes[name], np.nan))
    return dataclasses.replace(trace, arrays=unknown), np.arange(trace.layers)


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
    elif match := re.fullmatch(r"block_causal\(([1-9]\d{0,8})\)", trace.visibility):
        block = int(match.group(1))
        last = np.broadcast_to((rows // block + 1) * block, (len(kinds), len(rows)))
        first = np.zeros_like(last)
    else:
        raise UserError(
            f"The control of uniform attention is not made for the visibility {trace.visibility!r} of the trace of "
            f"{trace.model!r}, only for bidirectional, causal or block_causal(k): leave it out of analyses."
        )
    return np.clip(first, 0, tokens), np.clip(last, 0, tokens), which.reshape(-1)


class UniformAttention:
    """The arrays of uniform attention; heads, and layers of one kind, share their memory."""

    def __init__(self, trace: Trace, reduced: bool = False) -> None:
        self._trace = trace
        self._first, self._last, self.which = visible_spans(trace)
        self._layers = np.arange(len(self._first)) if reduced else self.which
        self._share = 1.0 / np.maximum(self._last - self._first, 1)  # [kind, row]
        heads = trace.heads if "region_attention" in trace.arrays and not reduced else 1
        sizes = {"layer": len(self._layers), "head": heads}
        self.shapes: dict[str, tuple[int, ...]] = {}
        for name in (*_MADE, *(() if reduced else _ROLLED)):  # as captured, but for the layers and heads left out
            if name in trace.arrays:
                axes = zip(ARRAYS[name].axes, array_shape(trace.arrays, name), strict=True)
                self.shapes[name] = tuple(sizes.get(axis, size) for axis, size in axes)

    def make(self, name: str) -> NDArray[Any]:
        """The array under a name, in its shape."""
        trace = self._trace
        if name == "group_rows":
            return trace.group_rows
        if name == "seen_by":
            return np.unique(trace.seen_by, axis=0)[self._layers]
        if name == "attention":  # [matrix_layer, row, token]: every row evenly over what it sees
            token = np.arange(len(trace.canvas))
            seen = (token >= self._first[..., None]) & (token < self._last[..., None])  # [kind, row, token]
            even = (seen * self._share[..., None])[self.which[trace.matrix_layers]]
            return np.broadcast_to(even[:, None], self.shapes[name])
        rows = trace.slots - (trace.logits != "same")
        if name.startswith("received"):
            made = self._received(name)
        elif name in _ROLLED:
            rolled = self._rolled()
            return self._by_group(rolled) if name == "rollout" else rolled[:, rows].swapaxes(0, 1).astype(np.float32)
        elif name == "region_attention":
            made = self._by_group(self._column_mass())
        elif name == "commit_mass":
            made = self._column_mass()[:, rows].swapaxes(0, 1)
        else:
            made = -np.log(self._share[:, rows]).swapaxes(0, 1)
        if len(self._share) > 1:
            made = np.take(made, self._layers, axis=1)
        if "head" in ARRAYS[name].axes:
            made = np.expand_dims(made, 2)
        return np.broadcast_to(made, self.shapes[name])

    def _received(self, name: str) -> NDArray[Any]:
        """[step, kind, token]"""
        trace = self._trace
        row = np.arange(self._share.shape[1])
        chosen = row < trace.rows[:, None]  # [step, row] which rows are averaged
        if name != "received":
            chosen &= np.isin(row, trace.slots)
        if name == "received_masked" and trace.kind == "arm":
            chosen[:] = False
        elif name == "received_masked":
            chosen[:, trace.slots] &= trace.masked
        distinct, back = np.unique(chosen, axis=0, return_inverse=True)
        tokens = len(trace.canvas)
        made = np.zeros((len(distinct), len(self._share), tokens), np.float32)
        for number, rows in enumerate(distinct):
            if not rows.any():
                continue
            for kind, share in enumerate(self._share):
                weights = np.where(rows, share, 0.0)
                starts = np.bincount(self._first[kind], weights, tokens + 1)
                stops = np.bincount(self._last[kind], weights, tokens + 1)
                made[number, kind] = np.cumsum(starts - stops)[:tokens] / rows.sum()
        return made[back.reshape(-1)]

    def _members(self) -> NDArray[np.float64]:
        """[token, column] which tokens each column set has."""
        trace = self._trace
        inside = np.zeros((len(trace.canvas), len(trace.column_labels)))
        for number, label in enumerate(trace.column_labels):
            inside[trace.marks[label] if label in trace.marks else positions(trace.regions, label), number] = 1
        return inside

    def _mixed(self, values: NDArray[np.float64]) -> NDArray[np.float64]:
        """[kind, row, column]: the mean of values [token, column] over what each row sees."""
        before = np.cumsum(np.concatenate([np.zeros_like(values[:1]), values]), axis=0)  # [token + 1, column]
        return (before[self._last] - before[self._first]) * self._share[..., None]

    def _column_mass(self) -> NDArray[np.float64]:
        """[kind, row, column] a row's mass on each column set."""
        return self._mixed(self._members())

    def _rolled(self) -> NDArray[np.float64]:
        """[layer, row, column] rollout through the layers up to each one."""
        values, rows, found = self._members(), self._share.shape[1], []
        for kind in self.which:
            values = values.copy()
            values[:rows] = (self._mixed(values)[kind] + values[:rows]) / 2
            found.append(values[:rows])
        return np.stack(found)

    def _by_group(self, mass: NDArray[np.float64]) -> NDArray[Any]:
        """[step, kind, group, column] the mean over the rows of each group, of mass [kind, row, column]."""
        trace = self._trace
        labels = trace.group_labels
        made = np.zeros((trace.steps, len(mass), len(labels), mass.shape[-1]), np.float32)
        group = np.zeros(len(trace.canvas), np.int64)  # of each token, its slots committed
        for region in trace.regions:
            label = region.label if region.label in labels else f"{region.label}:committed"
            group[region.start : region.stop] = labels.index(label)
        for step in range(trace.steps):
            now = group.copy()
            if trace.kind != "arm" and "answer:masked" in labels:
                now[trace.slots[trace.masked[step]]] = labels.index("answer:masked")
            member = np.eye(len(labels))[now[: int(trace.rows[step])]]  # [row, group]
            counts = np.maximum(member.sum(axis=0), 1)
            made[step] = np.einsum("rg,krc->kgc", member / counts, mass[:, : len(member)])
        return made
