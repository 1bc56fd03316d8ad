"""The architectures in plain numpy, float64: what a checkpoint must compute, without transformers or floatscope.

RMSNorm, rotary embedding, grouped-query attention under a visibility matrix, SwiGLU. Biases (Qwen2), QK-norm (Qwen3)
and experts (Qwen3Moe, LLaDA2) are applied where the weights have them.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Shape:
    """The sizes of a tiny model."""

    hidden: int = 32
    heads: int = 4
    kv_heads: int = 4
    layers: int = 2
    inner: int = 48
    vocabulary: int = 96
    theta: float = 5e5
    eps: float = 1e-5
    rotary: float = 1.0
    """Part of each head that is rotated."""
    experts: int = 0
    chosen: int = 2
    """Experts per token."""
    expert_inner: int = 24
    groups: int = 1
    """Groups of experts, of which `chosen_groups` take part."""
    chosen_groups: int = 1
    dense_layers: int = 0
    """Layers before the first with experts."""
    routing: str = "softmax"
    """softmax: the chosen probabilities as they are; normed: divided by their sum; sigmoid: LLaDA2's, with a bias that
    decides who is chosen, normed, times `scaling`, and with an expert that all share."""
    scaling: float = 1.0

    @property
    def head(self) -> int:
        return self.hidden // self.heads


@dataclass(frozen=True)
class Weights:
    """`head` is the embedding itself where they are tied. Layer names: norm1, q, k, v, o, norm2, gate, up, down."""

    embedding: Array
    norm: Array
    head: Array
    layers: list[dict[str, Array]]


def random_weights(
    shape: Shape, *, seed: int = 0, tied: bool = False, biases: bool = False, qk_norm: bool = False
) -> Weights:
    """Float32 values, large enough for every part to show in the logits."""
    random = np.random.default_rng(seed)

    def draw(*size: int, scale: float = 0.25, around: float = 0.0) -> Array:
        return (around + scale * random.normal(size=size)).astype(np.float32).astype(np.float64)

    keys = shape.kv_heads * shape.head
    layers = []
    for _ in range(shape.layers):
        layer = {
            "norm1": draw(shape.hidden, around=1.0),
            "q": draw(shape.hidden, shape.hidden),
            "k": draw(keys, shape.hidden),
            "v": draw(keys, shape.hidden),
            "o": draw(shape.hidden, shape.hidden),
            "norm2": draw(shape.hidden, around=1.0),
            "gate": draw(shape.inner, shape.hidden),
            "up": draw(shape.inner, shape.hidden),
            "down": draw(shape.hidden, shape.inner),
        }
        if shape.experts and len(layers) >= shape.dense_layers:
            layer = {name: value for name, value in layer.items() if name not in ("gate", "up", "down")}
            layer["router"] = draw(shape.experts, shape.hidden)
            each = [shape.expert_inner, shape.hidden]
            layer |= {"gate": draw(shape.experts, *each), "up": draw(shape.experts, *each)}
            layer["down"] = draw(shape.experts, *each[::-1])
            if shape.routing == "sigmoid":
                layer |= {"router_bias": draw(shape.experts), "shared_gate": draw(*each), "shared_up": draw(*each)}
                layer["shared_down"] = draw(*each[::-1])
        if biases:
            layer |= {"q_bias": draw(shape.hidden), "k_bias": draw(keys), "v_bias": draw(keys)}
        if qk_norm:
            layer |= {"q_norm": draw(shape.head, around=1.0), "k_norm": draw(shape.head, around=1.0)}
        layers.append(layer)
    embedding = draw(shape.vocabulary, shape.hidden, scale=0.25 if tied else 1.0)
    head = embedding if tied else draw(shape.vocabulary, shape.hidden)
    return Weights(embedding, draw(shape.hidden, around=1.0), head, layers)


def rms_norm(x: Array, weight: Array, eps: float) -> Array:
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + eps) * weight


def rotate(x: Array, theta: float, part: float = 1.0) -> Array:
    """Rotary embedding of [T, d]: the pair (c, c + d/2) of row i turns by i * theta^(-2c/d); d is the rotated part."""
    turned = int(x.shape[1] * part)
    if turned < x.shape[1]:
        return np.concatenate([rotate(x[:, :turned], theta), x[:, turned:]], 1)
    half = x.shape[1] // 2
    angle = np.arange(len(x))[:, None] * theta ** (-2 * np.arange(half) / x.shape[1])
    a, b = x[:, :half], x[:, half:]
    return np.concatenate([a * np.cos(angle) - b * np.sin(angle), b * np.cos(angle) + a * np.sin(angle)], 1)


def swiglu(x: Array, gate: Array, up: Array, down: Array) -> Array:
    raised = x @ gate.T
    return (raised / (1 + np.exp(-raised)) * (x @ up.T)) @ down.T


def of_experts(layer: dict[str, Array], shape: Shape, row: Array) -> Array:
    """One token [d] through the experts that its router chooses."""
    scores = layer["router"] @ row
    if shape.routing == "sigmoid":
        scores = 1 / (1 + np.exp(-scores))
        wanted = scores + layer["router_bias"]
        by_group = wanted.reshape(shape.groups, -1)
        strength = np.sort(by_group, 1)[:, -2:].sum(1)
        for group in np.argsort(strength)[: shape.groups - shape.chosen_groups]:
            by_group[group] = -np.inf
        wanted = by_group.reshape(-1)
    else:
        scores = np.exp(scores - scores.max())
        scores = wanted = scores / scores.sum()
    chosen = np.argsort(wanted)[-shape.chosen :]
    share = scores[chosen]
    if shape.routing != "softmax":
        share = share / share.sum() * shape.scaling
    parts = ("gate", "up", "down")
    told = sum(part * swiglu(row, *(layer[name][i] for name in parts)) for i, part in zip(chosen, share, strict=True))
    return told + swiglu(row, *(layer[f"shared_{n}"] for n in parts)) if "shared_gate" in layer else told


def plain_logits(weights: Weights, shape: Shape, ids: list[int], visible: NDArray[np.bool_]) -> Array:
    """Raw logits [T, V] of one canvas: row i is what the network says at row i, no shift applied."""
    x = weights.embedding[ids]
    for layer in weights.layers:
        y = rms_norm(x, layer["norm1"], shape.eps)
        q, k, v = (y @ layer[name].T + layer.get(f"{name}_bias", 0.0) for name in "qkv")
        heads = []
        for head in range(shape.heads):
            own = slice(head * shape.head, (head + 1) * shape.head)
            shared = head // (shape.heads // shape.kv_heads)
            other = slice(shared * shape.head, (shared + 1) * shape.head)
            query, key = q[:, own], k[:, other]
            if "q_norm" in layer:
                query = rms_norm(query, layer["q_norm"], shape.eps)
                key = rms_norm(key, layer["k_norm"], shape.eps)
            scores = (
                rotate(query, shape.theta, shape.rotary)
                @ rotate(key, shape.theta, shape.rotary).T
                / np.sqrt(shape.head)
            )
            scores = np.where(visible, scores, -np.inf)
            attention = np.exp(scores - scores.max(1, keepdims=True))
            heads.append(attention / attention.sum(1, keepdims=True) @ v[:, other])
        x = x + np.concatenate(heads, 1) @ layer["o"].T
        y = rms_norm(x, layer["norm2"], shape.eps)
        if "router" in layer:
            x = x + np.stack([of_experts(layer, shape, row) for row in y])
        else:
            x = x + swiglu(y, layer["gate"], layer["up"], layer["down"])
    return rms_norm(x, weights.norm, shape.eps) @ weights.head.T


def everything(tokens: int) -> NDArray[np.bool_]:
    return np.ones((tokens, tokens), dtype=bool)


def blocks(tokens: int, size: int) -> NDArray[np.bool_]:
    """Row i sees column j where j's block is not later than i's; size 1 is causal."""
    return np.array([[j // size <= i // size for j in range(tokens)] for i in range(tokens)])


def shifted(raw: Array) -> Array:
    """Position i is scored by row i-1, position 0 by row 0."""
    return np.concatenate([raw[:1], raw[:-1]])
