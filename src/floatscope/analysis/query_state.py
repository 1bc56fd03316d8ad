"""Query state: where slots that are still masked look, against slots that have committed."""

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import polars as pl

from floatscope.analysis.cells import Array, cell_columns, mean_known
from floatscope.analysis.depth import THIRDS, third_members
from floatscope.analysis.drawing import Plot, dots, table_ends
from floatscope.analysis.figure import Figure, result_figure, top_finding
from floatscope.analysis.results import Controls, Options, Panel, Result, analyse
from floatscope.analysis.token_classes import CLASSES, class_mass, step_classes
from floatscope.analysis.uniform import uniform_trace
from floatscope.canvas import ANSWER
from floatscope.traces import Trace

STATES = ("masked", "committed", "masked - committed")


def query_state(traces: Iterable[Trace], options: Options, controls: Controls) -> Result:
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
        flat = _trace_states(uniform_trace(trace))
        columns = cell_columns(("state", "depth", "target"), value=_trace_states(trace), uniform=flat)
        kinds = ["region"] * len(trace.region_labels) + ["class"] * len(CLASSES)
        names = [*trace.region_labels, *CLASSES]
        place = columns["target"]
        return columns | {"target_kind": np.array(kinds)[place], "target": np.array(names)[place]}

    keys = ("state", "depth", "target_kind", "target")
    nothing = "No trace has an answer region; trace prompts built from questions and documents."
    return analyse("query_state", traces, keys, measure, options, controls, nothing)[0]


def _trace_states(trace: Trace) -> dict[tuple[str, str], Array]:
    """[target] by state, depth and all: mean over steps that have such rows; targets are regions, then classes."""
    groups = [trace.group_labels.index(f"{ANSWER}:{state}") for state in STATES[:2]]
    rows = trace.group_rows[:, groups].T.astype(np.float64)  # [state, step]
    regions = len(trace.region_labels)
    mass = trace.region_attention[:, :, :, groups, :regions].mean(axis=2)  # [step, layer, state, region]
    values = np.moveaxis(mass, 2, 0)  # [state, step, layer, region]
    if trace.texts is not None:
        classes = step_classes(trace)
        masked, answer = (class_mass(mass, classes) for mass in (trace.received_masked, trace.received_answer))
        weight, total = rows[0][:, None, None], rows.sum(axis=0)[:, None, None]
        # committed rows are the answer's rows without the masked ones
        committed = (answer * total - masked * weight) / np.maximum(total - weight, 1)
        values = np.concatenate([values, np.stack([masked, committed])], axis=-1)
    depth = third_members(trace.layers)  # [4, layer]
    depth /= np.maximum(depth.sum(axis=1, keepdims=True), 1)
    pooled = np.einsum("dl,nslt->nsdt", depth, values)  # [state, step, depth, target]
    masked, committed = rows > 0
    parts = ((pooled[0], masked), (pooled[1], committed), (pooled[0] - pooled[1], masked & committed))
    return {
        (state, third): mean_known(part[:, number], known[:, None])
        for state, (part, known) in zip(STATES, parts, strict=True)
        for number, third in enumerate((*THIRDS, "all"))
    }


def figure(result: Result, models: Sequence[str]) -> Figure:
    """Where masked and committed slots look, by region and token class."""
    table = result.table.filter(pl.col("depth") == "all", pl.col("state").is_in(STATES[:2]))
    groups: dict[str, list[Plot | None]] = {}
    for kind, title in {"region": "to regions", "class": "to token classes"}.items():
        part = table.filter(target_kind=kind).drop_nulls("value")
        order = part["target"].unique(maintain_order=True).to_list()
        look = {"hollow": "datum.state == 'masked'", "apart": "state", "ends": table_ends(part, zero=True)}
        where = ({"target_kind": kind, "model": model} for model in models)
        groups[title] = [dots(table, one["model"], one, models, "target", order, "share", **look) for one in where]
    differ = result.table.filter(depth="all", state=STATES[2], target_kind="region")
    what, name = "Masked minus committed slots, the region that differs most", pl.format("{} {}", "model", "target")
    return result_figure(
        result,
        "Where answer slots look: masked against committed",
        groups,
        "Share of attention from slots that are still masked (hollow) and from slots that have committed (full), mean "
        "over layers. Grey marks are controls: even attention under the same visibility, the untrained model. An ARM "
        "has no masked slots.",
        top_finding(what, differ, models, ("uniform", "untrained"), name, 3),
        table,
        subtitle="hollow: still masked",
    )
