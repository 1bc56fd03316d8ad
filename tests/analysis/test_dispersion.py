"""Dispersion: evident truths and a second computation."""

from functools import partial

import numpy as np
import pytest

from floatscope.analysis import Options, analyze
from floatscope.analysis.dispersion import trace_dispersion
from tests.traces.full_matrices import constant_rows, full_run, to_trace, uniform_attention

dispersion = partial(analyze, "dispersion")


def test_even_and_concentrated_attention():
    even = trace_dispersion(to_trace(uniform_attention(full_run(kind="mdm"))), Options())
    assert even["effective_share"] == pytest.approx(1, abs=1e-5)
    assert even["gini"] == pytest.approx(0, abs=1e-5)
    assert (even["anchors"] == 0).all()
    single = np.zeros((2, 1, 20))
    single[..., 3] = 1
    found = trace_dispersion(to_trace(constant_rows(single)), Options())
    assert found["effective_share"] == pytest.approx(1 / 20)
    assert found["gini"] == pytest.approx(19 / 20)
    assert found["top_share"] == pytest.approx(1)


@pytest.mark.parametrize("kind", ["mdm", "arm"])
def test_on_full_matrices(kind):
    run = full_run(seed=9, kind=kind)
    table = dispersion([to_trace(run)]).table
    for layer in range(3):
        values: dict[str, list[float]] = {}
        for attention in run.attention:
            p = attention[layer].mean(axis=0).mean(axis=0)
            p = p[: attention.shape[2]] if kind == "arm" else p
            n = len(p)
            gini = np.abs(p[:, None] - p[None]).sum() / (2 * n * p.sum())
            values.setdefault("gini", []).append(gini)
            values.setdefault("effective_share", []).append(np.exp(-(p * np.log(p)).sum()) / n)
            values.setdefault("top_share", []).append(p.max())
            values.setdefault("anchors", []).append((p > p.mean() + 3 * p.std()).sum())
        for name, found in values.items():
            row = table.filter(measure=name, layer=layer).row(0, named=True)
            assert row["value"] == pytest.approx(np.mean(found), abs=1e-5), name
    assert table["random"].null_count() == table.height
