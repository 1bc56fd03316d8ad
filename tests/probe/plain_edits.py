"""The second computation of edits: full T x T attention in numpy, changed as each edit says, and its logits."""

import numpy as np
import torch
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.masking_utils import sdpa_mask


def softmax(scores):
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    return weights / weights.sum(-1, keepdims=True)


class Editing:
    """An attention function: `change(layer, scores [H, T, T])` gives probabilities, `after` the output [T, H, d]."""

    def __init__(self, change, after=lambda layer, output: output):
        self.change, self.after = change, after
        self.attention = []

    def __call__(self, module, query, key, value, attention_mask, scaling=None, is_causal=None, softcap=None, **_):
        q, k, v = (x[0].double().numpy() for x in (query, key, value))
        share, tokens, layer = len(q) // len(k), q.shape[1], len(self.attention)
        seen = np.ones((tokens, tokens), bool)
        if attention_mask is not None:
            mask = attention_mask[0, 0].numpy()
            seen = mask if mask.dtype == bool else mask > -1e30
        elif is_causal if is_causal is not None else module.is_causal:
            seen = np.tril(seen)
        scores = np.stack([q[h] @ k[h // share].T for h in range(len(q))]) * scaling
        if softcap is not None:
            scores = softcap * np.tanh(scores / softcap)
        attention = self.change(layer, np.where(seen, scores, -np.inf))
        self.attention.append(attention)
        output = np.stack([attention[h] @ v[h // share] for h in range(len(q))], 1)
        return torch.from_numpy(self.after(layer, output))[None].to(query.dtype), None


def run_edited(model, tokens, change, after=lambda layer, output: output):
    """Logits [T, V] and the attention [H, T, T] of every layer, under a change."""
    editing = Editing(change, after)
    AttentionInterface.register("plain-edits", editing)
    AttentionMaskInterface.register("plain-edits", sdpa_mask)
    before = model.backbone.config._attn_implementation
    model.backbone.set_attn_implementation("plain-edits")
    try:
        logits = model.logits(torch.as_tensor(tokens))[0]
    finally:
        model.backbone.set_attn_implementation(before)
    return logits.numpy(), editing.attention


def hide(scores, hidden):
    """Probabilities with some pairs hidden, [T, T] or [H, T, T]; a row that sees nothing else keeps its own token."""
    left = np.where(hidden, -np.inf, scores)
    empty = np.isinf(left).all(-1)
    for head, row in zip(*np.nonzero(empty), strict=True):
        left[head, row, row] = scores[head, row, row]
    return softmax(left)
