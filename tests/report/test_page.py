"""The page: every part and its number, nothing to fetch, missing parts as sentences, CSV equal to the tables."""

import dataclasses
import io
import json
import re
from html.parser import HTMLParser

import polars as pl
import pytest

from floatscope.report.charts import csv_text, heat_panel, line_series
from floatscope.report.curves import stress_curves
from floatscope.report.findings import interval_text, number_text
from floatscope.report.page import Content, analysis_figures, build_page, stress_figure
from floatscope.report.player import asset
from floatscope.report.sections import FIGURES
from tests.report.making import MODELS, made_content, made_results, made_scores, made_traces


@pytest.fixture(scope="module")
def page() -> str:
    return build_page(made_content())


class Outline(HTMLParser):
    """Elements that must be balanced, ids, and what the page would fetch."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.ids: list[str] = []
        self.fetched: list[str] = []
        self.headings: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        known = dict(attrs)
        self.fetched += [str(known[name]) for name in ("src", "href") if name in known]
        self.ids += [str(known["id"])] if "id" in known else []
        self.headings += [tag] if re.fullmatch(r"h\d", tag) else []
        if tag not in ("meta", "link", "input"):
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


def test_one_file_with_landmarks_and_nothing_to_fetch(page):
    outline = Outline(page)
    assert outline.open == [] and len(outline.ids) == len(set(outline.ids))
    assert all(target.startswith(("#", "data:")) for target in outline.fetched)
    assert outline.headings.count("h1") == 1 and outline.headings[0] == "h1"
    for landmark in ("<header>", '<main id="main">', "<footer>", "<nav", 'lang="en"', "<caption>"):
        assert landmark in page
    assert not re.search(r"url\(|@import|https?://(?!www\.w3\.org)", page)


def test_text_is_escaped(page):
    assert "Who &lt;gains&gt; more?" in page and "&lt;demo&gt;" in page
    assert "Who <rules>" not in page and "Who <gains>" not in page


def test_every_part_is_there(page):
    for text in (
        "+70.0",
        "[+60.0, +80.0]",
        "guess: random entity",
        "n = 40 samples per cell.",
        "versions floatscope",
        "1.2.3",
    ):
        assert text in page
    for name in ("drift_map", *FIGURES, "stress"):
        assert f'id="figure-{name}"' in page
    for figure in analysis_figures(made_results(), MODELS, made_traces()):
        assert figure.caption.endswith(".") and figure.finding.endswith(".") and figure.panels


def test_missing_parts_leave_a_sentence():
    bare = build_page(Content("t", "q"))
    Outline(bare)
    for sentence in ("no results", "no Table 1", "nothing to play", "no figures", "no curves", "no manifest"):
        assert sentence in bare
    assert "floatscope.Player(document" not in bare and "<figure" not in bare
    without = dataclasses.replace(made_content(), results={"drift": made_results()["drift"]}, traces=())
    assert build_page(without).count("<figure") == 2  # drift and stress


def test_csv_equals_the_table(page):
    for figure in [
        *analysis_figures(made_results(), MODELS),
        stress_figure(stress_curves(made_scores(), MODELS), MODELS),
    ]:
        read = pl.read_csv(io.StringIO(csv_text(figure.table)), schema=figure.table.schema)
        assert read.equals(figure.table)
        embedded = re.search(rf'getElementById\("figure-{figure.name}"\), (.*?)\);</script>', page)
        assert embedded and json.loads(embedded[1])["views"][0]["csv"] == csv_text(figure.table)
    table = re.search(r'id="table-csv">(.*?)</script>', page)
    assert table and json.loads(table[1]) == csv_text(made_scores().filter(stressor="documents"))


def test_figures_draw_the_numbers_of_their_tables():
    figures = {figure.name: figure for figure in analysis_figures(made_results(), MODELS, made_traces())}
    drift = made_results()["drift"].table
    for panel, measure in zip(figures["drift"].panels, ("turnover", "top_shift", "wasserstein"), strict=False):
        for series in panel["series"]:
            column = series.get("control", "value")
            part = drift.filter(measure=measure, model=series["name"]).drop_nulls(column)
            assert [point[1] for point in series["points"]] == pytest.approx(part[column].to_list(), rel=1e-4)
    heads = made_results()["retrieval_heads"].table.drop_nulls("value")
    drawn = [cell[2] for panel in figures["retrieval_heads"].panels for cell in panel["cells"]]
    assert sorted(drawn) == pytest.approx(sorted(heads["value"].to_list()), rel=1e-4)


def test_compat_mode_is_beside_the_exact_numbers():
    figures = {figure.name: figure for figure in analysis_figures(made_results(), MODELS)}
    assert figures["absorption"].published and not figures["drift"].published
    table = made_results()["compat"].table.filter(quirk="one_forward", model="diffuser")
    series = figures["absorption"].published[1]["series"]
    exact, published = (one for one in series if one["name"] == "diffuser")
    assert [point[1] for point in exact["points"]] == pytest.approx(table["exact"].to_list(), rel=1e-4)
    assert published["control"] == "published"
    assert [point[1] for point in published["points"]] == pytest.approx(table["published"].to_list(), rel=1e-4)


def test_models_without_numbers_are_left_out():
    table = pl.DataFrame(
        {"model": ["a"], "layer": [0], "value": [1.0], "low": [None], "high": [None], "uniform": [None]}
    )
    assert line_series(table, ("b", "a"), "layer") == [{"name": "a", "colour": 2, "points": [[0, 1.0, None, None]]}]
    panel = heat_panel("t", [0], [0], [(0, 0, None, "")], "x", "y", 1.0)
    assert panel["cells"] == [[0, 0, None, ""]]


def test_numbers_for_people():
    assert number_text(None) == "–" and number_text(-0.25, 2) == "−0.25" and number_text(12.34) == "12.3"
    assert number_text(0.0028, 2) == "0.003" and number_text(0.0, 2) == "0.00"
    assert interval_text(0.5, 0.25, 0.75) == "0.50 [0.25, 0.75]" and interval_text(0.5, None, None) == "0.50"


def test_a_notebook_shows_traces_and_results():
    shown = made_traces()[0]._repr_html_()
    assert "new floatscope.Player" in shown and asset("player.js") in shown and "Who \\u003crules> & why?" in shown
    assert "new floatscope.Figure" in made_results()["drift"]._repr_html_()
    assert "<table" in made_results()["anchors"]._repr_html_()
