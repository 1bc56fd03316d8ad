"""Drift: evident truths, and each measure again in a few lines."""

from functools import partial
from itertools import pairwise

import numpy as np
import pytest
from scipy.stats import spearmanr, wasserstein_distance

from floatscope.analysis import analyze
from floatscope.analysis.drift import MEASURES, trace_drift
from floatscope.analysis.results import Options
from floatscope.analysis.step_map import temporal_heatmap
from floatscope.errors import UserError
from tests.traces.full_matrices import constant_rows, full_run, peaked, to_trace

drift = partial(analyze, "drift")

TOKENS = 40


def moving(positions) -> dict[str, float]:
    path = np.array(positions)[:, None]
    measures = trace_drift(to_trace(constant_rows(peaked(path, TOKENS))), Options())
    return {name: float(values[0]) for name, values in measures.items()}


def test_a_sink_that_never_moves():
    found = moving([2] * 6)
    assert found["turnover"] == 0 and found["top_shift"] == 0 and found["static_share"] == 1
    assert found["lifetime"] == 6
    assert found["wasserstein"] == pytest.approx(0, abs=1e-6)
    assert found["cosine"] == pytest.approx(1)
    assert np.isnan(found["direction"])


def test_an_anchor_that_moves_one_place_a_step():
    found = moving([3, 4, 5, 6, 7])
    assert found["turnover"] == 1 and found["top_shift"] == 1 and found["lifetime"] == 1
    assert found["direction"] == pytest.approx(1)
    assert found["static_share"] == 0
    rest = 0.4 / (TOKENS - 1)
    assert found["centroid_shift"] == pytest.approx(0.6 - rest, abs=1e-5)
    assert found["wasserstein"] == pytest.approx(0.6 - rest, abs=1e-5)
    assert moving([7, 6, 5, 4])["direction"] == pytest.approx(-1)


@pytest.mark.parametrize("settings", [dict(kind="mdm", steps=6), dict(kind="arm", answer=6)], ids=str)
def test_measures_on_full_matrices(settings):
    run = full_run(seed=7, **settings)
    options = Options(detector="zscore(1)")
    found = trace_drift(to_trace(run), options)
    for layer in range(3):
        received = [a[layer].mean(axis=0).mean(axis=0) for a in run.attention]
        sizes = [a.shape[2] for a in run.attention] if run.kind == "arm" else [run.tokens] * len(received)
        sets, tops = [], []
        for values, size in zip(received, sizes, strict=True):
            there = values[:size]
            sets.append(set(np.flatnonzero(there > there.mean() + there.std())))
            tops.append(int(there.argmax()))
        pairs = list(zip(range(len(sets)), range(1, len(sets)), strict=False))
        place = np.arange(run.tokens)
        expected = {
            "turnover": np.mean([1 - len(sets[a] & sets[b]) / len(sets[a] | sets[b]) for a, b in pairs]),
            "centroid_shift": np.mean([abs(received[a] @ place - received[b] @ place) for a, b in pairs]),
            "top_shift": np.mean([abs(tops[a] - tops[b]) for a, b in pairs]),
            "wasserstein": np.mean([wasserstein_distance(place, place, received[a], received[b]) for a, b in pairs]),
            "direction": spearmanr(tops, range(len(tops))).statistic if len(set(tops)) > 1 else np.nan,
            "cosine": np.mean(
                [
                    received[a] @ received[b] / np.linalg.norm(received[a]) / np.linalg.norm(received[b])
                    for a, b in pairs
                ]
            ),
            "static_share": len(set.intersection(*sets)) / len(set.union(*sets)),
            "top_overlap": np.mean(
                [len(set(np.argsort(-received[a])[:10]) & set(np.argsort(-received[b])[:10])) / 10 for a, b in pairs]
            ),
        }
        lives = []
        for position in set.union(*sets):
            flags = "".join("1" if position in s else "0" for s in sets)
            lives += [len(life) for life in flags.split("0") if life]
        expected["lifetime"] = np.mean(lives)
        for name, value in expected.items():
            assert found[name][layer] == pytest.approx(value, abs=1e-5, nan_ok=True), name


@pytest.mark.slow
def test_table_has_its_controls():
    runs = [full_run(seed=s, steps=5) for s in range(4)]
    result = drift([to_trace(run) for run in runs], Options(detector="zscore(1)"))
    assert set(result.table["measure"]) == set(MEASURES)
    row = result.table.filter(measure="wasserstein", layer=1).row(0, named=True)
    by_hand, place = [], np.arange(runs[0].tokens)
    for run in runs:
        received = [attention[1].mean(axis=(0, 1)) for attention in run.attention]
        by_hand.append(np.mean([wasserstein_distance(place, place, *pair) for pair in pairwise(received)]))
    assert row["value"] == pytest.approx(np.mean(by_hand), rel=1e-5)
    assert min(by_hand) <= row["low"] <= row["value"] <= row["high"] <= max(by_hand)
    assert row["uniform"] == pytest.approx(0, abs=1e-6)
    assert row["random"] > 0
    assert row["samples"] == 4
    assert result.table.filter(measure="turnover")["uniform"].null_count() == 3  # no anchors, so no turnover


@pytest.mark.slow
def test_shuffled_positions_turn_over():
    trace = to_trace(constant_rows(peaked(np.full((8, 1), 2), TOKENS)))
    row = drift([trace]).table.filter(measure="top_shift").row(0, named=True)
    assert row["value"] == 0 and row["random"] > 3
    assert row["low"] is None  # one sample has no interval


def test_one_step_is_null_with_a_sentence():
    result = drift([to_trace(full_run(steps=1))])
    assert result.table["value"].null_count() == result.table.height
    assert any("one step" in note for note in result.notes)


def test_heatmap_rows():
    run = constant_rows(peaked(np.array([[3], [5]]), TOKENS))
    trace = to_trace(run)
    table = temporal_heatmap(trace, -1, Options())
    assert table.height == 2 * TOKENS
    assert table.filter(anchor=True).select("step", "position").rows() == [(0, 3), (1, 5)]
    committed = {(int(s), trace.slots[0] + n) for n, s in enumerate(trace.commit_step)}
    assert set(table.filter(commits=True).select("step", "position").rows()) == committed
    arm = temporal_heatmap(to_trace(full_run(kind="arm")), 0, Options())
    assert arm.filter(step=0)["position"].max() == 10
    with pytest.raises(UserError, match="no layer 9"):
        temporal_heatmap(trace, 9, Options())
