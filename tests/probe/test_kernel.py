"""The kernel against plain T x T numpy, over shapes, GQA ratios, visibilities, groups and block sizes."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from floatscope.probe import kernel
from floatscope.probe.edits import LayerEdit, joined
from floatscope.probe.kernel import Inputs, Visible, Workspace, attend
from floatscope.probe.layout import Layout
from floatscope.probe.query_key import qk_sums

TOLERANCE = 1e-5


def plain_matrix(query, key, seen, scale, softcap=None, bias=None):
    """A [H, T, T] in float64, one head after the other."""
    share = len(query) // len(key)
    matrices = []
    for h, q in enumerate(query.astype(np.float64)):
        scores = q @ key[h // share].astype(np.float64).T * scale
        if softcap is not None:
            scores = softcap * np.tanh(scores / softcap)
        scores = np.where(seen, scores + (0 if bias is None else bias), -np.inf)
        weights = np.exp(scores - scores.max(1, keepdims=True))
        matrices.append(weights / weights.sum(1, keepdims=True))
    return np.stack(matrices)


def seen_by_kind(kind, tokens, width):
    """Bool [T, T], row i may see column j, by a double loop."""
    rules = {
        "bidirectional": lambda i, j: True,
        "causal": lambda i, j: j <= i,
        "block_causal": lambda i, j: j // width <= i // width,
        "sliding_causal": lambda i, j: i - width < j <= i,
        "sliding": lambda i, j: abs(i - j) <= width,
    }
    return np.array([[rules[kind](i, j) for j in range(tokens)] for i in range(tokens)])


def visible_of(kind, seen, float_mask):
    if kind == "bidirectional":
        return Visible()
    if kind == "causal" and not float_mask:
        return Visible(causal=True)
    mask = torch.from_numpy(seen)
    if float_mask:
        mask = torch.where(mask, 0.0, torch.finfo(torch.float32).min)
    return Visible(mask=mask)


KINDS = ["bidirectional", "causal", "block_causal", "sliding_causal", "sliding"]


@settings(max_examples=120, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    tokens=st.integers(1, 40),
    kv_heads=st.integers(1, 3),
    share=st.integers(1, 4),
    dimension=st.sampled_from([1, 4, 8]),
    kind=st.sampled_from(KINDS),
    width=st.integers(1, 7),
    float_mask=st.booleans(),
    softcap=st.sampled_from([None, 3.0]),
    group_count=st.integers(1, 6),
    block_rows=st.sampled_from([1, 3, 8, 64]),
)
def test_every_statistic_equals_plain_numpy(
    seed, tokens, kv_heads, share, dimension, kind, width, float_mask, softcap, group_count, block_rows
):
    rng = np.random.default_rng(seed)
    heads = kv_heads * share
    query = rng.normal(size=(heads, tokens, dimension)).astype(np.float32) * 2
    key = rng.normal(size=(kv_heads, tokens, dimension)).astype(np.float32) * 2
    value = rng.normal(size=(kv_heads, tokens, dimension + 1)).astype(np.float32)
    groups = rng.integers(0, group_count, tokens)
    columns = (rng.random((tokens, 3)) < 0.5).astype(np.float32)
    rows = np.flatnonzero(rng.random(tokens) < 0.4)
    seen = seen_by_kind(kind, tokens, width)
    matrix = plain_matrix(query, key, seen, 0.7, softcap)

    visible = visible_of(kind, seen, float_mask)
    layout = Layout.whole(*map(torch.from_numpy, [groups]), group_count, *map(torch.from_numpy, [columns, rows]))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kernel, "LEAST_ROWS", block_rows)
        patch.setattr(kernel, "BLOCK_FLOATS", 1)
        given_tensors = [torch.from_numpy(x) for x in (query, key, value)]
        output, found = attend(Inputs(*given_tensors, 0.7, softcap), visible, layout, workspace=Workspace())

    expected = np.stack([matrix[h] @ value[h // share] for h in range(heads)], 1)
    assert np.abs(output.numpy() - expected).max() < TOLERANCE
    for g in range(group_count):
        by_hand = sum((matrix[:, i] for i in range(tokens) if groups[i] == g), np.zeros((heads, tokens)))
        assert np.abs(found.group_sums[:, g].numpy() - by_hand).max() < TOLERANCE
    chosen = matrix[:, rows]
    assert np.abs(found.row_mass.numpy() - chosen @ columns).max(initial=0) < TOLERANCE
    entropy = -np.where(chosen > 0, chosen * np.log(np.where(chosen > 0, chosen, 1)), 0).sum(-1)
    assert np.abs(found.row_entropy.numpy() - entropy).max(initial=0) < TOLERANCE
    top = min(8, tokens)
    strongest = -np.sort(-chosen, -1)[..., :top]
    assert np.abs(found.row_key_mass.numpy() - strongest).max(initial=0) < TOLERANCE
    at_keys = np.take_along_axis(chosen, found.row_keys.numpy(), -1)
    assert np.abs(at_keys - found.row_key_mass.numpy()).max(initial=0) < TOLERANCE

    first, last = visible.intervals(layout)
    assert (last - first).tolist() == seen.sum(0).tolist()
    sums = qk_sums(given_tensors[0], given_tensors[1], first, last)
    _compare_qk(sums, query, key, seen, share)


def _compare_qk(sums, query, key, seen, share):
    query, key = query.astype(np.float64), key.astype(np.float64)
    for h in range(len(query)):
        q, k = query[h], key[h // share]
        dots = q @ k.T
        norms = np.linalg.norm(q, axis=1)[:, None] * np.linalg.norm(k, axis=1)
        for name, full in (("qk", dots), ("cos", dots / norms), ("norm", norms)):
            by_hand = np.array([full[seen[:, j], j].mean() for j in range(len(k))])
            scale = max(1.0, np.abs(by_hand).max())
            assert np.abs(getattr(sums, name)[h].numpy() - by_hand).max() / scale < TOLERANCE, name
        assert np.abs(sums.key_norm[h // share].numpy() - np.linalg.norm(k, axis=1)).max() < TOLERANCE * 10


def test_an_additive_bias_is_added():
    rng = np.random.default_rng(0)
    query, key, value = (rng.normal(size=(2, 9, 4)).astype(np.float32) for _ in range(3))
    bias = rng.normal(size=(9, 9)).astype(np.float32)
    matrix = plain_matrix(query, key, np.ones((9, 9), bool), 0.5, bias=bias)
    layout = Layout.whole(torch.arange(9), 9, torch.ones(9, 1), torch.zeros(0, dtype=torch.long))
    visible = Visible(mask=torch.from_numpy(bias))
    inputs = Inputs(*map(torch.from_numpy, (query, key, value)), 0.5)
    _, found = attend(inputs, visible, layout, workspace=Workspace())
    assert np.abs(found.group_sums.numpy() - matrix).max() < TOLERANCE


def test_large_scores_do_not_overflow():
    query = torch.full((1, 5, 4), 300.0)
    key = torch.randn(1, 5, 4, generator=torch.Generator().manual_seed(0)) * 300
    layout = Layout.whole(torch.zeros(5, dtype=torch.long), 1, torch.ones(5, 1), torch.arange(5))
    output, found = attend(Inputs(query, key, torch.ones(1, 5, 2), 1.0), Visible(), layout, workspace=Workspace())
    assert torch.equal(output, torch.ones(5, 1, 2))
    assert float(found.group_sums.sum()) == pytest.approx(5)
    assert float(found.row_entropy.abs().max()) < 1e-6


def test_half_precision_inputs_are_counted_in_float32():
    generator = torch.Generator().manual_seed(1)
    query, key, value = (torch.randn(2, 30, 8, generator=generator).bfloat16() for _ in range(3))
    layout = Layout.whole(torch.arange(30), 30, torch.ones(30, 1), torch.zeros(0, dtype=torch.long))
    output, found = attend(Inputs(query, key, value, 0.35), Visible(), layout, workspace=Workspace())
    assert output.dtype == torch.bfloat16
    matrix = plain_matrix(query.float().numpy(), key.float().numpy(), np.ones((30, 30), bool), 0.35)
    expected = np.stack([matrix[h] @ value[h].float().numpy() for h in range(2)], 1)
    assert np.abs(output.float().numpy() - expected).max() < 1e-2  # rounded once, at the end
    assert np.abs(found.group_sums.numpy() - matrix).max() < TOLERANCE


def test_a_column_seen_by_scattered_rows_is_refused():
    mask = torch.eye(6, dtype=torch.bool)
    mask[5, 0] = True
    with pytest.raises(ValueError, match="not contiguous"):
        Visible(mask=mask).intervals(_whole(6))


def _whole(tokens):
    none = torch.zeros(0, dtype=torch.long)
    return Layout.whole(torch.arange(tokens), tokens, torch.ones(tokens, 1), none)


@pytest.mark.slow
@settings(max_examples=100, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    canvas=st.integers(2, 30),
    kind=st.sampled_from(KINDS),
    width=st.integers(1, 7),
    share=st.integers(1, 3),
    block_rows=st.sampled_from([1, 3, 64]),
)
def test_fewer_rows_than_keys_give_those_rows_of_the_whole_matrix(seed, canvas, kind, width, share, block_rows):
    """Rows at random places over keys at random places: the plain matrix restricted to them, softmax over the keys."""
    rng = np.random.default_rng(seed)
    keys = np.sort(rng.choice(canvas, rng.integers(1, canvas + 1), replace=False))
    seen = seen_by_kind(kind, canvas, width)[:, keys]
    possible = np.flatnonzero(seen.any(1))  # a row that sees no key has no attention
    rows = np.sort(rng.choice(possible, rng.integers(1, len(possible) + 1), replace=False))
    seen = seen[rows]
    heads, extra = 2 * share, rng.normal(size=(len(keys), 3)).astype(np.float32)
    query = rng.normal(size=(heads, len(rows), 4)).astype(np.float32)
    key, value = (rng.normal(size=(2, len(keys), 4)).astype(np.float32) for _ in range(2))
    groups, columns = rng.integers(0, 3, len(rows)), (rng.random((len(keys), 2)) < 0.5).astype(np.float32)
    opened = np.flatnonzero(rng.random(len(rows)) < 0.5)
    layout = Layout(*map(torch.from_numpy, (rows, keys, groups)), 3, *map(torch.from_numpy, (columns, opened)))
    visible = visible_of(kind, seen, float_mask=False)
    inputs = Inputs(*map(torch.from_numpy, (query, key, value)), 0.6)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kernel, "LEAST_ROWS", block_rows)
        patch.setattr(kernel, "BLOCK_FLOATS", 1)
        output, found = attend(inputs, visible, layout, extra=torch.from_numpy(extra), workspace=Workspace())

    matrix = plain_matrix(query, key, seen, 0.6)
    expected = np.stack([matrix[h] @ value[h // share] for h in range(heads)], 1)
    assert np.abs(output.numpy() - expected).max() < TOLERANCE
    assert found.mixed is not None and np.abs(found.mixed.numpy() - matrix @ extra).max() < TOLERANCE
    by_group = np.stack([matrix[:, groups == g].sum(1) for g in range(3)], 1)
    assert np.abs(found.group_sums.numpy() - by_group).max() < TOLERANCE
    assert np.abs(found.row_mass.numpy() - matrix[:, opened] @ columns).max(initial=0) < TOLERANCE
    try:
        first, last = visible.intervals(layout)
    except ValueError:  # gaps between the rows cut a window into pieces
        assert any((np.diff(np.flatnonzero(column)) > 1).any() for column in seen.T)
        return
    assert (last - first).tolist() == seen.sum(0).tolist()
    seen_keys = np.flatnonzero(seen.any(0))
    sums = qk_sums(inputs.query, inputs.key, first, last)
    for h in range(heads):
        dots = query[h].astype(np.float64) @ key[h // share].astype(np.float64).T
        by_hand = np.array([dots[seen[:, j], j].mean() for j in seen_keys])
        assert np.abs(sums.qk[h].numpy()[seen_keys] - by_hand).max(initial=0) < TOLERANCE * 10


@pytest.mark.parametrize("causal", [False, True])
def test_a_workspace_that_was_used_before_leaves_nothing_behind(causal):
    generator = torch.Generator().manual_seed(3)
    workspace = Workspace()
    for tokens in (12, 9, 12):
        query, key, value = (torch.randn(2, tokens, 4, generator=generator) for _ in range(3))
        layout = Layout.whole(
            torch.zeros(tokens, dtype=torch.long), 1, torch.ones(tokens, 1), torch.tensor([1, tokens - 1])
        )
        for visible in (Visible(), Visible(causal=causal)):
            _, found = attend(Inputs(query, key, value, 0.5), visible, layout, workspace=workspace)
            assert torch.allclose(found.row_mass, torch.ones_like(found.row_mass), atol=1e-5)
            assert float(found.group_sums.sum()) == pytest.approx(2 * tokens, abs=1e-4)


def edited(query, key, value, seen, scale, edit):
    """Plain numpy: output [R, H, d] and probabilities [H, R, K] under an edit."""
    heads = len(query)
    bias = np.zeros((heads, *seen.shape)) if edit.bias is None else np.broadcast_to(edit.bias, (heads, *seen.shape))
    factor = 1 if edit.factor is None else np.broadcast_to(edit.factor, (heads, *seen.shape))
    scores = np.einsum("hid,hjd->hij", query, key) * scale + bias
    scores = np.where(seen, scores, -np.inf)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    matrix = weights / weights.sum(-1, keepdims=True) * factor
    output = np.einsum("hij,hjd->ihd", matrix, value)
    return output * (1 if edit.heads is None else edit.heads.numpy()[None, :, None]), matrix


@pytest.mark.parametrize("per_head", [False, True])
@pytest.mark.parametrize("per_row", [False, True])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("part", ["bias", "factor", "heads", "all"])
def test_an_edit_equals_plain_numpy(per_head, per_row, causal, part, monkeypatch):
    monkeypatch.setattr(kernel, "LEAST_ROWS", 4)
    monkeypatch.setattr(kernel, "BLOCK_FLOATS", 1)
    rng = np.random.default_rng(7)
    tokens, heads = 11, 3
    query, key, value = (rng.normal(size=(heads, tokens, 4)).astype(np.float32) for _ in range(3))
    shape = (heads if per_head else 1, tokens if per_row else 1, tokens)
    bias = rng.normal(size=shape)
    bias[..., 4] = -np.inf  # a blocked key; every row still sees the first
    parts = {
        "bias": torch.tensor(bias, dtype=torch.float32),
        "factor": torch.tensor(rng.random(shape), dtype=torch.float32),
        "heads": torch.tensor([0.0, 1.0, 0.5]),
    }
    edit = LayerEdit(**(parts if part == "all" else {part: parts[part]}))
    layout = _whole(tokens)
    output, found = attend(
        Inputs(*map(torch.from_numpy, (query, key, value)), 0.5), Visible(causal=causal), layout, edit,
        workspace=Workspace(),
    )  # fmt: skip
    seen = np.tril(np.ones((tokens, tokens), bool)) if causal else np.ones((tokens, tokens), bool)
    expected, matrix = edited(query, key, value, seen, 0.5, edit)
    assert np.abs(output.numpy() - expected).max() < TOLERANCE
    assert np.abs(found.group_sums.numpy() - matrix).max() < TOLERANCE


def test_edits_that_select_nothing_are_no_edit_and_several_are_one():
    assert joined([]) is None
    one = LayerEdit(bias=torch.tensor([[[1.0, 2.0]]]), heads=torch.tensor([2.0]))
    assert joined([one]) is one
    both = joined([one, LayerEdit(bias=torch.tensor([[[10.0, 20.0]]]), factor=torch.tensor([[[0.5, 1.0]]]))])
    assert both is not None and both.bias is not None and both.factor is not None and both.heads is one.heads
    assert both.bias.tolist() == [[[11.0, 22.0]]] and both.factor.tolist() == [[[0.5, 1.0]]]


def test_buffers_are_used_again():
    workspace = Workspace()
    large = workspace.take("a", (10, 10), torch.device("cpu"))
    small = workspace.take("a", (3, 5), torch.device("cpu"))
    assert small.data_ptr() == large.data_ptr()
    assert small.shape == (3, 5)
