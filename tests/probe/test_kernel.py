"""The kernel against plain T x T numpy, over shapes, GQA ratios, visibilities, groups and block sizes."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from floatscope.probe import kernel
from floatscope.probe.kernel import Visible, Workspace, attend
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
    layout = Layout(*map(torch.from_numpy, [groups]), group_count, torch.from_numpy(columns), torch.from_numpy(rows))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kernel, "LEAST_ROWS", block_rows)
        patch.setattr(kernel, "BLOCK_FLOATS", 1)
        given_tensors = [torch.from_numpy(x) for x in (query, key, value)]
        output = torch.empty(tokens, heads, dimension + 1)
        found = attend(*given_tensors, visible, layout, Workspace(), output, scale=0.7, softcap=softcap)

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

    first, last = visible.intervals(tokens, torch.device("cpu"))
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
    layout = Layout(torch.arange(9), 9, torch.ones(9, 1), torch.zeros(0, dtype=torch.long))
    visible = Visible(mask=torch.from_numpy(bias))
    output = torch.empty(9, 2, 4)
    found = attend(*map(torch.from_numpy, (query, key, value)), visible, layout, Workspace(), output, scale=0.5)
    assert np.abs(found.group_sums.numpy() - matrix).max() < TOLERANCE


def test_large_scores_do_not_overflow():
    query = torch.full((1, 5, 4), 300.0)
    key = torch.randn(1, 5, 4, generator=torch.Generator().manual_seed(0)) * 300
    layout = Layout(torch.zeros(5, dtype=torch.long), 1, torch.ones(5, 1), torch.arange(5))
    output = torch.empty(5, 1, 2)
    found = attend(query, key, torch.ones(1, 5, 2), Visible(), layout, Workspace(), output, scale=1.0)
    assert torch.equal(output, torch.ones(5, 1, 2))
    assert float(found.group_sums.sum()) == pytest.approx(5)
    assert float(found.row_entropy.abs().max()) < 1e-6


def test_half_precision_inputs_are_counted_in_float32():
    generator = torch.Generator().manual_seed(1)
    query, key, value = (torch.randn(2, 30, 8, generator=generator).bfloat16() for _ in range(3))
    layout = Layout(torch.arange(30), 30, torch.ones(30, 1), torch.zeros(0, dtype=torch.long))
    output = torch.empty(30, 2, 8, dtype=torch.bfloat16)
    found = attend(query, key, value, Visible(), layout, Workspace(), output, scale=0.35)
    matrix = plain_matrix(query.float().numpy(), key.float().numpy(), np.ones((30, 30), bool), 0.35)
    expected = np.stack([matrix[h] @ value[h].float().numpy() for h in range(2)], 1)
    assert np.abs(output.float().numpy() - expected).max() < 1e-2  # rounded once, at the end
    assert np.abs(found.group_sums.numpy() - matrix).max() < TOLERANCE


def test_a_column_seen_by_scattered_rows_is_refused():
    mask = torch.eye(6, dtype=torch.bool)
    mask[5, 0] = True
    with pytest.raises(ValueError, match="not contiguous"):
        Visible(mask=mask).intervals(6, torch.device("cpu"))


def test_buffers_are_used_again():
    workspace = Workspace()
    large = workspace.take("a", (10, 10), torch.device("cpu"))
    small = workspace.take("a", (3, 5), torch.device("cpu"))
    assert small.data_ptr() == large.data_ptr()
    assert small.shape == (3, 5)
