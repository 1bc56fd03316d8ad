"""The page: every part and its number, nothing to fetch, missing parts as sentences, CSV equal to the tables."""

import base64
import dataclasses
import hashlib
import html
import io
import json
import re
from html.parser import HTMLParser

import altair as alt
import polars as pl
import pytest

from floatscope.analysis import ANALYSES
from floatscope.analysis.drawing import csv_text
from floatscope.analysis.figure import Figure
from floatscope.reports.cards import drawing_library, figure_card
from floatscope.reports.curves import stress_curves, stress_figure
from floatscope.reports.markup import asset
from floatscope.reports.page import Content, build_page, figure_page, page_figures, trace_pictures
from tests.analysis.scenes import scenes
from tests.reports.making import MODELS, made_content, made_results, made_scores, made_traces

pytestmark = pytest.mark.slow


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
    own = page.replace(drawing_library(), "")  # which knows how to fetch, and is forbidden to
    assert len(own) < len(page) and not re.search(r"url\(|@import|https?://(?!www\.w3\.org)", own)


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
        "<td>leave_one_out</td><td>0.90 [0.80, 1.00]</td>",
        "Of wrong answers alone",
    ):
        assert text in page
    order = re.findall(r'<figure class="fs-figure card" id="figure-(\w+)"', page)
    assert order == ["drift_map", "attribution", *ANALYSES, "stress"] and len(ANALYSES) == 11
    contents = re.search(r'<nav class="contents".*?</nav>', page)
    assert contents and re.findall(r'href="#figure-(\w+)"', contents[0]) == order[2:-1]
    sections = re.findall(r'<section id="(map|player)"|<h2 id="(\w+)"', page)
    assert ["".join(one) for one in sections] == ["player", "table", "map", "sources", "figures", "stress", "made"]
    nav = re.search(r'<nav aria-label="Sections">.*?</nav>', page)
    assert nav and re.findall(r'href="#(\w+)"', nav[0]) == [
        "player",
        "table",
        "map",
        "sources",
        "figures",
        "stress",
        "made",
    ]
    assert (
        page.index('id="player-data"')
        < page.index('id="table"')
        < page.index('id="figure-drift_map"')
        < page.index('id="figure-drift"')
    )


def test_guesses_are_told_where_there_are_some_and_not_by_a_models_name():
    def lead(scores: pl.DataFrame) -> str:
        found = re.search(r"Share of right answers.*?</p>", build_page(Content("t", "q", scores=scores)))
        assert found
        return found[0]

    told = "Guesses that know no model stand below, so that a number can be read."
    assert told in lead(made_scores())
    alone = made_scores().filter(pl.col("statistic") != "guess")
    assert told not in lead(alone.with_columns(pl.col("model").replace({"diffuser": "guess: diffuser"})))


def test_no_line_break_cuts_a_name_or_a_number():
    told = "twin-x's 5 documents add −1.5 % [−2, +3] to twin-x-2 (n = 40), <b> 0 %."
    page = build_page(Content("t", "q", models=("twin-x", "twin-x-2"), summary=(told,)))
    item = re.search(r'<ul class="answer">\s*<li>(.*?)</li>', page)
    assert item and re.findall(r'<span class="whole">(.*?)</span>', item[1]) == [
        *("twin-x", "5", "−1.5 % [−2, +3]", "twin-x-2", "40", "0 %")
    ]
    assert re.sub(r"</?span.*?>", "", item[1]) == html.escape(told, quote=True).replace("&#x27;", "&#39;")


def test_missing_parts_leave_a_sentence():
    bare = build_page(Content("t", "q"))
    Outline(bare)
    assert re.findall(r'<p class="missing">(.*?)</p>', bare) == [
        "There are no results to sum up yet.",
        "There is no manifest.",
        "The study kept no traces: there is nothing to play.",
        "No condition is with and without documents: there is no Table 1.",
        "The study kept no traces: there is no map of one.",
        "The study asks no questions: there is no list of answers.",
        "No answer was attributed to its documents: nothing tells where answers came from.",
        "The study ran no analyses of traces: there are no figures.",
        "The study has no stress conditions: there are no curves.",
        "The study changes no attention: nothing tells what attention does to answers.",
    ]
    assert re.findall(r'<h2 id="(\w+)"', bare) == ["made"] and re.findall(r'<a href="#(\w+)">', bare) == ["made"]
    assert 'id="player-data"' not in bare and "<figure" not in bare and "vegaEmbed=" not in bare
    without = dataclasses.replace(made_content(), results={"drift": made_results()["drift"]}, traces=())
    assert build_page(without).count("<figure") == 3  # sources, drift and stress


def test_an_analysis_that_could_not_be_made_stands_in_its_place_with_the_reason():
    results = {name: made_results()[name] for name in ("drift", "flow")}
    content = dataclasses.replace(
        made_content(), results=results, missing={"absorption": "No <trace> is left."}, traces=()
    )
    page = build_page(content)
    assert "This figure is missing: No &lt;trace&gt; is left." in page
    assert re.findall(r'id="figure-(\w+)"', page) == ["attribution", "drift", "absorption", "flow", "stress"]
    assert (
        '<a href="#figure-absorption">Percent of attention on the first token and on the detected anchors</a>' in page
    )


def test_traces_alone_make_a_page():
    page = build_page(Content("t", "q", traces=made_traces()))
    assert 'id="figure-drift_map"' in page and "diffuser, layer" in page and "writer, layer" in page


def embedded(page: str, name: str) -> dict:
    found = re.search(rf'id="figure-{name}".*?<script type="application/json">(.*?)</script>', page, re.DOTALL)
    assert found
    return json.loads(found[1])


def test_csv_equals_the_table(page):
    figures = [one for one in page_figures(made_content()) if isinstance(one, Figure)]
    figures += trace_pictures(made_content())
    for figure in [*figures, stress_figure(stress_curves(made_scores(), MODELS), MODELS)]:
        read = pl.read_csv(io.StringIO(csv_text(figure.table)), schema=figure.table.schema)
        assert read.equals(figure.table)
        views = embedded(page, figure.name)["views"]
        assert views[0]["tables"]["table"] == csv_text(figure.table)
        others = [one for one in figure.layers if one.layer != figure.layer]
        others += [figure.published] if figure.published else []
        assert [view["tables"]["table"] for view in views[1:]] == [csv_text(other.table) for other in others]
    table = re.search(r'id="table-csv">(.*?)</script>', page)
    assert table and json.loads(table[1]) == csv_text(made_scores().filter(stressor="documents"))


def test_only_the_scripts_of_the_page_may_run(page):
    policy = re.search(r'http-equiv="Content-Security-Policy" content="(.*?)"', page)
    assert policy and "default-src 'none'" in policy[1]
    allowed = re.findall(r"'sha256-(.*?)'", policy[1])
    scripts = re.findall(r"<script>(.*?)</script>", page, re.DOTALL)
    assert [base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() for text in scripts] == allowed
    (rule,) = (part for part in policy[1].split(";") if "script-src" in part)
    assert "unsafe" not in rule and "on" not in re.findall(r"\son\w+=", page)


def test_room_for_every_panel_is_there_before_it_is_drawn(page):
    for figure in (one for one in page_figures(made_content()) if isinstance(one, Figure)):
        card = figure_card(figure)
        rooms = re.findall(r'<div class="fs-view" style="height:(\d+)px"', card)
        drawn = [*scenes(figure), *(scenes(figure.published) if figure.published else [])]
        assert len(rooms) == len(drawn) and all(60 <= int(height) <= 400 for height in rooms)
        titles = re.findall(r'<p class="fs-plot-title">(.*?)</p>', card)
        assert titles == [scene.title for scene in drawn]


def test_the_legend_names_models_then_controls(page):
    legend = re.search(r'id="figure-drift".*?<div class="fs-figure-legend">(.*?)</div>', page, re.DOTALL)
    assert legend and re.findall(r'data-field="(\w+)" data-value="(\w+)"', legend[1]) == [
        *(("model", name) for name in MODELS),
        *(("control", name) for name in ("uniform", "random", "untrained")),
    ]
    assert "light-dark(#0072b2,#56b4e9)" in legend[1] and 'stroke-dasharray="4 3"' in legend[1]


def test_stress_curves_have_their_levels_and_baselines():
    figure = stress_figure(stress_curves(made_scores(), MODELS), MODELS)
    (scene,) = scenes(figure)
    assert scene.title == "a, topical distractors, gold kept" and scene.labels["x"] == ["0", "2", "10"]
    first = [(x, y) for x, y in scene.places("symbol", shape="circle")]
    assert first == [(6, 14), (51.6, 28), (234, 84)]  # 0.9, 0.8, 0.4 of a height of 140
    assert {(round(mark["y"], 3), round(mark["y2"], 3)) for mark in scene.marks("area")} == {(98, 7)}
    assert {y for _, y in scene.places("line", strokeDash=[4, 3])} == {0}  # oracle
    assert {y for _, y in scene.places("line", strokeDash=[1.5, 2.5])} == {126}  # closed-book


def test_a_chart_of_ones_own_is_drawn_whole():
    chart = alt.Chart(pl.DataFrame({"a": [1, 2], "b": ["x", "y"]})).mark_bar().encode(x="a:Q", column="b:N")
    card = figure_card(Figure("own", "Mine", chart, pl.DataFrame({"a": [1]}), "See."))
    assert card.count('class="fs-view"') == 1 and 'class="fs-view" style' not in card


def test_one_figure_makes_a_page():
    figure = trace_pictures(made_content())[0]
    page = figure_page(figure, "dark")
    Outline(page)
    assert "Where attention goes, step by step" in page and 'dataset.theme = "dark"' in page


def test_a_notebook_shows_traces():
    shown = made_traces()[0]._repr_html_()
    assert "new floatscope.Player" in shown and asset("player.js") in shown
    assert "Who \\u003crules\\u003e \\u0026 why?" in shown
