"""Figures: every analysis draws, in both themes, with its control and the table's own numbers, without a network."""

import dataclasses
import json
import re

import numpy as np
import pytest

from floatscope.analysis import ANALYSES, Controls, Options, analyze
from floatscope.analysis.drift import temporal_heatmap
from floatscope.analysis.qk import qk_heatmaps
from floatscope.errors import UserError
from floatscope.report import drawing, figures, heatmaps
from tests.traces.full_matrices import full_run, to_trace

OPTIONS = Options(detector="zscore(1)", draws=50)


def sample(model: str, seed: int, **settings):
    run = full_run(seed=seed, **settings)
    run.canvas[run.prompt_length] = run.canvas[10]
    return to_trace(run, model=model, metadata={"sample": str(seed), "task": "ab"[seed % 2]})


@pytest.fixture(scope="module")
def results():
    traces = [sample(kind, seed, kind=kind) for kind in ("mdm", "arm") for seed in range(4)]
    untrained = [sample("bare", seed, sharpness=0.1) for seed in range(10, 14)]
    return {name: analyze(name, traces, OPTIONS, Controls(untrained=untrained)) for name in ANALYSES}


def numbers(node, field: str) -> list[float]:
    """Every value of a field in the data of a chart's specification."""
    if isinstance(node, dict):
        own = [node[field]] if isinstance(node.get(field), int | float) else []
        return own + [value for child in node.values() for value in numbers(child, field)]
    if isinstance(node, list):
        return [value for child in node for value in numbers(child, field)]
    return []


@pytest.mark.slow
@pytest.mark.parametrize("name", ANALYSES)
@pytest.mark.parametrize("theme", ["light", "dark"])
def test_every_analysis_draws(results, name, theme):
    chart = ANALYSES[name].figure(results[name], theme)
    spec = json.loads(chart.to_json())
    paper = {"light": "#ffffff", "dark": "#16181d"}[theme]
    assert spec["config"]["background"] == paper
    text = json.dumps(spec)
    assert "NaN" not in text
    assert drawing.COLOURS[theme]["control"] in text or name == "token_classes"  # there, pale and thin bars
    assert "uniform" in text or "random" in text


@pytest.mark.parametrize(("name", "field"), [("drift", "value"), ("absorption", "uniform"), ("qk", "random")])
def test_figures_hold_the_numbers_of_the_table(results, name, field):
    drawn = numbers(json.loads(ANALYSES[name].figure(results[name]).to_json()), field)
    known = results[name].table[field].drop_nulls().to_list()
    assert sorted(drawn) == pytest.approx(sorted(known))


@pytest.mark.slow
def test_files_without_network(results, tmp_path):
    chart = ANALYSES["dispersion"].figure(results["dispersion"])
    paths = figures.save_figure(chart, tmp_path / "dispersion", ("svg", "pdf", "html", "png"))
    content = {path.suffix: path.read_bytes() for path in paths}
    assert content[".svg"].startswith(b"<svg") and b"Gini coefficient" in content[".svg"]
    assert content[".pdf"].startswith(b"%PDF") and content[".png"].startswith(b"\x89PNG")
    page = content[".html"].decode()
    assert not re.findall(r"(?:src|href)=[\"']?https?:|@import", page)
    assert len(page) > 500_000  # the drawing library is inside


def test_refusals(results, tmp_path):
    chart = ANALYSES["dispersion"].figure(results["dispersion"])
    with pytest.raises(UserError, match="no figure format 'bmp'"):
        figures.save_figure(chart, tmp_path / "x", ("bmp",))
    with pytest.raises(UserError, match="could not be written"):
        figures.save_figure(chart, tmp_path / "no" / "x", ("svg",))
    with pytest.raises(UserError, match="no theme"):
        ANALYSES["dispersion"].figure(results["dispersion"], "sepia")


def test_heatmap_marks_anchors_commits_and_texts(tmp_path):
    trace = sample("mdm", 0)
    table = temporal_heatmap(trace, 1, OPTIONS)
    path = figures.save_figure(heatmaps.temporal_heatmap(table), tmp_path / "heat", ("svg",))[0]
    drawn = path.read_text()
    assert drawn.count(">///</text>") == table["anchor"].sum()
    for text in ("Question", "king", "↵"):
        assert text in drawn


def test_qk_heatmaps_draw(tmp_path):
    run = full_run(kind="arm")
    trace = to_trace(run)
    states = {
        "matrix_steps": np.array([trace.steps - 1]),
        "matrix_layers": np.arange(3),
        "queries": run.queries[-1][None].astype(np.float32),
        "keys": run.keys[-1][None].astype(np.float32),
    }
    trace = dataclasses.replace(trace, arrays={**trace.arrays, **states})
    chart = heatmaps.qk_heatmaps(qk_heatmaps(trace, 1, options=OPTIONS), "dark")
    assert figures.save_figure(chart, tmp_path / "qk", ("svg",))[0].stat().st_size > 5000


@pytest.mark.slow
def test_large_matrices_are_drawn_as_means_of_blocks():
    import polars as pl

    row, token = np.indices((200, 200))
    values = np.random.default_rng(0).normal(size=(200, 200))
    labels = {"model": "m", "layer": 0, "step": 1, "anchor": False}
    columns = {"row": row.ravel(), "token": token.ravel(), "text": [f"t{n}" for n in token.ravel()]}
    columns |= {name: values.ravel() for name in ("qk", "cos", "norm")}
    table = pl.DataFrame(columns).with_columns(**{name: pl.lit(value) for name, value in labels.items()})
    spec = json.loads(heatmaps.qk_heatmaps(table).to_json())
    cells = spec["hconcat"][0]["data"]["values"]
    assert len(cells) == 67 * 67  # blocks of 3 x 3
    first = next(cell for cell in cells if (cell["row"], cell["token"]) == (3, 6))
    assert first["qk"] == pytest.approx(values[3:6, 6:9].mean())
    assert "3 x 3 pairs" in json.dumps(spec)


def test_heatmaps_of_the_first_trace_of_each_model():
    traces = [sample("org/a b", 0), sample("org/a b", 1), sample("c", 2)]
    charts = heatmaps.trace_heatmaps("drift", traces, -1, OPTIONS)
    assert list(charts) == ["drift_heatmap_org-a-b", "drift_heatmap_c"]
    assert "layer 2" in charts["drift_heatmap_c"].to_json()
    assert heatmaps.trace_heatmaps("qk", traces, -1) == {}  # no matrices were kept
    assert heatmaps.trace_heatmaps("flow", traces, -1) == {}
    with pytest.raises(UserError, match="no layer 7"):
        heatmaps.trace_heatmaps("drift", traces, 7)


def test_gold_positions_are_columns_in_order(results):
    import polars as pl

    golds = ["doc 10", "doc 2", "doc 1 + doc 2", "doc 1", "none"]
    assert figures._gold_positions(pl.DataFrame({"gold": golds})) == ["none", "doc 1", "doc 2", "doc 10"]
    assert figures._gold_positions(pl.DataFrame({"gold": ["doc 1 + doc 2"]})) == ["doc 1 + doc 2"]


@pytest.mark.parametrize("name", ["drift", "qk"])
def test_nothing_to_draw_is_a_sentence_in_the_figure(name, tmp_path):
    result = analyze(name, [to_trace(full_run(steps=1, answer=1))], Options(detector="gu(0.99)"))
    path = figures.save_figure(ANALYSES[name].figure(result, "dark"), tmp_path / name, ("svg",))[0]
    assert "every value is null" in path.read_text()
