"""Retrieval heads: heads that look at the evidence when an answer token commits, or when the question is read.

`copy` follows Wu et al. (2024), `query` follows QRHead (2025) calibrated by a null query. How trustworthy the
ranking of heads is stands beside it, as the correlation between halves of the data.
"""

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from floatscope.analysis.cells import Array, cell_columns
from floatscope.analysis.depth import THIRDS, depth_table
from floatscope.analysis.drawing import Plot, cells, dots
from floatscope.analysis.figure import Figure, number_text, result_figure, top_finding
from floatscope.analysis.results import CONTROLS, GROUP, Controls, Options, Panel, Result, analyse, as_control, readable
from floatscope.analysis.uniform import has_uniform, uniform_trace, visible_spans
from floatscope.canvas import QUERY
from floatscope.statistics import pearson, spearman
from floatscope.token_text import text_class
from floatscope.traces import Trace

EVIDENCE, GOLD_ANSWER = "evidence", "gold_answer"
_SPLITS = 200
_TOP = 20


def retrieval_heads(traces: Iterable[Trace], options: Options, controls: Controls) -> Result:
    """Scores per layer and head; further tables: top heads, depth profile, split-half stability."""
    null_scores = {
        _sample(trace): _masses(trace, [trace.column_labels.index(EVIDENCE)]).get("query", np.nan)
        for trace in controls.null_query
        if len(trace.marks.get(EVIDENCE, ()))
    }

    def measure(trace: Trace, rng: np.random.Generator, panel: Panel) -> dict[str, Any] | None:
        evidence = trace.marks.get(EVIDENCE, ())
        if not len(evidence):
            panel.note("Traces without evidence (marks of a gold document) are left out.")
            return None
        null = null_scores.get(_sample(trace))
        if null is None:
            panel.note("The score 'query_calibrated' is null where no null-query trace of the sample was given.")
        unknown = dict.fromkeys(_TITLES, np.full((trace.layers, trace.heads), np.nan))
        column = [trace.column_labels.index(EVIDENCE)]
        found, flat = (unknown | _masses(one, column) for one in (trace, uniform_trace(trace)))
        found["copy"], flat["copy"] = _copies(trace)
        if null is not None:
            found["query_calibrated"] = found["query"] - null
        # random: the mass if the evidence were as many random tokens of the documents
        columns = [n for n, label in enumerate(trace.region_labels) if label.startswith("doc ")]
        tokens = sum(len(region) for region in trace.regions if region.label.startswith("doc "))
        share = len(evidence) / tokens if tokens else np.nan
        chance = unknown | {name: share * mass for name, mass in _masses(trace, columns).items()}
        return cell_columns(keys, value=found, uniform=flat, random=chance)

    keys = ("score", "layer", "head")
    nothing = (
        "No trace has evidence: retrieval heads need samples whose gold documents are marked; trace with documents of "
        "which at least one is gold."
    )
    result, panel = analyse("retrieval_heads", traces, keys, measure, options, controls, nothing)
    lists = ("model", *GROUP, "score")
    ranked = result.table.drop_nulls("value").sort("value", descending=True, maintain_order=True)
    rank = pl.int_range(1, pl.len() + 1).over(lists).alias("rank")
    top = ranked.select(*lists, rank, pl.all().exclude(lists)).filter(pl.col("rank") <= _TOP)
    tables = {
        **result.tables,
        "retrieval_heads_top": top.sort(*lists, "rank", maintain_order=True),
        "retrieval_heads_depth": depth_table(panel, options),
        "retrieval_heads_stability": _stability(panel, options),
    }
    return Result("retrieval_heads", tables, result.notes)


def _sample(trace: Trace) -> tuple[str, ...]:
    """What tells samples apart: the model, and ids, which may be shared between tasks and conditions."""
    names = (trace.metadata.get(name, "") for name in ("task", "condition", "sample"))
    return (as_control(trace).model, *map(str, names))


def _slots(trace: Trace) -> NDArray[np.int64]:
    """Answer slots that hold text: end-of-text fillers commit too, and would only dilute the scores."""
    texts = [trace.texts_or_ids[slot] for slot in trace.slots]
    return np.flatnonzero([text_class(text) != "special" for text in texts])


def _copies(trace: Trace) -> tuple[Array, Array]:
    """[layer, head] of the slots whose token can be copied, the share whose top key is that token inside the gold
    answer (or the evidence, where no answer is marked); and the chance that a random visible key is. nan without any.
    """
    gold = trace.marks.get(GOLD_ANSWER, ())
    span = np.asarray(gold if len(gold) else trace.marks[EVIDENCE])
    slots = _slots(trace)
    slots = slots[np.isin(trace.answer[slots], trace.canvas[span])]
    if not len(slots):
        unknown = np.full((trace.layers, trace.heads), np.nan)
        return unknown, unknown
    keys, tokens = trace.commit_keys[slots][..., 0], trace.answer[slots]  # [slot, layer, head], [slot]
    copied = (np.isin(keys, span) & (trace.canvas[keys] == tokens[:, None, None])).mean(axis=0)
    if not has_uniform(trace):
        return copied, np.full(copied.shape, np.nan)
    first, last, which = visible_spans(trace)
    low, high = (edges[:, trace.slots[slots] - (trace.logits != "same"), None] for edges in (first, last))
    qualify = (trace.canvas[span] == tokens[:, None]) & (span >= low) & (span < high)  # [kind of layer, slot, span]
    chance = (qualify.sum(axis=-1) / np.maximum(high - low, 1)[..., 0]).mean(axis=1)[which]
    return copied, np.broadcast_to(chance[:, None], copied.shape)


def _masses(trace: Trace, columns: list[int]) -> dict[str, Array]:
    """[layer, head] mean mass on some columns: from the rows that commit text, and from the question's rows."""
    scores: dict[str, Array] = {}
    if len(slots := _slots(trace)):
        scores["evidence"] = trace.commit_mass[slots][..., columns].sum(axis=-1).mean(axis=0)
    if QUERY in trace.region_labels:
        mass = trace.region_attention[:, :, :, trace.group_labels.index(QUERY)]
        scores["query"] = mass[..., columns].sum(axis=-1).mean(axis=0)
    return scores


def _stability(panel: Panel, options: Options) -> pl.DataFrame:
    """Correlation over heads between the means of two random halves of the samples; null below four samples."""
    rows = []
    rng = np.random.default_rng(options.seed)
    unknown = dict.fromkeys(("pearson", "pearson_low", "pearson_high", "spearman", "full_data", "random"))
    lists = ("model", *GROUP, "score")
    for list_of, part in readable(panel.samples).group_by(lists, maintain_order=True):
        wide = part.drop_nulls("value").pivot("trace", index=["layer", "head"], values="value")
        values = wide.drop("layer", "head").drop_nulls().to_numpy()  # [head, sample]
        heads, samples = values.shape
        row = dict(zip(lists, list_of, strict=True)) | {"samples": samples, "heads": heads} | unknown
        rows.append(row | (_split_half(values, rng) if heads >= 3 and samples >= 4 else {}))
    return pl.DataFrame(rows, schema_overrides=dict.fromkeys(unknown, pl.Float64))


def _split_half(values: Array, rng: np.random.Generator) -> dict[str, float | None]:
    """[head, sample] -> correlations over many random splits; `full_data` by Spearman and Brown's formula."""
    half, splits = values.shape[1] // 2, []
    for _ in range(_SPLITS):
        order = rng.permutation(values.shape[1])
        first, second = values[:, order[:half]].mean(axis=1), values[:, order[half:]].mean(axis=1)
        chance = pearson(rng.permutation(first), second)
        splits.append((pearson(first, second), spearman(first, second), chance))
    linear, ranked, shuffled = np.array(splits).T.copy()
    if np.isnan(linear).any():
        return {}
    mean = float(linear.mean())
    low, high = np.percentile(linear, (2.5, 97.5)).tolist()
    full = 2 * mean / (1 + mean) if mean > -1 else None
    found = {"pearson": mean, "pearson_low": low, "pearson_high": high, "full_data": full}
    return found | {"spearman": float(ranked.mean()), "random": float(shuffled.mean())}


_TITLES = {
    "copy": "copies the answer",
    "evidence": "committing rows to evidence",
    "query": "question to evidence",
    "query_calibrated": "question to evidence, calibrated",
}


def figure(result: Result, models: Sequence[str]) -> Figure:
    """Scores by layer and head, the depth profile with its controls, and how far halves of the data agree."""
    table = result.table.drop_nulls("value")
    depth, stability = result.tables["retrieval_heads_depth"], result.tables["retrieval_heads_stability"]
    halves = stability.rename({"pearson": "value", "pearson_low": "low", "pearson_high": "high"})
    maps = [
        _heads(table, score, model, top)
        for score in _TITLES
        if isinstance(top := table.filter(score=score)["value"].max(), float)
        for model in models
    ]
    groups: dict[str, list[Plot | None]] = {"every head": maps}
    groups["mean over heads, by depth"] = [
        dots(depth, title, {"score": score}, models, "depth", THIRDS, name="depth") for score, title in _TITLES.items()
    ]
    groups["do two halves of the samples agree on the heads?"] = [
        dots(halves, "correlation over heads", {}, models, "score", list(_TITLES), name="halves")
    ]
    name = pl.format("{} layer {} head {} with", "model", "layer", "head")
    return result_figure(
        result,
        "Heads that look at the evidence",
        groups,
        "Each cell is a head, darker for a higher score. Copying counts slots whose top key is the committed token "
        "inside the gold answer; the other scores are attention mass on the evidence, the last one minus what a "
        "question that asks nothing gives (blank below 0). The control stands beside each map's name: what even "
        "attention would give. Below, means over heads with controls as grey marks, and whether two halves of the "
        "samples agree on the heads (random: heads shuffled).",
        top_finding("Most mass on evidence", table.filter(score="evidence"), models, ("uniform", "untrained"), name),
        table,
        len(models) if len(models) > 2 else 4,
        depth=depth,
        halves=halves,
    )


def _heads(table: pl.DataFrame, score: str, model: str, top: float) -> Plot | None:
    part = table.filter(score=score, model=model)
    heads, layers = (part[name].unique().sort().to_list() for name in ("head", "layer"))
    even = part["uniform"].mean()
    told_even = f" (uniform\u00a0{number_text(even, 2)})" if isinstance(even, float) else ""
    title = f"{_TITLES[score]}: {model}{told_even}"
    size = (max(7, min(26, 270 / max(len(layers), 1))), max(8, min(22, 110 / max(len(heads), 1))))
    where, told = {"score": score, "model": model}, ("model", "layer", "head", "low", "high", *CONTROLS)
    return cells(table, title, where, ("layer", "layer", layers), ("head", "head", heads), top, told=told, size=size)
