"""Compat: the published computations of arXiv 2601.07894's code, quirk by quirk, beside the exact ones.

Each quirk is measured on the same traces with everything else equal, so that the difference is its own; the control
is the published computation on uniform attention. What each one changes is in docs/definitions.md. Quirks about states
and regions need full matrices, kept on request.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import altair as alt
import numpy as np
import polars as pl
from numpy.typing import NDArray

from floatscope.analysis.anchors import detect
from floatscope.analysis.drawing import (
    CONTROL,
    POINT,
    Plot,
    arrange,
    ends_of,
    model_colour,
    model_shape,
    plot,
    tooltips,
    whole_numbers,
)
from floatscope.analysis.figure import Figure
from floatscope.analysis.findings import number_text
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
from floatscope.analysis.token_text import plain_text
from floatscope.analysis.uniform import even_attention, uniform_trace
from floatscope.canvas import ANSWER, BOS, QUERY, SCAFFOLD, Region, positions
from floatscope.traces import Trace

Array = NDArray[Any]
Pair = tuple[Array, Array]
"""Published and exact value, [layer], or [] for a quirk of the whole stack."""
EPSILON = 3.0


def compat(traces: Iterable[Trace], options: Options = DEFAULTS, controls: Controls = NO_CONTROLS) -> Result:
    """Published and exact value of every quirk per layer, and the difference with its interval over samples."""

    def measure(trace: Trace, rng: np.random.Generator, panel: Panel) -> dict[str, Any]:
        columns: dict[str, list[Any]] = {name: [] for name in ("quirk", "version", "layer", "value", "uniform")}
        for name, quirk in QUIRKS.items():
            pair = quirk.values(trace)
            if pair is None:
                panel.note(f"The quirk '{name}' is left out for traces {quirk.lacking}.")
                continue
            layers = [None] if pair[0].ndim == 0 else trace_layers(trace, len(pair[0]))
            even = np.full(len(layers), np.nan) if quirk.even is None else np.atleast_1d(quirk.even(trace))
            versions = {"published": pair[0], "exact": pair[1], "difference": pair[0] - pair[1]}
            for version, values in versions.items():
                columns["quirk"] += [name] * len(layers)
                columns["version"] += [version] * len(layers)
                columns["layer"] += layers
                columns["value"] += np.atleast_1d(values).tolist()
                columns["uniform"] += even.tolist()
        return columns | {"layer": pl.Series(columns["layer"], dtype=pl.Int64)}

    panel = collect(traces, ("quirk", "version", "layer"), measure, options.seed)
    table = summarise(panel, options)
    keys = ["model", "kind", "quirk", "layer"]
    means = table.pivot("version", index=keys, values="value", maintain_order=True)
    interval = table.filter(pl.col("version") == "difference").select(*keys, "low", "high", "samples", "uniform")
    joined = means.join(interval, on=keys, nulls_equal=True, maintain_order="left")
    notes = (*panel.notes, "The column 'uniform' is null for q.k: even attention has no queries and keys.")
    return Result("compat", {"compat": joined}, notes)


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
    """Absorption from one forward over the finished text, against the mean over all steps.

    The set is the published one: bos of an ARM, the top position of an MDM. The last captured step stands for the
    finished text: it lacks the tokens that commit in it.
    """
    received = trace.received.astype(np.float64)
    absorbed = received[..., 0] if trace.kind == "arm" else received.max(axis=-1)  # [step, layer]
    return 100 * absorbed[-1], 100 * absorbed.mean(axis=0)


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
    """Rollout from answer to documents with regions from pieces tokenised apart, against the true ones."""
    if "attention" not in trace.arrays or not _documents(trace) or ANSWER not in trace.region_labels:
        return None
    attention = trace.attention[-1].mean(axis=1, dtype=np.float64)  # [layer, row, token]
    exact = pooled_rollout(attention, list(trace.regions), list(trace.region_labels))
    return _to_documents(attention, retokenised(trace)), _flow(exact, list(trace.region_labels))


def _even_documents(trace: Trace) -> Array:
    even = even_attention(trace)[trace.matrix_layers]
    return _to_documents(even, retokenised(trace))


def _to_documents(attention: Array, spans: list[Region]) -> Array:
    return _flow(pooled_rollout(attention, spans), [span.label for span in spans])


def _flow(rolled: Array, labels: list[str]) -> Array:
    """[] from the answer to all documents."""
    return rolled[labels.index(ANSWER), [n for n, label in enumerate(labels) if label.startswith("doc ")]].sum()


def _documents(trace: Trace) -> list[Region]:
    return [region for region in trace.regions if region.label.startswith("doc ")]


def retokenised(trace: Trace) -> list[Region]:
    """The regions that tokenising the prompt's pieces apart gives, where pieces tokenise alike alone and in context.

    A document's piece is its heading, its text and the line break after it. Lengths are added up from 0 and without
    bos: with a bos token every edge lies one token early. What follows the last piece is in no region.
    """
    shift = len(positions(trace.regions, BOS))
    documents = _documents(trace)
    edges = [_piece_edge(trace, region.start) for region in documents]
    edges.append(_piece_edge(trace, _after(trace, documents[-1].stop)))
    query = positions(trace.regions, QUERY)
    first = [Region(BOS, 0, 1)]
    if len(query) and query[0] > documents[-1].stop:
        last = [Region(QUERY, edges[-1] - shift, int(query[-1]) + 1 - shift)]
    else:
        first, last = [*first, Region(QUERY, 1, max(edges[0] - shift, 1))], []
    pieces = [Region(r.label, max(edges[n] - shift, 1), edges[n + 1] - shift) for n, r in enumerate(documents)]
    return [*first, *pieces, *last, *(region for region in trace.regions if region.label == ANSWER)]


def _after(trace: Trace, stop: int) -> int:
    """Where the template words that begin at `stop` end."""
    return next((r.stop for r in trace.regions if r.start == stop and r.label == SCAFFOLD), stop)


def _piece_edge(trace: Trace, start: int) -> int:
    """Where the piece whose own text begins at `start` begins: after the last line break of the words before it."""
    before = next((r for r in trace.regions if r.stop == start and r.label == SCAFFOLD), None)
    if before is None:
        return start
    breaks = [n for n in range(before.start, before.stop) if "\n" in plain_text(trace.texts_or_ids[n])]
    return breaks[-1] + 1 if breaks else before.start


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


@dataclass(frozen=True)
class Quirk:
    """A published computation beside the exact one, and on uniform attention; None where a trace cannot tell."""

    title: str
    beside: str
    """The analysis whose figure has it as its published view."""
    values: Callable[[Trace], Pair | None]
    even: Callable[[Trace], Array] | None = None
    lacking: str = "without full matrices (keep='matrices')"


QUIRKS: dict[str, Quirk] = {
    "absolute_threshold": Quirk(
        "absolute threshold, % absorbed",
        "absorption",
        _absolute_threshold,
        lambda trace: _absolute_threshold(uniform_trace(trace))[0],
    ),
    "one_forward": Quirk(
        "last forward only, % absorbed",
        "absorption",
        _one_forward,
        lambda trace: _one_forward(uniform_trace(trace))[0],
    ),
    "head_averaged_states": Quirk("heads averaged first, q·k advantage", "qk", _head_averaged_states),
    "head_modulo": Quirk("head h with h mod H, q·k advantage", "qk", _head_modulo),
    "retokenised_regions": Quirk(
        "pieces tokenised apart, flow to documents",
        "flow",
        _retokenised_regions,
        _even_documents,
        "without full matrices (keep='matrices'), documents or answer",
    ),
}
_VERSIONS = {"exact": [1, 0], "published": [7, 3]}


def figure(result: Result, models: Sequence[str], beside: str | None = None) -> Figure:
    """Published and exact values per layer, by quirk; only those that belong to an analysis, where one is given."""
    quirks = {name: quirk for name, quirk in QUIRKS.items() if beside in (None, quirk.beside)}
    table = result.table.filter(pl.col("quirk").is_in(list(quirks)))
    return Figure(
        "compat",
        "Published computations beside exact ones",
        arrange([_quirk(table, name, quirk.title, models) for name, quirk in quirks.items()], {"table": table}),
        table,
        "The computations of the published code, quirk by quirk, on the same traces: dashed and hollow as published, "
        "solid as defined. The thin grey line is the control: the published computation on uniform attention, which is "
        "what its figure would show with nothing to see.",
        finding=_furthest(table, quirks, models),
        notes=result.notes,
        subtitle="grey: the published computation on uniform attention",
    )


def published_view(compat: Result, name: str, models: Sequence[str]) -> Figure | None:
    """The quirks that change the figure of an analysis; None where there are none."""
    names = [quirk for quirk, row in QUIRKS.items() if row.beside == name]
    known = compat.table.filter(pl.col("quirk").is_in(names))
    return None if known.is_empty() else figure(compat, models, name)


def _quirk(table: pl.DataFrame, name: str, title: str, models: Sequence[str]) -> Plot | None:
    """One quirk over layers; one of the whole stack is a pair of points."""
    part = table.filter(quirk=name)
    if part.is_empty():
        return None
    whole = part["layer"].null_count() == part.height
    numbers = [number for column in ("published", "exact", "uniform") for number in part[column].to_list()]
    x = alt.X("layer:Q", title="whole stack" if whole else "layer", **whole_numbers(part["layer"].fill_null(0)))
    scale = alt.Scale(domain=ends_of(numbers), nice=True, zero=False)

    def height(column: str) -> alt.Y:
        return alt.Y(f"{column}:Q", title=None, scale=scale, axis=alt.Axis(tickCount=5))

    colour = model_colour(models, table["model"])
    dash = alt.StrokeDash(
        "version:N",
        scale=alt.Scale(domain=list(_VERSIONS), range=list(_VERSIONS.values())),
        legend=alt.Legend(title=None, symbolStrokeColor=CONTROL, symbolType="stroke", symbolSize=250),
    )
    base = alt.Chart().encode(x=x)
    even = base.transform_filter("isValid(datum.uniform)").encode(y=height("uniform"), detail="model:N")
    folded = base.transform_fold(list(_VERSIONS), as_=["version", "value"]).encode(y=height("value"), color=colour)
    told = tooltips("model", "version", "layer", "value", "uniform", "samples")
    points = folded.encode(shape=model_shape(models, table["model"]), tooltip=told)
    layers = [
        even.mark_point(shape="stroke", size=200, strokeWidth=1.2, color=CONTROL)
        if whole
        else even.mark_line(strokeWidth=1.2, color=CONTROL),
        folded.mark_line(strokeWidth=2).encode(strokeDash=dash, detail="version:N"),
        points.transform_filter("datum.version == 'exact'").mark_point(**POINT),
        points.transform_filter("datum.version == 'published'").mark_point(filled=False, size=32, opacity=1),
    ]
    places = [{"calculate": "isValid(datum.layer) ? datum.layer : 0", "as": "layer"}]
    return plot(layers, title, table, {"quirk": name}, transform=places)


def _furthest(table: pl.DataFrame, quirks: Iterable[str], models: Sequence[str]) -> str:
    """For each quirk the model whose published value lies furthest from the exact one, means over layers."""
    words = []
    for name in quirks:
        means = (
            table.filter(quirk=name)
            .group_by("model", maintain_order=True)
            .agg(pl.col("published", "exact", "uniform").mean())
        )
        known = means.drop_nulls(["published", "exact"]).filter(pl.col("model").is_in(list(models)))
        gap = (pl.col("published") - pl.col("exact")).abs()
        for row in known.sort(gap, descending=True, maintain_order=True).head(1).iter_rows(named=True):
            even = f" (uniform {number_text(row['uniform'], 2)})" if row["uniform"] is not None else ""
            shown = f"{number_text(row['published'], 2)} instead of {number_text(row['exact'], 2)}"
            words.append(f"{name.replace('_', ' ')} {shown} in {row['model']}{even}")
    return f"As published instead of exact, mean over layers: {'; '.join(words)}." if words else ""
