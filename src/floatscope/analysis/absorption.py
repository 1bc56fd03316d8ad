"""Absorption: the percentage of attention that a set of positions receives, per layer.

Both sets for both kinds of model: the first token (an ARM's sink) and the detected anchors (an MDM's floating
tokens), asked of all query rows and of the answer's rows only.
"""

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from floatscope.analysis.anchors import detect
from floatscope.analysis.cells import Array, cell_columns, mean_known
from floatscope.analysis.depth import depth_table
from floatscope.analysis.drawing import lines
from floatscope.analysis.figure import Figure, finding, result_figure
from floatscope.analysis.results import Controls, Options, Panel, Result, analyse
from floatscope.analysis.uniform import on_uniform
from floatscope.canvas import BOS, positions
from floatscope.traces import Trace

SOURCES = {"all": "received", "answer": "received_answer"}
"""Whose attention is counted: every query row, or rows of the answer."""


def absorption(traces: Iterable[Trace], options: Options, controls: Controls) -> Result:
    """Percent of attention on bos, on the detected anchors and on the top position, mean over steps."""
    keys = ("set", "rows", "layer")

    def measure(trace: Trace, rng: np.random.Generator, panel: Panel) -> dict[str, Any]:
        if not len(positions(trace.regions, BOS)):
            panel.note("Where no region is called bos, the first token of the canvas stands for it.")
        found, expected = _absorbed(trace, options)
        flat = on_uniform(trace, lambda even: _absorbed(even, options)[0])
        return cell_columns(keys, value=found, uniform=flat, random=expected)

    return analyse("absorption", traces, keys, measure, options, controls, absorption_depth=depth_table)[0]


def _absorbed(trace: Trace, options: Options) -> tuple[dict[tuple[str, str], Array], dict[tuple[str, str], Array]]:
    """Percent [layer] by set and rows, and what as many random positions would get on average.

    k random ones of n columns get k/n of a row that sums to 1. Steps without rows (an ARM's first step has no
    answer row) are left out.
    """
    present = trace.visible > 0
    columns = np.maximum(present.sum(axis=-1), 1)  # [step, layer]
    first = positions(trace.regions, BOS) if len(positions(trace.regions, BOS)) else np.array([0])
    bos = np.zeros(present.shape, np.float32)
    bos[..., first] = 1
    sets = {
        "bos": bos,
        "detected": detect(trace, options.detector, options.normalisation),
        "top1": detect(trace, "top1", options.normalisation),
    }
    found: dict[tuple[str, str], Array] = {}
    expected: dict[tuple[str, str], Array] = {}
    for kind, weights in sets.items():
        for rows, name in SOURCES.items():
            received = trace.arrays[name] if name in trace.arrays else np.zeros(present.shape)
            asked = received.sum(axis=-1) > 0.5  # [step, layer]; 1, or 0 where there are no such rows
            mass = np.einsum("slt,slt->sl", weights.astype(np.float32), received)
            found[kind, rows] = 100 * mean_known(mass, asked)
            expected[kind, rows] = 100 * mean_known(weights.sum(axis=-1) / columns, asked)
    return found, expected


def figure(result: Result, models: Sequence[str]) -> Figure:
    """Percent of attention on the first token, on anchors and on the top position, by whose rows ask."""
    table = result.table
    sets = {"bos": "first token", "detected": "detected anchors", "top1": "top position"}
    panels = [
        lines(table, title if rows == "all" else f"{title}, answer rows", {"set": kind, "rows": rows}, models, y="%")
        for kind, title in sets.items()
        for rows in SOURCES
    ]
    what, first = "First token, all rows, mean over layers, in %", table.filter(set="bos", rows="all")
    return result_figure(
        result,
        "What the first token and the anchors absorb",
        panels,
        "Percent of attention on the first token (an ARM's sink), on the detected anchors and on the top position; "
        "from all rows, and from the rows of the answer. A causal model piles mass on early tokens even when it "
        "attends evenly: read the line against its own uniform control. Thin lines are controls: even attention under "
        "the same visibility, as many random positions, the untrained model.",
        finding(what, first, models, ("uniform", "untrained"), 1),
    )
