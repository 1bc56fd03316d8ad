"""What the figures share: theme, colours, files, small multiples over layers, dots over categories, grey controls.

Which numbers a figure shows is said in `figures`.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import altair as alt
import polars as pl

from floatscope.errors import UserError

Theme = Literal["light", "dark"]
Chart = Any
"""Any altair chart: single, layered, faceted or concatenated."""
FORMATS = ("svg", "pdf", "html", "png")
COLOURS: dict[str, dict[str, Any]] = {
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
CONTROL_DASH = {"uniform": [1, 0], "random": [4, 3], "untrained": [1, 3]}
CONTROL_SHAPE = {"uniform": "stroke", "random": "cross", "untrained": "triangle-down"}


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


def profiles(
    table: pl.DataFrame,
    panel: str,
    titles: Mapping[str, str],
    axis: str,
    theme: Theme,
    columns: int = 3,
    shared: bool = False,
    wide: Sequence[str] = (),
) -> Chart:
    """Small multiples over layers, one for each of `titles`: a line per model with its interval, controls in grey.

    `wide` panels have a symmetric-log scale: their controls lie orders of magnitude above the values.
    """
    charts = []
    for name, title in titles.items():
        part = table.filter(pl.col(panel) == name)
        if part["value"].null_count() == part.height:
            continue
        scale = alt.Scale(type="symlog", constant=0.5) if name in wide else alt.Scale(zero=shared)
        charts.append(_profile(part, title, axis, scale, theme))
    if not charts:
        return nothing_to_draw(theme)
    joined = alt.concat(*charts, columns=columns)
    return joined.resolve_scale(y="shared") if shared else joined


def nothing_to_draw(theme: Theme) -> Chart:
    """A sentence in place of a figure: tables of nulls, such as the drift of one step, are no mistake."""
    sentence = "Nothing to draw: every value is null (the notes say why)."
    base = alt.Chart(inline_data(pl.DataFrame({"sentence": [sentence]}))).properties(width=420, height=40)
    return base.mark_text(color=theme_colours(theme)["control"], fontSize=12).encode(text="sentence:N")


def _profile(table: pl.DataFrame, title: str, axis: str, scale: alt.Scale, theme: Theme) -> Chart:
    layer = alt.X("layer:Q", title="layer", axis=alt.Axis(tickMinStep=1), scale=alt.Scale(nice=False))
    base = alt.Chart().encode(x=layer)
    colour = model_colour(theme)

    def y(name: str) -> alt.Y:
        return alt.Y(f"{name}:Q", title=axis, scale=scale)

    band = base.mark_area(opacity=0.22).encode(y=y("low"), y2="high:Q", color=colour)
    line = base.mark_line(strokeWidth=2).encode(y=y("value"), color=colour)
    points = base.mark_point(filled=True, opacity=1, size=18).encode(
        y=y("value"), color=colour, tooltip=["model:N", "layer:Q", "value:Q", "low:Q", "high:Q", "samples:Q"]
    )
    layers = [*_control_lines(base, table, y, theme), band, line, points]
    return alt.layer(*layers, data=inline_data(table)).properties(width=230, height=140, title=title)


def _control_lines(base: Chart, table: pl.DataFrame, y: Any, theme: Theme) -> list[Chart]:
    """A thin grey line per control and model; where both kinds of model are drawn, uniform's lines say which."""
    colour = COLOURS[theme]["control"]
    dash = alt.StrokeDash(
        "control:N",
        title="control",
        scale=alt.Scale(domain=list(CONTROL_DASH), range=list(CONTROL_DASH.values())),
        legend=alt.Legend(symbolStrokeColor=colour, symbolType="stroke"),
    )
    lines = (
        base.transform_fold(list(CONTROL_DASH), as_=["control", "control_value"])
        .transform_filter("isValid(datum.control_value)")
        .mark_line(strokeWidth=1.1, color=colour)
        .encode(y=y("control_value"), strokeDash=dash, detail="model:N", tooltip=["model:N", "control:N"])
    )
    if "kind" not in table.columns or table["kind"].n_unique() < 2:
        return [lines]
    last = table.filter(pl.col("layer") == pl.col("layer").max().over("model")).drop_nulls("uniform")
    ends = last.unique("kind", maintain_order=True)
    ends = ends.select("layer", pl.col("kind").str.to_uppercase(), pl.col("uniform").alias("end"))
    drawn = table.select("value", *CONTROL_DASH).max().max_horizontal()[0] or 0
    if ends.height < 2 or abs(ends["end"][0] - ends["end"][1]) < 0.02 * drawn:  # the labels would overlap
        return [lines]
    labels = (
        alt.Chart(inline_data(ends))
        .mark_text(align="left", dx=4, fontSize=8, color=colour)
        .encode(x="layer:Q", y=y("end"), text="kind:N")
    )
    return [lines, labels]


def dots(
    table: pl.DataFrame,
    across: str,
    order: Sequence[str],
    axis: str,
    theme: Theme,
    hollow: str | None = None,
    legend: bool = True,
) -> Chart:
    """Points with intervals over a few categories, models side by side; controls as small grey marks behind them.

    hollow: a test on a row that draws its point empty, such as "datum.p >= 0.05".
    """
    models = table["model"].unique(maintain_order=True).sort().to_list()
    x = alt.X(f"{across}:N", sort=list(order), title=None, axis=alt.Axis(labelAngle=-40))
    base = alt.Chart(inline_data(table)).encode(x=x, xOffset=alt.XOffset("model:N", sort=models))
    colour = COLOURS[theme]["control"]
    shape = alt.Shape(
        "control:N",
        title="control",
        scale=alt.Scale(domain=list(CONTROL_SHAPE), range=list(CONTROL_SHAPE.values())),
        legend=alt.Legend(symbolStrokeColor=colour, symbolFillColor="transparent") if legend else None,
    )
    paint = model_colour(theme, legend)
    marks = (
        base.transform_fold(list(CONTROL_SHAPE), as_=["control", "control_value"])
        .transform_filter("isValid(datum.control_value)")
        .mark_point(filled=False, strokeWidth=1, size=22, color=colour, opacity=1)
        .encode(y=alt.Y("control_value:Q", title=axis), shape=shape)
    )
    layers = [marks]
    if {"low", "high"} <= set(table.columns):
        layers.append(base.mark_rule().encode(y=alt.Y("low:Q", title=axis), y2="high:Q", color=paint))
    points = base.mark_point(opacity=1, size=40, strokeWidth=1.5).encode(y=alt.Y("value:Q", title=axis), color=paint)
    layers.append(points)
    if hollow is None:
        layers[-1] = points.mark_point(filled=True, opacity=1, size=40)
    else:
        layers.append(points.mark_point(filled=True, opacity=1, size=40).transform_filter(f"!({hollow})"))
    step = max(7, 14 - 2 * len(models))
    return alt.layer(*layers).properties(width=max(120, step * len(models) * len(order)), height=140)


def inline_data(table: pl.DataFrame) -> alt.Data:
    """Rows inside the chart, without altair's limit on their number."""
    return alt.Data(values=table.to_dicts())


def model_colour(theme: Theme, legend: bool = True) -> alt.Color:
    """A colour per model, the same in every panel of a figure."""
    scale = alt.Scale(range=theme_colours(theme)["models"])
    shown = alt.Legend(symbolOpacity=1, symbolType="circle") if legend else None
    return alt.Color("model:N", title="model", scale=scale, legend=shown)


def sparse_axis(values: pl.Series) -> alt.Axis:
    """At most a dozen labels on an axis of whole numbers."""
    every = max(1, -(-values.n_unique() // 12))
    return alt.Axis(labelExpr=f"datum.value % {every} == 0 ? datum.label : ''", ticks=False, labelAngle=0)


def theme_colours(theme: Theme) -> dict[str, Any]:
    """Paper, ink, grid, controls and models of a theme."""
    if theme not in COLOURS:
        raise UserError(f"There is no theme {theme!r}; use 'light' or 'dark'.")
    return COLOURS[theme]


def themed(chart: Chart, theme: Theme, title: str, subtitle: str = "") -> Chart:
    """Paper, ink and fonts for a light or a dark page."""
    colours = theme_colours(theme)
    text = {"labelColor": colours["ink"], "titleColor": colours["ink"], "labelFontSize": 11, "titleFontSize": 12}
    heading = alt.TitleParams(title, anchor="start", fontSize=15, subtitle=subtitle or alt.Undefined)
    return chart.properties(title=heading).configure(
        background=colours["paper"],
        font="sans-serif",
        padding=12,
        title=alt.TitleConfig(color=colours["ink"], subtitleColor=colours["ink"], fontSize=12),
        axis=alt.AxisConfig(**text, gridColor=colours["faint"], domainColor=colours["ink"], tickColor=colours["ink"]),
        legend=alt.LegendConfig(**text),
        header=alt.HeaderConfig(**text),
        view=alt.ViewConfig(stroke=colours["faint"]),
    )
