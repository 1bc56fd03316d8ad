"""Dispersion: how spread out received attention is, per layer ("shallow spread, deep sparse" in numbers)."""

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from floatscope.analysis.anchors import field_of, parse_detector
from floatscope.analysis.cells import cell_columns
from floatscope.analysis.depth import CONTRAST, depth_table
from floatscope.analysis.drawing import lines
from floatscope.analysis.figure import Figure, finding, result_figure
from floatscope.analysis.results import Controls, Options, Panel, Result, analyse
from floatscope.analysis.uniform import on_uniform
from floatscope.traces import Trace


def dispersion(traces: Iterable[Trace], options: Options, controls: Controls) -> Result:
    """Every dispersion measure per model and layer, mean over steps."""
    keys = ("measure", "layer")

    def measure(trace: Trace, rng: np.random.Generator, panel: Panel) -> dict[str, Any]:
        panel.note("The column 'random' is null: shuffling positions does not change how spread out they are.")
        flat = on_uniform(trace, lambda even: trace_dispersion(even, options))
        return cell_columns(keys, value=trace_dispersion(trace, options), uniform=flat)

    return analyse("dispersion", traces, keys, measure, options, controls, dispersion_depth=depth_table)[0]


def trace_dispersion(trace: Trace, options: Options) -> dict[str, NDArray[np.float64]]:
    """Every measure of one trace, [layer]."""
    field = field_of(trace, options.normalisation)
    scores = np.where(field.present, field.scores, 0).astype(np.float64)  # [step, layer, token]
    share = scores / np.maximum(scores.sum(axis=-1, keepdims=True), 1e-12)
    columns = np.maximum(field.present.sum(axis=-1), 1)
    logs = np.log(np.where(share > 0, share, 1))
    # G = sum_i (2 i - n - 1) x_i / n over ascending shares x that sum to 1; absent columns sort first
    rank = np.arange(1, share.shape[-1] + 1) - (share.shape[-1] - columns[..., None])
    weights = 2 * rank - columns[..., None] - 1
    measures = {
        "anchors": parse_detector(options.detector)(field).sum(axis=-1),
        "effective_share": np.exp(-(share * logs).sum(axis=-1)) / columns,
        "gini": (weights * np.sort(share, axis=-1)).sum(axis=-1) / columns,
        "top_share": share.max(axis=-1),
    }
    return {name: values.mean(axis=0, dtype=np.float64) for name, values in measures.items()}


def figure(result: Result, models: Sequence[str]) -> Figure:
    """Every dispersion measure per layer."""
    table = result.table
    titles = {
        "anchors": "number of anchors",
        "effective_share": "exp(entropy) / columns",
        "gini": "Gini coefficient",
        "top_share": "share of the top position",
    }
    contrast = result.tables["dispersion_depth"].filter(measure="effective_share", depth=CONTRAST)
    panels = [lines(table, title, {"measure": name}, models) for name, title in titles.items()]
    what = "exp(entropy) / columns, shallow third minus deep third"
    return result_figure(
        result,
        "How spread out attention is, by depth",
        panels,
        "exp(entropy) / columns is 1 if all positions receive the same, near 0 if one receives everything; the Gini "
        "coefficient runs the other way. Thin lines are controls: even attention under the same visibility, the "
        "untrained model.",
        finding(what, contrast, models, ("uniform", "untrained"), 3, rows=True),
        columns=2,
    )
