"""QK: why a position is an anchor. The advantage of anchors in q.k, and its split into angle and norm.

n_j = |k_j| and a_j = (mean_i q_i).k_j / |k_j| give mean_i q_i.k_j = n_j a_j exactly, so the parts add up. The
heatmaps of one layer need full query and key states, kept on request.
"""

from collections.abc import Iterable, Sequence
from typing import Any

import altair as alt
import numpy as np
import polars as pl

from floatscope.analysis.anchors import detect, random_like
from floatscope.analysis.cells import Array, cell_columns, mean_known, ratio
from floatscope.analysis.depth import depth_table
from floatscope.analysis.drawing import Plot, arrange, lines, plot, table_ends, token_axis, tooltips
from floatscope.analysis.figure import Figure, by_model, result_figure, sentence
from floatscope.analysis.palette import HEAT
from floatscope.analysis.results import Controls, Options, Panel, Result, analyse
from floatscope.analysis.uniform import visible_spans
from floatscope.errors import UserError
from floatscope.traces import Trace

_ROUNDING = 1e-5
_MOST_TOKENS = 256
_MOST_CELLS = 96


def qk(traces: Iterable[Trace], options: Options, controls: Controls) -> Result:
    """Anchor advantages per layer, mean over heads and over the steps whose QK sums were kept."""
    keys = ("measure", "layer")

    def measure(trace: Trace, rng: np.random.Generator, panel: Panel) -> dict[str, Any] | None:
        if not trace.qk_steps or "qk" not in trace.arrays:
            panel.note("Traces without QK sums are left out.")
            return None
        panel.note("The column 'uniform' is null: even attention has no queries and keys.")
        steps = list(trace.qk_steps)
        chosen = detect(trace, options.detector, options.normalisation)[steps] > 0.5
        present = (trace.visible > 0)[steps]
        if not chosen.any():
            panel.note("Traces without any anchor at the QK steps have null advantages.")
        found, chance = advantages(trace, present, chosen, random_like(chosen, present, rng))
        return cell_columns(keys, value=found, random=chance)

    nothing = "No trace has QK sums; trace the samples with floatscope (imported files have none)."
    return analyse("qk", traces, keys, measure, options, controls, nothing, qk_depth=depth_table)[0]


def advantages(trace: Trace, present: Array, *sets: Array) -> list[dict[str, Array]]:
    """present and each set [qk_step, layer, token] -> each measure [layer] of each set; nan where it has no anchor."""
    norms = np.repeat(trace.key_norm, trace.heads // trace.key_norm.shape[2], axis=2)
    angle = ratio(trace.qk, norms, 0)  # [qk_step, layer, head, token]
    sums = {name: trace.arrays[name] for name in ("qk", "cos", "norm")}
    scales = {name: _deviation(values, present) for name, values in sums.items()}
    arrays = {"norms": norms, "angle": angle} | sums
    found = []
    for chosen in sets:
        inside, outside = chosen & present, present & ~chosen
        known: Array = np.asarray(inside.any(axis=-1) & outside.any(axis=-1))  # [qk_step, layer]
        means = {name: (_mean(values, inside), _mean(values, outside)) for name, values in arrays.items()}
        parts = {name: ratio(means[name][0] - means[name][1], scale, 0) for name, scale in scales.items()}
        (anchors_norm, others_norm), (anchors_angle, others_angle) = means["norms"], means["angle"]
        parts["angle_part"] = ratio(others_norm * (anchors_angle - others_angle), scales["qk"], 0)
        parts["norm_part"] = ratio((anchors_norm - others_norm) * others_angle, scales["qk"], 0)
        parts["interaction_part"] = parts["qk"] - parts["angle_part"] - parts["norm_part"]
        found.append({name: mean_known(values.mean(axis=-1), known) for name, values in parts.items()})
    return found


def qk_heatmaps(trace: Trace, layer: int, options: Options) -> pl.DataFrame:
    """q.k, cos and |q||k| of every pair of a layer at the last step kept, mean over heads; pairs out of sight are null.

    At most the first 256 tokens, as in the published figures. A negative layer counts from the last.
    """
    layer = layer % trace.layers if -trace.layers <= layer < 0 else layer
    layers, step = trace.matrix_layers.tolist(), int(trace.matrix_steps[-1])
    if layer not in layers:
        raise UserError(
            f"The matrices of the trace of {trace.model!r} are of layers {layers}; there is none of layer {layer}."
        )
    rows, place = min(int(trace.rows[step]), _MOST_TOKENS), layers.index(layer)
    queries = trace.queries[-1, place, :, :rows].astype(np.float64)  # [head, row, dimension]
    keys = trace.keys[-1, place, :, :_MOST_TOKENS].astype(np.float64)
    keys = np.repeat(keys, len(queries) // len(keys), axis=0)
    products = np.einsum("hid,hjd->hij", queries, keys)
    sizes = np.linalg.norm(queries, axis=-1)[:, :, None] * np.linalg.norm(keys, axis=-1)[:, None, :]
    found = {"qk": products, "cos": ratio(products, sizes, 0), "norm": sizes}
    chosen = detect(trace, options.detector, options.normalisation)[step, layer] > 0.5
    row, token = np.indices(products.shape[1:])
    first, last, which = visible_spans(trace)
    low, high = (edges[which[layer], :rows, None] for edges in (first, last))
    hidden = (token < low) | (token >= high)
    return pl.DataFrame(
        {
            "model": [trace.model] * row.size,
            "layer": [layer] * row.size,
            "step": [step] * row.size,
            "row": row.ravel(),
            "token": token.ravel(),
            "text": np.array(trace.texts_or_ids, dtype=object)[token.ravel()].astype(str),
            **{name: np.where(hidden, np.nan, values.mean(axis=0)).ravel() for name, values in found.items()},
            "anchor": chosen[token.ravel()],
        },
        nan_to_null=True,
    )


def _mean(values: Array, among: Array) -> Array:
    """Mean over the chosen columns: [qk_step, layer, head, token], [qk_step, layer, token] -> [.., head]."""
    weights = (among / np.maximum(among.sum(axis=-1, keepdims=True), 1)).astype(values.dtype)
    return np.einsum("slht,slt->slh", values, weights)


def _deviation(values: Array, among: Array) -> Array:
    """Population standard deviation over the columns that exist, [qk_step, layer, head]; 0 if it is rounding.

    A model that normalises q and k has equal norms everywhere: what varies then is noise, and nothing stands out.
    """
    mean = _mean(values, among)
    apart = values - mean[..., None]
    deviation = np.sqrt(_mean(apart * apart, among))
    return np.where(deviation > _ROUNDING * np.abs(mean), deviation, 0)


_TITLES = {
    "qk": "advantage in q·k",
    "cos": "advantage in cosine",
    "norm": "advantage in |q||k|",
    "angle_part": "part of the angle",
    "norm_part": "part of the norm",
    "interaction_part": "interaction",
}


def figure(result: Result, models: Sequence[str]) -> Figure:
    """Anchor advantages and their parts per layer, on one scale."""
    table = result.table
    ends = table_ends(table, zero=True)
    panels = [
        lines(table, title, {"measure": name}, models, y="std. dev.", ends=ends) for name, title in _TITLES.items()
    ]
    angle, norm = (table.filter(measure=name) for name in ("angle_part", "norm_part"))
    beside = {"norm": by_model(norm, models), "angle of random positions": by_model(angle, models, "random")}
    return result_figure(
        result,
        "Why anchors are anchors: angle or norm",
        panels,
        "The advantage of anchor columns over the others in q·k, and its three parts, which add up to it: the angle, "
        "the length of the key, and both together. Thin lines are controls: as many random positions, the untrained "
        "model.",
        sentence("Part of the angle, mean over layers", by_model(angle, models), beside),
    )


def matrices(traces: Iterable[Trace], models: Sequence[str], layer: int | None, options: Options) -> Figure | None:
    """q.k, cos and |q||k| of a layer for the first trace of each model that kept them; None where none did.

    Larger matrices are drawn as means over square blocks of pairs, so that a figure stays a few megabytes.
    """
    shown: dict[str, pl.DataFrame] = {}
    for trace in traces if layer is not None else ():
        if trace.model not in shown and {"queries", "keys"} <= set(trace.arrays):
            shown[trace.model] = qk_heatmaps(trace, layer or 0, options)
    if not shown:
        return None
    groups, blocks, tables = {}, {}, {}
    for place, (model, table) in enumerate(shown.items()):
        tables[f"matrices {place}"], blocks[model] = _blocks(table)
        heading = f"{model}: layer {table['layer'][0]}, step {table['step'][0]}"
        groups[heading] = [
            _matrix(tables[f"matrices {place}"], name, title, f"matrices {place}")
            for name, title in (("qk", "q·k"), ("cos", "cos"), ("norm", "|q||k|"))
        ]
    pooled = [f"{model}: cells are means over {size} x {size} pairs." for model, size in blocks.items() if size > 1]
    return Figure(
        "qk_matrices",
        "Queries and keys of one layer",
        arrange(groups, tables, apart=True),
        pl.concat(shown.values()),
        "Rows are queries, columns keys; triangles mark the anchors.",
        notes=tuple(pooled),
        subtitle="; ".join(["triangle: anchor", *pooled]),
    )


def _blocks(table: pl.DataFrame) -> tuple[pl.DataFrame, int]:
    """Means over square blocks of pairs, so that at most 96 stand in a row; and the side of a block."""
    block = -(-table["token"].n_unique() // _MOST_CELLS)
    starts = [(pl.col(name) // block * block).alias(name) for name in ("row", "token")]
    means = [pl.col("qk", "cos", "norm").mean(), pl.col("anchor").any(), pl.col("text").first()]
    known = table.drop_nulls("qk").with_columns(starts).group_by("row", "token", maintain_order=True).agg(means)
    return known, block


def _matrix(table: pl.DataFrame, value: str, title: str, name: str) -> Plot:
    texts = dict(table.sort("token").select("token", "text").unique("token", keep="first").rows())
    size = max(260, min(560, 9 * len(texts)))
    base = alt.Chart().encode(x=alt.X("token:O", axis=token_axis(texts, size, -90), title="key"))
    shade = alt.Color(f"{value}:Q", title=None, scale=alt.Scale(scheme="viridis"), legend=alt.Legend(orient="right"))
    drawn = base.mark_rect().encode(
        y=alt.Y("row:O", axis=token_axis(texts, size, 0), title="query"),
        color=shade,
        tooltip=[*tooltips("row", "token", "text"), alt.Tooltip(f"{value}:Q", format=".3~r")],
    )
    marks = base.transform_filter("datum.anchor").mark_point(
        shape="triangle-down", filled=True, size=40, color=HEAT, opacity=1, yOffset=-6
    )
    return plot([drawn, marks.encode(y=alt.value(0))], title, table, {}, size, size, name=name)
