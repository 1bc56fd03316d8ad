"""The attention function as transformers calls it: masks of every kind, with and without the probe, against numpy."""

import numpy as np
import pytest
import torch

from floatscope.errors import UserError
from floatscope.probe.attention import Probe, attention, probing
from floatscope.probe.layout import Layout

HEADS, KV_HEADS, DIMENSION, BATCH = 4, 2, 6, 2


def plain(query, key, value, bias, scale, softcap):
    """[B, R, H, d] of softmax attention with an additive bias [B, R, K], -inf where nothing is seen."""
    key, value = (np.repeat(given, HEADS // KV_HEADS, 1) for given in (key, value))
    scores = np.einsum("bhid,bhjd->bhij", query, key) * scale
    if softcap is not None:
        scores = softcap * np.tanh(scores / softcap)
    scores = scores + bias[:, None]
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    weights /= weights.sum(-1, keepdims=True)
    return np.einsum("bhij,bhjd->bihd", weights, value), weights


def biases(kind, rows, keys, rng):
    """The bias, and the mask that says it: [B, 1, R, K], bool or float, or None."""
    later = np.arange(keys) > np.arange(keys - rows, keys)[:, None]
    causal = np.broadcast_to(np.where(later, -np.inf, 0.0), (BATCH, rows, keys))
    if kind == "none":
        return causal, None
    if kind == "bool":
        return causal, torch.from_numpy(~np.isinf(causal)[:, None])
    slopes = rng.normal(size=(BATCH, rows, keys)) if kind == "bias" else np.zeros((BATCH, rows, keys))
    lowest = torch.finfo(torch.float32).min
    return causal + slopes, torch.from_numpy(np.where(later, lowest, slopes)[:, None]).float()


# Without a mask, transformers has as many rows as keys or a single one: SDPA would count others from the first key.
SHAPES = [("none", 9), ("none", 1), *((kind, rows) for kind in ("bool", "float", "bias") for rows in (9, 4, 1))]


@pytest.mark.parametrize("probed", [False, True], ids=["bare", "probed"])
@pytest.mark.parametrize("softcap", [None, 1.5])
@pytest.mark.parametrize(("kind", "rows"), SHAPES)
def test_whatever_the_mask_the_output_is_that_of_plain_attention(kind, rows, softcap, probed):
    """Rows fewer than keys are the last ones, over a cache; `bias`: a position bias in the mask, which must count."""
    keys = 9
    rng = np.random.default_rng(rows)
    query = rng.normal(size=(BATCH, HEADS, rows, DIMENSION))
    key, value = rng.normal(size=(2, BATCH, KV_HEADS, keys, DIMENSION))
    bias, mask = biases(kind, rows, keys, rng)
    wanted, matrix = plain(query, key, value, bias, 0.7, softcap)
    module = torch.nn.Module()
    module.is_causal, module.num_key_value_groups, module.layer_idx = True, HEADS // KV_HEADS, 0
    tensors = [torch.from_numpy(given).float() for given in (query, key, value)]
    found = {}

    def listen(layer, sample, statistics, geometry):
        found[sample] = statistics.group_sums.clone(), geometry.matrix()

    places = torch.arange(keys)
    layout = Layout(places[keys - rows :], places, torch.arange(rows), rows, torch.ones(keys, 1), torch.arange(rows))
    if probed:
        with probing(Probe([0] * BATCH, [layout] * BATCH, listen, 1)):
            output, _ = attention(module, *tensors, mask, scaling=0.7, softcap=softcap)
        for sample, (sums, whole) in found.items():
            np.testing.assert_allclose(sums, matrix[sample], atol=1e-6)
            np.testing.assert_allclose(whole, matrix[sample], atol=1e-6)
        assert set(found) == set(range(BATCH))
    else:
        output, _ = attention(module, *tensors, mask, scaling=0.7, softcap=softcap)
    np.testing.assert_allclose(output, wanted, atol=1e-5)


def call(mask=None, probe=None, rows=5, **others):
    query, key, value = torch.randn(1, 4, rows, 6), *torch.randn(2, 1, 2, 5, 6)
    module = torch.nn.Module()
    module.is_causal, module.num_key_value_groups, module.layer_idx = False, 2, 0
    if probe is None:
        return attention(module, query, key, value, mask, **others)
    with probing(probe):
        return attention(module, query, key, value, mask, **others)


def whole_layout(rows=5):
    places, none = torch.arange(5), torch.zeros(0, dtype=torch.long)
    return Layout(places[5 - rows :], places, torch.zeros(rows, dtype=torch.long), 1, torch.ones(5, 1), none)


@pytest.mark.parametrize("kernel", ["torch", "swap"])
def test_masks_that_differ_by_head_are_refused_and_so_is_what_nobody_computes(kernel, monkeypatch):
    monkeypatch.setenv("FLOATSCOPE_KERNEL", kernel)
    for mask in (torch.ones(1, 4, 5, 5, dtype=torch.bool), torch.ones(1, 5, 5, dtype=torch.bool)):
        with pytest.raises(UserError, match=r"does not support an attention mask of shape \(1, "):
            call(mask, Probe([0], [whole_layout()], lambda *_: None, 1))
    call(sliding_window=3, position_ids=torch.arange(5), head_mask=None)
    for given in (0, 0.5, False):
        with pytest.raises(UserError, match="Module hands 'head_mask' to its attention function"):
            call(head_mask=given)


def test_a_rollout_over_a_cache_is_refused():
    extra = [torch.ones(5, 1)]
    call(probe=Probe([0], [whole_layout()], lambda *_: None, 1, extra=extra, alpha=0.5))
    with pytest.raises(UserError, match="a rollout needs all rows of the canvas: run it without a cache"):
        probe = Probe([0], [whole_layout(3)], lambda *_: None, 1, extra=extra, alpha=0.5)
        call(torch.ones(1, 1, 3, 5, dtype=torch.bool), probe, rows=3)
