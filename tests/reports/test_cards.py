"""Cards: the room of every panel, headings and legend, from a chart written down by hand."""

import dataclasses
import json
import re

import altair as alt
import polars as pl
import pytest

from floatscope.analysis.drawing import arrange, cells, lines
from floatscope.analysis.figure import Figure
from floatscope.reports.cards import figure_card


def panel(name: str, width: int = 200, height: int = 100, **more) -> dict:
    """A plot of one point, which says the panel's name."""
    point = {"x": {"field": "x", "type": "quantitative"}, "tooltip": {"field": "says"}}
    data = {"values": [{"x": 1, "says": name}]}
    return {"title": name, "width": width, "height": height, "data": data, "mark": "point", "encoding": point} | more


CHART = {
    "vconcat": [
        {"title": {"text": ["first", "group"]}, "columns": 3, "concat": [panel(name) for name in "abcd"]},
        {"title": "second", "hconcat": [panel("e", width=400, height=60), panel("f")]},
        panel("g"),
    ]
}


def card(chart: dict) -> str:
    return figure_card(Figure("own", "Mine", chart, pl.DataFrame({"a": [1]}), "See."))


def test_groups_have_their_headings_and_panels_their_rooms():
    """Four panels in three columns need two rows, so that two stand in each; the widest panel sets the least width.

    The last panel is as wide as those of the first group, and stands in its columns.
    """
    found = card(CHART)
    parts = re.findall(r"<h4>(.*?)</h4>|--least:(\d+)px;--across:(\d+)|title\">(\w+)</p>|height:(\d+)px", found)
    assert ["".join(part) for part in parts] == [
        *("first group", "1502", "a", "146", "b", "146", "c", "146", "d", "146"),
        *("second", "2602", "e", "106", "f", "146"),
        *("1502", "g", "146"),
    ]
    assert re.findall(r'aria-label="(\w)\. Mine\. See\."', found) == list("abcdefg")


def test_what_has_no_size_gets_room_for_itself():
    facets = panel("a") | {"width": {"step": 20}}
    assert "--least:320px;--across:1" in card(facets) and 'class="fs-view" role' in card(facets)


def test_the_legend_shows_colour_shape_and_dash_of_every_name():
    def scale(field: str, **values: str | list[int]) -> dict:
        return {
            "field": field,
            "type": "nominal",
            "scale": {"domain": list(values), "range": list(values.values())},
        }

    look = {
        "strokeDash": scale("control", uniform=[4, 3]),
        "color": scale("model", one="#0072b2", two="#123456"),
        "shape": scale("model", one="square", two="no such shape"),
    }
    alone = {"color": scale("kind", mine="#009e73"), "shape": scale("place", gold="diamond")}
    unnamed = {"color": scale("hidden", no="#000000") | {"legend": None}}
    layers = [{"mark": "point", "encoding": encoding} for encoding in (look, alone, unnamed)]
    entries = re.findall(
        r'data-field="(\w+)" data-value="(\w+)"><svg width="(\d+)".*?style="color:(.*?)">(.*?)</svg>(\w+)</button>',
        card({"layer": layers, "width": 10, "height": 10}),
    )
    lines = [
        (entry[:4], re.sub(r'(stroke|fill)="currentColor"| stroke-width="[\d.]+"', "", entry[4])) for entry in entries
    ]
    assert [entry[1] for entry in entries] == [entry[5] for entry in entries]
    line, square, circle = '<path d="M1,6h24" /><path d="', "M9.5,2.5h7v7h-7z", "M9,6a4,4 0 1,0 8,0a4,4 0 1,0 -8,0"
    assert lines == [
        (("model", "one", "26", "light-dark(#0072b2,#56b4e9)"), f'{line}{square}" />'),
        (("model", "two", "26", "light-dark(#123456,#123456)"), f'{line}{circle}" />'),
        (("kind", "mine", "12", "light-dark(#009e73,#2fc49a)"), '<rect width="12" height="12" rx="2" />'),
        (("control", "uniform", "26", "var(--fs-control)"), '<path d="M1,6h24"  stroke-dasharray="4 3"/>'),
        (("place", "gold", "26", "var(--fs-control)"), '<path d="M13,1L18,6L13,11L8,6z" fill="none" />'),
    ]


def test_the_control_of_forks_is_called_before_the_fork():
    figure = dataclasses.replace(
        made_figure(), finding="Beside untrained 1.", caption="Thin lines are controls: the untrained model."
    )
    found = figure_card(figure, "before the fork")
    assert "Beside before the fork 1." in found and "controls: the model before the fork." in found
    assert re.search(r'data-value="untrained">.*?</svg>before the fork</button>', found)
    assert "before the fork" not in figure_card(figure)


def test_axes_with_names_of_their_own_say_before_the_fork_too():
    axis = alt.Axis(labelExpr="{'value': 'anchors', 'untrained': 'untrained'}[datum.value]")
    chart = alt.Chart(pl.DataFrame({"untrained": ["untrained"]})).mark_bar().encode(x=alt.X("untrained:N", axis=axis))
    figure = Figure("own", "Mine", chart, pl.DataFrame({"untrained": [1]}), "See.")

    def shown(control):
        (data,) = re.findall(r'<script type="application/json">(.*?)</script>', figure_card(figure, control), re.S)
        return json.loads(data)["views"][0]["spec"]["encoding"]["x"]

    forked = shown("before the fork")
    assert forked["axis"]["labelExpr"] == "{'value': 'anchors', 'untrained': 'before the fork'}[datum.value]"
    assert forked["field"] == "untrained"
    assert shown("untrained")["axis"]["labelExpr"] == axis.labelExpr


def test_cells_have_a_scale_of_their_shades_and_room_for_it():
    table = pl.DataFrame({"a": ["x"], "b": ["y"], "value": [0.5]})
    plot = cells(table, "t", {}, ("a", None, ["x"]), ("b", None, ["y"]), 0.8)
    assert plot is not None
    assert plot["layer"][0]["encoding"]["opacity"]["legend"]["values"] == pytest.approx([0, 0.4, 0.8])
    assert "height:102px" in card(arrange([plot], {"table": table}))  # 26 of the cell, 46 of the axes, 30 of the scale


def made_figure() -> Figure:
    """A figure with a control in its legend."""
    table = pl.DataFrame({"model": ["m"] * 2, "layer": [0, 1], "value": [0.1, 0.2], "untrained": [0.3, 0.4]})
    return Figure("own", "Mine", arrange([lines(table, "t", {}, ("m",))], {"table": table}), table, "See.")
