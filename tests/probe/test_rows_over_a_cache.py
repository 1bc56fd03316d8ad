"""Rows fewer than keys, from the layout to the trace: a block of rows over a cache, against plain numpy."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import DynamicCache

from floatscope.analysis.uniform import has_uniform, uniform_trace
from floatscope.canvas import MASKED, Prompt, regions_from_labels
from floatscope.probe.attention import Probe, attention, probing
from floatscope.probe.recording import DenoisingRecorder, Plan
from floatscope.traces import Trace, kept_arrays
from tests.tiny_models import tiny_model

HEADS, KV_HEADS, DIMENSION, LAYERS = 4, 2, 5, 2
STEP_ARRAYS = ("received", "received_answer", "received_masked", "received_value", "region_attention", "head_attention")


def some_canvas(rng, tokens, slots):
    """Regions in any order around slots anywhere, and a mark that overlaps them."""
    labels = np.array(["bos", *rng.choice(["query", "doc 1", "scaffold"], tokens - 1)], dtype=object)
    labels[slots] = "answer"
    marks = {"evidence": np.sort(rng.choice(tokens, min(3, tokens), replace=False))}
    return Prompt("", rng.integers(3, 90, tokens), regions_from_labels(labels), marks, slots=slots)


def in_numpy(query, key, seen, scale=0.6):
    """[H, R, K] probabilities."""
    scores = np.einsum("hid,hjd->hij", query, np.repeat(key, HEADS // KV_HEADS, 0)) * scale
    weights = np.exp(np.where(seen, scores, -np.inf) - scores.max(-1, keepdims=True))
    return weights / weights.sum(-1, keepdims=True)


def wide(values, places, tokens, axis=-1):
    """Values of some positions as those of all tokens."""
    found = np.zeros([tokens if place == axis % values.ndim else size for place, size in enumerate(values.shape)])
    index = [slice(None)] * values.ndim
    index[axis] = places
    found[tuple(index)] = values
    return found


def expected_step(trace, matrix, value, rows, keys, masked):
    """What a step and layer keep, by loops over groups and sets of columns; `matrix`: [H, R, K]."""
    tokens = len(trace.canvas)
    labels = [region.label for region in trace.regions for _ in range(len(region))]
    for slot, hidden in zip(trace.slots, masked, strict=True):
        labels[slot] = "answer:masked" if hidden else "answer:committed"
    groups = np.array([labels[row] for row in rows])
    sets = {label: [i for r in trace.regions if r.label == label for i in range(r.start, r.stop)] for label in labels}
    answer = [i for r in trace.regions if r.label == "answer" for i in range(r.start, r.stop)]
    sets = sets | {"answer": answer} | {name: list(places) for name, places in trace.marks.items()}
    full = wide(matrix, keys, tokens)  # [H, R, T]
    norms = wide(np.repeat(np.linalg.norm(value, axis=-1), HEADS // KV_HEADS, 0), keys, tokens)
    by_group = np.stack([full[:, groups == label].sum(1) for label in trace.group_labels], 1)  # [H, G, T]
    counts = np.array([(groups == label).sum() for label in trace.group_labels])
    mass = np.stack([by_group[..., sets[label]].sum(-1) for label in trace.column_labels], -1)

    def over(start):
        chosen = np.array([label.startswith(start) for label in groups])
        return full[:, chosen].sum(1).mean(0) / max(1, chosen.sum())

    return {
        "received": full.mean(1).mean(0),
        "received_answer": over("answer"),
        "received_masked": over("answer:masked"),
        "received_value": (full.mean(1) * norms).mean(0),
        "region_attention": mass / np.maximum(counts, 1)[:, None],
        "head_attention": by_group,
        "group_rows": counts,
    }


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 10**6), causal=st.booleans(), keep=st.sampled_from(["heads", "matrices"]))
def test_every_array_of_a_trace_whose_steps_compute_some_rows_over_some_keys(seed, causal, keep):
    """The first step computes the whole canvas, the others rows and keys at random places, a slot's row among them."""
    rng = np.random.default_rng(seed)
    tokens, steps = int(rng.integers(4, 16)), int(rng.integers(1, 5))
    slots = np.sort(rng.choice(np.arange(1, tokens), min(steps, tokens - 1), replace=False))
    steps, canvas = len(slots), some_canvas(rng, tokens, slots)
    recorder = DenoisingRecorder(Plan.of(canvas, kept_arrays(keep)), LAYERS, steps)
    order, runs = rng.permutation(steps), []
    masked = np.ones(steps, bool)
    module = torch.nn.Module()
    module.is_causal = causal
    for step in range(steps):
        rows = keys = np.arange(tokens)
        if step:
            rows = np.union1d(rng.choice(tokens, rng.integers(1, tokens + 1)), slots[masked])
            keys = np.union1d(rng.choice(tokens, rng.integers(1, tokens + 1)), rows)  # what was cached, and the rows'
        seen = keys <= rows[:, None] if causal else np.ones((len(rows), len(keys)), bool)
        open_rows = torch.from_numpy(slots[masked])
        given_rows = (torch.from_numpy(rows), torch.from_numpy(keys)) if step else ()
        layout = recorder.start(torch.from_numpy(masked.copy()), open_rows, *given_rows)
        layers = []
        probe = Probe([0], [layout], lambda layer, _, *found: recorder.layer(layer, *found), LAYERS)
        mask = torch.from_numpy(seen)[None, None]
        with probing(probe):
            for layer in range(LAYERS):
                module.layer_idx = layer
                query = rng.normal(size=(HEADS, len(rows), DIMENSION)).astype(np.float32)
                key, value = rng.normal(size=(2, KV_HEADS, len(keys), DIMENSION)).astype(np.float32)
                tensors = (torch.from_numpy(found)[None] for found in (query, key, value))
                attention(module, *tensors, mask, scaling=0.6)
                layers.append((in_numpy(query, key, seen), query, key, value))
        runs.append((rows, keys, seen, masked.copy(), layers))
        committed = np.array([order[step]])
        recorder.commit(committed, slots[committed])
        masked[committed] = False
    arrays, qk_steps = recorder.finish()
    commit_step = np.argsort(order)
    state = np.stack([~run[3] for run in runs]).astype(np.uint8)
    trace = Trace(
        "m", "f", "mdm", "bidirectional", "same", {}, 0, canvas.ids, slots, None, canvas.regions, canvas.marks,
        commit_step, np.ones(steps, np.float32), qk_steps, keep, arrays | {"state": state},
    ).validate()  # fmt: skip
    assert (trace.masked == (state == MASKED)).all()
    assert trace.computed.tolist() == [[run[0][0], run[0][-1] + 1] for run in runs]
    assert trace.rows.tolist() == [len(run[0]) for run in runs]
    for step, (rows, keys, seen, hidden, layers) in enumerate(runs):
        for layer, (matrix, query, key, value) in enumerate(layers):
            expected = expected_step(trace, matrix, value, rows, keys, hidden)
            assert trace.group_rows[step].tolist() == expected["group_rows"].tolist()
            for name in STEP_ARRAYS:
                np.testing.assert_allclose(trace.arrays[name][step, layer], expected[name], atol=1e-5, err_msg=name)
            assert trace.visible[step, layer].tolist() == wide(seen.sum(0), keys, tokens).astype(int).tolist()
            if step in qk_steps:
                dots = np.einsum("hid,hjd->hij", query, np.repeat(key, HEADS // KV_HEADS, 0))
                means = (dots * seen).sum(1) / np.maximum(seen.sum(0), 1)
                place = qk_steps.index(step)
                np.testing.assert_allclose(trace.qk[place, layer], wide(means, keys, tokens), atol=1e-4)
                norms = wide(np.linalg.norm(key, axis=-1), keys, tokens)
                np.testing.assert_allclose(trace.key_norm[place, layer], norms, atol=1e-5)
            if keep == "matrices":
                whole = wide(wide(matrix, keys, tokens), rows, tokens, axis=1)
                np.testing.assert_allclose(trace.attention[step, layer], whole, atol=1e-5)
                np.testing.assert_array_equal(trace.queries[step, layer], wide(query, rows, tokens, axis=1))
                np.testing.assert_array_equal(trace.keys[step, layer], wide(key, keys, tokens, axis=1))
            slot = order[step]
            own = wide(matrix[:, rows.tolist().index(slots[slot])], keys, tokens)  # [H, T]
            top = trace.commit_keys[slot, layer]
            found = np.take_along_axis(own, top, -1)
            np.testing.assert_allclose(trace.commit_key_mass[slot, layer], found, atol=1e-5)
            assert all(len(set(ranked)) == min(8, tokens) for ranked in top)
            assert (found >= np.sort(own)[:, ::-1][:, : min(8, tokens)] - 1e-6).all()
            entropy = -np.where(own > 0, own * np.log(np.maximum(own, 1e-30)), 0).sum(-1)
            np.testing.assert_allclose(trace.commit_entropy[slot, layer], entropy, atol=1e-4)
            mass = [own[:, places].sum(-1) for places in column_places(trace)]
            np.testing.assert_allclose(trace.commit_mass[slot, layer], np.stack(mass, -1), atol=1e-5)
    if any(len(run[0]) < tokens for run in runs):
        assert not has_uniform(trace) and np.isnan(uniform_trace(trace).received).all()


def column_places(trace):
    for label in trace.column_labels:
        spans = [range(region.start, region.stop) for region in trace.regions if region.label == label]
        yield list(trace.marks[label]) if label in trace.marks else [place for span in spans for place in span]


def test_a_block_of_slots_over_the_cache_of_its_prompt(tmp_path):
    """A real model: its prompt goes into the cache, a block of slots is computed over it, twice; the trace is saved."""
    model, rng = tiny_model("llada"), np.random.default_rng(0)
    prompt, slots = rng.integers(3, 90, 12), np.arange(12, 18)
    canvas = some_canvas(rng, 18, slots)
    recorder = DenoisingRecorder(Plan.of(canvas, kept_arrays("matrices")), model.layers, 2)
    cache, block = DynamicCache(), np.full(6, model.mask_id)
    everything = torch.ones(1, 1, 6, 18, dtype=torch.bool)
    expected = []
    with torch.no_grad():
        model.backbone(input_ids=torch.from_numpy(prompt)[None], past_key_values=cache, use_cache=True)
        for step, place in enumerate((2, 4)):
            masked = torch.from_numpy(block == model.mask_id)
            places = torch.arange(18)
            layout = recorder.start(masked, torch.from_numpy(slots)[masked], places[12:], places)
            probe = Probe([0], [layout], lambda layer, _, *found: recorder.layer(layer, *found), model.layers)
            inputs = {"input_ids": torch.from_numpy(block)[None], "position_ids": places[None, 12:]}
            with probing(probe):
                model.backbone(**inputs, past_key_values=cache, use_cache=True, attention_mask=everything)
            expected.append([(layer.keys[0].clone(), layer.values[0].clone()) for layer in cache.layers])
            cache.crop(-6)
            recorder.commit(np.array([place]), slots[[place]])
            block[place] = 7 + step
    arrays, qk_steps = recorder.finish()
    trace = Trace(
        "m", "llada", "mdm", "bidirectional", "same", {}, 0, canvas.ids, slots, None, canvas.regions, canvas.marks,
        np.array([-1, -1, 0, -1, 1, -1]), np.full(6, np.nan, np.float32), qk_steps, "matrices", arrays,
    )  # fmt: skip
    trace = Trace.load(trace.validate().save(tmp_path / "t.safetensors", exact=True))
    assert trace.computed.tolist() == [[12, 18]] * 2 and trace.rows.tolist() == [6, 6]
    assert "seen_by_step" not in trace.arrays and (trace.visible == 6).all()
    for step, layers in enumerate(expected):
        for layer, (key, value) in enumerate(layers):
            np.testing.assert_array_equal(trace.keys[step, layer], key)
            scale = key.shape[-1] ** -0.5
            matrix = in_numpy(trace.queries[step, layer, :, 12:], key.numpy(), np.ones((6, 18), bool), scale)
            np.testing.assert_allclose(trace.attention[step, layer, :, 12:], matrix, atol=1e-5)
            assert not trace.attention[step, layer, :, :12].any()
            hidden = np.isin(np.arange(6), [] if step == 0 else [2], invert=True)
            found = expected_step(trace, matrix, value.numpy(), slots, np.arange(18), hidden)
            for name in STEP_ARRAYS:
                np.testing.assert_allclose(trace.arrays[name][step, layer], found[name], atol=1e-5, err_msg=name)
