"""Compat: the published computations of arXiv 2601.07894's code, quirk by quirk, beside the exact ones.

Each quirk is measured on the same traces with everything else equal, so that the difference is its own. What each
one changes is in docs/definitions.md. Quirks about states and regions need full matrices, kept on request.
"""

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from floatscope.analysis.anchors import detect
from floatscope.analysis.flow import region_rollout
from floatscope.analysis.results import (
    DEFAULTS,
    NO_CONTROLS,
    Controls,
    Options,
    Panel,
    Result,
    collect,
    summarise,
)
from floatscope.canvas import ANSWER, Region
from floatscope.traces import Trace

Array = NDArray[Any]
Pair = tuple[Array, Array]
"""Published and exact value, [layer], or [] for a quirk of the whole stack."""
EPSILON = 3.0


def compat(traces: Iterable[Trace], options: Options = DEFAULTS, controls: Controls = NO_CONTROLS) -> Result:
    """Published and exact value of every quirk per layer, and the difference with its interval over samples."""

    def measure(trace: Trace, rng: np.random.Generator, panel: Panel) -> dict[str, Any]:
        columns: dict[str, list[Any]] = {name: [] for name in ("quirk", "version", "layer", "value")}
        for name, quirk in QUIRKS.items():
            pair = quirk(trace)
            if pair is None:
                panel.note(f"The quirk '{name}' is left out for traces without full matrices (keep='matrices').")
                continue
            layers = [None] if pair[0].ndim == 0 else trace_layers(trace, len(pair[0]))
            versions = {"published": pair[0], "exact": pair[1], "difference": pair[0] - pair[1]}
            for version, values in versions.items():
                columns["quirk"] += [name] * len(layers)
                columns["version"] += [version] * len(layers)
                columns["layer"] += layers
                columns["value"] += np.atleast_1d(values).tolist()
        return columns | {"layer": pl.Series(columns["layer"], dtype=pl.Int64)}

    panel = collect(traces, ("quirk", "version", "layer"), measure, options.seed)
    table = summarise(panel, options)
    keys = ["model", "kind", "quirk", "layer"]
    means = table.pivot("version", index=keys, values="value", maintain_order=True)
    interval = table.filter(pl.col("version") == "difference").select(*keys, "low", "high", "samples")
    joined = means.join(interval, on=keys, nulls_equal=True, maintain_order="left")
    return Result("compat", {"compat": joined}, tuple(panel.notes))


def trace_layers(trace: Trace, count: int) -> list[int]:
    """Layer numbers of a quirk's values: all layers, or those whose matrices were kept."""
    return list(range(count)) if count == trace.layers else trace.matrix_layers.tolist()


def _absolute_threshold(trace: Trace) -> Pair:
    """R_j > mean of the others + 3.0 cannot hold for shares, so the code falls back to the top position."""
    received = trace.received[-1].astype(np.float64)  # [layer, token]
    published = np.zeros(trace.layers)
    for layer, scores in enumerate(received):
        others = (scores.sum() - scores) / max(len(scores) - 1, 1)
        chosen = np.flatnonzero(scores > others + EPSILON)
        chosen = chosen if len(chosen) else np.argsort(scores)[-1:]
        published[layer] = 100 * scores[chosen].sum() / scores.sum()
    anchors = detect(trace, "zscore(3)")[-1]
    return published, 100 * (anchors * received).sum(axis=-1)


def _one_forward(trace: Trace) -> Pair:
    """Absorption of the first token from the last forward alone, against the mean over all steps."""
    received = trace.received[..., 0].astype(np.float64)
    return 100 * received[-1], 100 * received.mean(axis=0)


def _states(trace: Trace) -> tuple[Array, Array] | None:
    """queries [layer, head, row, dimension], keys [layer, kv_head, token, dimension] of the last step kept."""
    if not {"queries", "keys"} <= set(trace.arrays):
        return None
    return trace.queries[-1].astype(np.float64), trace.keys[-1].astype(np.float64)


def _fallback_anchors(trace: Trace) -> Array:
    """[layer, token] zscore(3), or the top position where it finds none, as the published figures mark them."""
    step = int(trace.matrix_steps[-1])
    chosen = detect(trace, "zscore(3)")[step, trace.matrix_layers]
    best = detect(trace, "top1")[step, trace.matrix_layers]
    return np.where(chosen.any(axis=-1, keepdims=True), chosen, best)


def _advantage(trace: Trace, products: Array, chosen: Array) -> float:
    """Mean q.k of anchor columns minus that of the others, over pairs in sight."""
    row, token = np.indices(products.shape)
    seen = token <= row if trace.visibility == "causal" else np.ones(products.shape, bool)
    inside = seen & chosen[None]
    outside = seen & ~chosen[None]
    return float(products[inside].mean() - products[outside].mean())


def _head_averaged_states(trace: Trace) -> Pair | None:
    """q and k averaged over heads before the product, against the product of every head."""
    states = _states(trace)
    if states is None:
        return None
    queries, keys = states
    wide = np.repeat(keys, queries.shape[1] // keys.shape[1], axis=1)
    published, exact = [], []
    for layer, chosen in enumerate(_fallback_anchors(trace)):
        averaged = queries[layer].mean(axis=0) @ keys[layer].mean(axis=0).T
        published.append(_advantage(trace, averaged, chosen))
        each = np.einsum("hid,hjd->hij", queries[layer], wide[layer])
        exact.append(_advantage(trace, each.mean(axis=0), chosen))
    return np.array(published), np.array(exact)


def _head_modulo(trace: Trace) -> Pair | None:
    """Query head h paired with key head h % H_kv, against h // (H / H_kv)."""
    states = _states(trace)
    if states is None:
        return None
    queries, keys = states
    heads, kv_heads = queries.shape[1], keys.shape[1]
    pairings = (np.arange(heads) % kv_heads, np.arange(heads) // (heads // kv_heads))
    values: tuple[list[float], list[float]] = ([], [])
    for layer, chosen in enumerate(_fallback_anchors(trace)):
        for found, pairing in zip(values, pairings, strict=True):
            each = np.einsum("hid,hjd->hij", queries[layer], keys[layer, pairing])
            found.append(_advantage(trace, each.mean(axis=0), chosen))
    return np.array(values[0]), np.array(values[1])


def _retokenised_regions(trace: Trace) -> Pair | None:
    """Rollout from answer to documents with regions from pieces tokenised apart.

    The pieces are counted without bos, so every edge after the first lies one token early; template words belong to
    the piece before them, and what follows the last piece belongs to no region.
    """
    documents = [region for region in trace.regions if region.label.startswith("doc ")]
    if "attention" not in trace.arrays or not documents or ANSWER not in trace.region_labels:
        return None
    attention = trace.attention[-1].mean(axis=1, dtype=np.float64)  # [layer, row, token]
    shifted = _shifted_regions(trace)
    published = pooled_rollout(attention, shifted)
    exact = pooled_rollout(attention, list(trace.regions), list(trace.region_labels))
    names = [region.label for region in shifted]
    flows = []
    for matrix, labels in ((published, names), (exact, list(trace.region_labels))):
        targets = [n for n, label in enumerate(labels) if label.startswith("doc ")]
        flows.append(matrix[labels.index(ANSWER), targets].sum())
    return flows[0], flows[1]


def _shifted_regions(trace: Trace) -> list[Region]:
    documents = [region for region in trace.regions if region.label.startswith("doc ")]
    edges = [max(region.start - 1, 1) for region in documents] + [max(documents[-1].stop - 1, 1)]
    shifted = [Region("bos", 0, 1), Region("query", 1, edges[0])]
    shifted += [Region(r.label, edges[n], edges[n + 1]) for n, r in enumerate(documents)]
    return [*shifted, Region(ANSWER, trace.prompt_length, len(trace.canvas))]


def pooled_rollout(attention: Array, spans: list[Region], labels: list[str] | None = None) -> Array:
    """Sum-pool [layer, row, token] over regions, divide rows by their sums, add I, divide again, multiply up."""
    labels = labels or [span.label for span in spans]
    member = np.zeros((len(labels), attention.shape[-1]))
    for span in spans:
        member[labels.index(span.label), span.start : span.stop] = 1
    rows = attention.shape[1]
    pooled = member[:, :rows] @ attention @ member.T  # [layer, region, region]
    total = pooled.sum(axis=-1, keepdims=True)
    return region_rollout(np.divide(pooled, total, out=np.zeros_like(pooled), where=total > 0), alpha=0.5)


QUIRKS: dict[str, Callable[[Trace], Pair | None]] = {
    "absolute_threshold": _absolute_threshold,
    "one_forward": _one_forward,
    "head_averaged_states": _head_averaged_states,
    "head_modulo": _head_modulo,
    "retokenised_regions": _retokenised_regions,
}
