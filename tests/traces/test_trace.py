"""Trace: labels, what follows from the arrays, refusals; against loops over full matrices."""

from dataclasses import replace

import numpy as np
import pytest

from floatscope.canvas import Region
from floatscope.errors import UserError
from tests.traces.full_matrices import full_run, group_names, row_groups, to_trace, visible_pairs

RUNS = {
    "mdm": dict(kind="mdm"),
    "shifted": dict(kind="mdm", logits="shifted", steps=3),
    "block": dict(kind="mdm", visibility="block_causal(4)"),
    "arm": dict(kind="arm"),
}


@pytest.fixture(params=RUNS)
def run(request):
    return full_run(seed=1, **RUNS[request.param])


@pytest.mark.slow
def test_sizes_and_labels(run):
    trace = to_trace(run)
    assert (trace.steps, trace.layers, trace.heads) == (len(run.attention), 3, 4)
    assert trace.region_labels == ("bos", "scaffold", "query", "doc 1", "doc 2", "answer")
    assert trace.group_labels == tuple(group_names(run))
    assert trace.column_labels == (*trace.region_labels, "evidence", "gold_answer")
    assert trace.texts_or_ids[0] == "<s>"
    assert to_trace(run, texts=None).texts_or_ids[0] == str(run.canvas[0])
    assert "4 answer" in repr(trace)


def test_masked_follows_the_commit_steps(run):
    trace = to_trace(run)
    for step in range(trace.steps):
        for slot, commit in enumerate(run.commit_step):
            assert trace.masked[step, slot] == (step <= commit)


@pytest.mark.slow
def test_visible_counts_rows_that_see_a_column(run):
    trace = to_trace(run)
    for step, attention in enumerate(run.attention):
        seen = visible_pairs(run.visibility, run.tokens)[: attention.shape[2]].sum(axis=0)
        assert (trace.visible[step] == seen).all()
        assert trace.rows[step] == attention.shape[2]


def test_a_column_of_an_arm_is_seen_by_no_more_rows_than_its_window_has():
    run = full_run(kind="arm")
    trace, most = to_trace(run), run.attention[-1].shape[2]
    row, column = np.indices((most, run.tokens))
    near = (column <= row) & (row - column < 3)
    windowed = replace(trace, arrays=dict(trace.arrays) | {"seen_by": np.tile(near.sum(axis=0), (3, 1))})
    for step, attention in enumerate(run.attention):
        assert (windowed.visible[step] == near[: attention.shape[2]].sum(axis=0)).all()


def test_received_visible(run):
    trace = to_trace(run)
    for step, attention in enumerate(run.attention):
        seen = visible_pairs(run.visibility, run.tokens)[: attention.shape[2]].sum(axis=0)
        sums = attention.mean(axis=1).sum(axis=1)
        expected = np.where(seen > 0, sums / np.maximum(seen, 1), 0)
        np.testing.assert_allclose(trace.received_visible[step], expected, atol=1e-6)


def test_rows_without_groups():
    arm = to_trace(full_run(kind="arm"))
    arrays = {name: values for name, values in arm.arrays.items() if name != "group_rows"}
    bare = to_trace(full_run(kind="arm"), arrays=arrays)
    assert (bare.rows == arm.rows).all()


@pytest.mark.slow
def test_region_matrix_merges_answer_states(run):
    trace = to_trace(run)
    matrix = trace.region_matrix()
    for step, attention in enumerate(run.attention):
        groups = row_groups(run, step)
        for r, label in enumerate(trace.region_labels):
            rows = [i for i, group in enumerate(groups) if group.partition(":")[0] == label]
            for s, other in enumerate(trace.region_labels):
                columns = [j for j, name in enumerate(run.labels) if name == other]
                block = attention[:, :, rows][..., columns]
                expected = block.sum(axis=-1).mean(axis=-1) if rows else np.zeros(matrix.shape[1:3])
                np.testing.assert_allclose(matrix[step, :, :, r, s], expected, atol=1e-6)


def test_an_array_that_was_not_kept_says_how_to_get_it():
    trace = to_trace(full_run(), arrays={"received": np.ones((4, 3, 15), np.float32)})
    with pytest.raises(UserError, match="keep='heads'"):
        _ = trace.head_attention
    with pytest.raises(UserError, match="keep='matrices'"):
        _ = trace.queries
    with pytest.raises(UserError, match=r"'seen_by'.*was not kept"):
        _ = trace.visible
    with pytest.raises(UserError, match="axis 'head'"):
        _ = trace.heads
    with pytest.raises(AttributeError):
        _ = trace.nonsense


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        (dict(slots=np.arange(99, 103)), "its slots are not ascending positions on a canvas"),
        (dict(texts=("a",)), "1 token texts for 15"),
        (dict(commit_step=np.zeros(2, np.int64)), "commit_step has shape"),
        (dict(regions=(Region("bos", 0, 3),)), "regions end at 3"),
        (dict(regions=(Region("bos", 1, 15),)), "starts at 1 where 0"),
        (dict(marks={"evidence": np.array([15])}), "outside the canvas"),
        (dict(kind="rnn"), "neither"),
        (dict(arrays={"received": np.ones((2, 2))}), "2 axes"),
        (dict(arrays={"received": np.ones((2, 2, 14))}), "14 entries along 'token' where 15"),
        (
            dict(arrays={"received": np.ones((2, 2, 15)), "group_rows": np.ones((3, 7))}),
            "3 entries along 'step'",
        ),
        (dict(arrays={"surprise": np.ones(2)}), "'surprise' is not one"),
        (dict(qk_steps=(0, 1, 2, 4)), "qk_steps are not among its 4 steps"),
    ],
)
def test_parts_that_do_not_fit_are_a_sentence(fields, sentence):
    with pytest.raises(UserError, match=sentence):
        to_trace(full_run(), **fields)


@pytest.mark.slow
def test_xarray_has_named_axes():
    xarray = pytest.importorskip("xarray")
    trace = to_trace(full_run())
    data = trace.to_xarray()
    assert isinstance(data, xarray.Dataset)
    assert data["received"].dims == ("step", "layer", "token")
    picked = data["region_attention"].sel(group="answer:masked", column="evidence")
    np.testing.assert_array_equal(picked, trace.region_attention[:, :, :, 5, 6])


def test_xarray_missing_names_the_extra(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "xarray", None)
    with pytest.raises(UserError, match=r"floatscope\[xarray\]"):
        to_trace(full_run()).to_xarray()


@pytest.mark.parametrize("rows", [0, -1, 16])
def test_steps_of_no_rows_or_of_more_than_the_canvas_has_are_refused(rows):
    trace = to_trace(full_run())
    counts = np.zeros_like(trace.group_rows)
    counts[:, 0] = rows
    with pytest.raises(UserError, match="steps of no rows or too many"):
        _ = to_trace(full_run(), arrays={**trace.arrays, "group_rows": counts}).rows


@pytest.mark.parametrize("seen", [0, -1])
def test_columns_that_nobody_sees_are_refused(seen):
    trace = to_trace(full_run())
    with pytest.raises(UserError, match="no row sees a column"):
        _ = to_trace(full_run(), arrays={**trace.arrays, "seen_by": np.full_like(trace.seen_by, seen)}).visible


def test_xarray_has_coordinates_on_every_axis():
    pytest.importorskip("xarray")
    trace = to_trace(full_run())
    data = trace.to_xarray()
    assert set(data.dims) == set(data.indexes)
    by_region = data["received"].isel(step=1).sel(layer=2).groupby("region").sum()
    for label in trace.region_labels:
        spans = [trace.received[1, 2, one.start : one.stop].sum() for one in trace.regions if one.label == label]
        assert float(by_region.sel(region=label)) == pytest.approx(sum(spans), rel=1e-5)
    assert data["position"].values.tolist() == trace.slots.tolist()


def test_a_frame_has_a_row_per_entry_with_names():
    trace = to_trace(full_run())
    table = trace.frame("received", "received_answer")
    assert table.columns == ["step", "layer", "token", "text", "region", "received", "received_answer"]
    assert table.height == trace.received.size
    for row in (0, 17, table.height - 1):
        step, layer, token, text, region, received, _ = table.row(row)
        assert received == trace.received[step, layer, token] and text == trace.texts_or_ids[token]
        assert any(one.label == region and one.start <= token < one.stop for one in trace.regions)
    assert trace.frame().columns[-1] == "received"
    named = trace.frame("region_attention").filter(group="answer:masked", column="evidence")
    np.testing.assert_array_equal(named["region_attention"], trace.region_attention[:, :, :, 5, 6].ravel())
    slots = trace.frame("commit_entropy")
    assert slots["token"].unique(maintain_order=True).to_list() == trace.slots.tolist()
    with pytest.raises(UserError, match="'group_rows' has the axes step, group and 'received' step, layer, token"):
        trace.frame("received", "group_rows")
    with pytest.raises(UserError, match="did you mean 'received'"):
        trace.frame("recieved")


def test_a_frame_is_plain_in_pandas():
    pandas = pytest.importorskip("pandas")
    pytest.importorskip("pyarrow")
    table = to_trace(full_run()).frame().to_pandas()
    assert [kind.kind for kind in table[["step", "layer", "token", "received"]].dtypes] == ["i", "i", "i", "f"]
    assert pandas.api.types.is_string_dtype(table["text"]) and table.pivot_table(
        index="step", columns="region", values="received", aggfunc="sum"
    ).shape == (4, 6)


def test_arrays_are_among_the_names_that_an_editor_offers():
    trace = to_trace(full_run())
    assert {*trace.arrays, "steps", "frame", "prediction"} <= set(dir(trace))
    assert trace.prediction is None and to_trace(full_run(), metadata={"prediction": "Ada"}).prediction == "Ada"
