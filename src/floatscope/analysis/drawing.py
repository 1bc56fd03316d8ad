"""The drawing kit of the figures: colours, panels of lines, dots and cells, and how panels stand together.

A panel draws some rows of a table, which goes along as CSV: what is drawn is what is saved. Scales have their ends from
the table, so that a line switched off on the page moves nothing. Which numbers a figure shows is left to its analysis.
"""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import altair as alt
import polars as pl

from floatscope.analysis.palette import BED, BOUNDS, CONTROL, DASHED, HEAT, INK, LINE, MODELS, MUTED, POINT
from floatscope.analysis.results import CONTROLS
from floatscope.token_text import plain_text

Chart = Any
"""Any altair chart, single, layered, faceted or joined; or the same as Vega-Lite, as `arrange` gives it."""
Plot = dict[str, Any]
"""A plot as Vega-Lite. Altair checks its layers; joined here, they are not copied by it at every step."""
Where = Mapping[str, Any]
"""Which rows of a table a panel draws: a value for some columns."""
Names = tuple[str, str | None, Sequence[Any]]
"""A side of a panel of cells: the column, what is written beside it, and its names in order."""

SHAPES = ("circle", "square", "triangle-up", "diamond")
DASHES = {
    **{"uniform": [1, 0], "random": [4, 3], "untrained": [1.5, 2.5]},
    **{"guess": [1, 0], "oracle": [4, 3], "closed-book": [1.5, 2.5]},
    "published": [7, 3],
    **{"unedited": [1, 0], "as many": [1.5, 2.5], "as much": [4, 3], "as much, answer spared": [7, 3]},
    **{"another document": [4, 3], "other heads": [4, 3], "most recent": [9, 2]},
}
MARKS = {"uniform": "stroke", "random": "cross", "untrained": "triangle-down", "guess": "stroke"}
WIDTH, HEIGHT = 240, 140


def arrange(
    panels: Iterable[Plot | None] | Mapping[str, Iterable[Plot | None]],
    tables: Mapping[str, pl.DataFrame],
    columns: int = 3,
    apart: bool = False,
) -> dict[str, Any]:
    """Plots side by side, at most `columns` in a row; a mapping gives each group of panels a heading.

    `tables` are what the panels draw, by the name they ask for. Plots without any number are None and left out; where
    none is left, a sentence says so: a table of nulls, such as the drift of one step, is no mistake. apart: every panel
    has colours of its own, where it would share them with its group.
    """
    groups = panels if isinstance(panels, Mapping) else {"": panels}
    rows = []
    for heading, group in groups.items():
        kept = [panel for panel in group if panel is not None]
        if kept:
            title = {"title": {"text": heading, "offset": 10}} if heading else {}
            own = dict.fromkeys(("opacity", "color") if apart else ("opacity",), "independent")  # each its own darkest
            rows.append({"concat": kept, "columns": columns, **title, "resolve": {"scale": own}})
    if not rows:
        sentence = alt.Chart(width=420, height=40).mark_text(color=MUTED, fontSize=12, text=NOTHING)
        return {**_plain(sentence), "data": {"values": [{}]}}
    # Groups have scales of their own; panels of a group share colours, so that there is one legend for them.
    scales = dict.fromkeys(("color", "shape", "strokeDash", "opacity"), "independent")
    joined = {"vconcat": rows, "resolve": {"scale": scales}} if isinstance(panels, Mapping) else rows[0]
    return {**joined, "datasets": {name: csv_text(table) for name, table in tables.items()}}


NOTHING = "Nothing to draw: every value is null (the notes say why)."


def _plain(chart: alt.Chart) -> dict[str, Any]:
    """A layer, or a chart of its own, as Vega-Lite; data are the panel's."""
    spec = chart.to_dict(validate=False)
    return {name: part for name, part in spec.items() if name not in ("$schema", "config", "data", "datasets")}


def csv_text(table: pl.DataFrame) -> str:
    """A table as CSV with all its digits."""
    lists = [name for name, kind in table.schema.items() if isinstance(kind, pl.List)]
    return table.with_columns(pl.col(name).cast(pl.List(pl.String)).list.join(" | ") for name in lists).write_csv()


def plot(
    layers: Iterable[alt.Chart],
    title: str,
    table: pl.DataFrame,
    where: Where,
    width: float = WIDTH,
    height: float = HEIGHT,
    transform: Sequence[Mapping[str, Any]] = (),
    name: str = "table",
    bed: bool = False,
) -> Plot:
    """Layers over the rows of a table that have some values; the table goes along with the figure under this name."""
    kinds = {}
    for column, kind in table.schema.items():
        kinds[column] = "boolean" if kind == pl.Boolean else "number" if kind.is_numeric() else "string"
    filters = [{"filter": {"field": column, "equal": value}} for column, value in where.items()]
    return {
        "title": title,
        "width": width,
        "height": height,
        "data": {"name": name, "format": {"type": "csv", "parse": kinds}},
        "transform": [*filters, *transform],
        "layer": [_plain(layer) for layer in layers],
        **({"view": {"fill": BED, "stroke": None}} if bed else {}),
    }


def known_columns(table: pl.DataFrame, columns: Iterable[str]) -> list[Any]:
    """Those of some columns that the table has, with any value."""
    return [name for name in columns if name in table.columns and table[name].is_not_null().any()]


def ends_of(values: Iterable[float | None], zero: bool = False) -> list[float]:
    """The ends of an axis that shows all of the values; from 0 where they lie nearer to it than to each other."""
    known = [value for value in values if value is not None]
    low, high = min(known), max(known)
    if zero or 0 < low < 0.5 * high:
        low = min(0.0, low)
    return [low, high] if high - low > 1e-12 else [low - 0.5, high + 0.5]


def looks(channel: Any, field: str, given: Mapping[str, Any], **legend: Any) -> Any:
    """An encoding that gives each name of a field its look: a colour, a shape or a dash; and how its legend looks."""
    scale = alt.Scale(domain=list(given), range=list(given.values()))
    return channel(f"{field}:N", scale=scale, legend=alt.Legend(title=None, **legend))


def model_look(channel: Any, models: Sequence[str], known: pl.Series) -> Any:
    """A colour or a shape for each model, the same in every figure of a page; the legend names those that are known."""
    values, names = MODELS if channel is alt.Color else SHAPES, set(known.to_list())
    given = {model: values[place % len(values)] for place, model in enumerate(models) if model in names}
    return looks(channel, "model", given, symbolOpacity=1, symbolStrokeWidth=0, symbolSize=60)


def _heights(ends: Sequence[float], title: str, symlog: bool = False, channel: Any = alt.Y) -> Callable[[str], Any]:
    """An axis that several columns of numbers share: from a column to its encoding."""
    scale = alt.Scale(domain=list(ends), nice=True, zero=False)
    if symlog:
        scale = alt.Scale(type="symlog", constant=0.5, domain=list(ends), nice=False)
    return lambda column: channel(f"{column}:Q", title=title or None, scale=scale, axis=alt.Axis(tickCount=5))


def tooltips(*columns: str) -> list[alt.Tooltip]:
    """What hovering tells: names as they are, numbers with three digits."""
    whole = ("layer", "head", "step", "samples", "position")
    kinds = {column: "Q" if column in (*_NUMBERS, *whole) else "N" for column in columns}
    formats = {column: ".3~r" if column in _NUMBERS else alt.Undefined for column in columns}
    return [alt.Tooltip(f"{column}:{kinds[column]}", format=formats[column]) for column in columns]


_NUMBERS = ("value", "low", "high", "p", "published", "exact", "received", "control_value", "guess", *CONTROLS)


def lines(
    table: pl.DataFrame,
    title: str,
    where: Where,
    models: Sequence[str],
    across: str = "layer",
    axis: str | None = None,
    y: str = "",
    controls: Sequence[str] = CONTROLS,
    ends: Sequence[float] | None = None,
    symlog: bool = False,
    name: str = "table",
    detail: str | None = None,
) -> Plot | None:
    """Lines over a column, one for each model with its interval; its controls thin, in the same colour.

    symlog: for controls that lie orders of magnitude above the values. detail: a column that tells lines of one model
    apart.
    """
    own = table.filter(**where)
    part = own.drop_nulls("value")
    if part.is_empty():
        return None
    beside = known_columns(part, controls)
    height = _heights(ends or table_ends(own, beside) or (), y, symlog)
    # numbers without a value are on the axis too: controls may be known there
    x, number = _across(own if own.schema[across].is_numeric() else part, across, axis)
    base = alt.Chart().encode(x=x)
    colour, shape = (model_look(channel, models, table["model"]) for channel in (alt.Color, alt.Shape))
    extra = {"detail": detail} if detail else {}
    several = part[across].n_unique() > 1
    layers = []
    if beside:
        thin: dict[str, Any] = {"strokeWidth": 1.2} if several else {"strokeWidth": 1.2, "shape": "stroke", "size": 200}
        folded = _controls(base, beside, height)
        drawn = folded.mark_line(**thin) if several else folded.mark_point(**thin)
        dashes = {name: DASHES[name] for name in known_columns(table, controls)}
        dash = looks(alt.StrokeDash, "control", dashes, **DASHED, symbolOpacity=1)
        apart = ["model:N", *extra.values()]
        layers.append(drawn.encode(color=colour, detail=apart, strokeDash=dash, opacity=alt.value(0.75)))
    known = base.transform_filter("isValid(datum.value)")
    if detail is None and {"low", "high"} <= set(part.columns) and part["low"].is_not_null().any():
        limits = known.transform_filter("isValid(datum.low) && isValid(datum.high)")
        marked = limits.mark_area(opacity=0.14) if number and several else limits.mark_rule(**BOUNDS)
        layers.append(marked.encode(y=height("low"), y2="high:Q", color=colour))
    layers.append(known.mark_line(strokeWidth=2).encode(y=height("value"), color=colour, **extra))
    told = [column for column in ("value", "low", "high", *beside, "samples", "n") if column in part.columns]
    tip = tooltips("model", *([detail.partition(":")[0]] if detail else []), across, *told)
    layers.append(known.mark_point(**POINT).encode(y=height("value"), color=colour, shape=shape, tooltip=tip))
    numbers = [{"calculate": f"toNumber(datum[{across!r}])", "as": across}] if _digits(part[across]) else []
    return plot(layers, title, table, where, transform=numbers, name=name)


def _controls(base: alt.Chart, names: list[Any], height: Callable[[str], Any], up: str = "y") -> alt.Chart:
    """A row for each control, with the columns `control` and `control_value`."""
    folded = base.transform_fold(names, as_=["control", "control_value"])
    return folded.transform_filter("isValid(datum.control_value)").encode(**{up: height("control_value")})


def table_ends(table: pl.DataFrame, controls: Sequence[str] = CONTROLS, zero: bool = False) -> list[float] | None:
    """The ends of an axis that shows all numbers of a table; None where it has none."""
    columns = known_columns(table, ("value", "low", "high", *controls))
    return ends_of((number for name in columns for number in table[name].to_list()), zero) if columns else None


def _across(part: pl.DataFrame, column: str, axis: str | None) -> tuple[alt.X, bool]:
    """The x axis of whole numbers, or of names in the order of the table."""
    title = axis or column
    if not part.schema[column].is_numeric() and not _digits(part[column]):
        names = part[column].unique(maintain_order=True).to_list()
        return alt.X(f"{column}:N", title=title, scale=alt.Scale(domain=names), axis=alt.Axis(labelAngle=0)), False
    known = part[column].cast(pl.Int64).drop_nulls().unique().sort().to_list()
    labels = alt.Axis(values=known[:: -(-len(known) // 9)], format="d", labelOverlap="parity")  # nine at most
    return alt.X(
        f"{column}:Q", title=title, scale=alt.Scale(domain=ends_of(known), nice=False, padding=6), axis=labels
    ), True


def _digits(column: pl.Series) -> bool:
    """Whether a column of texts holds whole numbers only."""
    return column.dtype == pl.String and bool(column.str.contains(r"^[0-9]+$").all())


def dots(
    table: pl.DataFrame,
    title: str,
    where: Where,
    models: Sequence[str],
    across: str,
    order: Sequence[str],
    y: str = "",
    hollow: str | None = None,
    name: str = "table",
    apart: str = "model",
    ends: Sequence[float] | None = None,
    controls: Sequence[str] = CONTROLS,
    lying: bool = False,
) -> Plot | None:
    """Points with intervals over a few names, models side by side; controls as small grey marks behind them.

    hollow: a test on a row that draws its point empty, such as "datum.p >= 0.05". apart: the column whose names stand
    side by side, where it is not the model. lying: long names stand one below the other, and numbers go to the right.
    """
    part = table.filter(**where).filter(pl.col(across).is_in(list(order))).drop_nulls("value")
    if part.is_empty():
        return None
    beside = known_columns(part, controls)
    side, off, up, ups = ("y", "yOffset", "x", "x2") if lying else ("x", "xOffset", "y", "y2")
    height = _heights(ends or table_ends(part, beside) or (), y, channel=alt.X if lying else alt.Y)
    known = part[apart].unique(maintain_order=True).to_list()
    names = [model for model in models if model in known] if apart == "model" else known
    place, places = (alt.Y, alt.YOffset) if lying else (alt.X, alt.XOffset)
    axis = alt.Axis(title=None, labelAngle=0 if lying else -30, labelLimit=150)
    named = place(f"{across}:N", scale=alt.Scale(domain=list(order)), axis=axis)
    beside_it = places(f"{apart}:N", scale=alt.Scale(domain=names, paddingOuter=0.6))
    base = alt.Chart().encode(**{side: named, off: beside_it})
    colour = model_look(alt.Color, models, table["model"])
    layers = []
    if beside:
        marks = {control: MARKS[control] for control in known_columns(table, controls)}
        legend = {"symbolStrokeColor": CONTROL, "symbolFillColor": "transparent", "symbolStrokeWidth": 1.4}
        small: dict[str, Any] = {"filled": False, "strokeWidth": 1.2, "size": 30, "color": CONTROL, "opacity": 1}
        drawn = _controls(base, beside, height, up).mark_point(**small, angle=90 if lying else 0)
        layers.append(drawn.encode(shape=looks(alt.Shape, "control", marks, **legend)))
    known = base.transform_filter("isValid(datum.value)")
    if {"low", "high"} <= set(part.columns):
        limits = known.transform_filter("isValid(datum.low) && isValid(datum.high)")
        layers.append(limits.mark_rule(**BOUNDS).encode(**{up: height("low"), ups: "high:Q"}, color=colour))
    told = [column for column in ("value", "low", "high", "p", *beside, "samples", "n") if column in part.columns]
    tip = tooltips(*dict.fromkeys(("model", apart, across, *told)))
    full = known if hollow is None else known.transform_filter(f"!({hollow})")
    layers.append(full.mark_point(**POINT).encode(**{up: height("value")}, color=colour, tooltip=tip))
    if hollow is not None:
        empty = known.transform_filter(hollow).mark_point(filled=False, opacity=1, size=32, strokeWidth=1.5)
        layers.append(empty.encode(**{up: height("value")}, color=colour, tooltip=tip))
    kept = [{"filter": {"field": column, "oneOf": shown}} for column, shown in ((across, list(order)), (apart, names))]
    size = (WIDTH - 30, 20 * len(order) + 10) if lying else (max(WIDTH, 24 * len(order)), HEIGHT)
    return plot(layers, title, table, where, *size, transform=kept, name=name)


def cells(
    table: pl.DataFrame,
    title: str,
    where: Where,
    x: Names,
    y: Names,
    top: float,
    value: str = "value",
    label: str | None = None,
    mark: str | None = None,
    told: Sequence[str] = (),
    size: tuple[float, float] = (26, 26),
    faint: bool = False,
    root: bool = False,
    name: str = "table",
) -> Plot | None:
    """Cells of rows and columns, darker for a higher value; `top` is the darkest.

    label: an expression that shortens the names on the axes. mark: a test on a row that gives its cell a diamond. size:
    of a cell, in pixels. root: shades by the root of the value, for a few that are far above the others.
    """
    part = table.filter(**where).drop_nulls(value)
    if part.is_empty():
        return None

    def side(channel: Any, column: str, heading: str | None, names: Sequence[Any]) -> Any:
        gaps = alt.Scale(domain=list(names), paddingInner=0.04, paddingOuter=0)
        return channel(f"{column}:O", title=heading, scale=gaps, axis=name_axis(label or alt.Undefined))

    base = alt.Chart().encode(x=side(alt.X, *x), y=side(alt.Y, *y))
    colour = CONTROL if faint else HEAT
    shown = base.mark_rect(color=colour).encode(opacity=shade(value, top, colour, root), tooltip=tooltips(*told, value))
    layers = [shown]
    if mark:
        diamond = {"shape": "diamond", "stroke": INK, "size": 42, "strokeWidth": 1.4, "opacity": 1}
        layers.append(base.transform_filter(mark).mark_point(**diamond))
    width, height = size[0] * len(x[2]), size[1] * len(y[2])
    return plot(layers, title, table, where, width, height, name=name, bed=True)


def shade(column: str, top: float, colour: str = HEAT, root: bool = False) -> alt.Opacity:
    """Darker for a higher value, `top` the darkest, with the scale of it as a legend."""
    scale = alt.Scale(type="sqrt" if root else "linear", domain=[0, top or 1], range=[0, 1], clamp=True)
    steps = [(top or 1) * part / 2 for part in range(3)]  # more would be cut off beside a small panel
    legend = alt.Legend(
        title=None, orient="bottom", direction="horizontal", columns=3, columnPadding=6, values=steps, format=".2~g",
        symbolType="square", symbolFillColor=colour, symbolStrokeColor=LINE, symbolStrokeWidth=0.6, symbolSize=110,
        labelFontSize=10,
    )  # fmt: skip
    return alt.Opacity(f"{column}:Q", scale=scale, legend=legend)


def name_axis(label: Any = alt.Undefined) -> alt.Axis:
    """Names beside cells, as many as there is room for."""
    return alt.Axis(labelExpr=label, labelAngle=0, labelOverlap="parity", domain=False, grid=False)


def token_axis(texts: Mapping[int, str], pixels: int, angle: int) -> alt.Axis:
    """Token texts beside cells, by position, as many as fit into so many pixels."""
    every = max(1, -(-9 * len(texts) // pixels))
    plain = {place: plain_text(texts[place]).replace("\n", "↵").strip() for place in sorted(texts)[::every]}
    shown = {str(place): (text or "␣")[:10] for place, text in plain.items()}
    return alt.Axis(
        values=[int(place) for place in shown],
        labelExpr=f"{json.dumps(shown)}[datum.value]",
        labelAngle=angle,
        labelOverlap=False,
        labelFontSize=8,
        domain=False,
        grid=False,
    )
