"""Drift: how anchors and received attention move from one denoising step to the next, per layer.

The map of one sample over its steps is here too, as a table and as a figure.
"""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

import altair as alt
import numpy as np
import polars as pl

from floatscope.analysis.anchors import detect, field_of, parse_detector, shuffled
from floatscope.analysis.cells import Array, cell_columns, mean_known, ratio
from floatscope.analysis.depth import depth_table
from floatscope.analysis.drawing import Plot, arrange, lines, name_axis, plot, token_axis, tooltips
from floatscope.analysis.figure import Figure, finding, result_figure
from floatscope.analysis.floating import add_floating, panels, sentences, verdicts
from floatscope.analysis.palette import ACCENT, HEAT, INK
from floatscope.analysis.results import Controls, Options, Panel, Result, analyse
from floatscope.analysis.uniform import on_uniform
from floatscope.errors import UserError
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
        field = field_of(trace, options.normalisation)
        anchors = parse_detector(options.detector)(field) > 0.5
        found = _measures(trace.received, anchors, field.present)
        flat = on_uniform(trace, lambda even: trace_drift(even, options))
        random = _measures(*shuffled(trace.received, anchors, field.present, rng), field.present)
        return cell_columns(keys, value=found, uniform=flat, random=random)

    result, panel = analyse("drift", traces, keys, measure, options, controls, drift_depth=depth_table)
    if "drift_ends" not in panel.beside:
        return result
    ends = panel.beside["drift_ends"]
    further = {"drift_ends_depth": depth_table(ends, options), "drift_verdicts": verdicts(ends, options)}
    return replace(result, tables={**result.tables, **further})


def trace_drift(trace: Trace, options: Options) -> dict[str, Array]:
    """Every measure of one trace, [layer]; nan where it is undefined."""
    field = field_of(trace, options.normalisation)
    return _measures(trace.received, parse_detector(options.detector)(field) > 0.5, field.present)


def _measures(received: Array, anchors: Array, present: Array) -> dict[str, Array]:
    """received, anchors, present: [step, layer, token] -> each measure [layer]."""
    if len(received) < 2:
        return {name: np.full(received.shape[1], np.nan) for name in MEASURES}
    share = received / np.maximum(received.sum(axis=-1, keepdims=True), 1e-12)
    centroid = share @ np.arange(received.shape[-1], dtype=np.float64)  # [step, layer]
    top = np.where(present, received, -1).argmax(axis=-1)
    before, after = share[:-1], share[1:]
    lengths = np.sqrt(np.einsum("slt,slt->sl", share, share))
    ever, always = anchors.any(axis=0).sum(axis=-1), anchors.all(axis=0).sum(axis=-1)
    union, common = (anchors[1:] | anchors[:-1]).sum(axis=-1), (anchors[1:] & anchors[:-1]).sum(axis=-1)
    begins = anchors.copy()  # a life begins where the step before had no anchor
    begins[1:] &= ~anchors[:-1]
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
        "top_overlap": _top_overlap(received),
    }
    return {name: np.asarray(measures[name], np.float64) for name in MEASURES}


def _top_overlap(received: Array) -> Array:
    count = min(TOP, received.shape[-1])
    best = np.argpartition(received, -count, axis=-1)[..., -count:]
    among = np.zeros(received.shape, bool)
    np.put_along_axis(among, best, True, axis=-1)
    return (among[1:] & among[:-1]).sum(axis=-1).mean(axis=0) / count


def temporal_heatmap(trace: Trace, layer: int, options: Options) -> pl.DataFrame:
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
    """From the first step to the last and over the run; and every measure from one step to the next per layer."""
    table = result.table
    groups, tables = panels(result, models)
    groups["from one step to the next"] = [
        lines(table, title, {"measure": name}, models, symlog=name in _FAR) for name, title in _TITLES.items()
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


def step_map(traces: Iterable[Trace], models: Sequence[str], layer: int | None, options: Options) -> Figure | None:
    """Received attention over steps and tokens: one sample under every model, beside the model untrained.

    Without a layer it is the one whose anchors change most under the first model, and the panels are small; with one
    (a negative one counts from the last) they are as wide as the canvas, with token texts and rings where slots
    commit.
    """
    shown = _one_sample(traces, models)
    if not shown:
        return None
    first = shown[0]
    if layer is None:  # models of unequal depth are shown at the same relative depth
        lively = _liveliest(first)
        depths = [round(lively * (trace.layers - 1) / max(1, first.layers - 1)) for trace in shown]
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
    own = {key: trace for key, trace in first.items() if key[1] == ""} | same
    pairs = [(model, control) for model in models for control in ("", "untrained")]
    return [own[pair] for pair in pairs if pair in own]


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
