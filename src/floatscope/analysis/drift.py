"""Drift: how anchors and received attention move from one denoising step to the next, per layer.

The map of one sample over its steps is left to `step_map`.
"""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from floatscope.analysis.anchors import field_of, parse_detector, shuffled
from floatscope.analysis.cells import Array, cell_columns, mean_known, ratio
from floatscope.analysis.depth import depth_table
from floatscope.analysis.drawing import lines
from floatscope.analysis.figure import Figure, finding, result_figure
from floatscope.analysis.floating import add_floating, panels, sentences, verdicts
from floatscope.analysis.results import Controls, Options, Panel, Result, analyse
from floatscope.analysis.uniform import on_uniform
from floatscope.statistics import spearman
from floatscope.traces import Trace

MEASURES = (
    *("turnover", "centroid_shift", "top_shift", "wasserstein", "lifetime"),
    *("static_share", "direction", "cosine", "top_overlap"),
)
TOP = 10


def drift(traces: Iterable[Trace], options: Options, controls: Controls) -> Result:
    """Every drift measure per model and layer; random control: received attention shuffled at every step.

    Further tables: thirds of the layers; and from the first step to the last, see `floating`.
    """
    keys = ("measure", "layer")

    def measure(trace: Trace, rng: np.random.Generator, panel: Panel) -> dict[str, Any]:
        if trace.steps < 2:
            panel.note("Traces of one step have no drift: their values are null.")
        add_floating(trace, options, rng, panel)
        flat = on_uniform(trace, lambda even: trace_drift(even, options))
        random = trace_drift(trace, options, rng)
        return cell_columns(keys, value=trace_drift(trace, options), uniform=flat, random=random)

    result, panel = analyse("drift", traces, keys, measure, options, controls, drift_depth=depth_table)
    if "drift_ends" not in panel.beside:
        return result
    ends = panel.beside["drift_ends"]
    further = {"drift_ends_depth": depth_table(ends, options), "drift_verdicts": verdicts(ends, options)}
    return replace(result, tables={**result.tables, **further})


def trace_drift(trace: Trace, options: Options, rng: np.random.Generator | None = None) -> dict[str, Array]:
    """Every measure of one trace, [layer]; nan where undefined. With `rng`, positions are shuffled at each step."""
    if trace.steps < 2:
        return {name: np.full(trace.layers, np.nan) for name in MEASURES}
    field = field_of(trace, options.normalisation)
    received, anchors = trace.received, parse_detector(options.detector)(field) > 0.5  # [step, layer, token]
    if rng is not None:
        received, anchors = shuffled(received, anchors, field.present, rng)
    share = received / np.maximum(received.sum(axis=-1, keepdims=True), 1e-12)
    centroid = share @ np.arange(received.shape[-1], dtype=np.float64)  # [step, layer]
    top = np.where(field.present, received, -1).argmax(axis=-1)
    before, after = share[:-1], share[1:]
    lengths = np.sqrt(np.einsum("slt,slt->sl", share, share))
    ever, always = anchors.any(axis=0).sum(axis=-1), anchors.all(axis=0).sum(axis=-1)
    union, common = (anchors[1:] | anchors[:-1]).sum(axis=-1), (anchors[1:] & anchors[:-1]).sum(axis=-1)
    begins = anchors.copy()  # a life begins where the step before had no anchor
    begins[1:] &= ~anchors[:-1]
    count = min(TOP, received.shape[-1])
    best = np.zeros(received.shape, bool)
    np.put_along_axis(best, np.argpartition(received, -count, axis=-1)[..., -count:], True, axis=-1)
    measures = {
        # 1 - Jaccard of consecutive steps; pairs of steps without any anchor are left out
        "turnover": mean_known(1 - common / np.maximum(union, 1), union > 0),
        "centroid_shift": np.abs(np.diff(centroid, axis=0)).mean(axis=0),
        "top_shift": np.abs(np.diff(top, axis=0)).mean(axis=0),
        "wasserstein": np.abs(np.cumsum(after - before, axis=-1, dtype=np.float64)).sum(axis=-1).mean(axis=0),
        "lifetime": ratio(anchors.sum(axis=(0, 2)), begins.sum(axis=(0, 2))),
        "static_share": ratio(always, ever),
        "direction": spearman(top.T, np.arange(len(top))) if len(top) > 2 else np.full(top.shape[1], np.nan),
        "cosine": (np.einsum("slt,slt->sl", before, after) / (lengths[:-1] * lengths[1:])).mean(axis=0),
        "top_overlap": (best[1:] & best[:-1]).sum(axis=-1).mean(axis=0) / count,
    }
    return {name: np.asarray(measures[name], np.float64) for name in MEASURES}


_TITLES = {
    "turnover": "turnover of anchors",
    "static_share": "share of static anchors",
    "lifetime": "lifetime of an anchor, steps",
    "top_shift": "shift of the top position, tokens",
    "centroid_shift": "shift of the centroid, tokens",
    "wasserstein": "Wasserstein-1, tokens",
    "direction": "direction (Spearman with step)",
    "cosine": "cosine between steps",
    "top_overlap": "overlap of the top ten",
}


def figure(result: Result, models: Sequence[str]) -> Figure:
    """From the first step to the last and over the run; and every measure from one step to the next per layer."""
    table = result.table
    groups, tables = panels(result, models)
    far = ("top_shift", "centroid_shift", "wasserstein")  # their random control lies orders of magnitude above
    groups["from one step to the next"] = [
        lines(table, title, {"measure": name}, models, symlog=name in far) for name, title in _TITLES.items()
    ]
    what, turnover = "Turnover from step to step, mean over layers", table.filter(measure="turnover")
    told = (sentences(result, models), finding(what, turnover, models, ("random", "untrained")))
    return result_figure(
        result,
        "How far it moves",
        groups,
        "Above, every step against the first, over all columns, which new text changes too, and over the context's. "
        "Below, each step against the next: turnover 0 is a sink that never moves, 1 is a new set of anchors at every "
        "step; distances in tokens have a scale that is linear near 0 and logarithmic above. Bands are 95 % intervals "
        "over samples. Thin lines and grey marks are controls: even attention, the same values shuffled over positions "
        "at every step, the untrained model; for where anchors are, all columns that exist (random).",
        " ".join(filter(None, told)),
        **tables,
    )
