"""The second computation: full T x T attention in numpy, and every array of a trace derived from it by plain loops.

`Spy` is an attention function of its own: it keeps q, k, v and the mask that transformers hands over and works out
the probabilities in float64. Nothing of floatscope.probe is used here.
"""

import numpy as np
import torch
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.masking_utils import sdpa_mask


class Spy:
    """Collects, per layer, query [H, T, d], key, value [Hkv, T, d], attention [H, T, T] and what each row sees."""

    def __init__(self):
        self.layers = []

    def __call__(self, module, query, key, value, attention_mask, scaling=None, is_causal=None, softcap=None, **_):
        q, k, v = (x[0].double().numpy() for x in (query, key, value))
        share, tokens = len(q) // len(k), q.shape[1]
        seen = np.ones((tokens, tokens), bool)
        if attention_mask is not None:
            mask = attention_mask[0, 0].numpy()
            seen = mask if mask.dtype == bool else mask > -1e30
        elif is_causal if is_causal is not None else module.is_causal:
            seen = np.tril(seen)
        scores = np.stack([q[h] @ k[h // share].T for h in range(len(q))]) * scaling
        if softcap is not None:
            scores = softcap * np.tanh(scores / softcap)
        scores = np.where(seen, scores, -np.inf)
        attention = np.exp(scores - scores.max(-1, keepdims=True))
        attention /= attention.sum(-1, keepdims=True)
        self.layers.append({"query": q, "key": k, "value": v, "attention": attention, "seen": seen})
        output = np.stack([attention[h] @ v[h // share] for h in range(len(q))], 1)  # [T, H, d]
        return torch.from_numpy(output)[None].to(query.dtype), None


def watch(model, tokens):
    """What every layer of a floatscope Model does on one canvas [T], seen by the spy."""
    spy = Spy()
    AttentionInterface.register("spy", spy)
    AttentionMaskInterface.register("spy", sdpa_mask)
    before = model.backbone.config._attn_implementation
    model.backbone.set_attn_implementation("spy")
    try:
        model.logits(torch.as_tensor(tokens))
    finally:
        model.backbone.set_attn_implementation(before)
    return spy.layers


def canvas_at(trace, step, mask_id):
    """The canvas of an MDM as the forward of a step saw it."""
    canvas = trace.canvas.copy()
    canvas[trace.slots[trace.commit_step >= step]] = mask_id
    return canvas


def row_groups(trace, masked):
    """The group label of every row, given which answer slots are masked."""
    labels = []
    for region in trace.regions:
        labels += [region.label] * (region.stop - region.start)
    for slot, hidden in enumerate(masked):
        labels[trace.slots[slot]] = "answer:masked" if hidden else "answer:committed"
    return labels


def column_sets(trace):
    """Positions of each column label."""
    sets = {}
    for region in trace.regions:
        sets.setdefault(region.label, []).extend(range(region.start, region.stop))
    return sets | {name: list(positions) for name, positions in trace.marks.items()}


def expected_step(trace, layer, rows, masked):
    """The arrays of one step and layer; `rows`: how many rows the step has."""
    attention = layer["attention"][:, :rows]  # [H, rows, T']
    groups = np.array(row_groups(trace, masked)[:rows])
    share = len(attention) // len(layer["value"])
    value_norm = np.stack([np.linalg.norm(layer["value"][h // share], axis=-1) for h in range(len(attention))])
    tokens, there = len(trace.canvas), attention.shape[-1]

    def wide(values):
        return np.concatenate([values, np.zeros((*values.shape[:-1], tokens - there))], -1)

    def mean_over(label):
        chosen = np.array([name.startswith(label) for name in groups])
        return wide(attention[:, chosen].sum(1).mean(0) / max(1, chosen.sum()))

    columns = column_sets(trace)
    by_group = {label: attention[:, groups == label] for label in trace.group_labels}
    return {
        "received": wide(attention.mean(1).mean(0)),
        "received_answer": mean_over("answer"),
        "received_masked": mean_over("answer:masked"),
        "received_value": wide((attention.mean(1) * value_norm).mean(0)),
        "region_attention": np.stack(
            [
                [
                    [
                        wide(found[h])[:, columns[name]].sum(-1).mean() if found.shape[1] else 0.0
                        for name in trace.column_labels
                    ]
                    for found in by_group.values()
                ]
                for h in range(len(attention))
            ]
        ),
        "group_attention": wide(np.stack([found.sum(1) for found in by_group.values()], 1)).mean(0),
        "head_attention": wide(np.stack([found.sum(1) for found in by_group.values()], 1)),
        "group_rows": np.array([found.shape[1] for found in by_group.values()]),
    }


def expected_geometry(trace, layer, rows):
    """Per-head QK means of one step and layer over its first `rows` rows."""
    query, key, seen = layer["query"][:, :rows], layer["key"], layer["seen"][:rows]
    tokens, there = len(trace.canvas), key.shape[1]
    share = len(query) // len(key)
    found = {name: np.zeros((len(query), tokens)) for name in ("qk", "cos", "norm")}
    for h, q in enumerate(query):
        k = key[h // share]
        dots = q @ k.T
        norms = np.linalg.norm(q, axis=1)[:, None] * np.linalg.norm(k, axis=1)
        cosines = np.divide(dots, norms, out=np.zeros_like(dots), where=norms > 0)  # a padding token has no direction
        for j in range(there):
            if seen[:, j].any():
                found["qk"][h, j] = dots[seen[:, j], j].mean()
                found["cos"][h, j] = cosines[seen[:, j], j].mean()
                found["norm"][h, j] = norms[seen[:, j], j].mean()
    for name, values in (("key_norm", key), ("value_norm", layer["value"])):
        found[name] = np.zeros((len(key), tokens))
        found[name][:, :there] = np.linalg.norm(values, axis=-1)
    return found
