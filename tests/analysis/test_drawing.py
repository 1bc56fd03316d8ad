"""The drawing kit on tables worked out by hand: every mark at its place, in its colour, with its bounds and order."""

import polars as pl
import pytest

from floatscope.analysis.drawing import arrange, cells, dots, ends_of, lines
from floatscope.analysis.figure import Figure
from floatscope.analysis.palette import CONTROL, HEAT, INK, MODELS
from tests.analysis.scenes import Scene, scenes

BLUE, GREEN = MODELS[:2]
DOCS = ["doc 1", "doc 2"]
# Plots are 240 wide and 140 high; the ends of a line stand 6 from the sides: layer n of 0..2 is at 6 + 114 n.
CURVES = pl.DataFrame(
    {
        "model": ["b", "b", "b", "a", "a", "a"],
        "measure": ["x"] * 6,
        "layer": [0, 1, 2, 0, 1, 2],
        "value": [0.0, 0.5, 1.0, 0.25, None, 0.75],
        "low": [0.0, 0.25, 0.75, 0.0, None, None],
        "high": [0.25, 0.75, 1.0, 0.5, None, None],
        "samples": [4] * 6,
        "uniform": [0.125] * 3 + [0.5] * 3,
        "random": [None] * 6,
        "untrained": [1.0, 0.5, 0.0] + [None] * 3,
    }
)


def drawn(panel, table, **more) -> Scene:
    return scenes(Figure("f", "t", arrange([panel], {"table": table, **more}), table, "c"))[0]


@pytest.mark.slow
def test_lines_stand_where_the_table_says():
    scene = drawn(lines(CURVES, "title", {"measure": "x"}, ("a", "b")), CURVES)
    assert scene.title == "title" and scene.labels["x"] == ["0", "1", "2"]
    # the first of the models is blue and round, wherever it stands in the table
    assert scene.places("symbol", fill=BLUE, shape="circle") == [(6, 105), (234, 35)]
    assert scene.places("symbol", fill=GREEN, shape="square") == [(6, 140), (120, 70), (234, 0)]
    assert scene.places("line", stroke=GREEN, strokeWidth=2) == [(6, 140), (120, 70), (234, 0)]
    bands = [(mark["x"], mark["y"], mark["y2"]) for mark in scene.marks("area", fill=GREEN)]
    assert bands == [pytest.approx(one) for one in ((6, 140, 105), (120, 105, 35), (234, 35, 0))]
    assert [(mark["y"], mark["y2"]) for mark in scene.marks("area", fill=BLUE)] == [(140, 70)]


@pytest.mark.slow
def test_controls_are_thin_lines_in_the_colour_of_their_model():
    scene = drawn(lines(CURVES, "title", {"measure": "x"}, ("a", "b")), CURVES)
    thin = {"strokeWidth": 1.2}
    assert scene.places("line", stroke=BLUE, strokeDash=[1, 0], **thin) == [(6, 70), (120, 70), (234, 70)]
    assert scene.places("line", stroke=GREEN, strokeDash=[1, 0], **thin) == [(6, 122.5), (120, 122.5), (234, 122.5)]
    assert scene.places("line", stroke=GREEN, strokeDash=[1.5, 2.5], **thin) == [(6, 0), (120, 70), (234, 140)]
    assert not scene.marks("line", stroke=BLUE, strokeDash=[1.5, 2.5]) and not scene.marks("line", strokeDash=[4, 3])


@pytest.mark.slow
def test_only_the_rows_asked_for_are_drawn():
    other = CURVES.with_columns(measure=pl.lit("y"), value=pl.lit(0.9))
    table = pl.concat([other, CURVES])
    scene = drawn(lines(table, "title", {"measure": "x"}, ("a", "b")), table)
    assert scene.places("symbol", fill=BLUE) == [(6, 105), (234, 35)]
    assert lines(table, "title", {"measure": "z"}, ("a", "b")) is None
    assert lines(table.with_columns(value=pl.lit(None, pl.Float64)), "title", {"measure": "x"}, ("a", "b")) is None


def test_levels_written_as_texts_are_numbers_and_names_keep_their_order():
    table = CURVES.head(3).with_columns(x=pl.Series(["0", "10", "2"]), name=pl.Series(["split", "order", "far"]))
    levels = drawn(lines(table, "t", {}, ("b",), "x", "distractors", controls=()), table)
    assert levels.places("line", strokeWidth=2) == [(6, 140), (51.6, 0), (234, 70)]
    names = drawn(lines(table, "t", {}, ("b",), "name", "layout", controls=()), table)
    assert names.labels["x"] == ["split", "order", "far"]
    assert names.places("symbol") == [(40, 140), (120, 70), (200, 0)]
    assert [(mark["y"], mark["y2"]) for mark in names.marks("rule")] == [(140, 105), (105, 35), (35, 0)]


def test_a_single_place_has_points_and_bounds():
    table = CURVES.filter(layer=1, model="b")
    scene = drawn(lines(table, "t", {}, ("b",), ends=(0, 1)), table)
    assert scene.places("symbol", fill=BLUE) == [(120, 70)]
    assert [(round(mark["x"]), mark["y"], mark["y2"]) for mark in scene.marks("rule")] == [(120, 105, 35)]
    assert scene.places("symbol", shape="stroke") == [(120, 122.5), (120, 70)]  # uniform, untrained


def test_ends_of_an_axis():
    assert ends_of([0.2, None, 1.0]) == [0.0, 1.0] and ends_of([0.8, 1.0]) == [0.8, 1.0]
    assert ends_of([0.8, 1.0], zero=True) == [0.0, 1.0] and ends_of([-2.0, 1.0]) == [-2.0, 1.0]
    assert ends_of([1.0, 1.0]) == [0.5, 1.5] and ends_of([0.0]) == [-0.5, 0.5]


def test_dots_stand_side_by_side_with_bounds_and_hollow_where_chance_does_as_well():
    table = pl.DataFrame(
        {
            "model": ["a", "b", "a", "b", "a"],
            "depth": ["deep", "deep", "shallow", "shallow", "all"],
            "value": [1.0, 0.5, 0.25, 0.75, 9.0],
            "low": [0.5, 0.25, 0.0, 0.5, 9.0],
            "high": [1.0, 0.75, 0.5, 1.0, 9.0],
            "p": [0.01, 0.2, 0.05, 0.001, 0.5],
            "uniform": [0.5, None, None, None, 9.0],
        }
    )
    scene = drawn(dots(table, "t", {}, ("a", "b"), "depth", ("shallow", "deep"), hollow="datum.p >= 0.05"), table)
    assert scene.labels["x"] == ["shallow", "deep"]  # the row "all" is not asked for
    full = scene.places("symbol", strokeOpacity=0, fill=BLUE) + scene.places("symbol", strokeOpacity=0, fill=GREEN)
    hollow = scene.places("symbol", stroke=BLUE, strokeWidth=1.5) + scene.places(
        "symbol", stroke=GREEN, strokeWidth=1.5
    )
    assert [y for _, y in full] == [0, 35] and [y for _, y in hollow] == [105, 70]
    (deep_a, shallow_b), (shallow_a, deep_b) = [x for x, _ in full], [x for x, _ in hollow]
    assert shallow_a < shallow_b < 120 < deep_a < deep_b
    bounds = {(mark["stroke"], mark["y"], mark["y2"]) for mark in scene.marks("rule")}
    assert bounds == {(BLUE, 70, 0), (GREEN, 105, 35), (BLUE, 140, 70), (GREEN, 70, 0)}
    assert scene.places("symbol", shape="stroke", stroke=CONTROL) == [(deep_a, 70)]


def test_cells_are_not_transposed_and_marks_stand_on_theirs():
    table = pl.DataFrame(
        {
            "to": ["doc 1", "doc 2", "doc 1", "doc 2", "doc 1", "doc 2"],
            "at": ["doc 1", "doc 1", "doc 2", "doc 2", "none", "none"],
            "value": [0.1, 0.2, 0.3, 0.4, 0.0, None],
            "gold": [True, False, False, True, False, False],
        }
    )
    panel = cells(table, "t", {}, ("to", None, DOCS), ("at", None, [*DOCS, "none"]), 0.4, mark="datum.gold")
    scene = drawn(panel, table)
    assert scene.labels == {"x": ["doc 1", "doc 2"], "y": ["doc 1", "doc 2", "none"]}
    found = {(mark["x"] > 26, round(mark["y"] / 26)): mark["opacity"] for mark in scene.marks("rect", fill=HEAT)}
    assert found == {
        (False, 0): pytest.approx(0.25),
        (True, 0): pytest.approx(0.5),
        (False, 1): pytest.approx(0.75),
        (True, 1): pytest.approx(1),
        (False, 2): 0,
    }
    (left, upper), (right, lower) = scene.places("symbol", shape="diamond", stroke=INK)
    assert left < 26 < right < 52 and upper < 26 < lower < 52
    faint = drawn(cells(table, "t", {}, ("to", None, DOCS), ("at", None, DOCS[:1]), 0.4, faint=True), table)
    assert {mark["fill"] for mark in faint.marks("rect")} == {CONTROL}
    rooted = drawn(cells(table, "t", {}, ("to", None, DOCS[:1]), ("at", None, DOCS[:1]), 0.4, root=True), table)
    assert rooted.marks("rect")[0]["opacity"] == pytest.approx(0.5)


def test_groups_have_headings_and_empty_ones_are_left_out():
    one = lines(CURVES, "one", {"measure": "x"}, ("a", "b"))
    figure = Figure(
        "f", "t", arrange({"first": [one, None], "none": [None], "last": [one]}, {"table": CURVES}), CURVES, "c"
    )
    assert [(scene.heading, scene.title) for scene in scenes(figure)] == [("first", "one"), ("last", "one")]
    empty = Figure("f", "t", arrange([None], {"table": CURVES}), CURVES, "c")
    assert "Nothing to draw: every value is null (the notes say why)." in empty.svg()
