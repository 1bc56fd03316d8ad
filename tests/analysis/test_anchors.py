"""Detectors: known answers, loops over full matrices, both normalisations, refusals."""

import dataclasses
from functools import partial

import numpy as np
import pytest

from floatscope.analysis import analyze
from floatscope.analysis.anchors import DETECTORS, detect, parse_detector, random_like
from floatscope.errors import UserError
from tests.traces.full_matrices import constant_rows, full_run, peaked, to_trace, uniform_attention, visible_pairs

anchors = partial(analyze, "anchors")

RUNS = [dict(kind="mdm"), dict(kind="mdm", visibility="block_causal(4)"), dict(kind="arm")]


def plain(name: str, sums: np.ndarray, seen: np.ndarray, rows: int, normalisation: str) -> np.ndarray:
    """The rules of docs/definitions.md on the column sums of one matrix, token by token."""
    there = [j for j in range(len(sums)) if seen[j]]
    score = {j: sums[j] / (rows if normalisation == "rows" else seen[j]) for j in there}
    values = np.array(list(score.values()))
    weights = np.zeros(len(sums))
    for j in there:
        z = (score[j] - values.mean()) / values.std()
        others = [score[k] * rows for k in there if k != j]
        weights[j] = {
            "zscore(1.5)": z > 1.5,
            "top1": score[j] == values.max(),
            "rulli(0.4,rows)": score[j] * rows > np.mean(others) + 0.4,
            "gu(0.15)": sums[j] / seen[j] > 0.15,
            "soft(2,5)": 1 / (1 + np.exp(5 * (2 - z))),
        }[name]
    return weights


@pytest.mark.slow
@pytest.mark.parametrize("settings", RUNS, ids=str)
@pytest.mark.parametrize("normalisation", ["rows", "visible"])
@pytest.mark.parametrize("name", ["zscore(1.5)", "top1", "rulli(0.4,rows)", "gu(0.15)", "soft(2,5)"])
def test_detectors_on_full_matrices(settings, normalisation, name):
    run = full_run(seed=5, **settings)
    trace = to_trace(run)
    found = detect(trace, name, normalisation)
    for step, attention in enumerate(run.attention):
        rows = attention.shape[2]
        seen = visible_pairs(run.visibility, run.tokens)[:rows].sum(axis=0)
        for layer in range(attention.shape[0]):
            sums = attention[layer].mean(axis=0).sum(axis=0)
            np.testing.assert_allclose(found[step, layer], plain(name, sums, seen, rows, normalisation), atol=1e-4)


def test_a_single_peak_is_the_only_anchor():
    trace = to_trace(constant_rows(peaked(np.array([[3], [5]]), tokens=40)))
    for name in DETECTORS:
        found = detect(trace, name) > 0.5
        assert [list(np.flatnonzero(found[step, 0])) for step in range(2)] == [[3], [5]], name


@pytest.mark.parametrize("name", ["zscore(3)", "rulli(3,rows)", "gu(0.3)", "soft(2,5)"])
def test_even_attention_has_no_anchor(name):
    trace = to_trace(uniform_attention(full_run(kind="mdm")))
    assert not (detect(trace, name) > 0.5).any()


@pytest.mark.parametrize("name", ["zscore(3)", "soft(2,5)"])
def test_rounding_does_not_stand_out(name):
    """One position above the others by less than a millionth of the mean, many standard deviations or not."""
    trace = to_trace(constant_rows(np.full((1, 1, 40), 1 / 40)))
    received = np.full((1, 1, 40), 1 / 40)
    received[..., 7] *= 1 + 1e-6  # a spread of 1.6e-7 of the mean, and z = 6
    quiet = dataclasses.replace(trace, arrays={**trace.arrays, "received": received})
    assert not detect(quiet, name).any()
    received[..., 7] *= 1 + 1e-3
    assert np.flatnonzero(detect(quiet, name)[0, 0] > 0.5).tolist() == [7]


def test_absolute_threshold_never_fires():
    trace = to_trace(constant_rows(peaked(np.array([[3]]), tokens=40, height=0.99)))
    assert not detect(trace, "rulli(3,1)").any()


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("zscor(3)", "did you mean 'zscore'"),
        ("magic", "There is no detector .magic.: Known are zscore, top1, rulli, gu, soft"),
        ("zscore(a)", "not numbers"),
        ("zscore(nan)", "not finite"),
        ("soft(2,inf)", "not finite"),
        ("gu(1,2)", "too many"),
        ("zscore(3", "did you mean .zscore."),
    ],
)
def test_bad_detectors(text, sentence):
    with pytest.raises(UserError, match=sentence):
        parse_detector(text)


def test_bad_normalisation():
    with pytest.raises(UserError, match="'rows' or 'visible'"):
        detect(to_trace(full_run()), "top1", "columns")


def test_random_positions_are_as_many_and_exist():
    trace = to_trace(full_run(kind="arm"))
    weights = detect(trace, "zscore(1)")
    present = trace.visible > 0
    chosen = random_like(weights, present, np.random.default_rng(0))
    assert (chosen.sum(axis=-1) == weights.sum(axis=-1)).all()
    assert not (chosen & ~present).any()
    assert (chosen != weights).any()


def test_table_counts_and_lists():
    run = constant_rows(peaked(np.array([[3, 7], [5, 7]]), tokens=40))
    result = anchors([to_trace(run), to_trace(run)])
    table = result.table.filter(detector="zscore(3)", normalisation="rows", measure="count")
    assert table["value"].to_list() == [1.0, 1.0]
    assert table["uniform"].to_list() == [0.0, 0.0]
    assert table["untrained"].null_count() == 2
    mass = result.table.filter(detector="top1", normalisation="rows", measure="mass")
    np.testing.assert_allclose(mass["value"], 0.6, atol=1e-6)
    listed = result.tables["anchors_list"].filter(sample="0")
    assert listed.select("layer", "position", "steps", "first_step").rows() == [
        (0, 3, 1, 0),
        (0, 5, 1, 1),
        (1, 7, 2, 0),
    ]
    assert any("untrained" in note for note in result.notes)


def test_the_list_tells_texts_and_regions_of_every_sample():
    """Two samples whose canvases differ, under their own ids; anchors in the answer and before it."""
    first = constant_rows(peaked(np.array([[3, 7]]), tokens=40))
    second = constant_rows(peaked(np.array([[38, 0]]), tokens=40), seed=1)
    texts = [tuple(f"{name}{place}" for place in range(40)) for name in "xy"]
    traces = [
        to_trace(run, texts=words, metadata={"sample": name})
        for run, words, name in zip((first, second), texts, ("one", "two"), strict=True)
    ]
    listed = anchors(traces).tables["anchors_list"]
    assert listed.select("sample", "layer", "position", "text", "region").rows() == [
        ("one", 0, 3, "x3", "query"),
        ("one", 1, 7, "x7", "query"),
        ("two", 0, 38, "y38", "answer"),
        ("two", 1, 0, "y0", "bos"),
    ]
