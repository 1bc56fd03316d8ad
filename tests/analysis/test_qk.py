"""QK: advantages again from full products, parts that add up, heatmaps."""

import dataclasses
from functools import partial

import numpy as np
import pytest

from floatscope.analysis import analyze
from floatscope.analysis.qk import qk_heatmaps
from floatscope.analysis.results import Options
from floatscope.errors import UserError
from tests.traces.full_matrices import full_run, to_trace, visible_pairs

qk = partial(analyze, "qk")

OPTIONS = Options(detector="zscore(1)")
MEASURES = ("qk", "cos", "norm", "angle_part", "norm_part", "interaction_part")


@pytest.mark.slow
@pytest.mark.parametrize(
    "settings", [dict(kind="mdm"), dict(kind="mdm", visibility="block_causal(4)"), dict(kind="arm")], ids=str
)
def test_advantages_on_full_products(settings):
    run = full_run(seed=11, **settings)
    table = qk([to_trace(run)], OPTIONS).table
    for layer in range(3):
        collected: dict[str, list[float]] = {name: [] for name in MEASURES}
        for step, attention in enumerate(run.attention):
            rows = attention.shape[2]
            seen = visible_pairs(run.visibility, run.tokens)[:rows]
            there = np.flatnonzero(seen.any(axis=0))
            received = attention[layer].mean(axis=0).mean(axis=0)[there]
            anchor = received > received.mean() + received.std()
            if not anchor.any():
                continue
            per_head: dict[str, list[float]] = {name: [] for name in MEASURES}
            for head in range(4):
                q, k = run.queries[step][layer, head], run.keys[step][layer, head // 2]
                products = q @ k.T
                sizes = np.linalg.norm(q, axis=1)[:, None] * np.linalg.norm(k, axis=1)
                means = {}
                for name, full in (("qk", products), ("cos", products / sizes), ("norm", sizes)):
                    means[name] = np.array([full[seen[:, j], j].mean() for j in there])
                n = np.linalg.norm(k, axis=1)[there]
                a = means["qk"] / n
                scale = means["qk"].std()
                for name in ("qk", "cos", "norm"):
                    gap = means[name][anchor].mean() - means[name][~anchor].mean()
                    per_head[name].append(gap / means[name].std())
                angle = n[~anchor].mean() * (a[anchor].mean() - a[~anchor].mean()) / scale
                norm = (n[anchor].mean() - n[~anchor].mean()) * a[~anchor].mean() / scale
                per_head["angle_part"].append(angle)
                per_head["norm_part"].append(norm)
                per_head["interaction_part"].append(per_head["qk"][-1] - angle - norm)
            for name, values in per_head.items():
                collected[name].append(np.mean(values))
        for name, values in collected.items():
            row = table.filter(measure=name, layer=layer).row(0, named=True)
            assert row["value"] == pytest.approx(np.mean(values), abs=2e-4), name


def test_parts_add_up():
    table = qk([to_trace(full_run(seed=s)) for s in range(3)], OPTIONS).table
    for layer in range(3):
        value = {r["measure"]: r["value"] for r in table.filter(layer=layer).iter_rows(named=True)}
        assert value["angle_part"] + value["norm_part"] + value["interaction_part"] == pytest.approx(value["qk"])


def test_anchors_by_norm_alone_show_as_norm():
    """Keys that all point one way, one of them longer: the advantage is the norm's."""
    trace = to_trace(full_run(seed=1, kv_heads=4))
    shape = trace.qk.shape
    norms = np.ones(shape, np.float32)
    norms[..., 3] = 5
    received = np.full(trace.received.shape, 0.01, np.float32)
    received[..., 3] = 0.8
    arrays = {**trace.arrays, "received": received, "key_norm": norms, "qk": 2 * norms, "norm": norms}
    made = dataclasses.replace(trace, arrays=arrays)
    value = {r["measure"]: r["value"] for r in qk([made]).table.filter(layer=0).iter_rows(named=True)}
    assert value["norm_part"] == pytest.approx(value["qk"]) and value["qk"] > 3
    assert value["angle_part"] == pytest.approx(0, abs=1e-6)
    assert value["interaction_part"] == pytest.approx(0, abs=1e-6)


@pytest.mark.slow
def test_random_positions_have_no_advantage_on_average():
    table = qk([to_trace(full_run(seed=s)) for s in range(40)], OPTIONS).table.filter(measure="qk")
    assert np.abs(table["random"].to_numpy()).max() < 0.35
    assert table["value"].min() > table["random"].max()
    assert table["uniform"].null_count() == 3


def test_without_sums_or_anchors():
    trace = to_trace(full_run())
    bare = dataclasses.replace(trace, qk_steps=(), arrays={"received": trace.received, "seen_by": trace.seen_by})
    with pytest.raises(UserError, match="No trace has QK sums"):
        qk([bare])
    result = qk([trace], Options(detector="gu(0.99)"))
    assert result.table["value"].null_count() == result.table.height


def with_matrices(run, layers=(1,)):
    step = len(run.attention) - 1
    trace = to_trace(run)
    arrays = dict(trace.arrays) | {
        "matrix_steps": np.array([step]),
        "matrix_layers": np.array(layers),
        "attention": run.attention[step][None, list(layers)].astype(np.float32),
        "queries": run.queries[step][None, list(layers)].astype(np.float32),
        "keys": run.keys[step][None, list(layers)].astype(np.float32),
    }
    return dataclasses.replace(trace, arrays=arrays, keep="matrices").validate()


def test_heatmaps():
    run = full_run(kind="arm")
    table = qk_heatmaps(with_matrices(run), 1, Options())
    pairs = [(run.queries[-1][1, head][5], run.keys[-1][1, head // 2][2]) for head in range(4)]
    lengths = [np.linalg.norm(q) * np.linalg.norm(k) for q, k in pairs]
    row = table.filter(row=5, token=2).row(0, named=True)
    assert row["qk"] == pytest.approx(np.mean([q @ k for q, k in pairs]), rel=1e-3)
    assert row["norm"] == pytest.approx(np.mean(lengths), rel=1e-3)
    cosines = [q @ k / length for (q, k), length in zip(pairs, lengths, strict=True)]
    assert row["cos"] == pytest.approx(np.mean(cosines), rel=1e-3)
    assert table.filter(row=2, token=5)["qk"][0] is None
    assert table.filter(token=9, row=12)["text"][0] == " king" and table["model"][0] == "tiny-arm"
    assert qk_heatmaps(with_matrices(run, layers=(2,)), -1, Options())["layer"][0] == 2
    with pytest.raises(UserError, match="none of layer 0"):
        qk_heatmaps(with_matrices(run), 0, Options())
    with pytest.raises(UserError, match="keep='matrices'"):
        qk_heatmaps(to_trace(run), 0, Options())


def test_heatmaps_hide_what_no_row_sees():
    run = full_run(visibility="block_causal(4)")
    table = qk_heatmaps(with_matrices(run), 1, Options())
    hidden = table.filter(table["qk"].is_null())
    assert set(hidden.select("row", "token").rows()) == {
        (i, j) for i in range(15) for j in range(15) if j // 4 > i // 4
    }


def test_anchors_are_those_of_the_steps_whose_sums_were_kept():
    """Sums of steps 1 and 3 alone: as if the run had these two steps and no other."""
    trace = to_trace(full_run(seed=11))
    kept = ("qk", "cos", "norm", "key_norm")
    arrays = {name: values[[1, 3]] if name in kept else values for name, values in trace.arrays.items()}
    some = dataclasses.replace(trace, arrays=arrays, qk_steps=(1, 3))
    by_step = {"received", "received_answer", "received_masked", "region_attention", "group_rows", *kept}
    arrays = {name: trace.arrays[name][[1, 3]] if name in by_step else trace.arrays[name] for name in trace.arrays}
    alone = dataclasses.replace(trace, arrays=arrays, qk_steps=(0, 1))
    one, two = (qk([made], OPTIONS).table["value"].to_list() for made in (some, alone))
    assert one == pytest.approx(two) and one != pytest.approx(qk([trace], OPTIONS).table["value"].to_list())
