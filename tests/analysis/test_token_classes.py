"""Token classes: shares by hand, the four shares sum to 1, and the shallow/deep test on an evident case."""

from functools import partial

import numpy as np
import pytest

from floatscope.analysis import analyze
from floatscope.analysis.results import Options
from floatscope.analysis.token_classes import CLASSES, step_classes
from floatscope.errors import UserError
from tests.traces.full_matrices import TEXTS, constant_rows, full_run, peaked, to_trace

token_classes = partial(analyze, "token_classes")

BY_HAND = {
    "<s>": "special",
    "Question": "scaffold",
    " who": "function",
    " rules": "content",
    "\n": "whitespace",
    " Paris": "content",
    " 42": "number",
    ".": "punctuation",
    " the": "function",
    " king": "content",
    " Ann": "content",
}


def test_classes_of_the_canvas():
    run = full_run(kind="mdm")
    found = step_classes(to_trace(run))
    for step in range(len(run.attention)):
        names = [BY_HAND[text] for text in TEXTS]
        names += ["mask" if commit >= step else "content" for commit in run.commit_step]
        assert [CLASSES[number] for number in found[step]] == names
    assert "mask" not in [CLASSES[n] for n in step_classes(to_trace(full_run(kind="arm"))).ravel()]


def test_shares_on_full_matrices():
    run = full_run(seed=3, kind="mdm", layers=4, steps=4)
    table = token_classes([to_trace(run)], Options(detector="zscore(1)")).table
    classes = step_classes(to_trace(run))
    mass = np.zeros(len(CLASSES))
    even = np.zeros(len(CLASSES))
    for step in (0, 1):  # of four steps the first two are early
        for layer in (3,):  # of four layers the last is deep
            received = run.attention[step][layer].mean(axis=0).mean(axis=0)
            for j in range(run.tokens):
                even[classes[step, j]] += 1 / run.tokens
                if received[j] > received.mean() + received.std():
                    mass[classes[step, j]] += received[j]
    part = table.filter(depth="deep", phase="early")
    assert part["class"].to_list() == list(CLASSES)
    np.testing.assert_allclose(part["value"], mass / mass.sum(), atol=1e-5)
    np.testing.assert_allclose(part["uniform"], even / even.sum(), atol=1e-5)
    total = table.filter(depth="all", phase="all")
    assert total["value"].sum() == pytest.approx(1) and total["random"].sum() == pytest.approx(1)


def shallow_newline_deep_king(seed: int):
    """Shallow layers look at a newline, deep layers at a content word."""
    where = np.tile(np.array([4, 4, 9]), (3, 1))
    run = constant_rows(peaked(where, 40), seed=seed)
    texts = [f" word{n}" for n in range(40)]
    texts[4], texts[9], texts[0] = "\n", " king", "<s>"
    return to_trace(run, texts=tuple(texts))


@pytest.mark.slow
def test_shallow_structure_deep_content_is_a_number():
    result = token_classes([shallow_newline_deep_king(s) for s in range(8)])
    test = result.tables["token_classes_test"].filter(treatment="function words apart")
    structural, lexical = test.row(0, named=True), test.row(1, named=True)
    assert structural["contrast"] == "structural: shallow - deep"
    assert structural["value"] == pytest.approx(1) and lexical["value"] == pytest.approx(1)
    assert structural["p"] < 0.02 and structural["samples"] == 8
    assert abs(structural["random"]) < 0.5
    assert set(result.tables["token_classes_test"]["treatment"]) == {
        "function words apart",
        "function words structural",
        "function words lexical",
    }


@pytest.mark.slow
def test_a_sample_without_shallow_anchors_has_no_contrast():
    """Its shallow share is undefined: were it 0, content would seem to come with depth."""
    flat = peaked(np.tile(np.array([4, 4, 9]), (3, 1)), 40)
    flat[:, 0] = 1 / 40
    texts = ("<s>", *(f" word{n}" for n in range(1, 40)))
    quiet = [to_trace(constant_rows(flat, seed=seed), texts=texts) for seed in (8, 9)]
    (alone,) = {(r["value"], r["p"], r["samples"]) for r in contrasts(quiet)}
    assert alone == (None, None, 0)
    both = contrasts([*quiet, *(shallow_newline_deep_king(seed) for seed in range(3))])
    assert {(row["value"], row["samples"]) for row in both if row["treatment"] == "function words apart"} == {(1.0, 3)}


def contrasts(traces):
    return token_classes(traces).tables["token_classes_test"].to_dicts()


@pytest.mark.slow
def test_function_words_move_between_treatments():
    traces = [to_trace(full_run(seed=s, layers=3), model="m") for s in range(3)]
    result = token_classes(traces, Options(detector="zscore(1)"))
    shares = result.table.filter(phase="all").filter(depth="shallow")
    by_class = dict(zip(shares["class"], shares["value"], strict=True))
    assert by_class["function"] > 0
    test = result.tables["token_classes_test"]
    pick = {
        row["treatment"]: row["value"] for row in test.iter_rows(named=True) if row["contrast"].startswith("structural")
    }
    deep = dict(zip(CLASSES, result.table.filter(depth="deep", phase="all")["value"], strict=True))
    gap = by_class["function"] - deep["function"]
    assert pick["function words structural"] - pick["function words apart"] == pytest.approx(gap, abs=1e-6)
    assert pick["function words lexical"] == pytest.approx(pick["function words apart"])


def test_no_texts_and_no_anchors():
    with pytest.raises(UserError, match="no token texts"):
        token_classes([to_trace(full_run(), texts=None)])
    result = token_classes([to_trace(full_run(), model="quiet")], Options(detector="gu(0.99)"))
    assert result.table["value"].null_count() == result.table.height
    assert any("without any anchor" in note for note in result.notes)
    assert result.tables["token_classes_test"]["p"].null_count() == 6
