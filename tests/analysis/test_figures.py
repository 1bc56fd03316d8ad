"""The figure of every analysis, on tables worked out by hand: marks at their places, whole sentences, files, themes."""

import copy
import dataclasses
import json
import re

import altair as alt
import numpy as np
import polars as pl
import pytest

from floatscope.analysis import ANALYSES, Controls, Options, Result, analyze, draw, draw_traces
from floatscope.analysis.figure import Figure, by_model, finding, in_theme, interval_text, number_text, sentence
from floatscope.analysis.palette import CARD, CONTROL, DARK, HEAT, MODELS
from floatscope.errors import UserError
from tests.analysis.scenes import scenes
from tests.traces.full_matrices import full_run, to_trace

pytestmark = pytest.mark.slow

OPTIONS = Options(detector="zscore(1)", draws=50)
BLUE, GREEN = MODELS[:2]
MODEL = ("m", "w")


def sample(model: str, seed: int, **settings):
    run = full_run(seed=seed, **settings)
    run.canvas[run.prompt_length] = run.canvas[10]
    return to_trace(run, model=model, metadata={"sample": str(seed), "task": "ab"[seed % 2]})


@pytest.fixture(scope="module")
def results():
    traces = [sample(kind, seed, kind=kind) for kind in ("arm", "mdm") for seed in range(4)]
    untrained = [sample("bare", seed, sharpness=0.1) for seed in range(10, 14)]
    return {name: analyze(name, traces, OPTIONS, Controls(untrained=untrained)) for name in ANALYSES}


def result(name: str, table: list[dict], **others: list[dict]) -> Result:
    """A result of rows written out; columns that a row leaves out are null."""
    tables = {name: table} | others
    return Result(name, {key: pl.DataFrame(rows, infer_schema_length=None) for key, rows in tables.items()})


def row(model="m", value: float | None = 0.5, low: float | None = None, high: float | None = None, **more) -> dict:
    controls = {"uniform": None, "random": None, "untrained": None}
    known = {"model": model, "value": value, "low": low, "high": high, "samples": 4}
    return known | controls | more


@pytest.mark.parametrize("name", ANALYSES)
@pytest.mark.parametrize("theme", ["light", pytest.param("dark", marks=pytest.mark.slow)])
def test_every_analysis_draws_its_values_and_controls_in_both_themes(results, name, theme):
    figure = draw(name, results)
    spec = figure.spec(theme)
    known = copy.deepcopy({key: part for key, part in spec.items() if key != "datasets"})
    # How legends stand to each other is Vega's own: Vega-Lite hands it on and has it in no schema.
    assert known["config"]["legend"].pop("layout")["top"]["direction"] == "vertical"
    alt.Chart.from_dict(known)  # valid Vega-Lite
    assert spec["config"]["background"] == (CARD if theme == "light" else DARK[CARD])
    assert figure.caption.endswith(".") and figure.finding.endswith(".") and figure.name == name
    drawn = scenes(figure, theme)
    marks = [mark for scene in drawn for layer in scene.layers.values() for mark in layer]
    assert marks and all(np.isfinite([mark["x"], mark.get("y", 0.0)]).all() for mark in marks)
    # MDMs come first, in the first colour; controls are thin, or grey, or pale
    first = MODELS[0] if theme == "light" else DARK[MODELS[0]]
    grey = CONTROL if theme == "light" else DARK[CONTROL]
    models = [mark for mark in marks if first in (mark.get("fill"), mark.get("stroke"))]
    controls = [m for m in marks if m.get("strokeWidth") == 1.2 or grey in (m.get("fill"), m.get("stroke"))]
    controls += [mark for mark in marks if mark.get("opacity") == 0.45]
    assert models or name == "token_classes"
    assert controls


def test_the_same_tables_give_the_same_bytes(results):
    assert draw("qk", results).svg() == draw("qk", results).svg()


def test_drift_has_a_panel_for_each_measure_and_the_turnover_in_a_sentence():
    table = [row(measure="turnover", layer=n, value=v, random=1.0, untrained=0.5) for n, v in enumerate((0.0, 0.2))]
    table += [row(measure="top_shift", layer=n, value=v, random=30.0) for n, v in enumerate((1.0, 3.0))]
    table += [row("w", measure="turnover", layer=n, value=0.75) for n in (0, 1)]
    figure = draw("drift", {"drift": result("drift", table)}, MODEL)
    assert (
        figure.finding == "Turnover from step to step, mean over layers: m 0.10 (random 1.00, untrained 0.50); w 0.75."
    )
    turnover, shift = scenes(figure)
    assert (turnover.title, shift.title) == ("turnover of anchors", "shift of the top position, tokens")
    assert turnover.places("symbol", fill=BLUE) == [(6, 140), (234, 112)]
    assert turnover.places("symbol", fill=GREEN) == [(6, 35), (234, 35)]
    assert [y for _, y in shift.places("line", strokeDash=[4, 3])] == [0, 0]  # far above: a logarithmic scale
    assert shift.places("symbol")[0][1] < 140 * (1 - 1 / 30) - 10


def test_absorption_by_set_and_rows():
    keys = [
        (kind, rows, layer) for kind in ("bos", "detected", "top1") for rows in ("all", "answer") for layer in (0, 1)
    ]
    ends = {"uniform": 100.0, "untrained": 0.0}
    table = [row(set=k, rows=r, layer=n, value=8.0 * place, **ends) for place, (k, r, n) in enumerate(keys)]
    figure = draw("absorption", {"absorption": result("absorption", table)}, MODEL)
    assert figure.finding == "First token, all rows, mean over layers, in %: m 4.0 (uniform 100.0, untrained 0.0)."
    titles = [scene.title for scene in scenes(figure)]
    assert titles == [
        *("first token", "first token, answer rows", "detected anchors", "detected anchors, answer rows"),
        *("top position", "top position, answer rows"),
    ]
    for place, scene in enumerate(scenes(figure)):
        heights = [100 * (140 - y) / 140 for _, y in scene.places("symbol", fill=BLUE)]
        assert heights == pytest.approx([16 * place, 16 * place + 8], abs=0.01)


def test_anchors_by_detector():
    keys = [("zscore(3)", "count", "rows"), ("top1", "count", "rows"), ("zscore(3)", "mass", "rows")]
    keys += [("zscore(3)", "count", "visible")]
    table = [
        row(detector=d, measure=m, normalisation=n, layer=layer, value=float(place + layer), uniform=0.5, untrained=2.0)
        for place, (d, m, n) in enumerate(keys)
        for layer in (0, 1)
    ]
    figure = draw("anchors", {"anchors": result("anchors", table)}, MODEL)
    assert figure.finding == "Anchors per step by zscore(3), mean over layers: m 0.50 (uniform 0.50, untrained 2.00)."
    assert [scene.title for scene in scenes(figure)] == ["zscore(3)", "top1"] and figure.table.height == 4


def test_dispersion_is_said_as_a_contrast_of_depths():
    table = [row(measure="gini", layer=n, value=0.25 * n) for n in (0, 1, 2)]
    depth = [
        row(measure=m, depth=d, value=v, low=v - 0.25, high=v + 0.25, p=0.02, uniform=0.0, untrained=0.125)
        for m, d, v in (("gini", "shallow - deep", 9.0), ("effective_share", "shallow", 9.0))
    ]
    depth.append(row(measure="effective_share", depth="shallow - deep", value=0.5, low=0.25, high=0.75, p=0.02))
    figure = draw("dispersion", {"dispersion": result("dispersion", table, dispersion_depth=depth)}, MODEL)
    assert (
        figure.finding == "exp(entropy) / columns, shallow third minus deep third: m 0.500 [0.250, 0.750], p = 0.020."
    )
    (scene,) = scenes(figure)
    assert scene.title == "Gini coefficient" and scene.places("symbol") == [(6, 140), (120, 70), (234, 0)]


def test_token_classes_are_stacked_from_the_mask_up_beside_pale_controls():
    classes = ("mask", "special", "whitespace", "punctuation", "scaffold", "function", "number", "content")
    shares = {"mask": 0.25, "punctuation": 0.5, "content": 0.25}
    table = [
        row(phase=phase, depth=depth, value=shares.get(one, 0.0), random=1.0 if one == "content" else 0.0)
        | {"class": one}
        for phase in ("all", "early")
        for depth in ("shallow", "middle", "deep", "all")
        for one in reversed(classes)
    ]
    for one in table:
        one["value"] = None if one["depth"] == "middle" else one["value"]
    test = [
        row(treatment=t, contrast=c, value=v, low=v - 0.25, high=v + 0.25, p=0.25, random=0.125)
        for t, c, v in (
            ("function words apart", "structural: shallow - deep", 9.0),
            ("function words lexical", "lexical: deep - shallow", 8.0),
            ("function words apart", "lexical: deep - shallow", -0.5),
        )
    ]
    made = result("token_classes", table, token_classes_test=test)
    figure = draw("token_classes", {"token_classes": made}, MODEL)
    assert figure.finding == (
        "Lexical share of anchor mass, deep minus shallow: m −0.50 [−0.75, −0.25], p = 0.250 (random 0.12)."
    )
    (scene,) = scenes(figure)
    assert scene.labels["x"] == ["anchors", "random", "", "anchors", "random", "", "anchors", "random"]
    full = [mark for mark in scene.marks("rect", opacity=1) if mark["height"]]
    first = sorted((mark for mark in full if mark["x"] < 133), key=lambda mark: -mark["y"])
    assert [(mark["fill"], mark["y"], mark["height"]) for mark in first] == [
        ("#9aa0a6", 135, 45),
        ("#56b4e9", 45, 90),
        ("#d55e00", 0, 45),
    ]
    assert not [mark for mark in full if 133 < mark["x"] < 266]  # the middle has no anchors
    pale = [mark for mark in scene.marks("rect", opacity=0.45) if mark["height"]]
    assert [(mark["fill"], mark["height"]) for mark in pale] == [("#d55e00", 180)] * 3
    names = scene.marks("text")
    assert [mark["text"] for mark in sorted(names, key=lambda mark: mark["x"])] == ["shallow", "middle", "deep"]


def test_qk_parts_share_one_scale():
    values = {"qk": 2.0, "angle_part": 1.5, "norm_part": 0.25, "interaction_part": 0.25}
    table = [row(measure=name, layer=n, value=v, random=0.5) for name, v in values.items() for n in (0, 1)]
    figure = draw("qk", {"qk": result("qk", table)}, MODEL)
    assert figure.finding == (
        "Part of the angle, mean over layers: m 1.50 (norm 0.25, angle of random positions 0.50)."
    )
    found = scenes(figure)
    assert [scene.title for scene in found] == [
        "advantage in q·k",
        "part of the angle",
        "part of the norm",
        "interaction",
    ]
    assert [scene.places("symbol")[0][1] for scene in found] == [0, 35, 122.5, 122.5]


def test_query_state_names_the_region_that_differs_most():
    table = [
        row(state=state, depth=depth, target_kind=kind, target=target, value=value, uniform=0.2, untrained=0.1)
        for depth in ("all", "deep")
        for kind, target, masked, committed in (
            ("region", "doc 1", 0.4, 0.2),
            ("region", "answer", 0.1, 0.4),
            ("class", "content", 0.9, 0.1),
        )
        for state, value in (("masked", masked), ("committed", committed), ("masked - committed", masked - committed))
    ]
    for one in table:
        if one["state"] == "masked - committed":
            one |= {"low": one["value"] - 0.05, "high": one["value"] + 0.05, "uniform": 0.0, "untrained": 0.01}
    figure = draw("query_state", {"query_state": result("query_state", table)}, MODEL)
    assert figure.finding == (
        "Masked minus committed slots, the region that differs most: "
        "m answer −0.300 [−0.350, −0.250] (uniform 0.000, untrained 0.010)."
    )
    regions, classes = scenes(figure)
    assert (regions.heading, classes.heading) == ("to regions", "to token classes")
    assert regions.labels["x"] == ["doc 1", "answer"]  # 0.4 is at the top of 140, 120 wide for each; masked at the left
    hollow = sorted(regions.places("symbol", stroke=BLUE, strokeWidth=1.5))
    full = sorted(regions.places("symbol", fill=BLUE))
    assert [y for _, y in hollow] == [0, 105] and [y for _, y in full] == [70, 0]
    assert all(left < right < left + 120 for (left, _), (right, _) in zip(hollow, full, strict=True))
    marks = {(round(mark["y"], 3), mark["shape"]) for mark in regions.marks("symbol", stroke=CONTROL)}
    assert marks == {(70, "stroke"), (105, "triangle-down")}  # uniform and untrained


def test_retrieval_heads_are_cells_of_layers_and_heads_and_the_strongest_is_named():
    values = {("m", 0, 0): 0.1, ("m", 0, 1): 0.2, ("m", 1, 0): 0.8, ("m", 1, 1): 0.3, ("w", 0, 1): 0.4}
    table = [
        row(
            model,
            score="evidence",
            layer=layer,
            head=head,
            value=v,
            low=v - 0.05,
            high=v + 0.05,
            uniform=0.1,
            untrained=0.2,
        )
        for (model, layer, head), v in values.items()
    ]
    table.append(row(score="copy", layer=0, head=1, value=0.99))
    depth = [row(score="evidence", depth=d, value=v) for d, v in (("shallow", 0.0), ("deep", 0.5), ("all", 9.0))]
    halves = [
        {"model": "m", "score": "evidence", "pearson": 0.5, "pearson_low": 0.25, "pearson_high": 1.0, "random": 0.0}
    ]
    made = result("retrieval_heads", table, retrieval_heads_depth=depth, retrieval_heads_stability=halves)
    figure = draw("retrieval_heads", {"retrieval_heads": made}, MODEL)
    assert figure.finding == (
        "Most mass on evidence: m layer 1 head 0 with 0.80 [0.75, 0.85] (uniform 0.10, untrained 0.20); "
        "w layer 0 head 1 with 0.40 [0.35, 0.45] (uniform 0.10, untrained 0.20)."
    )
    copies, first, second, profile, agreement = scenes(figure)
    assert {scene.heading for scene in (copies, first, second)} == {"every head"}
    assert copies.title == "copies the answer: m"
    told = "committing rows to evidence: {} (uniform\u00a00.10)"
    assert (first.title, second.title) == (told.format("m"), told.format("w"))
    shades = {(mark["y"] > 20, mark["x"] > 20): mark["opacity"] for mark in first.marks("rect")}  # head, layer
    assert shades == {
        (False, False): pytest.approx(0.125),
        (True, False): pytest.approx(0.25),
        (False, True): pytest.approx(1),  # head 0 of layer 1
        (True, True): pytest.approx(0.375),
    }
    assert second.marks("rect")[0]["opacity"] == pytest.approx(0.5)
    assert [y for _, y in profile.places("symbol", fill=BLUE)] == [140, 0]
    assert [(mark["y"], mark["y2"]) for mark in agreement.marks("rule")] == [(105, 0)]


def test_flow_has_gold_positions_as_rows_documents_as_columns_and_diamonds_on_gold():
    shares = {("doc 1", "doc 1"): 0.4, ("doc 1", "doc 2"): 0.1, ("doc 2", "doc 1"): 0.2, ("doc 2", "doc 2"): 0.3}
    shares |= {("doc 1 + doc 10", "doc 2"): 0.0}
    gold = [
        row(gold=g, window=window, target=t, value=v, low=v, high=v, uniform=0.2, is_gold=t in g.split(" + "))
        for window in ("deep", "all")
        for (g, t), v in reversed(shares.items())
    ]
    regions = [
        row(gold="doc 1", view="rollout", form="pooled", window="all", layer=None, source=s, target=t, value=v)
        for s, t, v in (("query", "query", 0.25), ("query", "answer", 1.0), ("answer", "query", 0.0))
    ]
    contrast = [
        row(gold=g, window="all", value=v, low=v - 0.125, high=v + 0.125, p=0.5, uniform=0.0)
        for g, v in (("doc 1", 9.0), ("any", 0.25))
    ]
    steps = [
        row(gold="doc 2", window="all", step=n, target=t, value=v)
        for t, v in (("doc 1", 0.9), ("doc 2", 0.5))
        for n in (0, 1)
    ]
    made = result("flow", regions, flow_gold=gold, flow_contrast=contrast, flow_steps=steps)
    figure = draw("flow", {"flow": made}, MODEL)
    assert figure.finding == (
        "Gold document minus the mean of the others: m 0.250 [0.125, 0.375], p = 0.500 (uniform 0.000)."
    )
    trained, uniform, by_step, between = scenes(figure)
    assert trained.heading == "m, darkest 0.40" and (trained.title, uniform.title) == ("trained", "uniform")
    assert trained.labels == {"x": ["1", "2"], "y": ["1", "1 + 10", "2"]}
    shades = {(mark["x"] > 30, round(mark["y"] / 24)): mark["opacity"] for mark in trained.marks("rect", fill=HEAT)}
    assert shades == {
        (False, 0): pytest.approx(1),
        (True, 0): pytest.approx(0.25),
        (False, 2): pytest.approx(0.5),
        (True, 2): pytest.approx(0.75),
        (True, 1): 0,
    }
    diamonds = sorted((x > 34, round(y / 24 - 0.5)) for x, y in trained.places("symbol", shape="diamond"))
    assert diamonds == [(False, 0), (True, 2)]
    assert {mark["fill"] for mark in uniform.marks("rect")} == {CONTROL}
    assert by_step.title == "gold at doc 2" and len(by_step.marks("symbol")) == 2  # only the gold one
    cells = {(mark["x"] > 20, mark["y"] > 15): mark["opacity"] for mark in between.marks("rect")}
    assert cells == {(False, False): pytest.approx(0.5), (True, False): pytest.approx(1), (False, True): 0}


def test_task_dependence_is_hollow_where_chance_does_as_well():
    table = [
        row(profile=profile, depth=depth, value=v, p=p, random=0.1, untrained=0.3)
        for profile, depth, v, p in (
            ("position", "shallow", 0.4, 0.5),
            ("position", "all", 0.2, 0.01),
            ("class", "all", 9.0, 0.5),
        )
    ]
    figure = draw("task_dependence", {"task_dependence": result("task_dependence", table)}, MODEL)
    assert figure.finding == (
        "Between tasks minus within, position of anchors, all layers: "
        "m 0.200, p = 0.010 (random 0.100, untrained 0.300)."
    )
    position = scenes(figure)[0]
    assert position.title == "position: tenths of the canvas"
    assert [y for _, y in position.places("symbol", stroke=BLUE, strokeWidth=1.5)] == [0]
    assert len(position.marks("symbol", fill=BLUE)) == 1


COMPAT = [
    {"model": "m", "quirk": q, "layer": n, "published": p, "exact": e, "uniform": u, "samples": 4}
    for q, n, p, e, u in (
        ("absolute_threshold", 0, 1.0, 2.0, 0.0),
        ("absolute_threshold", 1, 3.0, 4.0, 0.0),
        ("one_forward", 0, 8.0, 8.0, 8.0),
        ("retokenised_regions", None, 0.25, 1.0, 0.5),
    )
]


def test_compat_is_dashed_beside_the_exact_computation():
    figure = draw("compat", {"compat": result("compat", COMPAT)}, MODEL)
    assert figure.finding == (
        "As published instead of exact, mean over layers: absolute threshold 2.00 instead of 3.00 in m (uniform 0.00); "
        "one forward 8.00 instead of 8.00 in m (uniform 8.00); "
        "retokenised regions 0.25 instead of 1.00 in m (uniform 0.50)."
    )
    threshold, _, regions = scenes(figure)
    assert threshold.places("line", strokeDash=[7, 3]) == [(6, 105), (234, 35)]
    assert threshold.places("line", strokeWidth=2) == [(6, 70), (234, 0)]
    assert threshold.places("symbol", fill=BLUE) == [(6, 70), (234, 0)]
    assert threshold.places("line", strokeDash=[1, 0], strokeWidth=1.2) == [(6, 140), (234, 140)]
    assert [y for _, y in regions.places("symbol", fill=BLUE)] == [0]
    dashed, solid = (regions.marks("symbol", shape="stroke", strokeDash=dash) for dash in ([7, 3], [1, 0]))
    assert (dashed[0]["y"], solid[0]["y"]) == (105, 70)  # 0.25 and 0.5 of an axis from 0 to 1


def test_a_figure_has_the_quirks_that_belong_to_it_as_its_published_view():
    table = [row(set="bos", rows="all", layer=n, value=1.0) for n in (0, 1)]
    both = {"absorption": result("absorption", table), "compat": result("compat", COMPAT)}
    figure = draw("absorption", both, MODEL)
    assert figure.published is not None
    assert [scene.title for scene in scenes(figure.published)] == [
        "absolute threshold, % absorbed",
        "last forward only, % absorbed",
    ]
    assert figure.published.table["quirk"].unique(maintain_order=True).to_list() == [
        "absolute_threshold",
        "one_forward",
    ]
    assert draw("absorption", {"absorption": both["absorption"]}, MODEL).published is None
    assert draw("compat", both, MODEL).published is None


def with_states(run, trace):
    states = {
        "matrix_steps": np.array([trace.steps - 1]),
        "matrix_layers": np.arange(3),
        "queries": run.queries[-1][None].astype(np.float32),
        "keys": run.keys[-1][None].astype(np.float32),
    }
    return dataclasses.replace(trace, arrays={**trace.arrays, **states})


def test_matrices_of_a_layer_asked_for():
    run = full_run(kind="arm")
    trace = with_states(run, to_trace(run, model="w"))
    figure = draw_traces("qk", [sample("m", 0), trace], MODEL, 1, OPTIONS)
    assert figure is not None
    found = scenes(figure)
    assert [scene.title for scene in found] == ["q·k", "cos", "|q||k|"]
    for scene in found:  # each from the darkest to the brightest: their colours are their own
        assert {"rgb(68, 1, 84)", "rgb(253, 231, 37)"} <= {mark["fill"] for mark in scene.marks("rect")}
    rows = int(trace.rows[-1])
    assert len(found[0].marks("rect")) == rows * (rows + 1) // 2  # pairs in sight of a causal model
    assert "layer 1, step" in json.dumps(figure.spec()) and "king" in figure.svg()
    assert draw_traces("qk", [sample("m", 0)], MODEL, 1) is None  # no matrices were kept
    assert draw_traces("qk", [trace], MODEL) is None  # no layer was asked for


def test_large_matrices_are_drawn_as_means_of_blocks():
    from floatscope.analysis.qk import _blocks

    token, query = np.indices((200, 200))
    values = np.random.default_rng(0).normal(size=(200, 200))
    columns = {"row": query.ravel(), "token": token.ravel(), "text": [f"t{n}" for n in token.ravel()]}
    columns |= {name: values.ravel() for name in ("qk", "cos", "norm")}
    table, block = _blocks(pl.DataFrame(columns).with_columns(anchor=pl.lit(False)))
    assert (block, table.height) == (3, 67 * 67)
    first = table.filter(row=3, token=6)
    assert first["qk"].item() == pytest.approx(values[6:9, 3:6].mean()) and first["text"].item() == "t6"


def test_files(results, tmp_path):
    figure = draw("dispersion", results)
    paths = figure.save(tmp_path / "dispersion", ("svg", "pdf", "png"), "dark")
    content = {path.suffix: path.read_bytes() for path in paths}
    assert content[".svg"].startswith(b"<svg") and b"Gini coefficient" in content[".svg"]
    assert DARK[CARD].encode() in content[".svg"] and CARD.encode() not in content[".svg"]
    assert content[".pdf"].startswith(b"%PDF") and content[".png"].startswith(b"\x89PNG")
    with pytest.raises(UserError, match="no figure format 'bmp'"):
        figure.save(tmp_path / "x", ("bmp",))
    assert figure.save(tmp_path / "made" / "x")[0].is_file()
    (tmp_path / "no").touch()
    with pytest.raises(UserError, match="cannot be written"):
        figure.save(tmp_path / "no" / "x")
    with pytest.raises(UserError, match="no theme"):
        figure.spec("sepia")  # pyright: ignore[reportArgumentType]


def test_a_theme_changes_colours_and_no_data():
    spec = {"mark": {"color": BLUE}, "datasets": {"table": f"text\n{BLUE}\n"}}
    assert in_theme(spec, "dark") == {"mark": {"color": DARK[BLUE]}, "datasets": {"table": f"text\n{BLUE}\n"}}
    assert in_theme(spec, "light") == spec


def test_any_chart_can_be_a_figure():
    chart = alt.Chart(pl.DataFrame({"a": [1, 2]})).mark_bar().encode(x="a:Q")
    figure = Figure("own", "Mine <b>", chart, pl.DataFrame({"a": [1, 2]}), "What & why.", notes=("Nothing <else>.",))
    assert "Mine &lt;b&gt;" in figure.svg()
    shown = figure._repr_html_()
    assert (
        "<svg" in shown and "What &amp; why." in shown and "Nothing &lt;else&gt;." in shown and "<script" not in shown
    )


@pytest.mark.parametrize("name", ANALYSES)
def test_a_result_shows_its_figure_in_a_notebook(results, name):
    shown = results[name]._repr_html_()
    assert "<svg" in shown and "<script" not in shown


@pytest.mark.parametrize("name", ["drift", "qk"])
def test_nothing_to_draw_is_a_sentence_in_the_figure(name):
    made = analyze(name, [to_trace(full_run(steps=1, answer=1))], Options(detector="gu(0.99)"))
    assert "every value is null" in draw(name, {name: made}).svg("dark")


def test_models_have_the_order_and_colours_of_the_page():
    table = [
        row(model, measure="turnover", layer=n, kind=kind)
        for model, kind in (("w", "arm"), ("m", "mdm"))
        for n in (0, 1)
    ]
    made = {"drift": result("drift", table)}
    assert scenes(draw("drift", made, ("x", "w")))[0].marks("symbol", fill=GREEN)[0]["description"].find("model: w") > 0
    assert {mark["fill"] for mark in scenes(draw("drift", made, ("x", "w")))[0].marks("symbol")} == {GREEN, MODELS[2]}
    assert re.match(
        r"Turnover from step to step, mean over layers: m 0.50, w 0.50", draw("drift", made).finding
    )  # MDMs first


def test_numbers_for_people():
    assert number_text(None) == "–" and number_text(-0.25, 2) == "−0.25" and number_text(12.34) == "12.3"
    assert number_text(0.0028, 2) == "0.003" and number_text(0.0, 2) == "0.00"
    assert interval_text(0.5, 0.25, 0.75) == "0.50 [0.25, 0.75]" and interval_text(0.5, None, None) == "0.50"


def test_sentences_name_models_in_order_with_their_controls():
    table = pl.DataFrame([row("w", 1.0), row("m", 2.0), row("m", 4.0), row("m", None)])
    assert by_model(table, MODEL) == {"m": 3.0, "w": 1.0} and by_model(table, MODEL, "uniform") == {}
    rows = pl.DataFrame([row("w", 1.0, 0.5, 1.5, p=0.25)])
    assert finding("What", rows, MODEL, (), rows=True) == "What: w 1.00 [0.50, 1.50], p = 0.250."
    assert sentence("What", {"m": 1.0, "w": 2.0}) == "What: m 1.00, w 2.00."
    assert (
        sentence("What", {"m": 1.0, "w": "0.5 [0, 1]"}, {"even": {"w": 3.0}}, 1)
        == "What: m 1.0; w 0.5 [0, 1] (even 3.0)."
    )
    assert sentence("What", {}) == ""


@pytest.mark.parametrize(
    "name", ["\x1b[31mred", "a\x00b", "a\u2028b\u2029c", "\N{GRINNING FACE}" * 60], ids=lambda name: ascii(name[:3])
)
def test_characters_that_the_converter_does_not_take_are_replaced(name):
    """A control character ended the whole process; a line end in a filter, or a long name of emoji, gave no drawing."""
    table = pl.DataFrame({"model": [name, "m"], "value": [0.5, 0.4]})
    chart = {
        "data": {"values": table.to_dicts()},
        "transform": [{"filter": {"field": "model", "equal": name}}],
        "mark": "point",
        "encoding": {"x": {"field": "value", "type": "quantitative"}, "y": {"field": "model", "type": "nominal"}},
    }
    drawn = Figure("drift", "A figure", chart, table, "").svg()
    assert drawn.count('aria-roledescription="point"') == 1 and "\N{REPLACEMENT CHARACTER}" in drawn
