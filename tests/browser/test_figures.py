"""Figures of the page from charts written down by hand: each panel in its room, and the numbers as they are."""

from pathlib import Path

import polars as pl
import pytest
from playwright.sync_api import expect

from floatscope.analysis import draw
from floatscope.analysis.drawing import arrange, lines
from floatscope.analysis.figure import Figure
from floatscope.reports.page import figure_page
from tests.analysis.test_figures import result as result_of
from tests.analysis.test_figures import row
from tests.browser.conftest import eventually
from tests.reports.test_cards import CHART, panel

pytestmark = pytest.mark.slow
MODELS = ("m", "w")


def opened(open_page, folder: Path, figure: Figure):
    path = folder / "figure.html"
    path.write_text(figure_page(figure), encoding="utf-8")
    page = open_page(path)
    expect(page.locator("figure")).to_have_attribute("data-drawn", "light")
    return page


def test_every_panel_is_drawn_in_its_own_room(open_page, tmp_path):
    page = opened(open_page, tmp_path, Figure("own", "Mine", CHART, pl.DataFrame({"a": [1]}), "See."))
    rooms = page.locator(".fs-view")
    expect(page.locator(".fs-view svg")).to_have_count(7)
    for place, name in enumerate("abcdefg"):
        assert rooms.nth(place).get_attribute("aria-label") == f"{name}. Mine. See."
        rooms.nth(place).locator(".mark-symbol path").hover()
        expect(page.locator(".fs-tip")).to_have_text(name)


def test_every_head_of_thirty_layers_is_on_one_screen(open_page, tmp_path):
    """Four scores of 30 layers by 9 heads under two models: all eight maps at 1280 x 800, every cell apart."""
    where = [(score, model) for score in ("copy", "evidence", "query", "query_calibrated") for model in MODELS]
    heads = [
        row(model, score=score, layer=layer, head=head, value=(layer + head) / 40, uniform=0.1)
        for score, model in where
        for layer in range(30)
        for head in range(9)
    ]
    depth = [row(score=score, depth="all", value=0.1) for score, _ in where]
    halves = [{"model": "m", "score": "copy", "pearson": None, "pearson_low": None, "pearson_high": None}]
    made = result_of("retrieval_heads", heads, retrieval_heads_depth=depth, retrieval_heads_stability=halves)
    path = tmp_path / "heads.html"
    path.write_text(figure_page(draw("retrieval_heads", {"retrieval_heads": made}, MODELS)), encoding="utf-8")
    page = open_page(path, width=1280, height=800)
    expect(page.locator("figure")).to_have_attribute("data-drawn", "light")
    maps = page.locator(".fs-grid").first.locator(".fs-view")
    expect(maps.locator(":is(svg, canvas)")).to_have_count(8)
    boxes = [one.bounding_box() for one in maps.all()]
    top = page.locator(".fs-grid").first.bounding_box()["y"]
    assert max(box["y"] + box["height"] for box in boxes) - top < 800
    # the names of the axes take 46 pixels each way, the scale of shades 30 more below
    assert min((box["width"] - 46) / 30 for box in boxes) > 5 and min((box["height"] - 76) / 9 for box in boxes) > 9


def test_a_number_that_is_missing_is_not_drawn(open_page, tmp_path):
    table = pl.DataFrame({"model": ["m"] * 4, "layer": range(4), "value": [0.5, None, 0.0, 0.7]})
    chart = arrange([lines(table, "a", {}, ["m"])], {"table": table})
    page = opened(open_page, tmp_path, Figure("own", "Mine", chart, table, "See."))
    expect(page.locator(".fs-view .mark-symbol path")).to_have_count(3)  # 0 is a number, nothing is none


ROWS = "rows => rows.map(row => [...row.cells].map(cell => cell.textContent))"


def test_the_numbers_are_those_of_the_table_that_is_shown(open_page, tmp_path):
    """The same digits for people: at most three behind the point, a true minus, nothing where there is nothing."""
    table = pl.DataFrame({"name": ["first", "1e5 x", "third"], "value": [-0.12345, None, 1234.5], "n": [1, 20, -3]})
    other = pl.DataFrame({"name": [f"row {number}" for number in range(201)], "value": [0.001] * 201})
    published = Figure("own", "Other", panel("b"), other, "See.")
    page = opened(open_page, tmp_path, Figure("own", "Mine", panel("a"), table, "See.", published=published))
    page.locator("summary").click()
    rows = page.locator(".fs-data tr")
    expect(rows).to_have_count(4)
    assert rows.evaluate_all(ROWS) == [
        ["name", "value", "n"], ["first", "−0.123", "1"], ["1e5 x", "", "20"], ["third", "1235", "−3"],
    ]  # fmt: skip
    expect(page.locator(".fs-data caption")).to_have_text("Mine")
    page.locator(".fs-published input").check()
    expect(rows).to_have_count(201)  # the names of the columns and 200 of 201 rows
    assert rows.evaluate_all(ROWS)[:2] == [["name", "value"], ["row 0", "1.0e−3"]]
    expect(page.locator(".fs-data caption")).to_have_text("Mine: the first 200 of 201 rows; the CSV has all.")
    eventually(page.locator(".fs-chart").evaluate_all, "all => all.map(chart => chart.hidden)", equals=[True, False])
