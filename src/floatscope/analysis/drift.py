"""Drift: how anchors and received attention move from one denoising step to the next, per layer.

The temporal heatmap of one trace is here too, as a table; drawing it is left to `floatscope.report`.
"""

from collections.abc import Iterable
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from floatscope.analysis.anchors import detect, field_of, parse_detector
from floatscope.analysis.depth import depth_table
from floatscope.analysis.results import (
    DEFAULTS,
    NO_CONTROLS,
    Controls,
    Options,
    Panel,
    Result,
    analyse,
)
from floatscope.analysis.uniform import uniform_layers
from floatscope.errors import UserError
from floatscope.statistics import spearman
from floatscope.traces import Trace

Array = NDArray[Any]
MEASURES: dict[str, str] = {
    "turnover": "1 - Jaccard of the anchor sets of consecutive steps",
    "centroid_shift": "displacement of the received-weighted centroid, in tokens a step",
    "top_shift": "displacement of the position that receives most, in tokens a step",
    "wasserstein": "Wasserstein-1 between consecutive received distributions, in tokens",
    "lifetime": "mean number of consecutive steps that a position stays an anchor",
    "static_share": "share of the positions ever an anchor that are one at every step",
    "direction": "Spearman correlation of the top position with the step",
    "cosine": "cosine of consecutive received distributions",
    "top_overlap": "share of the ten most attended positions that stay among them",
}
TOP = 10


def drift(traces: Iterable[Trace], options: Options = DEFAULTS, controls: Controls = NO_CONTROLS) -> Result:
    """Every drift measure per model and layer; random control: received attention shuffled at every step."""

    def measure(trace: Trace, rng: np.random.Generator, panel: Panel) -> dict[str, Any]:
        if trace.steps < 2:
            panel.note("Traces of one step have no drift: their values are null.")
        field = field_of(trace, options.normalisation)
        chosen = parse_detector(options.detector)(field) > 0.5
        found = _measures(trace.received, chosen, field.present)
        even, kinds = uniform_layers(trace)
        flat = trace_drift(even, options)
        shuffled = _measures(*_shuffle(trace.received, chosen, field.present, rng), field.present)
        return {
            "measure": np.repeat(list(MEASURES), trace.layers),
            "layer": np.tile(np.arange(trace.layers), len(MEASURES)),
            "value": np.concatenate([found[name] for name in MEASURES]),
            "uniform": np.concatenate([flat[name][kinds] for name in MEASURES]),
            "random": np.concatenate([shuffled[name] for name in MEASURES]),
        }

    result, panel = analyse("drift", traces, ("measure", "layer"), measure, options, controls)
    return Result("drift", {**result.tables, "drift_depth": depth_table(panel, options)}, result.notes)


def trace_drift(trace: Trace, options: Options = DEFAULTS) -> dict[str, Array]:
    """Every measure of one trace, [layer]; nan where it is undefined."""
    field = field_of(trace, options.normalisation)
    return _measures(trace.received, parse_detector(options.detector)(field) > 0.5, field.present)


def _shuffle(received: Array, anchors: Array, present: Array, rng: np.random.Generator) -> tuple[Array, Array]:
    """received, anchors [step, layer, token] with the columns that exist shuffled at every step and layer."""
    order = np.argsort(np.where(present, rng.random(present.shape, np.float32), 2), axis=-1)  # absent ones last
    places = np.argsort(~present, axis=-1, kind="stable") if not present.all() else np.arange(present.shape[-1])
    shuffled = np.zeros_like(received), np.zeros_like(anchors)
    for found, values in zip(shuffled, (received, anchors), strict=True):
        drawn = np.take_along_axis(values, order, axis=-1)
        np.put_along_axis(found, np.broadcast_to(places, present.shape), drawn, axis=-1)
    return shuffled


def _measures(received: Array, anchors: Array, present: Array) -> dict[str, Array]:
    """received, anchors, present: [step, layer, token] -> each measure [layer]."""
    layers = received.shape[1]
    nothing = np.full(layers, np.nan)
    measures = {"lifetime": _lifetime(anchors), "static_share": _static_share(anchors)}
    if len(received) < 2:
        return {name: nothing for name in MEASURES}
    share = received / np.maximum(received.sum(axis=-1, keepdims=True), 1e-12)
    place = np.arange(received.shape[-1])
    centroid = share @ place.astype(np.float64)  # [step, layer]
    top = np.where(present, received, -1).argmax(axis=-1)
    before, after = share[:-1], share[1:]
    lengths = np.sqrt(np.einsum("slt,slt->sl", share, share))
    measures |= {
        "turnover": _turnover(anchors),
        "centroid_shift": np.abs(np.diff(centroid, axis=0)).mean(axis=0),
        "top_shift": np.abs(np.diff(top, axis=0)).mean(axis=0),
        "wasserstein": np.abs(np.cumsum(after - before, axis=-1, dtype=np.float64)).sum(axis=-1).mean(axis=0),
        "direction": spearman(top.T, np.arange(len(top))) if len(top) > 2 else nothing,
        "cosine": (np.einsum("slt,slt->sl", before, after) / (lengths[:-1] * lengths[1:])).mean(axis=0),
        "top_overlap": _top_overlap(received),
    }
    return {name: np.asarray(measures[name], np.float64) for name in MEASURES}


def _turnover(anchors: Array) -> Array:
    """Pairs of steps without any anchor are left out; nan where there is no pair left."""
    union = (anchors[1:] | anchors[:-1]).sum(axis=-1)
    common = (anchors[1:] & anchors[:-1]).sum(axis=-1)
    known = union > 0
    changed = np.where(known, 1 - common / np.maximum(union, 1), 0).sum(axis=0)
    pairs = known.sum(axis=0)
    return np.divide(changed, pairs, out=np.full(pairs.shape, np.nan), where=pairs > 0)


def _lifetime(anchors: Array) -> Array:
    """Steps that anchors live / number of lives: a life begins where the step before had no anchor."""
    begins = anchors.copy()
    begins[1:] &= ~anchors[:-1]
    lives = begins.sum(axis=(0, 2))
    return np.divide(anchors.sum(axis=(0, 2)), lives, out=np.full(lives.shape, np.nan), where=lives > 0)


def _static_share(anchors: Array) -> Array:
    ever = anchors.any(axis=0).sum(axis=-1)
    always = anchors.all(axis=0).sum(axis=-1)
    return np.divide(always, ever, out=np.full(ever.shape, np.nan), where=ever > 0)


def _top_overlap(received: Array) -> Array:
    count = min(TOP, received.shape[-1])
    best = np.argpartition(received, -count, axis=-1)[..., -count:]
    among = np.zeros(received.shape, bool)
    np.put_along_axis(among, best, True, axis=-1)
    return (among[1:] & among[:-1]).sum(axis=-1).mean(axis=0) / count


def temporal_heatmap(trace: Trace, layer: int, options: Options = DEFAULTS) -> pl.DataFrame:
    """One row per step and position of a layer: received attention, whether an anchor, whether it commits."""
    if not -trace.layers <= layer < trace.layers:
        raise UserError(f"The trace of {trace.model!r} has {trace.layers} layers; there is no layer {layer}.")
    layer %= trace.layers
    weights = detect(trace, options.detector, options.normalisation)[:, layer] > 0.5
    present = trace.visible[:, layer] > 0
    step, position = np.nonzero(present)
    commit = np.full(len(trace.canvas), -1)
    commit[trace.prompt_length :] = trace.commit_step
    texts = np.array(trace.texts_or_ids, dtype=object)
    return pl.DataFrame(
        {
            "model": [trace.model] * len(step),
            "layer": [layer] * len(step),
            "step": step,
            "position": position,
            "text": [str(text) for text in texts[position]],
            "received": trace.received[:, layer][step, position].astype(float),
            "anchor": weights[step, position],
            "commits": commit[position] == step,
        }
    )
