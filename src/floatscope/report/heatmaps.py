"""Pictures of single traces: received attention over steps, and the QK matrices of a layer; token texts on the axes."""

import json
import re
from collections.abc import Callable, Iterable
from typing import Any

import altair as alt
import polars as pl

from floatscope.analysis import drift, qk
from floatscope.analysis.results import DEFAULTS, Options
from floatscope.analysis.token_text import plain_text
from floatscope.report.drawing import Chart, Theme, inline_data, sparse_axis, themed
from floatscope.traces import Trace

_MARK = "#D55E00"
_MOST_CELLS = 96
_LABEL = 9
"""Pixels that a token's text takes on an axis."""


def temporal_heatmap(table: pl.DataFrame, theme: Theme = "light") -> Chart:
    """One layer: steps down, positions across, anchors hatched, commits ringed, token texts on the axis."""
    texts = dict(table.sort("position").select("position", "text").unique("position").rows())
    width = max(420, min(1500, 11 * len(texts)))
    steps = table["step"].n_unique()
    base = alt.Chart(inline_data(table)).encode(
        x=alt.X("position:O", axis=_text_axis(texts, width, -90), title="token"),
        y=alt.Y("step:O", title="step", axis=sparse_axis(table["step"])),
    )
    cells = base.mark_rect().encode(
        color=alt.Color("received:Q", title="received", scale=alt.Scale(scheme="viridis", type="sqrt"))
    )
    stroke = "///" if width >= 8 * len(texts) else "/"
    bright = f"datum.received > {0.35 * (table.select(pl.max('received')).item() or 0)}"
    hatch = (
        base.transform_filter("datum.anchor")
        .mark_text(text=stroke, fontSize=9, fontWeight="bold")
        .encode(color=alt.condition(bright, alt.value("#1b1b1b"), alt.value("#ffffff")))
    )
    ring = base.transform_filter("datum.commits").mark_point(
        shape="circle", size=34, stroke=_MARK, strokeWidth=2.5, opacity=1
    )
    chart = alt.layer(cells, hatch, ring).properties(width=width, height=max(120, min(520, 15 * steps)))
    title = f"{table['model'][0]}: received attention, layer {table['layer'][0]}"
    return themed(chart, theme, title, "/// anchor, ring: the slot commits at this step")


def qk_heatmaps(table: pl.DataFrame, theme: Theme = "light") -> Chart:
    """q.k, cos and |q||k| of one layer, token texts on the axes; anchor columns marked above.

    Larger matrices are drawn as means over square blocks of pairs, so that a figure stays a few megabytes.
    """
    block = -(-table["token"].n_unique() // _MOST_CELLS)
    blocks = [(pl.col(name) // block * block).alias(name) for name in ("row", "token")]
    means = [pl.col("qk", "cos", "norm").mean(), pl.col("anchor").any()]
    known = table.drop_nulls("qk").with_columns(blocks).group_by("row", "token", maintain_order=True).agg(means)
    starts = table.filter(pl.col("token") % block == 0).sort("token")
    texts = dict(starts.select("token", "text").unique("token").rows())
    size = max(260, min(560, _LABEL * len(texts)))
    charts = []
    for name, title in (("qk", "q.k"), ("cos", "cos"), ("norm", "|q||k|")):
        key = alt.X("token:O", axis=_text_axis(texts, size, -90), title="key")
        base = alt.Chart(inline_data(known.select("row", "token", "anchor", name))).encode(x=key)
        cells = base.mark_rect().encode(
            y=alt.Y("row:O", axis=_text_axis(texts, size, 0), title="query"),
            color=alt.Color(f"{name}:Q", title=title, scale=alt.Scale(scheme="viridis")),
        )
        marks = base.transform_filter("datum.anchor").mark_point(
            shape="triangle-down", filled=True, size=40, color=_MARK, opacity=1, yOffset=-6
        )
        layered = alt.layer(cells, marks.encode(y=alt.value(0))).properties(width=size, height=size, title=title)
        charts.append(layered)
    joined = alt.hconcat(*charts).resolve_scale(color="independent")
    title = f"{table['model'][0]}: layer {table['layer'][0]}, step {table['step'][0]}"
    pooled = f", cells are means over {block} x {block} pairs" if block > 1 else ""
    return themed(joined, theme, title, f"triangle: anchor{pooled}")


def trace_heatmaps(
    analysis: str, traces: Iterable[Trace], layer: int, options: Options = DEFAULTS, theme: Theme = "light"
) -> dict[str, Chart]:
    """Charts by file name, one for the first trace of each model that can be drawn; none for other analyses.

    drift: received attention over steps. qk: the three matrices, of traces that kept them. A negative layer counts
    from the last.
    """
    if analysis not in _PICTURES:
        return {}
    charts: dict[str, Chart] = {}
    for trace in traces:
        stem = f"{analysis}_heatmap_{re.sub(r'[^A-Za-z0-9.-]+', '-', trace.model).strip('-')}"
        if stem not in charts and (analysis != "qk" or {"queries", "keys"} <= set(trace.arrays)):
            charts[stem] = _PICTURES[analysis](trace, layer, options, theme)
    return charts


def _drift(trace: Trace, layer: int, options: Options, theme: Theme) -> Chart:
    return temporal_heatmap(drift.temporal_heatmap(trace, layer, options), theme)


def _qk(trace: Trace, layer: int, options: Options, theme: Theme) -> Chart:
    return qk_heatmaps(qk.qk_heatmaps(trace, layer, options=options), theme)


_PICTURES: dict[str, Callable[[Trace, int, Options, Theme], Chart]] = {"drift": _drift, "qk": _qk}


def _text_axis(texts: dict[int, str], pixels: int, angle: int) -> alt.Axis:
    """Token texts, as many as fit."""
    every = max(1, -(-_LABEL * len(texts) // pixels))
    shown: dict[str, Any] = {str(place): _short(texts[place]) for place in sorted(texts)[::every]}
    return alt.Axis(
        values=[int(place) for place in shown],
        labelExpr=f"{json.dumps(shown)}[datum.value]",
        labelAngle=angle,
        labelOverlap=False,
        labelFontSize=8,
        ticks=False,
    )


def _short(text: str) -> str:
    return (plain_text(text).replace("\n", "↵").strip() or "␣")[:10]
