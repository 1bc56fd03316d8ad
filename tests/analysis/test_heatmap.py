"""One head from token to token: the cells are the model's own matrix; blocks keep the mass of a query."""

import numpy as np
import pytest

import floatscope as fs
from floatscope.errors import UserError
from tests.plain_attention import canvas_at, watch
from tests.tiny_models import MASK, tiny_model


@pytest.mark.slow
@pytest.mark.parametrize("name", ["llada", "llama"])
def test_cells_are_the_matrix_of_the_step(name):
    model = tiny_model(name)
    trace = fs.trace(model, [5, 6, 7, 8], model.sampler(length=4), keep="matrices")
    step, layer, head = 2, 1, 3
    canvas = trace.canvas[:-1] if trace.kind == "arm" else canvas_at(trace, step, MASK)
    rows = 4 + step if trace.kind == "arm" else len(trace.canvas)
    expected = watch(model, canvas)[layer]["attention"][head, :rows]
    table = trace.heatmap(step, layer, head).table
    for row, token, value in table.select("row", "token", "value").iter_rows():
        assert value == pytest.approx(expected[row, token] if token < expected.shape[1] else 0, abs=1e-5)
    assert table.height == rows * len(trace.canvas)
    mean = trace.heatmap(-1, -1).table["value"].to_numpy().reshape(-1, len(trace.canvas))
    np.testing.assert_allclose(mean.sum(axis=1), 1, atol=1e-5)


@pytest.mark.slow
def test_large_canvases_are_summed_in_blocks():
    model = tiny_model("llada")
    trace = fs.trace(model, list(range(3, 90)) + list(range(3, 24)), model.sampler(length=2), keep="matrices")
    figure = trace.heatmap(0, 0, 0)
    assert figure.table.height == 55**2 and "blocks of 2 x 2 tokens" in figure.notes[0]
    np.testing.assert_allclose(figure.table["value"].to_numpy().reshape(55, 55).sum(axis=1), 1, atol=1e-5)
    assert "role-legend" in figure._repr_html_()  # with the scale of its shades


def test_what_was_not_kept_is_a_sentence():
    model = tiny_model("llada")
    with pytest.raises(UserError, match="trace again with keep='matrices'"):
        fs.trace(model, [5, 6], model.sampler(length=2)).heatmap(0, 0, 0)
    trace = fs.trace(model, [5, 6], model.sampler(length=2), keep="matrices", matrix_steps=[0], matrix_layers=[0, 2])
    with pytest.raises(UserError, match="no matrix of layer 1 in the trace: it has those of 0, 2"):
        trace.heatmap(0, 1, 0)
    with pytest.raises(UserError, match="no matrix of head 4 in the trace: it has those of 0 to 3"):
        trace.heatmap(0, 0, 4)
    with pytest.raises(UserError, match="no matrix of step first in the trace: it has those of 0 to 1"):
        trace.heatmap("first", 0, 0)
