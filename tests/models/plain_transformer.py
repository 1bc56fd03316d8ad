"""The architectures in plain numpy, float64: what a checkpoint must compute, without transformers or floatscope.

RMSNorm, rotary embedding, grouped-query attention under a visibility matrix, SwiGLU. Biases (Qwen2) and
QK-norm (Qwen3) are applied where the weights have them.
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


def rotate(x: Array, theta: float) -> Array:
    """Rotary embedding of [T, d]: the pair (c, c + d/2) of row i turns by i * theta^(-2c/d)."""
    half = x.shape[1] // 2
    angle = np.arange(len(x))[:, None] * theta ** (-2 * np.arange(half) / x.shape[1])
    a, b = x[:, :half], x[:, half:]
    return np.concatenate([a * np.cos(angle) - b * np.sin(angle), b * np.cos(angle) + a * np.sin(angle)], 1)


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
            scores = rotate(query, shape.theta) @ rotate(key, shape.theta).T / np.sqrt(shape.head)
            scores = np.where(visible, scores, -np.inf)
            attention = np.exp(scores - scores.max(1, keepdims=True))
            heads.append(attention / attention.sum(1, keepdims=True) @ v[:, other])
        x = x + np.concatenate(heads, 1) @ layer["o"].T
        y = rms_norm(x, layer["norm2"], shape.eps)
        gate = y @ layer["gate"].T
        x = x + (gate / (1 + np.exp(-gate)) * (y @ layer["up"].T)) @ layer["down"].T
    return rms_norm(x, weights.norm, shape.eps) @ weights.head.T


def everything(tokens: int) -> NDArray[np.bool_]:
    return np.ones((tokens, tokens), dtype=bool)


def blocks(tokens: int, size: int) -> NDArray[np.bool_]:
    """Row i sees column j where j's block is not later than i's; size 1 is causal."""
    return np.array([[j // size <= i // size for j in range(tokens)] for i in range(tokens)])


def shifted(raw: Array) -> Array:
    """Position i is scored by row i-1, position 0 by row 0."""
    return np.concatenate([raw[:1], raw[:-1]])
