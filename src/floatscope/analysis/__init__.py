"""The analyses: each a function from traces to tidy tables with control columns, and its figure. They know no models.

`ANALYSES` is the one list that the CLI, studies, the report, the docs and the tests read, in the order in which a page
shows them. To add an analysis is to add its file and a row, here or in a file of your own that FLOATSCOPE_EXTENSIONS
names.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from floatscope.analysis.reading import find_traces, of_conditions, split_controls
from floatscope.analysis.results import Controls, Options, Result
from floatscope.registry import Registry, load_object
from floatscope.traces import Trace

if TYPE_CHECKING:
    from floatscope.analysis.figure import Figure


@dataclass(frozen=True)
class Analysis:
    """A row of the registry. Functions are given as they are, or as "module:object" and loaded when first used."""

    name: str
    description: str
    function: Callable[..., Result] | str
    """(traces, options, controls, ...) -> Result"""
    figure: Callable[[Result, Sequence[str]], Figure] | str
    """(result, models) -> Figure; models in the order in which they are drawn."""
    trace_figure: Callable[..., Figure | None] | str | None = None
    """(traces, models, layer, options) -> Figure of single traces, or None where they do not hold what it needs."""


def _row(name: str, description: str, trace_figure: str | None = None) -> Analysis:
    module = f"floatscope.analysis.{name}"
    picture = trace_figure and f"floatscope.analysis.{trace_figure}"
    return Analysis(name, description, f"{module}:{name}", f"{module}:figure", picture)


ANALYSES: Registry[Analysis] = Registry(
    "analysis",
    {
        row.name: row
        for row in (
            _row("drift", "how anchors and received attention move from step to step", "step_map:step_map"),
            _row("absorption", "percent of attention on the first token and on the detected anchors"),
            _row("anchors", "positions whose received attention stands out, by detector and layer"),
            _row("dispersion", "how spread out received attention is, by layer"),
            _row("token_classes", "what anchors are made of, by depth and by step"),
            _row("qk", "why anchors are anchors: angle, norm and their interaction", "qk:matrices"),
            _row("query_state", "where masked slots look, against committed ones"),
            _row("retrieval_heads", "heads that look at the evidence, and how stable their ranking is"),
            _row("flow", "attention between regions, per layer and rolled out"),
            _row("task_dependence", "whether anchors differ more between tasks than within"),
            _row("compat", "the published computations, quirk by quirk, beside the exact ones"),
        )
    },
)


def analyze(
    name: str,
    traces: Trace | Iterable[Trace] | str | Path,
    options: Options | None = None,
    controls: Controls | None = None,
    condition: str | None = None,
    **settings: Any,
) -> Result:
    """Run an analysis by name: tables with controls, and its figure, which a notebook shows.

    traces: one, or a list of them; or a run, a folder or a file, whose control passes are used as controls.
    condition: of a run that has traces of several. `settings` are the analysis's own (such as `alpha` of flow).
    """
    if isinstance(traces, str | Path):
        files = of_conditions(find_traces(traces), () if condition is None else (condition,))
        traces, found = split_controls(files)
        controls = controls or found
    traces = [traces] if isinstance(traces, Trace) else traces
    return load_object(ANALYSES.named(name).function)(traces, options or Options(), controls or Controls(), **settings)


def draw(
    name: str, results: Mapping[str, Result], models: Sequence[str] = (), group: Mapping[str, str] | None = None
) -> Figure:
    """The figure of one of the results; with "compat" among them, it has the published view where there is one.

    `models` are drawn in this order and in the colours of their places; others of the table follow, MDMs first.
    `group` is one of the result's groups (task and condition); the first, unless one is given.
    """
    groups = results[name].groups
    group = next(iter(groups), {}) if group is None else group
    table = results[name].of(group).table
    found = table.unique("model", maintain_order=True) if "model" in table.columns else table.clear()
    if "kind" in found.columns:
        found = found.sort(found["kind"] == "arm", maintain_order=True)
    others = [str(model) for model in found["model"]] if found.height else []
    models = (*models, *(model for model in others if model not in models))
    figure = load_object(ANALYSES.named(name).figure)(results[name].of(group), models)
    if "compat" in results and name != "compat":
        published = load_object(ANALYSES.named("compat").figure)(results["compat"].of(group), models, name)
        figure = dataclasses.replace(figure, published=None if published.table.is_empty() else published)
    if len(groups) < 2:
        return figure
    told, *others = (", ".join(filter(None, one.values())) for one in (group, *(g for g in groups if g != group)))
    note = f"Drawn: {told}. Not pooled with it, and in the tables: {'; '.join(others)}."
    return dataclasses.replace(
        figure, subtitle="; ".join(filter(None, (told, figure.subtitle))), notes=(note, *figure.notes)
    )


def draw_traces(
    name: str, traces: Iterable[Trace], models: Sequence[str], layer: int | None = None, options: Options | None = None
) -> Figure | None:
    """The picture that an analysis has of single traces; None where it has none, or the traces lack what it needs."""
    picture = load_object(ANALYSES.named(name).trace_figure)
    return picture(traces, models, layer, options or Options()) if picture is not None else None


__all__ = ["ANALYSES", "Analysis", "Controls", "Options", "Result", "analyze", "draw", "draw_traces"]
