"""Dispersion: how spread out received attention is, per layer ("shallow spread, deep sparse" in numbers)."""

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from floatscope.analysis.anchors import field_of, parse_detector
from floatscope.analysis.depth import CONTRAST, depth_table
from floatscope.analysis.drawing import arrange, lines
from floatscope.analysis.figure import Figure
from floatscope.analysis.findings import by_model, rows_by_model, sentence
from floatscope.analysis.results import DEFAULTS, NO_CONTROLS, Controls, Options, Panel, Result, analyse
from floatscope.analysis.uniform import uniform_layers
from floatscope.traces import Trace

MEASURES: dict[str, str] = {
    "anchors": "number of anchors",
    "effective_share": "exp(entropy of received attention) / columns: 1 if even, 1/columns if all on one",
    "gini": "Gini coefficient of received attention: 0 if even, towards 1 if all on one",
    "top_share": "share of the position that receives most",
}


def dispersion(traces: Iterable[Trace], options: Options = DEFAULTS, controls: Controls = NO_CONTROLS) -> Result:
    """Every dispersion measure per model and layer, mean over steps."""

    def measure(trace: Trace, rng: np.random.Generator, panel: Panel) -> dict[str, Any]:
        panel.note("The column 'random' is null: shuffling positions does not change how spread out they are.")
        found = trace_dispersion(trace, options)
        even, kinds = uniform_layers(trace)
        flat = trace_dispersion(even, options)
        return {
            "measure": np.repeat(list(MEASURES), trace.layers),
            "layer": np.tile(np.arange(trace.layers), len(MEASURES)),
            "value": np.concatenate([found[name] for name in MEASURES]),
            "uniform": np.concatenate([flat[name][kinds] for name in MEASURES]),
        }

    result, panel = analyse("dispersion", traces, ("measure", "layer"), measure, options, controls)
    return Result("dispersion", {**result.tables, "dispersion_depth": depth_table(panel, options)}, result.notes)


def trace_dispersion(trace: Trace, options: Options = DEFAULTS) -> dict[str, NDArray[np.float64]]:
    """Every measure of one trace, [layer]."""
    field = field_of(trace, options.normalisation)
    scores = np.where(field.present, field.scores, 0).astype(np.float64)  # [step, layer, token]
    share = scores / np.maximum(scores.sum(axis=-1, keepdims=True), 1e-12)
    columns = np.maximum(field.present.sum(axis=-1), 1)
    logs = np.log(np.where(share > 0, share, 1))
    measures = {
        "anchors": parse_detector(options.detector)(field).sum(axis=-1),
        "effective_share": np.exp(-(share * logs).sum(axis=-1)) / columns,
        "gini": _gini(share, columns),
        "top_share": share.max(axis=-1),
    }
    return {name: values.mean(axis=0, dtype=np.float64) for name, values in measures.items()}


def _gini(share: NDArray[np.float64], columns: NDArray[np.int64]) -> NDArray[np.float64]:
    """G = sum_i (2 i - n - 1) x_i / n over ascending shares x that sum to 1; absent columns sort first."""
    ascending = np.sort(share, axis=-1)
    absent = share.shape[-1] - columns[..., None]
    rank = np.arange(1, share.shape[-1] + 1) - absent
    weights = 2 * rank - columns[..., None] - 1
    return (weights * ascending).sum(axis=-1) / columns


_TITLES = {
    "anchors": "number of anchors",
    "effective_share": "exp(entropy) / columns",
    "gini": "Gini coefficient",
    "top_share": "share of the top position",
}


def figure(result: Result, models: Sequence[str]) -> Figure:
    """Every dispersion measure per layer."""
    table = result.table
    contrast = result.tables["dispersion_depth"].filter(measure="effective_share", depth=CONTRAST)
    beside = {name: by_model(contrast, models, name) for name in ("uniform", "untrained")}
    return Figure(
        "dispersion",
        "How spread out attention is, by depth",
        arrange(
            [lines(table, title, {"measure": name}, models) for name, title in _TITLES.items()], {"table": table}, 2
        ),
        table,
        "exp(entropy) / columns is 1 if all positions receive the same, near 0 if one receives everything; the Gini "
        "coefficient runs the other way. Thin lines are controls: even attention under the same visibility, the "
        "untrained model.",
        finding=sentence(
            "exp(entropy) / columns, shallow third minus deep third", rows_by_model(contrast, models), beside, 3
        ),
        notes=result.notes,
    )
