"""Query state: where slots that are still masked look, against slots that have committed."""

from collections.abc import Iterable, Sequence
from typing import Any

import altair as alt
import numpy as np
import polars as pl
from numpy.typing import NDArray

from floatscope.analysis.depth import THIRDS, thirds
from floatscope.analysis.drawing import (
    CONTROL,
    INK,
    POINT,
    Plot,
    arrange,
    ends_of,
    model_colour,
    plot,
    tooltips,
)
from floatscope.analysis.figure import Figure
from floatscope.analysis.findings import interval_text, number_text
from floatscope.analysis.results import DEFAULTS, NO_CONTROLS, Controls, Options, Panel, Result, analyse
from floatscope.analysis.token_classes import CLASSES, class_mass, step_classes
from floatscope.analysis.uniform import uniform_trace
from floatscope.canvas import ANSWER
from floatscope.errors import UserError
from floatscope.traces import Trace

Array = NDArray[Any]
STATES = ("masked", "committed", "masked - committed")


def query_state(traces: Iterable[Trace], options: Options = DEFAULTS, controls: Controls = NO_CONTROLS) -> Result:
    """Attention from masked and from committed answer rows to each region and token class, by depth third.

    The difference is taken per sample over the steps that have both kinds of rows.
    """

    def measure(trace: Trace, rng: np.random.Generator, panel: Panel) -> dict[str, Any] | None:
        if ANSWER not in trace.region_labels:
            panel.note("Traces without an answer region are left out.")
            return None
        panel.note("The column 'random' is null: targets are given, not chosen.")
        if trace.texts is None:
            panel.note("Traces without token texts have no token classes: only their regions are measured.")
        if trace.kind == "arm":
            panel.note("An ARM has no masked rows: its values for 'masked' are null.")
        found, labels = _trace_states(trace)
        flat, _ = _trace_states(uniform_trace(trace))
        kinds = [kind for kind, _ in labels]
        names = [name for _, name in labels]
        blocks = len(STATES) * 4
        return {
            "state": np.repeat(STATES, 4 * len(labels)),
            "depth": np.tile(np.repeat((*THIRDS, "all"), len(labels)), len(STATES)),
            "target_kind": kinds * blocks,
            "target": names * blocks,
            "value": found.ravel(),
            "uniform": flat.ravel(),
        }

    keys = ("state", "depth", "target_kind", "target")
    result, panel = analyse("query_state", traces, keys, measure, options, controls)
    if not panel.frames:
        raise UserError("No trace has an answer region; trace prompts built from questions and documents.")
    return result


def _trace_states(trace: Trace) -> tuple[Array, list[tuple[str, str]]]:
    """[state, depth and all, target] mean over steps that have such rows, and the targets."""
    groups = [trace.group_labels.index(f"{ANSWER}:{state}") for state in STATES[:2]]
    rows = trace.group_rows[:, groups].T.astype(np.float64)  # [state, step]
    regions = len(trace.region_labels)
    mass = trace.region_attention[:, :, :, groups, :regions].mean(axis=2)  # [step, layer, state, region]
    values = np.moveaxis(mass, 2, 0)  # [state, step, layer, region]
    labels = [("region", label) for label in trace.region_labels]
    if trace.texts is not None:
        values = np.concatenate([values, _by_class(trace, rows)], axis=-1)
        labels += [("class", name) for name in CLASSES]
    depth = np.vstack([np.eye(3)[:, thirds(trace.layers)], np.ones(trace.layers)])  # [4, layer]
    depth /= np.maximum(depth.sum(axis=1, keepdims=True), 1)
    pooled = np.einsum("dl,nslt->nsdt", depth, values)  # [state, step, depth, target]
    both = (rows[0] > 0) & (rows[1] > 0)
    parts = [_over_steps(pooled[n], rows[n] > 0) for n in (0, 1)]
    return np.stack([*parts, _over_steps(pooled[0] - pooled[1], both)]), labels


def _by_class(trace: Trace, rows: Array) -> Array:
    """[state, step, layer, class]; committed rows are the answer's rows without the masked ones."""
    classes = step_classes(trace)
    masked = class_mass(trace.received_masked, classes)
    answer = class_mass(trace.received_answer, classes)
    weight, total = rows[0][:, None, None], rows.sum(axis=0)[:, None, None]
    committed = (answer * total - masked * weight) / np.maximum(total - weight, 1)
    return np.stack([masked, committed])


def _over_steps(values: Array, known: Array) -> Array:
    """[step, depth, target] -> [depth, target]; nan where no step counts."""
    if not known.any():
        return np.full(values.shape[1:], np.nan)
    return values[known].mean(axis=0)


_KINDS = {"region": "to regions", "class": "to token classes"}
_SHAPES = {"masked": "circle", "committed": "square"}


def figure(result: Result, models: Sequence[str]) -> Figure:
    """Where masked and committed slots look, by region and token class."""
    table = result.table.filter(pl.col("depth") == "all", pl.col("state").is_in(list(_SHAPES)))
    groups = {
        title: [_targets(table, kind, model, models) for model in models if model in table["model"]]
        for kind, title in _KINDS.items()
    }
    return Figure(
        "query_state",
        "Where answer slots look: masked against committed",
        arrange(groups, {"table": table}),
        table,
        "Share of attention from slots that are still masked (circles) and from slots that have committed (squares), "
        "mean over layers. Grey ticks are controls: even attention under the same visibility (long) and the untrained "
        "model (short). An ARM has no masked slots.",
        finding=_largest(result.table.filter(depth="all", state=STATES[2]), models),
        notes=result.notes,
        subtitle="grey ticks: uniform (long), untrained (short)",
    )


def _targets(table: pl.DataFrame, kind: str, model: str, models: Sequence[str]) -> Plot | None:
    part = table.filter(target_kind=kind).drop_nulls("value")
    if part.filter(model=model).is_empty():
        return None
    order = part["target"].unique(maintain_order=True).to_list()
    numbers = [number for name in ("value", "low", "high", "uniform", "untrained") for number in part[name].to_list()]
    scale = alt.Scale(domain=ends_of(numbers, zero=True), nice=True)
    base = alt.Chart().encode(y=alt.Y("target:N", title=None, scale=alt.Scale(domain=order), axis=alt.Axis(grid=True)))
    colour = model_colour(models, table["model"], legend=False)

    def share(name: str) -> alt.X:
        return alt.X(f"{name}:Q", title="share of attention", scale=scale, axis=alt.Axis(tickCount=4))

    shape = alt.Shape(
        "state:N",
        scale=alt.Scale(domain=list(_SHAPES), range=list(_SHAPES.values())),
        legend=alt.Legend(title=None, symbolFillColor=INK, symbolStrokeWidth=0, symbolSize=60),
    )
    told = tooltips("model", "state", "target", "value", "low", "high", "uniform", "untrained", "samples")
    layers = [
        base.mark_tick(color=CONTROL, thickness=1.5, size=14).encode(x=share("uniform")),
        base.mark_tick(color=CONTROL, thickness=3, size=5).encode(x=share("untrained")),
        base.mark_rule(strokeWidth=1.6, opacity=0.6).encode(x=share("low"), x2="high:Q", color=colour),
        base.mark_point(**POINT).encode(x=share("value"), color=colour, shape=shape, tooltip=told),
    ]
    where, known = {"target_kind": kind, "model": model}, [{"filter": "isValid(datum.value)"}]
    return plot(layers, model, table, where, height=20 * len(order), transform=known)


def _largest(table: pl.DataFrame, models: Sequence[str]) -> str:
    """The region whose share differs most between masked and committed slots, by model."""
    words = []
    for model in models:
        part = table.filter(model=model, target_kind="region").drop_nulls("value")
        for row in part.sort(pl.col("value").abs(), descending=True, maintain_order=True).head(1).iter_rows(named=True):
            words.append(
                f"{model} {row['target']} {interval_text(row['value'], row['low'], row['high'], 3)} "
                f"(uniform {number_text(row['uniform'])}, untrained {number_text(row['untrained'])})"
            )
    return f"Masked minus committed slots, the region that differs most: {'; '.join(words)}." if words else ""
