"""Compat: the published computations of arXiv 2601.07894's code, quirk by quirk, beside the exact ones.

Each quirk is measured on the same traces with everything else equal, so that the difference is its own; the control
is the published computation on uniform attention. What each one changes is in docs/definitions.md. Quirks about states
and regions need full matrices, kept on request.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import polars as pl

from floatscope.analysis.anchors import detect
from floatscope.analysis.cells import Array, ratio
from floatscope.analysis.drawing import lines
from floatscope.analysis.figure import Figure, number_text, result_figure
from floatscope.analysis.flow import region_rollout
from floatscope.analysis.results import GROUP, Controls, Options, Panel, Result, collect, summarise
from floatscope.analysis.uniform import has_uniform, uniform_trace
from floatscope.canvas import ANSWER, BOS, QUERY, SCAFFOLD, Region, positions
from floatscope.token_text import plain_text
from floatscope.traces import Trace

Pair = tuple[Array, Array]
"""Published and exact value, [layer], or [] for a quirk of the whole stack."""


def compat(traces: Iterable[Trace], options: Options, controls: Controls) -> Result:
    """Published and exact value of every quirk per layer, and the difference with its interval over samples."""

    def measure(trace: Trace, rng: np.random.Generator, panel: Panel) -> dict[str, Any]:
        frames = []
        for name, quirk in QUIRKS.items():
            pair = quirk.values(trace)
            if pair is None:
                panel.note(f"The quirk '{name}' is left out for traces {quirk.lacking}.")
                continue
            published, exact = map(np.atleast_1d, pair)
            flat = quirk.values(uniform_trace(trace)) if has_uniform(trace) else None
            layers = np.arange(trace.layers) if len(exact) == trace.layers else trace.matrix_layers
            frame = pl.DataFrame(
                {
                    "quirk": name,
                    "layer": layers.tolist() if pair[0].ndim else [None],
                    "uniform": np.full(len(exact), np.nan if flat is None else flat[0]),
                },
                schema_overrides={"layer": pl.Int64},
            )
            for version, values in {"published": published, "exact": exact, "difference": published - exact}.items():
                frames.append(frame.with_columns(pl.Series("value", values), version=pl.lit(version)))
        return pl.concat(frames).to_dict()

    panel = collect(traces, ("quirk", "version", "layer"), measure, options.seed)
    table = summarise(panel, options)
    keys = ["model", "kind", *GROUP, "quirk", "layer"]
    means = table.pivot("version", index=keys, values="value", maintain_order=True)
    interval = table.filter(pl.col("version") == "difference").select(*keys, "low", "high", "samples", "uniform")
    joined = means.join(interval, on=keys, nulls_equal=True, maintain_order="left")
    notes = (*panel.notes, "The column 'uniform' is null for q.k: even attention has no queries and keys.")
    return Result("compat", {"compat": joined}, notes)


def _or_top(trace: Trace, detector: str) -> Array:
    """[step, layer, token] what a detector finds or, where that is nothing, the top position: as published."""
    found = detect(trace, detector)
    return np.where(found.any(axis=-1, keepdims=True), found, detect(trace, "top1"))


def _absolute_threshold(trace: Trace) -> Pair:
    """R_j > mean of the others + 3.0 cannot hold for shares, so the code falls back to the top position."""
    received = trace.received[-1].astype(np.float64)  # [layer, token]
    published = 100 * (_or_top(trace, "rulli(3,1)")[-1] * received).sum(axis=-1) / received.sum(axis=-1)
    return published, 100 * (detect(trace, "zscore(3)")[-1] * received).sum(axis=-1)


def _one_forward(trace: Trace) -> Pair:
    """Absorption from one forward over the finished text, against the mean over all steps.

    The set is the published one: bos of an ARM, the top position of an MDM. The last captured step stands for the
    finished text: it lacks the tokens that commit in it.
    """
    received = trace.received.astype(np.float64)
    absorbed = received[..., 0] if trace.kind == "arm" else received.max(axis=-1)  # [step, layer]
    return 100 * absorbed[-1], 100 * absorbed.mean(axis=0)


def _advantages(trace: Trace, published: Callable[[Array, Array], Array]) -> Pair | None:
    """Mean q.k of anchor columns minus that of the others, over pairs in sight, per layer.

    In q.k [row, token] as `published` makes it of the states, and in that of every head.
    """
    if not {"queries", "keys"} <= set(trace.arrays):
        return None
    # [layer, head, row or token, dimension] of the last step kept
    states = (trace.arrays[name][-1].astype(np.float64) for name in ("queries", "keys"))
    anchors = _or_top(trace, "zscore(3)")[int(trace.matrix_steps[-1]), trace.matrix_layers]
    found: Pair = np.zeros(len(anchors)), np.zeros(len(anchors))
    for layer, (queries, keys, chosen) in enumerate(zip(*states, anchors, strict=True)):
        seen = np.ones((queries.shape[1], keys.shape[1]), bool)
        seen = np.tril(seen) if trace.visibility == "causal" else seen
        for values, product in zip(found, (published, _by_head), strict=True):
            products = product(queries, keys)
            values[layer] = products[seen & chosen].mean() - products[seen & ~chosen].mean()
    return found


def _by_head(queries: Array, keys: Array, modulo: bool = False) -> Array:
    """Mean over heads of q.k, query head h with key head h // (H / H_kv), or with h % H_kv."""
    head = np.arange(len(queries))
    pairing = head % len(keys) if modulo else head // (len(queries) // len(keys))
    return np.einsum("hid,hjd->hij", queries, keys[pairing]).mean(axis=0)


def _retokenised_regions(trace: Trace) -> Pair | None:
    """Rollout from answer to documents with regions from pieces tokenised apart, against the true ones."""
    if "attention" not in trace.arrays or not _documents(trace) or ANSWER not in trace.region_labels:
        return None
    attention = trace.attention[-1].mean(axis=1, dtype=np.float64)  # [layer, row, token]
    return _to_documents(attention, retokenised(trace)), _to_documents(attention, trace.regions)


def _to_documents(attention: Array, spans: Sequence[Region]) -> Array:
    """[] rollout from the answer to all documents."""
    labels = list(dict.fromkeys(span.label for span in spans))
    documents = [n for n, label in enumerate(labels) if label.startswith("doc ")]
    return pooled_rollout(attention, spans)[labels.index(ANSWER), documents].sum()


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
    stop = documents[-1].stop
    after = next((r.stop for r in trace.regions if r.start == stop and r.label == SCAFFOLD), stop)
    edges.append(_piece_edge(trace, after))  # where the template words after the last document end
    query = positions(trace.regions, QUERY)
    first = [Region(BOS, 0, 1)]
    if len(query) and query[0] > stop:
        last = [Region(QUERY, edges[-1] - shift, int(query[-1]) + 1 - shift)]
    else:
        first, last = [*first, Region(QUERY, 1, max(edges[0] - shift, 1))], []
    pieces = [Region(r.label, max(edges[n] - shift, 1), edges[n + 1] - shift) for n, r in enumerate(documents)]
    return [*first, *pieces, *last, *(region for region in trace.regions if region.label == ANSWER)]


def _piece_edge(trace: Trace, start: int) -> int:
    """Where the piece whose own text begins at `start` begins: after the last line break of the words before it."""
    before = next((r for r in trace.regions if r.stop == start and r.label == SCAFFOLD), None)
    if before is None:
        return start
    breaks = [n for n in range(before.start, before.stop) if "\n" in plain_text(trace.texts_or_ids[n])]
    return breaks[-1] + 1 if breaks else before.start


def pooled_rollout(attention: Array, spans: Sequence[Region]) -> Array:
    """Sum-pool [layer, row, token] over regions, divide rows by their sums, add I, divide again, multiply up."""
    labels = list(dict.fromkeys(span.label for span in spans))
    member = np.zeros((len(labels), attention.shape[-1]))
    for span in spans:
        member[labels.index(span.label), span.start : span.stop] = 1
    rows = attention.shape[1]
    pooled = member[:, :rows] @ attention @ member.T  # [layer, region, region]
    return region_rollout(ratio(pooled, pooled.sum(axis=-1, keepdims=True), 0), alpha=0.5)


@dataclass(frozen=True)
class Quirk:
    """A published computation beside the exact one."""

    title: str
    beside: str
    """The analysis whose figure has it as its published view."""
    values: Callable[[Trace], Pair | None]
    """None where a trace cannot tell."""
    lacking: str = "without full matrices (keep='matrices')"


QUIRKS: dict[str, Quirk] = {
    "absolute_threshold": Quirk("absolute threshold, % absorbed", "absorption", _absolute_threshold),
    "one_forward": Quirk("last forward only, % absorbed", "absorption", _one_forward),
    "head_averaged_states": Quirk(
        "heads averaged first, q·k advantage",
        "qk",
        partial(_advantages, published=lambda queries, keys: queries.mean(axis=0) @ keys.mean(axis=0).T),
    ),
    "head_modulo": Quirk(
        "head h with h mod H, q·k advantage", "qk", partial(_advantages, published=partial(_by_head, modulo=True))
    ),
    "retokenised_regions": Quirk(
        "pieces tokenised apart, flow to documents",
        "flow",
        _retokenised_regions,
        "without full matrices (keep='matrices'), documents or answer",
    ),
}


def figure(result: Result, models: Sequence[str], beside: str | None = None) -> Figure:
    """Published and exact values per layer, by quirk; only those that belong to an analysis, where one is given."""
    quirks = {name: quirk for name, quirk in QUIRKS.items() if beside in (None, quirk.beside)}
    table = result.table.filter(pl.col("quirk").is_in(list(quirks)))
    drawn = table.select(
        "model", "quirk", pl.col("layer").fill_null(0), "published", "uniform", "samples", value="exact"
    )
    whole = table.filter(pl.col("layer").is_null())["quirk"].unique().to_list()
    panels = [
        lines(
            drawn,
            quirk.title,
            {"quirk": name},
            models,
            axis="whole stack" if name in whole else None,
            controls=("published", "uniform"),
            name="drawn",
        )
        for name, quirk in quirks.items()
    ]
    # of each quirk the model whose published value lies furthest from the exact one
    means = table.group_by("quirk", "model", maintain_order=True).agg(pl.col("published", "exact", "uniform").mean())
    known = means.drop_nulls(["published", "exact"]).filter(pl.col("model").is_in(list(models)))
    gap = (pl.col("published") - pl.col("exact")).abs()
    words = []
    for name in quirks:
        furthest = known.filter(quirk=name).sort(gap, descending=True, maintain_order=True).head(1)
        for row in furthest.iter_rows(named=True):
            even = f" (uniform {number_text(row['uniform'], 2)})" if row["uniform"] is not None else ""
            shown = f"{number_text(row['published'], 2)} instead of {number_text(row['exact'], 2)}"
            words.append(f"{name.replace('_', ' ')} {shown} in {row['model']}{even}")
    return result_figure(
        result,
        "Published computations beside exact ones",
        panels,
        "The computations of the published code, quirk by quirk, on the same traces: dashed as published, thick as "
        "defined. The thin solid line is the control: the published computation on uniform attention, which is what "
        "its figure would show with nothing to see.",
        f"As published instead of exact, mean over layers: {'; '.join(words)}." if words else "",
        table,
        subtitle="uniform: the published computation on uniform attention",
        drawn=drawn,
    )
