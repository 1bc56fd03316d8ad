"""Rollout to regions beside the values equals the product of full T x T matrices, summed by region."""

import numpy as np
import pytest

import floatscope as fs
from tests.plain_attention import canvas_at, column_sets, row_groups, watch
from tests.probe.test_edits import canvas
from tests.tiny_models import MASK, tiny_model


def rolled_plainly(attentions, sets, tokens):
    """[layer, row, column]: the product of a A + (1 - a) I over layers, T x T, then summed by column set."""
    whole, found = np.eye(tokens), []
    for attention in attentions:
        whole = (0.5 * attention.mean(0) + 0.5 * np.eye(tokens)) @ whole
        found.append(np.stack([whole[:, [place for place in own if place < tokens]].sum(1) for own in sets], 1))
    return np.stack(found)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["llada", "dream", "bert", "sdar"])
def test_rollout_of_an_mdm_is_the_product_of_full_matrices(name):
    model = tiny_model(name)
    prompts = [canvas(13), canvas(9, seed=2)]  # padded together
    for prompt, trace in zip(prompts, fs.trace(model, prompts, model.sampler(length=4), keep="rollout"), strict=True):
        slot_rows = trace.slots - (trace.logits != "same")
        for step in range(trace.steps):
            layers = [layer["attention"] for layer in watch(model, canvas_at(trace, step, MASK))]
            expected = rolled_plainly(layers, column_sets(trace).values(), len(trace.canvas))
            groups = np.array(row_groups(trace, trace.masked[step]))
            for place, label in enumerate(trace.group_labels):
                rows = expected[:, groups == label]
                mean = rows.mean(1) if rows.shape[1] else np.zeros_like(expected[:, 0])
                np.testing.assert_allclose(trace.rollout[step, :, place], mean, atol=1e-5)
            for slot in np.flatnonzero(trace.commit_step == step):
                np.testing.assert_allclose(trace.commit_rollout[slot], expected[:, slot_rows[slot]], atol=1e-5)
        assert len(prompt.ids) < len(trace.canvas)


@pytest.mark.slow
def test_rollout_of_an_arm_is_that_of_its_rows_so_far():
    model = tiny_model("llama")
    trace = fs.trace(model, canvas(13), model.sampler(length=4), keep="rollout")
    tokens = len(trace.canvas) - 1
    layers = [layer["attention"] for layer in watch(model, trace.canvas[:-1])]
    expected = rolled_plainly(layers, column_sets(trace).values(), tokens)
    groups = np.array(row_groups(trace, [False] * len(trace.slots)))[:tokens]
    for step in range(trace.steps):
        there = np.arange(tokens) < 13 + step
        for place, label in enumerate(trace.group_labels):
            rows = expected[:, (groups == label) & there]
            mean = rows.mean(1) if rows.shape[1] else np.zeros_like(expected[:, 0])
            np.testing.assert_allclose(trace.rollout[step, :, place], mean, atol=1e-5)
        np.testing.assert_allclose(trace.commit_rollout[step], expected[:, 12 + step], atol=1e-5)


def test_a_compact_trace_has_no_rollout_and_says_how_to_get_it():
    model = tiny_model("llada")
    trace = fs.trace(model, canvas(9), model.sampler(length=4))
    with pytest.raises(fs.UserError, match="keep='rollout'"):
        _ = trace.rollout
