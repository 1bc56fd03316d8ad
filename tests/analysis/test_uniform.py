"""Uniform control: its arrays equal those derived from full matrices of even attention."""

import dataclasses
import re

import numpy as np
import pytest

from floatscope.analysis.uniform import uniform_trace
from floatscope.errors import UserError
from tests.traces.full_matrices import full_run, to_trace, uniform_attention

RUNS = [
    dict(kind="mdm"),
    dict(kind="mdm", logits="shifted"),
    dict(kind="mdm", visibility="block_causal(4)"),
    dict(kind="mdm", visibility="causal"),
    dict(kind="arm"),
]


@pytest.mark.slow
@pytest.mark.parametrize("settings", RUNS, ids=str)
def test_every_array_equals_even_matrices(settings):
    run = full_run(seed=2, **settings)
    made = uniform_trace(to_trace(run))
    expected = to_trace(uniform_attention(run))
    assert set(made.arrays) == {
        *("received", "received_answer", "received_masked", "seen_by", "group_rows"),
        *("region_attention", "commit_mass", "commit_entropy"),
    }
    for name, values in made.arrays.items():
        np.testing.assert_allclose(values, expected.arrays[name], atol=1e-6, err_msg=name)
        assert values.shape == expected.arrays[name].shape
    np.testing.assert_allclose(made.region_matrix(), expected.region_matrix(), atol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("visibility", ["causal", "bidirectional"])
@pytest.mark.parametrize("reach", [0, 2, "half", "nearly all", "all"])
def test_sliding_windows_are_read_from_seen_by(visibility, reach):
    run = full_run(seed=2, kind="mdm", visibility=visibility)
    trace = to_trace(run)
    far = {"half": run.tokens // 2, "nearly all": run.tokens - 2, "all": run.tokens}.get(reach, reach)
    row, column = np.indices((run.tokens, run.tokens))
    near = (row - column <= far) & (column <= row) if visibility == "causal" else np.abs(row - column) <= far
    seen = np.array(trace.seen_by)
    seen[1] = near.sum(axis=0)
    windowed = dataclasses.replace(trace, arrays={**trace.arrays, "seen_by": seen})
    even = near / near.sum(axis=1, keepdims=True)
    np.testing.assert_allclose(uniform_trace(windowed).received[0, 1], even.mean(axis=0), atol=1e-6)
    np.testing.assert_allclose(uniform_trace(windowed).received[0, 0], uniform_trace(trace).received[0, 0])


@pytest.mark.parametrize("visibility", ["sideways", "block_causal(0)", f"block_causal({'9' * 30})"])
def test_unknown_visibility(visibility):
    trace = dataclasses.replace(to_trace(full_run()), visibility=visibility)
    with pytest.raises(UserError, match=re.escape(visibility)):
        uniform_trace(trace)
