"""One head of a trace from token to token as a figure. Matrices are kept on request, for small canvases."""

from collections.abc import Sequence
from typing import Any

import altair as alt
import numpy as np
import polars as pl
from numpy.typing import NDArray

from floatscope.analysis.drawing import Plot, arrange, plot, shade, token_axis, tooltips
from floatscope.analysis.figure import Figure
from floatscope.analysis.palette import HEAT
from floatscope.errors import UserError
from floatscope.traces import Trace

MOST = 96
"""Tokens in a row of cells; more are summed in blocks of keys and averaged in blocks of queries."""


def heatmap(trace: Trace, step: int = -1, layer: int = -1, head: int | None = None) -> Figure:
    """Attention of one head (without one: the mean of all) at a step and a layer; each row sums to 1."""
    matrices = trace.attention  # [matrix_step, matrix_layer, head, row, token]
    step = _place("step", step, trace.steps, range(trace.steps))
    # An ARM has the matrix of its last step, whose first rows are the rows of the steps before.
    kept = [step] if trace.kind == "arm" else trace.matrix_steps.tolist()
    layer = _place("layer", layer, trace.layers, trace.matrix_layers.tolist())
    place = 0 if trace.kind == "arm" else kept.index(_place("step", step, trace.steps, kept))
    heads = matrices[place, trace.matrix_layers.tolist().index(layer)][:, : trace.rows[step]]
    if head is not None:
        head = _place("head", head, len(heads), range(len(heads)))
    values = heads.mean(axis=0) if head is None else heads[head]  # [row, token]
    block = -(-values.shape[1] // MOST)
    open_slots = {*trace.slots[trace.masked[step]].tolist()}
    texts = ["mask" if place in open_slots else text for place, text in enumerate(trace.texts_or_ids)]
    table = _pairs(values, texts, block)
    which = "mean of its heads" if head is None else f"head {head}"
    pooled = f"Cells are blocks of {block} x {block} tokens: summed over keys, averaged over queries." * (block > 1)
    title = f"{trace.model}: layer {layer}, {which}, step {step}"
    caption = "Rows are queries, columns keys; a row sums to 1. Shades are by the root of the attention."
    return Figure(
        "heatmap", title, arrange([_cells(table)], {"table": table}), table, caption, notes=(pooled,) * (block > 1)
    )


def _place(what: str, wanted: int, count: int, kept: range | list[int]) -> int:
    """A step, layer or head, also counted from the end, that the trace has."""
    place = wanted + count if not isinstance(wanted, str) and wanted < 0 else wanted
    if place not in kept:
        there = f"{kept[0]} to {kept[-1]}" if len(kept) == kept[-1] - kept[0] + 1 else ", ".join(map(str, kept))
        raise UserError(f"There is no matrix of {what} {wanted} in the trace: it has those of {there}.")
    return place


def _pairs(values: NDArray[Any], texts: Sequence[str], block: int) -> pl.DataFrame:
    """A row per pair of tokens, or of blocks of tokens: what a query gives to the keys of the block, on average."""
    rows, tokens = (np.arange(0, size, block) for size in values.shape)
    sums = np.add.reduceat(np.add.reduceat(values, tokens, axis=1), rows, axis=0)
    means = sums / np.diff([*rows, len(values)])[:, None]
    row, token = (places.ravel() for places in np.meshgrid(rows, tokens, indexing="ij"))
    named = {"row_text": [texts[place] for place in row], "text": [texts[place] for place in token]}
    return pl.DataFrame({"row": row, "token": token, **named, "value": means.ravel()})


def _cells(table: pl.DataFrame) -> Plot:
    queries, keys = (dict(table.select(*names).unique().rows()) for names in (("row", "row_text"), ("token", "text")))
    width, height = (max(120, min(640, 12 * len(names))) for names in (keys, queries))
    base = alt.Chart().mark_rect(color=HEAT).encode(
        x=alt.X("token:O", axis=token_axis(keys, width, -90), title="key"),
        y=alt.Y("row:O", axis=token_axis(queries, height, 0), title="query"),
        opacity=shade("value", float(table["value"].to_numpy().max()), root=True),
        tooltip=tooltips("row", "row_text", "token", "text", "value"),
    )  # fmt: skip
    return plot([base], "", table, {}, width, height, bed=True)
