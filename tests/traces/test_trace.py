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


def test_entries_along_an_axis_are_called_by_the_steps_and_layers_that_they_are():
    run = full_run(steps=4)
    plain = to_trace(run)
    kept = {name: plain.arrays[name][[0, 3]] for name in ("qk", "cos", "norm", "key_norm", "value_norm")}
    more = {
        "layer_index": np.array([1, 4, 6], np.int32),
        "matrix_steps": np.array([2], np.int32),
        "matrix_layers": np.array([0, 2], np.int32),
        "attention": run.attention[2][[0, 2]][None].astype(np.float32),
    }
    trace = to_trace(run, arrays={**plain.arrays, **kept, **more}, qk_steps=(0, 3))
    qk = trace.frame("qk", "norm")
    assert qk.columns == ["qk_step", "layer", "head", "token", "text", "region", "qk", "norm"]
    assert (qk["qk_step"].unique().sort().to_list(), qk["layer"].unique().sort().to_list()) == ([0, 3], [1, 4, 6])
    one = qk.filter(qk_step=3, layer=4, head=2, token=9).row(0, named=True)
    assert (one["qk"], one["norm"]) == (trace.qk[1, 1, 2, 9], trace.norm[1, 1, 2, 9])
    assert (one["text"], one["region"]) == (" king", "doc 2")
    matrix = trace.frame("attention").filter(matrix_step=2, matrix_layer=2, matrix_head=1, row=5, token=3)
    assert matrix["attention"].item() == np.float32(run.attention[2][2, 1, 5, 3])
    slots = trace.frame("commit_mass").filter(layer=6, head=0, column="gold_answer")
    assert slots["answer"].to_list() == [0, 1, 2, 3] and slots["region"].to_list() == ["answer"] * 4
    np.testing.assert_array_equal(slots["commit_mass"], trace.commit_mass[:, 2, 0, -1])


def test_what_a_trace_lacks_is_told_with_what_there_is():
    trace = to_trace(full_run())
    with pytest.raises(AttributeError, match="a Trace has no 'recieved': did you mean 'received'"):
        _ = trace.recieved
    bare = to_trace(full_run(), arrays={"seen_by": trace.seen_by})
    with pytest.raises(UserError, match=r"'received' of the trace of 'tiny-mdm' was not kept; trace again\.$"):
        _ = bare.received
    assert (bare.layers, bare.texts_or_ids[-1]) == (3, " Ann")
    with pytest.raises(UserError, match="has the axis 'step'"):
        _ = bare.steps


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        (dict(slots=np.array([11, 13, 12, 14])), "slots are not ascending"),
        (dict(slots=np.array([11, 12, 12, 14])), "slots are not ascending"),
        (dict(slots=np.array([-1, 12, 13, 14])), "slots are not ascending"),
        (dict(marks={"evidence": np.array([-1, 3])}), "mark 'evidence' points outside"),
        (dict(confidence=np.ones(3, np.float32)), r"confidence has shape \(3,\) for 4 answer tokens"),
        (dict(mixers=("attention",)), "3 entries along 'layer' where 1"),
        (dict(qk_steps=(0, 1, -1, 2)), "qk_steps are not among"),
        (dict(regions=(Region("bos", 0, 4), Region("query", 4, 2), Region("doc 1", 2, 15))), "region 'query' starts"),
    ],
)
def test_further_parts_that_do_not_fit_are_a_sentence(fields, sentence):
    with pytest.raises(UserError, match=sentence):
        to_trace(full_run(), **fields)


def test_states_that_are_kept_say_more_than_commit_steps():
    """A slot that is withdrawn is masked again, whatever its last commit is."""
    trace = to_trace(full_run())
    state = np.array([[0, 0, 0, 0], [1, 0, 0, 0], [0, 1, 0, 0], [1, 1, 0, 1]], np.uint8)
    tokens = np.array([[9, 9, 9, 9], [5, 9, 1, 9], [9, 6, 2, 9], [7, 6, 9, 8]])  # what is masked may change unnoticed
    canvas = np.concatenate([trace.canvas[:11], [7, 3, 4, 8]])
    own = to_trace(full_run(), canvas=canvas, arrays={**trace.arrays, "state": state, "tokens": tokens})
    assert (own.masked == (state == 0)).all()
    assert own.events == [
        [(0, "commit", 5)],
        [(0, "renoise", 5), (1, "commit", 6)],
        [(0, "commit", 7), (3, "commit", 8)],
        [(1, "revise", 3), (2, "commit", 4)],
    ]


def test_region_matrix_is_that_of_each_head_or_of_their_mean():
    trace = to_trace(full_run())
    np.testing.assert_allclose(trace.region_matrix(head_mean=True), trace.region_matrix().mean(2), atol=1e-6)
