"""QK: why a position is an anchor. The advantage of anchors in q.k, and its split into angle and norm.

n_j = |k_j| and a_j = (mean_i q_i).k_j / |k_j| give mean_i q_i.k_j = n_j a_j exactly, so the parts add up. The
heatmaps of one layer need full query and key states, kept on request.
"""

from collections.abc import Iterable
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from floatscope.analysis.anchors import detect, random_like
from floatscope.analysis.depth import depth_table
from floatscope.analysis.results import DEFAULTS, NO_CONTROLS, Controls, Options, Panel, Result, analyse
from floatscope.analysis.uniform import visible_spans
from floatscope.errors import UserError
from floatscope.traces import Trace

Array = NDArray[Any]
MEASURES: dict[str, str] = {
    "qk": "advantage of anchors in mean q.k, in standard deviations over positions",
    "cos": "advantage in mean cosine, in standard deviations",
    "norm": "advantage in mean |q||k|, in standard deviations",
    "angle_part": "part of the q.k advantage due to the angle: n_O (a_S - a_O)",
    "norm_part": "part due to the key's norm: (n_S - n_O) a_O",
    "interaction_part": "the rest: the three parts add up to the q.k advantage",
}

_ROUNDING = 1e-5
_MOST_TOKENS = 256


def qk(traces: Iterable[Trace], options: Options = DEFAULTS, controls: Controls = NO_CONTROLS) -> Result:
    """Anchor advantages per layer, mean over heads and over the steps whose QK sums were kept."""

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
        return {
            "measure": np.repeat(list(MEASURES), trace.layers),
            "layer": np.tile(np.arange(trace.layers), len(MEASURES)),
            "value": np.concatenate([found[name] for name in MEASURES]),
            "random": np.concatenate([chance[name] for name in MEASURES]),
        }

    result, panel = analyse("qk", traces, ("measure", "layer"), measure, options, controls)
    if not panel.frames:
        raise UserError("No trace has QK sums; trace the samples with floatscope (imported files have none).")
    return Result("qk", {**result.tables, "qk_depth": depth_table(panel, options)}, result.notes)


def advantages(trace: Trace, present: Array, *sets: Array) -> list[dict[str, Array]]:
    """present and each set [qk_step, layer, token] -> each measure [layer] of each set; nan where it has no anchor."""
    norms = np.repeat(trace.key_norm, trace.heads // trace.key_norm.shape[2], axis=2)
    angle = np.divide(trace.qk, norms, out=np.zeros_like(norms), where=norms > 0)  # [qk_step, layer, head, token]
    scales = {name: _deviation(trace.arrays[name], present[:, :, None]) for name in ("qk", "cos", "norm")}
    return [_advantages(trace, norms, angle, scales, chosen & present, present & ~chosen) for chosen in sets]


def _advantages(
    trace: Trace, norms: Array, angle: Array, scales: dict[str, Array], inside: Array, outside: Array
) -> dict[str, Array]:
    known: Array = np.asarray(inside.any(axis=-1) & outside.any(axis=-1))  # [qk_step, layer]

    def gap(values: Array) -> tuple[Array, Array]:
        return _mean(values, inside[:, :, None]), _mean(values, outside[:, :, None])

    parts = {}
    for name, scale in scales.items():
        first, second = gap(trace.arrays[name])
        parts[name] = _ratio(first - second, scale)
    (anchors_norm, others_norm), (anchors_angle, others_angle) = gap(norms), gap(angle)
    parts["angle_part"] = _ratio(others_norm * (anchors_angle - others_angle), scales["qk"])
    parts["norm_part"] = _ratio((anchors_norm - others_norm) * others_angle, scales["qk"])
    parts["interaction_part"] = parts["qk"] - parts["angle_part"] - parts["norm_part"]
    return {name: _mean_known(values.mean(axis=-1), known) for name, values in parts.items()}


def qk_heatmaps(
    trace: Trace, layer: int, step: int | None = None, head: int | None = None, options: Options = DEFAULTS
) -> pl.DataFrame:
    """q.k, cos and |q||k| of every pair of one layer, mean over heads or one head; pairs out of sight are null.

    At most the first 256 tokens, as in the published figures. A negative layer counts from the last.
    """
    layer = layer % trace.layers if -trace.layers <= layer < 0 else layer
    queries, keys, step = _kept_states(trace, layer, step)
    keys = np.repeat(keys, len(queries) // len(keys), axis=0)
    products = np.einsum("hid,hjd->hij", queries, keys)
    sizes = np.linalg.norm(queries, axis=-1)[:, :, None] * np.linalg.norm(keys, axis=-1)[:, None, :]
    cosines = np.divide(products, sizes, out=np.zeros_like(products), where=sizes > 0)
    if head is not None and not 0 <= head < len(products):
        raise UserError(f"The trace of {trace.model!r} has {len(products)} heads; there is no head {head}.")
    pick = (lambda values: values.mean(axis=0)) if head is None else (lambda values: values[head])
    chosen = detect(trace, options.detector, options.normalisation)[step, layer] > 0.5
    row, token = np.indices(products.shape[1:])
    first, last, which = visible_spans(trace)
    low, high = (edges[which[layer], : products.shape[1], None] for edges in (first, last))
    hidden = (token < low) | (token >= high)
    columns = {
        name: np.where(hidden, np.nan, pick(v)).ravel()
        for name, v in (("qk", products), ("cos", cosines), ("norm", sizes))
    }
    return pl.DataFrame(
        {
            "model": [trace.model] * row.size,
            "layer": [layer] * row.size,
            "step": [step] * row.size,
            "row": row.ravel(),
            "token": token.ravel(),
            "text": np.array(trace.texts_or_ids, dtype=object)[token.ravel()].astype(str),
            **columns,
            "anchor": chosen[token.ravel()],
        },
        nan_to_null=True,
    )


def _kept_states(trace: Trace, layer: int, step: int | None) -> tuple[Array, Array, int]:
    """queries [head, row, dimension], keys [kv_head, token, dimension] and the step, the last kept by default."""
    layers, steps = trace.matrix_layers.tolist(), trace.matrix_steps.tolist()
    step = int(steps[-1]) if step is None else step
    if layer not in layers or step not in steps:
        raise UserError(
            f"The matrices of the trace of {trace.model!r} are of layers {layers} and steps {steps}; there is none of "
            f"layer {layer} at step {step}."
        )
    place = steps.index(step), layers.index(layer)
    rows = min(int(trace.rows[step]), _MOST_TOKENS)
    queries = trace.queries[place][:, :rows].astype(np.float64)
    return queries, trace.keys[place][:, :_MOST_TOKENS].astype(np.float64), step


def _mean(values: Array, among: Array) -> Array:
    """Mean over the chosen columns: [qk_step, layer, head, token], [qk_step, layer, 1, token] -> [.., head]."""
    weights = (among / np.maximum(among.sum(axis=-1, keepdims=True), 1)).astype(values.dtype)[:, :, 0]
    return np.einsum("slht,slt->slh", values, weights)


def _deviation(values: Array, among: Array) -> Array:
    """Population standard deviation over the columns that exist, [qk_step, layer, head]; 0 if it is rounding.

    A model that normalises q and k has equal norms everywhere: what varies then is noise, and nothing stands out.
    """
    mean = _mean(values, among)
    apart = values - mean[..., None]
    deviation = np.sqrt(_mean(apart * apart, among))
    return np.where(deviation > _ROUNDING * np.abs(mean), deviation, 0)


def _ratio(values: Array, scale: Array) -> Array:
    return np.divide(values, scale, out=np.zeros_like(values), where=scale > 0)


def _mean_known(values: Array, known: Array) -> Array:
    """[qk_step, layer] -> [layer]"""
    count = known.sum(axis=0)
    total = np.where(known, values, 0).sum(axis=0)
    return np.divide(total, count, out=np.full(count.shape, np.nan), where=count > 0)
