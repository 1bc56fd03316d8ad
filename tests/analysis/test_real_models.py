"""Every analysis on traces of tiny real models, against the same analysis on arrays looped from their full matrices."""

import numpy as np
import polars as pl
import pytest
import torch

import floatscope as fs
from floatscope.analysis import ANALYSES, Options, analyze
from floatscope.analysis.uniform import uniform_trace
from floatscope.canvas import Prompt, regions_from_labels
from floatscope.traces import Trace
from tests.tiny_models import tiny_model
from tests.traces.full_matrices import LABELS, TEXTS, FullRun, to_trace

pytestmark = pytest.mark.slow

MARKS = {"evidence": np.array([9, 10]), "gold_answer": np.array([10])}
OPTIONS = Options(detector="zscore(1)", draws=50)


def captured(name: str, seed: int) -> Trace:
    torch.set_num_threads(1)
    ids = np.random.default_rng(seed).integers(3, 90, len(LABELS))
    prompt = Prompt("", ids, regions_from_labels(LABELS), MARKS)
    sampler = {
        "dream": fs.DreamSampler(steps=5, length=5, alg="entropy"),
        "llama": fs.AutoregressiveSampler(length=5),
        "gemma3": fs.AutoregressiveSampler(length=5),
    }.get(name, fs.LLaDASampler(steps=4, length=4, block=4))
    trace = fs.trace(tiny_model(name), prompt, sampler, keep="matrices")
    assert isinstance(trace, Trace)
    texts = (*TEXTS, *[" Ann"] * len(trace.commit_step))
    return with_fields(trace, texts=texts, metadata={"sample": str(seed), "task": "ab"[seed % 2]})


def with_fields(trace: Trace, **fields) -> Trace:
    import dataclasses

    return dataclasses.replace(trace, **fields).validate()


def looped(trace: Trace) -> Trace:
    """The arrays again, by plain loops over the full matrices that the trace kept."""
    if trace.kind == "arm":
        rows = [trace.slots[0] + step for step in range(trace.steps)]
        pick = [0] * trace.steps
    else:
        rows = [len(trace.canvas)] * trace.steps
        pick = list(range(trace.steps))
    states = trace.arrays
    run = FullRun(
        trace.kind,
        trace.visibility,
        trace.logits,
        (*LABELS, *["answer"] * len(trace.commit_step)),
        trace.slots[0],
        trace.commit_step,
        [states["attention"][p][:, :, :r].astype(float) for p, r in zip(pick, rows, strict=True)],
        [states["queries"][p][:, :, :r].astype(float) for p, r in zip(pick, rows, strict=True)],
        [states["keys"][p].astype(float) for p in pick],
        [states["keys"][p].astype(float) for p in pick],  # values are not kept; only received_value needs them
        MARKS,
        trace.canvas,
        trace.texts or (),
    )
    again = to_trace(run, model=trace.model, family=trace.family, metadata=trace.metadata)
    matrices = {name: trace.arrays[name] for name in ("matrix_steps", "matrix_layers", "attention", "queries", "keys")}
    return with_fields(again, arrays={**again.arrays, **matrices}, qk_steps=trace.qk_steps)


@pytest.fixture(scope="module", params=["llada", "dream", "sdar", "llama"])
def pairs(request):
    traces = [captured(request.param, seed) for seed in range(4)]
    return traces, [looped(trace) for trace in traces]


@pytest.mark.parametrize("name", ANALYSES)
def test_every_table_from_full_matrices(pairs, name):
    traces, again = pairs
    found, expected = analyze(name, traces, OPTIONS), analyze(name, again, OPTIONS)
    assert list(found.tables) == list(expected.tables)
    for table in found.tables:
        left, right = found.tables[table], expected.tables[table]
        if table == "retrieval_heads_top":  # near ties may swap ranks
            left, right = left.select("value"), right.select("value")
        assert left.select(~pl.selectors.float()).equals(right.select(~pl.selectors.float()))
        for column in left.select(pl.selectors.float()).columns:
            first, second = (t[column].fill_null(-99.0).to_numpy() for t in (left, right))
            np.testing.assert_allclose(first, second, atol=2e-4, rtol=2e-4, err_msg=f"{table}.{column}")


@pytest.mark.parametrize("name", ["gemma3", "modernbert", "llama", "llada", "sdar"])
def test_uniform_control_sees_what_the_model_sees(name):
    trace = captured(name, 0)
    rows = trace.slots[0] + trace.steps - 1 if trace.kind == "arm" else len(trace.canvas)
    seen = trace.attention[-1][:, :, :rows].max(axis=1) > 0  # [layer, row, token]
    even = (seen / seen.sum(axis=-1, keepdims=True)).mean(axis=1)
    np.testing.assert_allclose(uniform_trace(trace).received[-1], even, atol=1e-6)
