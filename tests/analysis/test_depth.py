"""Depth tables: thirds, contrast, test and controls again by plain numpy on the numbers of each layer."""

import numpy as np
import pytest

from floatscope.analysis import Controls, analyze
from floatscope.analysis.depth import depth_table, thirds
from floatscope.analysis.results import Options, Panel
from tests.traces.full_matrices import full_run, to_trace


def panel_of(values: np.ndarray) -> Panel:
    """values [sample, layer] under one measure."""
    panel = Panel(("measure", "layer"))
    for row in values:
        trace = to_trace(full_run(layers=values.shape[1]), model="m")
        columns = {"measure": ["x"] * len(row), "layer": np.arange(len(row)), "value": row, "uniform": 2 * row}
        panel.add(trace, columns)
    return panel


def test_thirds():
    assert list(thirds(1)) == [0] and list(thirds(2)) == [0, 2] and list(thirds(3)) == [0, 1, 2]
    assert list(thirds(4)) == [0, 0, 1, 2] and np.bincount(thirds(32)).tolist() == [11, 11, 10]


@pytest.mark.slow
def test_means_and_contrast_by_hand():
    values = np.random.default_rng(0).normal(size=(9, 5)) + np.array([3, 3, 0, 0, 0])
    table = depth_table(panel_of(values), Options())
    found = {row["depth"]: row for row in table.iter_rows(named=True)}
    expected = {
        "shallow": values[:, :2].mean(axis=1),
        "middle": values[:, 2:4].mean(axis=1),
        "deep": values[:, 4],
        "all": values.mean(axis=1),
        "shallow - deep": values[:, :2].mean(axis=1) - values[:, 4],
    }
    assert list(found) == list(expected)
    for depth, each in expected.items():
        assert found[depth]["value"] == pytest.approx(each.mean())
        assert found[depth]["uniform"] == pytest.approx(2 * each.mean())
        assert found[depth]["low"] < each.mean() < found[depth]["high"]
        assert found[depth]["samples"] == 9 and found[depth]["untrained"] is None
    assert found["shallow - deep"]["p"] < 0.01
    assert all(found[depth]["p"] is None for depth in expected if depth != "shallow - deep")


def test_each_model_has_the_thirds_of_its_own_layers():
    panel = Panel(("measure", "layer"))
    for model, layers in (("low", 3), ("high", 6)):
        trace = to_trace(full_run(layers=layers), model=model)
        panel.add(trace, {"measure": ["x"] * layers, "layer": np.arange(layers), "value": np.arange(layers) ** 2.0})
    table = depth_table(panel, Options())
    found = {(row["model"], row["depth"]): row["value"] for row in table.iter_rows(named=True)}
    assert [found["low", depth] for depth in ("shallow", "middle", "deep")] == [0, 1, 4]
    assert [found["high", depth] for depth in ("shallow", "middle", "deep")] == [0.5, 6.5, 20.5]
    assert (found["low", "shallow - deep"], found["high", "shallow - deep"]) == (-4, -20)


def test_undefined_layers_are_left_out_and_undefined_samples_counted_as_such():
    values = np.array([[1.0, np.nan, 2.0, 4.0], [3.0, 5.0, 2.0, np.nan], [1.0, 1.0, 1.0, 1.0]])
    found = {row["depth"]: row for row in depth_table(panel_of(values), Options()).iter_rows(named=True)}
    assert found["shallow"]["value"] == pytest.approx((1 + 4 + 1) / 3)
    assert found["deep"]["samples"] == 2 and found["shallow - deep"]["samples"] == 2
    assert found["shallow - deep"]["value"] == pytest.approx(((1 - 4) + 0) / 2)


def test_one_layer_has_no_contrast():
    table = depth_table(panel_of(np.ones((3, 1))), Options())
    assert table["depth"].to_list() == ["shallow", "all"]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["drift", "absorption", "dispersion", "qk", "retrieval_heads"])
def test_every_layerwise_analysis_has_one_with_its_controls(name):
    traces = [to_trace(full_run(seed=seed), model="m") for seed in range(4)]
    bare = [to_trace(full_run(seed=seed, sharpness=0.1), model="bare") for seed in range(3)]
    options = Options(detector="zscore(1)", draws=50)
    found = analyze(name, traces, options, Controls(untrained=bare))
    table = found.tables[f"{name}_depth"].filter(depth="all")
    keys = [key for key in ("measure", "set", "rows", "score") if key in table.columns]
    for row in table.drop_nulls("value").iter_rows(named=True):
        layers = found.table.filter(**{key: row[key] for key in keys})
        if layers["samples"].min() == 4:  # a mean of means only where every layer has every sample
            assert row["value"] == pytest.approx(layers["value"].mean(), abs=1e-6)
            if row["untrained"] is not None and layers["untrained"].null_count() == 0 and name == "absorption":
                assert row["untrained"] == pytest.approx(layers["untrained"].mean(), abs=1e-6)
    assert table["untrained"].drop_nulls().len() > 0
