"""Absorption: sums over columns of full matrices."""

from functools import partial

import numpy as np
import pytest

from floatscope.analysis import analyze
from floatscope.analysis.results import Controls, Options
from tests.traces.full_matrices import constant_rows, full_run, peaked, to_trace

absorption = partial(analyze, "absorption")


@pytest.mark.parametrize("kind", ["mdm", "arm"])
def test_sets_and_rows_on_full_matrices(kind):
    run = full_run(seed=4, kind=kind)
    table = absorption([to_trace(run)], Options(detector="zscore(1)")).table
    for layer in range(3):
        expected: dict[tuple[str, str], list[float]] = {}
        chance: dict[tuple[str, str], list[float]] = {}
        for attention in run.attention:
            matrix = attention[layer].mean(axis=0)
            there = matrix.shape[0] if kind == "arm" else run.tokens
            received = matrix.mean(axis=0)[:there]
            sets = {
                "bos": [0],
                "detected": list(np.flatnonzero(received > received.mean() + received.std())),
                "top1": [int(received.argmax())],
            }
            for rows, part in (("all", matrix), ("answer", matrix[run.prompt_length :])):
                for name, places in sets.items():
                    if len(part):
                        expected.setdefault((name, rows), []).append(100 * part[:, places].sum() / len(part))
                        chance.setdefault((name, rows), []).append(100 * len(places) / there)
        for (name, rows), values in expected.items():
            row = table.filter(set=name, rows=rows, layer=layer).row(0, named=True)
            assert row["value"] == pytest.approx(np.mean(values), abs=1e-3), (name, rows)
            assert row["random"] == pytest.approx(np.mean(chance[name, rows]), abs=1e-3)


def test_uniform_control_knows_the_causal_pile():
    table = absorption([to_trace(full_run(kind="arm", answer=1))]).table
    rows = np.tril(np.ones((11, 11))) / np.arange(1, 12)[:, None]
    uniform = table.filter(set="bos", rows="all", layer=0)["uniform"][0]
    assert uniform == pytest.approx(100 * rows[:, 0].mean(), abs=1e-3)
    assert uniform > 100 / 11
    assert table.filter(set="bos", rows="answer")["value"].null_count() == 3  # no answer row at all


def test_known_peak_and_untrained_control():
    trained = to_trace(constant_rows(peaked(np.full((3, 1), 4), 40)))
    bare = to_trace(constant_rows(peaked(np.full((3, 1), 4), 40, height=0.3)), model="random weights")
    result = absorption([trained], controls=Controls(untrained=[bare]))
    row = result.table.filter(set="detected", rows="all").row(0, named=True)
    assert row["value"] == pytest.approx(60, abs=1e-3)
    assert row["untrained"] == pytest.approx(30, abs=1e-3)
    assert row["random"] == pytest.approx(100 / 40)
    assert not [note for note in result.notes if "untrained" in note]


def test_all_tokens_called_bos_count_and_the_first_token_where_none_is():
    """Two tokens before the text; and a canvas that begins with the question."""
    two = full_run(seed=4, prompt=("bos", "bos", "query", "query"), texts=None)
    none = full_run(seed=4, prompt=("query", "query", "query"), texts=None)
    for run, places in ((two, [0, 1]), (none, [0])):
        result = absorption([to_trace(run)])
        for layer in range(3):
            mass = np.mean([100 * a[layer].mean(axis=(0, 1))[places].sum() for a in run.attention])
            row = result.table.filter(set="bos", rows="all", layer=layer).row(0, named=True)
            assert row["value"] == pytest.approx(mass, abs=1e-3)
            share = 100 * len(places) / run.tokens
            assert (row["uniform"], row["random"]) == pytest.approx((share, share), abs=1e-3)
        assert any("no region is called bos" in note for note in result.notes) == (run is none)
