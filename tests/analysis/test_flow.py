"""Flow: region matrices and rollouts again from full matrices; known answers; token rollout is another thing."""

from functools import partial

import numpy as np
import pytest

import floatscope as fs
from floatscope.analysis import analyze
from floatscope.analysis.flow import _document_number, gold_label, per_token, region_rollout
from floatscope.errors import UserError
from tests.plain_attention import canvas_at, watch
from tests.probe.test_edits import canvas
from tests.tiny_models import MASK, tiny_model
from tests.traces.full_matrices import full_run, to_trace, uniform_attention

flow = partial(analyze, "flow")


def pooled(run, step: int, layer: int, labels: list[str]) -> np.ndarray:
    matrix = run.attention[step][layer].mean(axis=0)
    rows = run.labels[: matrix.shape[0]]
    out = np.zeros((len(labels), len(labels)))
    for r, source in enumerate(labels):
        chosen = [i for i, label in enumerate(rows) if label == source]
        for s, target in enumerate(labels):
            columns = [j for j, label in enumerate(run.labels) if label == target]
            out[r, s] = matrix[np.ix_(chosen, columns)].sum() / max(len(chosen), 1)
    return out


@pytest.mark.parametrize("kind", ["mdm", "arm"])
def test_matrices_and_rollout_on_full_matrices(kind):
    run = full_run(seed=6, kind=kind)
    trace = to_trace(run)
    labels = list(trace.region_labels)
    alpha = 0.3
    result = flow([trace], alpha=alpha)
    steps = range(len(run.attention))
    by_step = np.array([[pooled(run, s, layer, labels) for layer in range(3)] for s in steps])
    answer = labels.index("answer")
    first = 1 if kind == "arm" else 0  # an ARM's first step has no answer row
    rolled = []
    for s in steps:
        product = np.eye(len(labels))
        for layer in range(3):
            step_matrix = by_step[s, layer].copy()
            if s < first:
                step_matrix[answer, answer] = 1
            product = (alpha * step_matrix + (1 - alpha) * np.eye(len(labels))) @ product
        rolled.append(product)
    rolled = np.array(rolled)
    lengths = np.array([run.labels.count(label) for label in labels])
    for form in ("pooled", "per_token"):
        for source, target in ((answer, 3), (answer, 0), (2, 4)):
            chosen = slice(first, None) if source == answer else slice(None)
            for view, values, where in (
                ("attention", by_step[:, 1], dict(layer=1)),
                ("rollout", rolled, dict(window="all")),
            ):
                if form == "per_token":
                    values = values / lengths
                    values = values / np.maximum(values.sum(axis=-1, keepdims=True), 1e-12)
                row = result.table.filter(
                    view=view, form=form, source=labels[source], target=labels[target], gold="doc 2", **where
                )
                assert row["value"][0] == pytest.approx(values[chosen, source, target].mean(), abs=1e-5)
    table = result.tables["flow_steps"].filter(target="doc 2", window="all")
    expected = [rolled[s, answer, 4] if s >= first else None for s in steps]
    for found, value in zip(table["value"], expected, strict=True):
        assert found == (None if value is None else pytest.approx(value, abs=1e-5))


def test_windows_multiply_to_the_whole():
    trace = to_trace(full_run(seed=6, layers=3))
    matrices = trace.region_matrix().mean(axis=2)[0]
    whole = region_rollout(matrices)
    parts = [region_rollout(matrices[n : n + 1]) for n in range(3)]
    np.testing.assert_allclose(whole, parts[2] @ parts[1] @ parts[0], atol=1e-6)
    np.testing.assert_allclose(whole.sum(axis=-1), 1, atol=1e-5)


def test_identity_rolls_out_to_identity():
    eye = np.broadcast_to(np.eye(4), (5, 4, 4))
    np.testing.assert_array_equal(region_rollout(eye), np.eye(4))
    np.testing.assert_array_equal(region_rollout(np.random.default_rng(0).random((5, 4, 4)), alpha=0), np.eye(4))


def test_even_attention_per_token_is_even():
    run = uniform_attention(full_run())
    table = flow([to_trace(run)]).table.filter(view="attention", form="per_token", layer=0)
    np.testing.assert_allclose(table["value"], 1 / 6, atol=1e-5)
    np.testing.assert_allclose(table["uniform"], table["value"], atol=1e-5)


def test_causal_even_rollout_tends_to_bos_with_depth():
    shares = []
    for layers in (1, 3, 9):
        run = full_run(kind="arm", layers=layers)
        table = flow([to_trace(run)]).table.filter(view="rollout", form="pooled", window="all")
        shares.append(table.filter(source="answer", target="bos")["uniform"][0])
    assert shares[0] < shares[1] < shares[2]


def test_region_rollout_is_not_token_rollout():
    """They agree where rows of a region are alike; in general they differ, and only the region one is offered."""
    run = full_run(seed=8)
    trace = to_trace(run)
    labels = list(trace.region_labels)
    tokens = np.eye(run.tokens)
    for layer in range(3):
        tokens = (0.5 * run.attention[0][layer].mean(axis=0) + 0.5 * np.eye(run.tokens)) @ tokens
    member = np.array([[label == name for label in run.labels] for name in labels], float)
    pooled_tokens = member @ tokens @ member.T / member.sum(axis=1, keepdims=True)
    regions = region_rollout(trace.region_matrix().mean(axis=2)[0])
    assert 1e-3 < np.abs(pooled_tokens - regions).max() < 0.2


@pytest.mark.slow
def test_gold_position():
    trace = to_trace(full_run())
    assert gold_label(trace) == "doc 2"
    run = full_run()
    run.marks = {"evidence": np.array([5, 10])}
    assert gold_label(to_trace(run)) == "doc 1 + doc 2"
    for place, label in (
        (4, "none"),
        (5, "doc 1"),
        (6, "doc 1"),
        (7, "none"),
        (8, "doc 2"),
        (10, "doc 2"),
        (11, "none"),
    ):
        run.marks = {"evidence": np.array([place])}
        assert gold_label(to_trace(run)) == label
    table = flow([trace]).tables["flow_gold"].filter(window="all")
    assert table.select("target", "is_gold").rows() == [("doc 1", False), ("doc 2", True)]


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["mdm", "arm"])
def test_gold_against_the_other_documents(kind):
    """Per sample, from the rollout itself: gold minus the mean of the others; by gold position and over all."""
    traces = []
    for seed in range(4):
        run = full_run(seed=seed, kind=kind)
        run.marks = {"evidence": np.array([5] if seed % 2 else [9])}
        traces.append(to_trace(run, model="m"))
    tables = flow(traces).tables
    gaps = []
    for trace in traces:
        rolled = region_rollout(trace.region_matrix(head_mean=True).astype(float))  # [step, region, region]
        answer, first = trace.region_labels.index("answer"), 1 if kind == "arm" else 0
        to = {name: rolled[first:, answer, trace.region_labels.index(name)].mean() for name in ("doc 1", "doc 2")}
        gold = gold_label(trace)
        gaps.append(to[gold] - to["doc 2" if gold == "doc 1" else "doc 1"])
    found = {row["gold"]: row for row in tables["flow_contrast"].filter(window="all").iter_rows(named=True)}
    assert found["any"]["value"] == pytest.approx(np.mean(gaps), abs=1e-5) and found["any"]["samples"] == 4
    assert found["doc 1"]["value"] == pytest.approx(np.mean(gaps[1::2]), abs=1e-5)
    assert 0 < found["any"]["p"] <= 1
    assert found["doc 1"]["uniform"] == pytest.approx(-found["doc 2"]["uniform"]) != 0  # lengths alone tell them apart


def test_no_gold_document_gives_an_empty_contrast():
    run = full_run()
    run.marks = {"evidence": np.zeros(0, int)}
    assert flow([to_trace(run)]).tables["flow_contrast"].is_empty()


def test_steps_and_windows_average_to_the_main_table():
    trace = to_trace(full_run(seed=3))
    tables = flow([trace]).tables
    for window in ("all", "shallow", "deep"):
        steps = tables["flow_steps"].filter(window=window, target="doc 1")
        whole = tables["flow"].filter(view="rollout", form="pooled", window=window, source="answer", target="doc 1")
        assert steps.height == trace.steps
        assert steps["value"].mean() == pytest.approx(whole["value"][0], abs=1e-6)


def test_refusals():
    with pytest.raises(UserError, match="between 0 and 1"):
        flow([to_trace(full_run())], alpha=2)
    run = full_run(prompt=("bos",), texts=None, answer=0)
    with pytest.raises(UserError, match="No trace has regions"):
        flow([to_trace(run)])
    assert (per_token(np.zeros((2, 2)), np.ones(2)) == 0).all()


@pytest.mark.slow
@pytest.mark.parametrize("name", ["llada", "llama"])
def test_token_rollout_of_a_trace_is_exact_and_stands_beside_uniform_attention(name):
    model = tiny_model(name)
    trace = fs.trace(model, canvas(13), model.sampler(length=4), keep="rollout")
    result = flow([trace])
    labels, step = list(trace.region_labels), trace.steps - 1
    tokens = len(trace.canvas) - (trace.kind == "arm")
    seen = trace.canvas[:tokens] if trace.kind == "arm" else canvas_at(trace, step, MASK)
    even = np.ones((tokens, tokens)) if trace.kind == "mdm" else np.tril(np.ones((tokens, tokens)))
    even /= even.sum(1, keepdims=True)
    layers = [layer["attention"].mean(0) for layer in watch(model, seen)]
    names = np.array([label for region in trace.regions for label in [region.label] * len(region)])[:tokens]
    member = np.array([names == label for label in labels], float)  # [region, token]
    filled = [slot - (trace.kind == "arm") for slot in trace.slots[trace.commit_step == step]]
    for column, matrices in (("value", layers), ("uniform", [even] * 3)):
        rolled = np.eye(tokens)
        for matrix in matrices:
            rolled = (matrix + np.eye(tokens)) / 2 @ rolled
        by_region = rolled @ member.T  # [row, region]
        of_answer = by_region[names == "answer"].mean(0)
        of_filled = by_region[filled].mean(0)
        for target in ("doc 1", "doc 2", "bos"):
            place = labels.index(target)
            for rows, expected in (("answer", of_answer), ("committing", of_filled)):
                found = result.tables["flow_rollout"].filter(rows=rows, step=step, target=target)
                assert found[column][0] == pytest.approx(expected[place], abs=1e-5)
    if trace.kind == "mdm":  # the rows of a region that is no slot are there at every step
        query, place = labels.index("query"), labels.index("doc 1")
        means = [trace.region_rollout()[at, -1, query, place] for at in range(trace.steps)]
        row = result.table.filter(view="token_rollout", source="query", target="doc 1")
        assert row["value"][0] == pytest.approx(np.mean(means), abs=1e-5)


def test_traces_without_a_rollout_have_the_pooled_one_alone():
    result = flow([to_trace(full_run(seed=6))])
    assert "flow_rollout" not in result.tables
    assert "token_rollout" not in result.table["view"]


@pytest.mark.slow
@pytest.mark.parametrize(("window", "chosen"), [("shallow", [0, 1]), ("middle", [2, 3]), ("deep", [4, 5])])
def test_a_window_rolls_out_its_own_layers_the_first_of_them_first(window, chosen):
    """By hand, half attention and half identity, from the window's first layer to its last; mean over steps."""
    run = full_run(seed=6, layers=6)
    trace = to_trace(run)
    labels = list(trace.region_labels)
    table = flow([trace]).table.filter(view="rollout", form="pooled", window=window)
    expected = np.zeros((len(labels), len(labels)))
    for step in range(len(run.attention)):
        product = np.eye(len(labels))
        for layer in chosen:
            product = (pooled(run, step, layer, labels) / 2 + np.eye(len(labels)) / 2) @ product
        expected += product / len(run.attention)
    for source, target in (("answer", "doc 2"), ("query", "bos"), ("doc 1", "answer")):
        row = table.filter(source=source, target=target)
        assert row["value"][0] == pytest.approx(expected[labels.index(source), labels.index(target)], abs=1e-5)


def test_several_gold_documents_are_held_to_the_mean_of_the_others():
    """Of four documents 1 and 3 are gold: their mean minus that of 2 and 4."""
    labels = ("bos", "doc 1", "doc 2", "doc 2", "doc 3", "doc 4", "query")
    run = full_run(seed=2, prompt=labels, texts=None)
    run.marks = {"evidence": np.array([1, 4])}
    trace = to_trace(run)
    tables = flow([trace]).tables
    rolled = region_rollout(trace.region_matrix(head_mean=True).astype(float)).mean(axis=0)
    to = [rolled[trace.region_labels.index("answer"), trace.region_labels.index(f"doc {n}")] for n in (1, 2, 3, 4)]
    expected = (to[0] + to[2]) / 2 - (to[1] + to[3]) / 2
    found = {row["gold"]: row["value"] for row in tables["flow_contrast"].filter(window="all").iter_rows(named=True)}
    assert found == {"doc 1 + doc 3": pytest.approx(expected, abs=1e-6), "any": pytest.approx(expected, abs=1e-6)}
    is_gold = dict(tables["flow_gold"].filter(window="all").select("target", "is_gold").iter_rows())
    assert is_gold == {"doc 1": True, "doc 2": False, "doc 3": True, "doc 4": False}


def test_documents_are_in_the_order_of_their_numbers():
    labels = ["doc 10", "none", "doc 2 + doc 11", "doc 2", "doc 1 + doc 10"]
    assert sorted(labels, key=_document_number) == ["doc 1 + doc 10", "doc 2", "doc 2 + doc 11", "doc 10", "none"]
