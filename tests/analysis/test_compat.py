"""Compat: the published computations written out again, and where they differ from the exact ones."""

import dataclasses
from functools import partial

import numpy as np
import pytest

from floatscope.analysis import analyze
from floatscope.analysis.compat import pooled_rollout, retokenised
from floatscope.analysis.flow import region_rollout
from tests.traces.full_matrices import constant_rows, full_run, peaked, to_trace

compat = partial(analyze, "compat")


def with_matrices(run):
    trace = to_trace(run)
    layers = range(trace.layers)
    arrays = dict(trace.arrays) | {
        "matrix_steps": np.array([len(run.attention) - 1]),
        "matrix_layers": np.array(layers),
        "attention": run.attention[-1][None].astype(np.float32),
        "queries": run.queries[-1][None].astype(np.float32),
        "keys": run.keys[-1][None].astype(np.float32),
    }
    return dataclasses.replace(trace, arrays=arrays, keep="matrices").validate()


def row(result, quirk, layer=None):
    table = result.table.filter(quirk=quirk)
    return (table if layer is None else table.filter(layer=layer)).row(0, named=True)


def test_absolute_threshold_is_the_top_position():
    run = full_run(seed=1)
    found = row(compat([to_trace(run)]), "absolute_threshold", layer=2)
    received = run.attention[-1][2].mean(axis=0).mean(axis=0)
    assert found["published"] == pytest.approx(100 * received.max(), abs=1e-3)
    anchors = received[received > received.mean() + 3 * received.std()]
    assert found["exact"] == pytest.approx(100 * anchors.sum(), abs=1e-3)
    assert found["difference"] == pytest.approx(found["published"] - found["exact"])
    two = peaked(np.full((1, 1), 3), 60, height=0.3)
    two[..., 40] += 0.3
    two /= two.sum()
    found = row(compat([to_trace(constant_rows(two))]), "absolute_threshold", layer=0)
    assert found["exact"] > 1.9 * found["published"]  # two anchors, of which the published rule sees one


def test_one_forward_of_an_arm_asks_for_bos():
    run = full_run(seed=2, kind="arm")
    found = row(compat([to_trace(run)]), "one_forward", layer=1)
    first = [a[1].mean(axis=0)[:, 0].mean() for a in run.attention]
    assert found["published"] == pytest.approx(100 * first[-1], abs=1e-3)
    assert found["exact"] == pytest.approx(100 * np.mean(first), abs=1e-3)
    even = 1 / np.arange(1, 15)  # row i gives the first column 1 / (i + 1)
    assert found["uniform"] == pytest.approx(100 * even.mean(), abs=1e-3)


def test_one_forward():
    run = full_run(seed=2)
    found = row(compat([to_trace(run)]), "one_forward", layer=0)
    first = [a[0].mean(axis=0).mean(axis=0).max() for a in run.attention]  # an MDM's top position
    assert found["published"] == pytest.approx(100 * first[-1], abs=1e-3)
    assert found["exact"] == pytest.approx(100 * np.mean(first), abs=1e-3)


def test_states():
    run = full_run(seed=3)
    result = compat([with_matrices(run)])
    received = run.attention[-1][1].mean(axis=0).mean(axis=0)
    anchor = received > received.mean() + 3 * received.std()
    anchor = anchor if anchor.any() else received == received.max()
    q, k = run.queries[-1][1], run.keys[-1][1]

    def gap(products):
        return products[:, anchor].mean() - products[:, ~anchor].mean()

    averaged = row(result, "head_averaged_states", layer=1)
    assert averaged["published"] == pytest.approx(gap(q.mean(axis=0) @ k.mean(axis=0).T), abs=1e-4)
    exact = np.mean([gap(q[h] @ k[h // 2].T) for h in range(4)])
    assert averaged["exact"] == pytest.approx(exact, abs=1e-4)
    modulo = row(result, "head_modulo", layer=1)
    assert modulo["published"] == pytest.approx(np.mean([gap(q[h] @ k[h % 2].T) for h in range(4)]), abs=1e-4)
    assert modulo["exact"] == pytest.approx(exact, abs=1e-4)


def test_one_key_head_a_query_head_makes_modulo_harmless():
    found = row(compat([with_matrices(full_run(kv_heads=4))]), "head_modulo", layer=0)
    assert found["difference"] == pytest.approx(0, abs=1e-9)


def test_rollout_on_row_normalised_sums_equals_ours_on_a_partition():
    run = full_run(seed=4)
    trace = to_trace(run)
    attention = run.attention[-1].mean(axis=1)
    ours = region_rollout(trace.region_matrix().mean(axis=2)[-1])
    np.testing.assert_allclose(pooled_rollout(attention, run.regions), ours, atol=1e-5)


def test_regions_off_by_one_change_the_flow():
    run = full_run(seed=4)
    found = row(compat([with_matrices(run)]), "retokenised_regions")
    assert found["layer"] is None
    spans = {"bos": (0, 1), "query": (1, 4), "doc 1": (4, 6), "doc 2": (6, 10), "answer": (11, 15)}
    attention = run.attention[-1].mean(axis=1)
    rolled = np.eye(5)
    for matrix in attention:
        pooled = np.array([[matrix[a:b, c:d].sum() for c, d in spans.values()] for a, b in spans.values()])
        pooled = pooled / pooled.sum(axis=1, keepdims=True)
        mixed = pooled + np.eye(5)
        rolled = mixed / mixed.sum(axis=1, keepdims=True) @ rolled
    rolled = rolled / rolled.sum(axis=1, keepdims=True)
    assert found["published"] == pytest.approx(rolled[4, 2:4].sum(), abs=1e-5)
    assert abs(found["difference"]) > 1e-3


PAPER = ("bos", *["query"] * 3, *["scaffold"] * 3, "doc 1", "doc 1", *["scaffold"] * 2, "doc 2", "scaffold", "scaffold")
PAPER_TEXTS = (
    "<s>",
    " who",
    " rules",
    "?",
    "\n",
    "Passages",
    "[1]",
    " Ann",
    " rules",
    "\n",
    "[2]",
    " Bo",
    "\n",
    "Answer:",
)
OURS = ("bos", *["scaffold"] * 2, *["doc 1"] * 2, *["scaffold"] * 3, "doc 2", *["scaffold"] * 2, "query", "scaffold")
OURS_TEXTS = (
    "<s>",
    "Document",
    " 1:",
    " Ann",
    " rules",
    "\n",
    "Document",
    " 2:",
    " Bo",
    "\n",
    "Question:",
    " who?",
    "\nAnswer:",
)


@pytest.mark.parametrize(
    ("labels", "texts", "expected"),
    [
        (PAPER, PAPER_TEXTS, "bos 0 1, query 1 4, doc_1 4 9, doc_2 9 12, answer 14 16"),
        (PAPER[1:], PAPER_TEXTS[1:], "bos 0 1, query 1 4, doc_1 4 9, doc_2 9 12, answer 13 15"),
        (OURS, OURS_TEXTS, "bos 0 1, doc_1 1 5, doc_2 5 9, query 9 11, answer 13 15"),
    ],
    ids=["question first", "without bos", "documents first"],
)
def test_pieces_tokenised_apart(labels, texts, expected):
    """Lengths of "question", "[n] text newline" added up from 0, as without a bos token; the rest is in no region."""
    run = full_run(prompt=labels, texts=texts, answer=2)
    spans = [f"{r.label.replace(' ', '_')} {r.start} {r.stop}" for r in retokenised(to_trace(run))]
    assert ", ".join(spans) == expected


def test_published_flow_of_even_attention():
    run = full_run(seed=4)
    found = row(compat([with_matrices(run)]), "retokenised_regions")
    even = np.full((3, run.tokens, run.tokens), 1 / run.tokens)
    rolled = pooled_rollout(even, retokenised(to_trace(run)))
    assert found["uniform"] == pytest.approx(rolled[4, 2:4].sum(), abs=1e-6)


def test_without_matrices_the_rest_is_given_and_said():
    result = compat([to_trace(full_run())])
    assert set(result.table["quirk"]) == {"absolute_threshold", "one_forward"}
    assert sum("keep='matrices'" in note for note in result.notes) == 3
