"""Drift: how anchors and received attention move from one denoising step to the next, per layer.

The map of one sample over its steps is here too, as a table and as a figure.
"""

from collections.abc import Iterable, Sequence
from typing import Any

import altair as alt
import numpy as np
import polars as pl
from numpy.typing import NDArray

from floatscope.analysis.anchors import detect, field_of, parse_detector
from floatscope.analysis.depth import depth_table
from floatscope.analysis.drawing import (
    ACCENT,
    HEAT,
    INK,
    Plot,
    arrange,
    lines,
    name_axis,
    plot,
    token_axis,
    tooltips,
)
from floatscope.analysis.figure import Figure
from floatscope.analysis.findings import by_model, sentence
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
    commit[trace.slots] = trace.commit_step
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
_FAR = ("top_shift", "centroid_shift", "wasserstein")
"""Measures whose random control lies orders of magnitude above the values."""


def figure(result: Result, models: Sequence[str]) -> Figure:
    """Every drift measure per layer."""
    table = result.table
    panels = [lines(table, title, {"measure": name}, models, symlog=name in _FAR) for name, title in _TITLES.items()]
    turnover = table.filter(measure="turnover")
    beside = {name: by_model(turnover, models, name) for name in ("random", "untrained")}
    return Figure(
        "drift",
        "How far it moves",
        arrange(panels, {"table": table}),
        table,
        "Turnover 0 is a sink that never moves, 1 is a new set of anchors at every step; bands are 95 % intervals "
        "over samples. Distances in tokens have a scale that is linear near 0 and logarithmic above. Thin lines are "
        "controls: even attention, the same values shuffled over positions at every step, the untrained model.",
        finding=sentence("Turnover, mean over layers", by_model(turnover, models), beside),
        notes=result.notes,
    )


def step_map(
    traces: Iterable[Trace], models: Sequence[str], layer: int | None = None, options: Options = DEFAULTS
) -> Figure | None:
    """Received attention over steps and tokens: one sample under every model, beside the model untrained.

    Without a layer it is the one whose anchors change most under the first model, and the panels are small; with one
    (a negative one counts from the last) they are as wide as the canvas, with token texts and rings where slots
    commit.
    """
    shown = _one_sample(traces, models)
    if not shown:
        return None
    first = shown[0]
    depth = _liveliest(first) if layer is None else layer
    if layer is None:  # models of unequal depth are shown at the same relative depth
        depths = [round(depth * (trace.layers - 1) / max(1, first.layers - 1)) for trace in shown]
    else:
        depths = [layer] * len(shown)
    tables = [temporal_heatmap(trace, depth, options) for trace, depth in zip(shown, depths, strict=True)]
    table = pl.concat(tables)
    top = max(float(part["received"].max()) for part in tables)  # pyright: ignore[reportArgumentType]
    panels = [_map_panel(table, part, top, wide=layer is not None) for part in tables]
    question = first.metadata.get("question") or first.metadata.get("sample", "")
    why = f"the one whose anchors change most in {first.model} on this sample" if layer is None else "as asked for"
    return Figure(
        "drift_map",
        "Where attention goes, step by step",
        arrange(panels, {"table": table}, 1 if layer is not None else 2 if len(shown) > len(models) else 3),
        table,
        "Each row is a step, each column a token of the canvas; darker tokens receive more, small squares are "
        "anchors. Stripes are anchors that stay, marks that wander are anchors that float. The control is the "
        "untrained model.",
        finding=f"“{question}”, layer {tables[0]['layer'][0]}: {why}.",
        subtitle="square: anchor" + ("; ring: the slot commits at this step" if layer is not None else ""),
    )


def _one_sample(traces: Iterable[Trace], models: Sequence[str]) -> list[Trace]:
    """The first sample of the first model, under every model in order, each followed by its untrained control.

    A model that was not traced on that sample is shown on its own first one. Traces are gone through, not held.
    """
    sample = next((trace.metadata.get("sample") for trace in traces if _whose(trace) == (models[0], "")), None)
    same: dict[tuple[str, str], Trace] = {}
    first: dict[tuple[str, str], Trace] = {}
    for trace in traces:
        first.setdefault(_whose(trace), trace)
        if trace.metadata.get("sample") == sample:
            same.setdefault(_whose(trace), trace)
    found = []
    for model in models:
        own = same.get((model, "")) or first.get((model, ""))
        control = same.get((model, "untrained"))
        found += [trace for trace in (own, control) if trace is not None]
    return found


def _whose(trace: Trace) -> tuple[str, str]:
    """The model, and which control of it."""
    return str(trace.metadata.get("control_of", trace.model)), str(trace.metadata.get("control") or "")


def _liveliest(trace: Trace) -> int:
    """The layer whose anchors change most often; of equals, the one whose top position receives most."""
    anchors = detect(trace)  # [step, layer, token]
    changes = (anchors[1:] != anchors[:-1]).sum(axis=(0, 2)) if trace.steps > 1 else anchors.sum(axis=(0, 2)) * 0
    peaks = trace.received.max(axis=(0, 2))
    return max(range(trace.layers), key=lambda layer: (int(changes[layer]), float(peaks[layer])))


def _map_panel(table: pl.DataFrame, part: pl.DataFrame, top: float, wide: bool) -> Plot:
    texts = dict(part.sort("position").select("position", "text").unique("position", keep="first").rows())
    steps = part["step"].n_unique()
    width = max(420, min(1500, 11 * len(texts))) if wide else 640
    tokens = alt.Scale(domain=[-0.5, len(texts) - 0.5], nice=False, zero=False)
    axis = (
        token_axis(texts, width, -90) if wide else alt.Axis(values=list(range(0, len(texts), 8)), labelOverlap="parity")
    )
    y = alt.Y("step:O", title="step", scale=alt.Scale(paddingInner=0, paddingOuter=0), axis=name_axis())
    base = alt.Chart().encode(x=alt.X("position:Q", title="token", scale=tokens, axis=axis), y=y)
    # cells overlap a little, so that there are no seams between them
    edges = base.transform_calculate(left="datum.position - 0.5", right="datum.position + 0.53")
    across = {"x": alt.X("left:Q", title="token", scale=tokens, axis=axis), "x2": "right:Q"}
    shade = alt.Opacity("received:Q", scale=alt.Scale(domain=[0, top or 1], range=[0, 1]), legend=None)
    tip = [*tooltips("model", "text", "position", "step", "received"), alt.Tooltip("anchor:N")]
    square = {"shape": "square", "filled": True, "color": INK, "opacity": 1, "size": 16 if wide else 5, "tooltip": None}
    layers = [
        edges.mark_rect(color=HEAT).encode(**across, opacity=shade, tooltip=tip),
        base.transform_filter("datum.anchor").mark_point(**square),
    ]
    if wide:
        ring = base.transform_filter("datum.commits")
        layers.append(ring.mark_point(size=34, stroke=ACCENT, strokeWidth=2, opacity=1))
    model, layer = part["model"][0], part["layer"][0]
    height = steps * max(6, min(16, 150 / steps))
    return plot(layers, f"{model}, layer {layer}", table, {"model": model}, width, height, bed=True)
