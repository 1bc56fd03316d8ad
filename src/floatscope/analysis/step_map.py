"""The map of one sample: received attention over steps and tokens, under every model, for each side of the answer."""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

import altair as alt
import numpy as np
import polars as pl

from floatscope.analysis.anchors import detect
from floatscope.analysis.drawing import Plot, arrange, name_axis, plot, shade, token_axis, tooltips
from floatscope.analysis.figure import Figure
from floatscope.analysis.floating import side_of
from floatscope.analysis.palette import ACCENT, CONTROL, HEAT, INK
from floatscope.analysis.results import Options
from floatscope.errors import UserError
from floatscope.traces import Trace

SIDES = {"right": "answer at the right", "left": "answer at the left", "between": "answer between other tokens"}
MOST_ROWS = 17
"""Steps that a small map shows of a longer run, the first and the last among them."""
MOST_LAYERS, MOST_CELLS = 8, 24_000
"""Layers to choose from, evenly spaced, and cells of all of them together: as many layers as fit, at least one."""


def exchanged(trace: Trace, options: Options) -> float:
    """1 - Jaccard of the anchors of first and last step, mean over the layers that have any; 0 where none has."""
    first, last = detect(trace, options.detector, options.normalisation)[[0, -1]] > 0.5  # [layer, token]
    either, both = (first | last).sum(axis=-1), (first & last).sum(axis=-1)
    return float(np.mean(1 - both[either > 0] / either[either > 0])) if either.any() else 0.0


def step_map(traces: Iterable[Trace], models: Sequence[str], layer: int | None, options: Options) -> Figure | None:
    """Received attention over steps and tokens: one sample under every model, a row of panels for each side.

    Where all answers stand on one side, each model has its untrained control beside it. Without a layer it is the one
    that exchanges most anchors under the first model (of equals, where most is received), in small panels; with one (a
    negative one counts from the last) they are as wide as the canvas, with token texts and rings where slots commit.
    """
    shown = _one_sample_per_side(traces, models, options)
    if not shown:
        return None
    if layer is not None:
        return _map_at(shown, models, layer, options, True, "as asked for")
    first = next(iter(shown.values()))[0]
    anchors = detect(first, options.detector, options.normalisation) > 0.5  # [step, layer, token]
    changes, peaks = (anchors[0] != anchors[-1]).sum(axis=-1), first.received.max(axis=(0, 2))
    lively = max(range(first.layers), key=lambda layer: (int(changes[layer]), float(peaks[layer])))
    why = f"the one that exchanges most anchors in {first.model}"
    picture = _map_at(shown, models, lively, options, False, why)
    count = min(MOST_LAYERS, first.layers, MOST_CELLS // picture.table.height)
    others = {*np.linspace(0, first.layers - 1, max(0, count)).round().astype(int).tolist()} - {lively}
    pictures = [picture, *(_map_at(shown, models, other, options, False, why) for other in others)]
    return replace(picture, layers=tuple(sorted(pictures, key=lambda one: one.layer or 0)) if others else ())


def _map_at(
    shown: dict[str, list[Trace]], models: Sequence[str], layer: int, options: Options, wide: bool, why: str
) -> Figure:
    """The map of a layer; where small, models of unequal depth are shown at the same relative depth."""
    parts: dict[str, list[pl.DataFrame]] = {}
    told = []
    first = next(iter(shown.values()))[0]
    for side, group in shown.items():
        runs = ", ".join(f"{trace.model} {100 * exchanged(trace, options):.0f} %" for trace in group)
        told.append(f"{runs} ({SIDES[side]})" if len(shown) > 1 else runs)
        for trace in group:
            depth = layer if wide else round(layer * (trace.layers - 1) / max(1, first.layers - 1))
            steps = range(trace.steps) if wide else np.linspace(0, trace.steps - 1, MOST_ROWS).round().astype(int)
            part = temporal_heatmap(trace, depth, options).filter(pl.col("step").is_in(list(steps)))
            parts.setdefault(side, []).append(part.with_columns(side=pl.lit(side)))
    table = pl.concat([part for group in parts.values() for part in group])
    top = float(table["received"].max())  # pyright: ignore[reportArgumentType]
    several = len(parts) > 1
    width = None if wide else 420 if several else 640
    groups = {SIDES[side].capitalize(): [_panel(table, one, top, width) for one in parts[side]] for side in parts}
    panels = groups if several else next(iter(groups.values()))
    columns = 1 if wide else 3 if several or len(panels) <= len(models) else 2
    question = first.metadata.get("question") or first.metadata.get("sample", "")
    return Figure(
        "drift_map",
        "Where attention goes, step by step",
        arrange(panels, {"table": table}, columns),
        table,
        "Each row is a step, each column a token of the canvas; darker tokens receive more, by its root; small squares "
        "are anchors, the line above marks the slots of the answer, the grey bands the documents in their order. "
        "Stripes are anchors that stay, marks that wander are anchors "
        f"that float. {'An ARM writes at the right only.' if several else 'The control is the untrained model.'} The "
        f"sample is the one in which most is exchanged, “{question}”; layer {table['layer'][0]}: {why}.",
        finding=f"Anchors that change from the first step to the last in this sample: {'; '.join(told)}.",
        subtitle="square: anchor; line above: the answer" + ("; ring: the slot commits at this step" if wide else ""),
        layer=table["layer"][0],
    )


def temporal_heatmap(trace: Trace, layer: int, options: Options) -> pl.DataFrame:
    """One row per step and position of a layer: received attention, whether an anchor, a slot, whether it commits."""
    if not -trace.layers <= layer < trace.layers:
        raise UserError(f"The trace of {trace.model!r} has {trace.layers} layers; there is no layer {layer}.")
    layer %= trace.layers
    weights = detect(trace, options.detector, options.normalisation)[:, layer] > 0.5
    present = trace.visible[:, layer] > 0
    step, position = np.nonzero(present)
    commit = np.full(len(trace.canvas), -1)
    commit[trace.slots] = trace.commit_step
    region, band = np.full(len(trace.canvas), "", object), np.zeros(len(trace.canvas), int)
    for one in (one for one in trace.regions if one.label.startswith("doc ")):
        region[one.start : one.stop] = one.label
        band[one.start : one.stop] = 2 - int(one.label.removeprefix("doc ")) % 2  # 1, 2, 1, ...
    return pl.DataFrame(
        {
            "model": trace.model,
            "layer": layer,
            "step": step,
            "position": position,
            "text": pl.Series(trace.texts_or_ids)[position],
            "received": pl.Series(trace.received[:, layer][step, position].astype(float)).round_sig_figs(4),
            "anchor": weights[step, position],
            "slot": np.isin(position, trace.slots),
            "commits": commit[position] == step,
            "region": pl.Series(region[position].tolist(), dtype=pl.String),
            "band": band[position],
        }
    )


def _one_sample_per_side(traces: Iterable[Trace], models: Sequence[str], options: Options) -> dict[str, list[Trace]]:
    """By side of the answer: the sample that exchanges most anchors under its first model, under every model in order.

    One with controls goes before others, which may be there because of their answers (`trace_wrong`). A model that was
    not traced on that sample is shown on its own first one; one that has nothing on that side is left out. Where there
    is one side only, each is followed by its untrained control. Traces are gone through, not held.
    """
    about = ((trace.metadata.get(name) for name in ("control", "sample", "condition")) for trace in traces)
    controlled = {(sample, condition) for control, sample, condition in about if control}
    best: dict[str, tuple[tuple[int, bool, float], Any]] = {}
    for trace in traces:
        model, control = _whose(trace)
        if model in models and not control:
            alone = (trace.metadata.get("sample"), trace.metadata.get("condition")) not in controlled
            rank = (models.index(model), alone, -exchanged(trace, options))
            if (side := side_of(trace)) not in best or rank < best[side][0]:
                best[side] = rank, (trace.metadata.get("sample"), trace.metadata.get("condition"))
    nearest: dict[tuple[str, str, str], tuple[int, Trace]] = {}  # how far it is from the sample and its condition
    for trace in traces:
        key = (side_of(trace), *_whose(trace))
        if key[0] in best:
            sample, condition = best[key[0]][1]
            far = 2 * (trace.metadata.get("sample") != sample) + (trace.metadata.get("condition") != condition)
            is_control = key[2] != ""
            if far < nearest.get(key, (2 if is_control else 4, trace))[0]:
                nearest[key] = far, trace
    controls = ("", "untrained") if len(best) == 1 else ("",)
    pairs = [(model, control) for model in models for control in controls]
    return {
        side: [nearest[side, *pair][1] for pair in pairs if (side, *pair) in nearest] for side in SIDES if side in best
    }


def _whose(trace: Trace) -> tuple[str, str]:
    """The model, and which control of it."""
    return str(trace.metadata.get("control_of", trace.model)), str(trace.metadata.get("control") or "")


def _panel(table: pl.DataFrame, part: pl.DataFrame, top: float, narrow: int | None) -> Plot:
    """narrow: the width of a small panel; else it is as wide as its canvas and has texts."""
    wide = narrow is None
    texts = dict(part.sort("position").select("position", "text").unique("position", keep="first").rows())
    steps = part["step"].n_unique()
    width = narrow or max(420, min(1500, 11 * len(texts)))
    tokens = alt.Scale(domain=[-0.5, len(texts) - 0.5], nice=False, zero=False)
    apart = 8 if len(texts) < 200 else 32
    axis = alt.Axis(values=[*range(0, len(texts), apart)], labelOverlap="parity")
    axis = token_axis(texts, width, -90) if wide else axis
    y = alt.Y("step:O", title="step", scale=alt.Scale(paddingInner=0, paddingOuter=0), axis=name_axis())
    base = alt.Chart().encode(x=alt.X("position:Q", title="token", scale=tokens, axis=axis), y=y)
    # cells overlap a little, so that there are no seams between them
    edges = base.transform_calculate(left="datum.position - 0.5", right="datum.position + 0.53")
    across = {"x": alt.X("left:Q", title="token", scale=tokens, axis=axis), "x2": "right:Q"}
    above = {"y": alt.value(-5), "y2": alt.value(-2)}  # pixels, seen from the first row
    tip = [*tooltips("model", "text", "position", "step", "received"), alt.Tooltip("anchor:N")]
    square = {"shape": "square", "filled": True, "color": INK, "opacity": 1, "size": 16 if wide else 5, "tooltip": None}
    last = f"datum.step == {part['step'].max()}"
    known = edges.transform_filter(f"datum.slot && {last}")
    band = {"y": alt.value(-11), "y2": alt.value(-7), "tooltip": [alt.Tooltip("region:N")]}
    bands = [
        edges.transform_filter(f"datum.band == {parity} && {last}").mark_rect(color=CONTROL, opacity=dark)
        for parity, dark in ((1, 0.75), (2, 0.35))
    ]
    layers = [
        edges.mark_rect(color=HEAT).encode(**across, opacity=shade("received", top, root=True), tooltip=tip),
        base.transform_filter("datum.anchor").mark_point(**square),
        known.mark_rect(color=ACCENT, opacity=1, tooltip=None).encode(**across, **above),
        *(one.encode(**across, **band) for one in bands),
    ]
    if wide:
        ring = base.transform_filter("datum.commits")
        layers.append(ring.mark_point(size=34, stroke=ACCENT, strokeWidth=2, opacity=1))
    where = {name: part[name][0] for name in ("model", "side")}
    height = steps * max(6, min(16, 150 / steps))
    return plot(layers, f"{where['model']}, layer {part['layer'][0]}", table, where, width, height, bed=True)
