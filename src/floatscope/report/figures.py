"""One figure per analysis, drawn from its Result with altair; controls stand in every figure, thin and grey.

Numbers come from the tables as they are. Files are written without any network: SVG, PDF and PNG by vl-convert,
HTML with the drawing library inside.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import altair as alt
import polars as pl

from floatscope.analysis.results import Result
from floatscope.errors import UserError

Theme = Literal["light", "dark"]
Chart = Any
"""Any altair chart: single, layered, faceted or concatenated."""
FORMATS = ("svg", "pdf", "html", "png")
_COLOURS: dict[str, dict[str, Any]] = {
    "light": {
        "paper": "#ffffff",
        "ink": "#222222",
        "faint": "#e3e3e3",
        "control": "#8a8a8a",
        "models": ["#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#7F6BB3", "#8C6D31"],
    },
    "dark": {
        "paper": "#16181d",
        "ink": "#e6e6e6",
        "faint": "#33363d",
        "control": "#9a9a9a",
        "models": ["#56B4E9", "#F08A3C", "#2FC49A", "#E79BC4", "#F0E442", "#8FA8FF", "#B9A3E3", "#D2B36B"],
    },
}
"""Models have Okabe and Ito's colours, told apart without red and green; lighter ones on a dark page."""
_CONTROL_DASH = {"uniform": [1, 0], "random": [4, 3], "untrained": [1, 3]}
_CLASS_COLOURS = {
    "mask": "#999999",
    "special": "#004B78",
    "whitespace": "#0072B2",
    "punctuation": "#56B4E9",
    "scaffold": "#A6D5F2",
    "function": "#009E73",
    "number": "#E69F00",
    "content": "#D55E00",
}


def save_figure(chart: Chart, stem: str | Path, formats: Sequence[str] = ("svg", "pdf", "html")) -> list[Path]:
    """Write `stem.svg` and so on; the HTML opens offline."""
    paths = []
    for name in formats:
        if name not in FORMATS:
            raise UserError(f"There is no figure format {name!r}; known are {', '.join(FORMATS)}.")
        paths.append(Path(f"{stem}.{name}"))
        try:
            if name == "html":
                chart.save(paths[-1], inline=True)
            else:
                chart.save(paths[-1], **({"scale_factor": 2} if name == "png" else {}))
        except OSError as error:
            raise UserError(f"The figure could not be written to {paths[-1]} ({error}).") from error
    return paths


def anchors(result: Result, theme: Theme = "light") -> Chart:
    """Number of anchors per layer by detector."""
    table = result.table.filter(measure="count", normalisation="rows")
    return _themed(_profiles(table, "detector", "anchors per step", theme), theme, "Anchors by detector and layer")


def drift(result: Result, theme: Theme = "light") -> Chart:
    """Every drift measure per layer."""
    return _themed(_profiles(result.table, "measure", "value", theme), theme, "Drift from step to step, by layer")


def absorption(result: Result, theme: Theme = "light") -> Chart:
    """Percent of attention per layer, by set and by whose rows ask."""
    panel = (pl.col("set") + ", " + pl.col("rows") + " rows").alias("panel")
    chart = _profiles(result.table.with_columns(panel), "panel", "% of attention", theme, columns=2, shared=True)
    return _themed(chart, theme, "Absorption: attention on bos, detected anchors and the top position")


def dispersion(result: Result, theme: Theme = "light") -> Chart:
    """Every dispersion measure per layer."""
    return _themed(_profiles(result.table, "measure", "value", theme, columns=2), theme, "Dispersion by layer")


def qk(result: Result, theme: Theme = "light") -> Chart:
    """Anchor advantages and their parts per layer."""
    chart = _profiles(result.table, "measure", "standard deviations", theme, shared=True)
    return _themed(chart, theme, "Anchor advantage in q.k, and its parts")


def compat(result: Result, theme: Theme = "light") -> Chart:
    """Published and exact values per layer, by quirk; a quirk of the whole stack is a pair of points."""
    long = result.table.unpivot(
        ["published", "exact"], index=["model", "quirk", "layer"], variable_name="version", value_name="value"
    ).with_columns(pl.col("layer").fill_null(0))
    base = alt.Chart(_data(long)).encode(
        x=alt.X("layer:Q", title="layer", axis=alt.Axis(tickMinStep=1)),
        y=alt.Y("value:Q", title=None),
        color=_model_colour(theme),
        strokeDash=alt.StrokeDash("version:N", title="version", scale=alt.Scale(domain=["published", "exact"])),
        detail="version:N",
    )
    layered = alt.layer(base.mark_line(), base.mark_point(size=18)).properties(width=220, height=140)
    chart = layered.facet(facet=_facet("quirk"), columns=3).resolve_scale(y="independent")
    return _themed(chart, theme, "Published computations beside exact ones")


def token_classes(result: Result, theme: Theme = "light") -> Chart:
    """What anchors are made of by depth, beside random positions, even attention and the untrained model."""
    sources = {"value": "anchors", "random": "random", "uniform": "uniform", "untrained": "untrained"}
    table = result.table.filter(pl.col("phase") == "all", pl.col("depth") != "all")
    long = table.unpivot(list(sources), index=["model", "depth", "class"], variable_name="source", value_name="share")
    long = long.drop_nulls("share").with_columns(pl.col("source").replace_strict(sources))
    order = list(_CLASS_COLOURS)
    rank = pl.col("class").replace_strict({name: n for n, name in enumerate(order)}).alias("rank")
    bars = (
        alt.Chart(_data(long.with_columns(rank)))
        .mark_bar()
        .encode(
            x=alt.X("source:N", sort=list(sources.values()), title=None, axis=alt.Axis(labelAngle=-40)),
            y=alt.Y("share:Q", title="share of mass", scale=alt.Scale(domain=[0, 1])),
            color=alt.Color(
                "class:N", title="class", scale=alt.Scale(domain=order, range=list(_CLASS_COLOURS.values()))
            ),
            order="rank:Q",
            opacity=alt.condition("datum.source == 'anchors'", alt.value(1), alt.value(0.45)),
        )
        .properties(width=150, height=170)
    )
    depth = alt.Column("depth:N", sort=["shallow", "middle", "deep"], title=None)
    return _themed(bars.facet(row=alt.Row("model:N", title=None), column=depth), theme, "What anchors are made of")


def retrieval_heads(result: Result, theme: Theme = "light") -> Chart:
    """Layer x head heatmaps by score, and the depth profile with its controls."""
    table = result.table.drop_nulls("value")
    cells = (
        alt.Chart(_data(table))
        .mark_rect()
        .encode(
            x=alt.X("head:O", axis=_sparse(table["head"])),
            y=alt.Y("layer:O", sort="descending", axis=_sparse(table["layer"])),
            color=alt.Color("value:Q", title="score", scale=alt.Scale(scheme="viridis")),
        )
        .properties(width=190, height=190)
        .facet(row=alt.Row("model:N", title=None), column=alt.Column("score:N", title=None))
        .resolve_scale(color="shared", x="shared", y="independent")
    )
    depth = result.tables["retrieval_heads_depth"].drop_nulls("value")
    profile = _dots(depth, "depth", ["shallow", "middle", "deep"], "mean score", theme).facet(
        row=alt.Row("model:N", title=None), column=alt.Column("score:N", title=None)
    )
    return _themed(alt.vconcat(cells, profile), theme, "Retrieval heads")


def flow(result: Result, theme: Theme = "light") -> Chart:
    """Rollout between regions for every gold position, and from the answer to each document."""
    table = result.table.filter(view="rollout", form="pooled", window="all").drop_nulls("value")
    labels = table["source"].unique(maintain_order=True).to_list()
    is_gold = pl.col("gold").str.split(" + ").list.contains(pl.col("target")) & (pl.col("source") == "answer")
    data = _data(table.with_columns(is_gold.alias("is_gold")))
    base = alt.Chart(data).encode(
        x=alt.X("target:N", sort=labels, title="to", axis=alt.Axis(labelAngle=-45)),
        y=alt.Y("source:N", sort=labels, title="from"),
    )
    cells = base.mark_rect().encode(color=alt.Color("value:Q", title="flow", scale=alt.Scale(scheme="viridis")))
    gold = base.transform_filter("datum.is_gold").mark_point(shape="diamond", size=70, stroke="white", strokeWidth=2)
    size = 24 * len(labels)
    maps = alt.layer(cells, gold).properties(width=size, height=size)
    heat = maps.facet(row=alt.Row("model:N", title=None), column=alt.Column("gold:N", title="gold at"))
    documents = result.tables["flow_gold"].filter(window="all")
    if documents.is_empty():
        return _themed(heat, theme, "Flow between regions (rollout)")
    names = documents["target"].unique(maintain_order=True).to_list()
    lines = _dots(documents, "target", names, "answer to document", theme, joined=True).facet(
        row=alt.Row("model:N", title=None), column=alt.Column("gold:N", title="gold at")
    )
    return _themed(alt.vconcat(heat, lines), theme, "Flow between regions (rollout)")


def query_state(result: Result, theme: Theme = "light") -> Chart:
    """Where masked and committed slots look, by region and token class."""
    table = result.table.filter(pl.col("depth") == "all", pl.col("state") != "masked - committed").drop_nulls("value")
    order = table["target"].unique(maintain_order=True).to_list()
    base = alt.Chart(_data(table)).encode(y=alt.Y("target:N", sort=order, title=None))
    shape = alt.Shape("state:N", title="query", scale=alt.Scale(range=["circle", "square"]))
    points = base.mark_point(filled=True, opacity=1, size=60).encode(
        x=_share_axis(), color=_model_colour(theme), shape=shape
    )
    ranges = base.mark_rule().encode(x="low:Q", x2="high:Q", color=_model_colour(theme))
    control = base.mark_tick(color=_colours(theme)["control"], thickness=1.5, size=14).encode(x="uniform:Q")
    chart = alt.layer(control, ranges, points).properties(width=260, height=alt.Step(20))
    faceted = chart.facet(row=alt.Row("target_kind:N", title=None), column=alt.Column("model:N", title=None))
    return _themed(faceted.resolve_scale(y="independent"), theme, "Where answer slots look (grey: uniform)")


def task_dependence(result: Result, theme: Theme = "light") -> Chart:
    """Distance between tasks minus distance within tasks, with random positions as the control."""
    table = result.table.drop_nulls("value").with_columns(low=pl.col("value"), high=pl.col("value"))
    chart = _dots(table, "depth", ["shallow", "middle", "deep", "all"], "between - within", theme).facet(
        row=alt.Row("model:N", title=None), column=alt.Column("profile:N", title=None)
    )
    return _themed(chart, theme, "Task dependence of anchors (total variation)")


def temporal_heatmap(table: pl.DataFrame, theme: Theme = "light") -> Chart:
    """One layer: steps down, positions across, anchors hatched, commits ringed, token texts on the axis."""
    texts = dict(table.sort("position").select("position", "text").unique("position").rows())
    every = max(1, len(texts) // 60)
    shown = {str(place): _short(texts[place]) for place in sorted(texts) if place % every == 0}
    axis = alt.Axis(
        values=[int(place) for place in shown],
        labelExpr=f"{json.dumps(shown)}[datum.value]",
        labelAngle=-90,
        labelOverlap=False,
        labelFontSize=8,
    )
    width = max(420, min(1100, 11 * len(texts)))
    height = max(120, min(520, 15 * (int(table["step"].max()) + 1)))  # pyright: ignore[reportArgumentType]
    base = alt.Chart(_data(table)).encode(
        x=alt.X("position:O", axis=axis, title="token"), y=alt.Y("step:O", title="step", axis=_sparse(table["step"]))
    )
    cells = base.mark_rect().encode(
        color=alt.Color("received:Q", title="received", scale=alt.Scale(scheme="viridis", type="sqrt"))
    )
    hatch = base.transform_filter("datum.anchor").mark_text(text="///", color="#1b1b1b", fontSize=9, fontWeight="bold")
    ring = base.transform_filter("datum.commits").mark_point(
        shape="circle", size=34, stroke="#D55E00", strokeWidth=2.5, opacity=1
    )
    title = f"Received attention, layer {table['layer'][0]} (/// anchor, ring: commits)"
    return _themed(alt.layer(cells, hatch, ring).properties(width=width, height=height), theme, title)


def qk_heatmaps(table: pl.DataFrame, theme: Theme = "light") -> Chart:
    """q.k, cos and |q||k| of one layer; anchor columns marked above."""
    known = table.drop_nulls("qk")
    charts = []
    for name, title in (("qk", "q.k"), ("cos", "cos"), ("norm", "|q||k|")):
        base = alt.Chart(_data(known)).encode(x=alt.X("token:O", axis=_sparse(known["token"]), title="key"))
        cells = base.mark_rect().encode(
            y=alt.Y("row:O", axis=_sparse(known["row"]), title="query"),
            color=alt.Color(f"{name}:Q", title=title, scale=alt.Scale(scheme="viridis")),
        )
        marks = base.transform_filter("datum.anchor").mark_point(
            shape="triangle-down", filled=True, size=40, color="#D55E00", yOffset=-6
        )
        layered = alt.layer(cells, marks.encode(y=alt.value(0))).properties(width=240, height=240, title=title)
        charts.append(layered)
    joined = alt.hconcat(*charts).resolve_scale(color="independent")
    return _themed(joined, theme, f"Layer {table['layer'][0]}, step {table['step'][0]} (triangle: anchor)")


def _profiles(
    table: pl.DataFrame, facet: str, title: str, theme: Theme, columns: int = 3, shared: bool = False
) -> Chart:
    """Small multiples over layers: a line per model with its interval, and its controls in grey."""
    order = table[facet].unique(maintain_order=True).to_list()
    base = alt.Chart(_data(table)).encode(x=alt.X("layer:Q", title="layer", axis=alt.Axis(tickMinStep=1)))
    band = base.mark_area(opacity=0.22).encode(y=alt.Y("low:Q", title=title), y2="high:Q", color=_model_colour(theme))
    line = base.mark_line(strokeWidth=2).encode(y=alt.Y("value:Q", title=title), color=_model_colour(theme))
    points = base.mark_point(filled=True, opacity=1, size=18).encode(y="value:Q", color=_model_colour(theme))
    layered = alt.layer(_control_lines(base, theme), band, line, points).properties(width=230, height=140)
    chart = layered.facet(facet=_facet(facet, order), columns=columns)
    return chart.resolve_scale(y="shared" if shared else "independent")


def _control_lines(base: Chart, theme: Theme) -> Chart:
    dash = alt.StrokeDash(
        "control:N",
        title="control",
        scale=alt.Scale(domain=list(_CONTROL_DASH), range=list(_CONTROL_DASH.values())),
        legend=alt.Legend(symbolStrokeColor=_colours(theme)["control"], symbolType="stroke"),
    )
    return (
        base.transform_fold(list(_CONTROL_DASH), as_=["control", "control_value"])
        .transform_filter("isValid(datum.control_value)")
        .mark_line(strokeWidth=1.1, color=_colours(theme)["control"])
        .encode(y="control_value:Q", strokeDash=dash, detail="model:N")
    )


def _dots(
    table: pl.DataFrame, across: str, order: Sequence[str], title: str, theme: Theme, joined: bool = False
) -> Chart:
    """Points with intervals over a few categories; controls as thin grey ticks."""
    x = alt.X(f"{across}:N", sort=list(order), title=None, axis=alt.Axis(labelAngle=-40))
    base = alt.Chart(_data(table)).encode(x=x)
    ticks = (
        base.transform_fold(list(_CONTROL_DASH), as_=["control", "control_value"])
        .transform_filter("isValid(datum.control_value)")
        .mark_tick(thickness=1.2, size=18, color=_colours(theme)["control"])
        .encode(y="control_value:Q", opacity=alt.Opacity("control:N", scale=alt.Scale(range=[1, 0.75, 0.5])))
    )
    ranges = base.mark_rule().encode(y=alt.Y("low:Q", title=title), y2="high:Q", color=_model_colour(theme))
    points = base.mark_point(filled=True, opacity=1, size=45).encode(
        y=alt.Y("value:Q", title=title), color=_model_colour(theme)
    )
    layers = [ticks, ranges, points]
    if joined:
        layers.append(base.mark_line(strokeWidth=1).encode(y="value:Q", color=_model_colour(theme)))
    return alt.layer(*layers).properties(width=max(110, 28 * len(order)), height=130)


def _data(table: pl.DataFrame) -> alt.Data:
    """Rows inside the chart, without altair's limit on their number."""
    return alt.Data(values=table.to_dicts())


def _facet(name: str, order: list[str] | None = None) -> alt.Facet:
    return alt.Facet(f"{name}:N", title=None, sort=order or "ascending")


def _model_colour(theme: Theme) -> alt.Color:
    scale = alt.Scale(range=_colours(theme)["models"])
    return alt.Color("model:N", title="model", scale=scale, legend=alt.Legend(symbolOpacity=1))


def _share_axis() -> alt.X:
    return alt.X("value:Q", title="share of attention")


def _sparse(values: pl.Series) -> alt.Axis:
    """At most a dozen labels on an axis of whole numbers."""
    every = max(1, -(-values.n_unique() // 12))
    return alt.Axis(labelExpr=f"datum.value % {every} == 0 ? datum.label : ''", ticks=False, labelAngle=0)


def _short(text: str) -> str:
    plain = text.replace("Ġ", " ").replace("▁", " ").replace("\n", "↵").replace("Ċ", "↵")
    return (plain.strip() or "␣")[:10]


def _colours(theme: Theme) -> dict[str, Any]:
    if theme not in _COLOURS:
        raise UserError(f"There is no theme {theme!r}; use 'light' or 'dark'.")
    return _COLOURS[theme]


def _themed(chart: Chart, theme: Theme, title: str) -> Chart:
    """Paper, ink and fonts for a light or a dark page."""
    colours = _colours(theme)
    text = {"labelColor": colours["ink"], "titleColor": colours["ink"], "labelFontSize": 11, "titleFontSize": 12}
    return chart.properties(title=alt.TitleParams(title, anchor="start")).configure(
        background=colours["paper"],
        font="sans-serif",
        padding=12,
        title=alt.TitleConfig(color=colours["ink"], fontSize=15),
        axis=alt.AxisConfig(**text, gridColor=colours["faint"], domainColor=colours["ink"], tickColor=colours["ink"]),
        legend=alt.LegendConfig(**text),
        header=alt.HeaderConfig(**text),
        view=alt.ViewConfig(stroke=colours["faint"]),
    )
