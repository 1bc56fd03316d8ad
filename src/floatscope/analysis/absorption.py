"""Absorption: the percentage of attention that a set of positions receives, per layer.

Both sets for both kinds of model: the first token (an ARM's sink) and the detected anchors (an MDM's floating
tokens), asked of all query rows and of the answer's rows only.
"""

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from floatscope.analysis.anchors import detect
from floatscope.analysis.depth import depth_table
from floatscope.analysis.drawing import arrange, lines
from floatscope.analysis.figure import Figure
from floatscope.analysis.findings import by_model, sentence
from floatscope.analysis.results import DEFAULTS, NO_CONTROLS, Controls, Options, Panel, Result, analyse
from floatscope.analysis.uniform import uniform_layers
from floatscope.canvas import BOS, positions
from floatscope.traces import Trace

Array = NDArray[Any]
SOURCES = {"all": "received", "answer": "received_answer"}
"""Whose attention is counted: every query row, or rows of the answer."""


def absorption(traces: Iterable[Trace], options: Options = DEFAULTS, controls: Controls = NO_CONTROLS) -> Result:
    """Percent of attention on bos, on the detected anchors and on the top position, mean over steps."""

    def measure(trace: Trace, rng: np.random.Generator, panel: Panel) -> dict[str, Any]:
        if not len(positions(trace.regions, BOS)):
            panel.note("Where no region is called bos, the first token of the canvas stands for it.")
        found, expected = _absorbed(trace, options)
        even, kinds = uniform_layers(trace)
        flat, _ = _absorbed(even, options)
        cells = [(kind, rows, layer) for kind, rows in found for layer in range(trace.layers)]
        return {
            "set": [kind for kind, _, _ in cells],
            "rows": [rows for _, rows, _ in cells],
            "layer": [layer for _, _, layer in cells],
            "value": np.concatenate(list(found.values())),
            "uniform": np.concatenate([values[kinds] for values in flat.values()]),
            "random": np.concatenate(list(expected.values())),
        }

    result, panel = analyse("absorption", traces, ("set", "rows", "layer"), measure, options, controls)
    return Result("absorption", {**result.tables, "absorption_depth": depth_table(panel, options)}, result.notes)


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
            total = received.sum(axis=-1)  # [step, layer]; 1, or 0 where there are no such rows
            asked = total > 0.5
            mass = np.einsum("slt,slt->sl", weights.astype(np.float32), received)
            share = weights.sum(axis=-1) / columns
            found[kind, rows] = 100 * _mean_where(mass, asked)
            expected[kind, rows] = 100 * _mean_where(share, asked)
    return found, expected


def _mean_where(values: Array, known: Array) -> Array:
    """Mean over steps [step, layer] -> [layer], nan where no step counts."""
    count = known.sum(axis=0)
    total = np.where(known, values, 0).sum(axis=0)
    return np.divide(total, count, out=np.full(count.shape, np.nan), where=count > 0)


_SETS = {"bos": "first token", "detected": "detected anchors", "top1": "top position"}


def figure(result: Result, models: Sequence[str]) -> Figure:
    """Percent of attention on the first token, on anchors and on the top position, by whose rows ask."""
    table = result.table
    panels = [
        lines(table, title if rows == "all" else f"{title}, answer rows", {"set": kind, "rows": rows}, models, y="%")
        for kind, title in _SETS.items()
        for rows in SOURCES
    ]
    first = table.filter(set="bos", rows="all")
    beside = {name: by_model(first, models, name) for name in ("uniform", "untrained")}
    return Figure(
        "absorption",
        "What the first token and the anchors absorb",
        arrange(panels, {"table": table}),
        table,
        "Percent of attention on the first token (an ARM's sink), on the detected anchors and on the top position; "
        "from all rows, and from the rows of the answer. A causal model piles mass on early tokens even when it "
        "attends evenly: read the line against its own uniform control. Thin lines are controls: even attention under "
        "the same visibility, as many random positions, the untrained model.",
        finding=sentence("First token, all rows, mean over layers, in %", by_model(first, models), beside, 1),
        notes=result.notes,
    )
