"""The analyses: each a function from traces to tidy tables with control columns. They know traces and no models.

`ANALYSES` is the one list that the CLI, the report, the docs and the tests read. To add an analysis is to add its
file and a row here.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from floatscope.analysis.results import Controls, Options, Result
from floatscope.errors import UserError
from floatscope.traces import Trace


@dataclass(frozen=True)
class Analysis:
    """A row of the registry; function and figure are loaded when they are first used."""

    name: str
    description: str
    function_path: str
    figure_path: str

    @property
    def function(self) -> Callable[..., Result]:
        """(traces, options, controls, ...) -> Result"""
        return _load(self.function_path)

    @property
    def figure(self) -> Callable[..., Any]:
        """(result, theme) -> altair chart"""
        return _load(self.figure_path)


def _load(path: str) -> Callable[..., Any]:
    module, _, name = path.partition(":")
    return getattr(import_module(module), name)


def _row(name: str, description: str) -> Analysis:
    return Analysis(name, description, f"floatscope.analysis.{name}:{name}", f"floatscope.report.figures:{name}")


ANALYSES: dict[str, Analysis] = {
    row.name: row
    for row in (
        _row("anchors", "positions whose received attention stands out, by detector and layer"),
        _row("drift", "how anchors and received attention move from step to step"),
        _row("absorption", "percent of attention on the first token and on the detected anchors"),
        _row("token_classes", "what anchors are made of, by depth and by step"),
        _row("dispersion", "how spread out received attention is, by layer"),
        _row("retrieval_heads", "heads that look at the evidence, and how stable their ranking is"),
        _row("flow", "attention between regions, per layer and rolled out"),
        _row("qk", "why anchors are anchors: angle, norm and their interaction"),
        _row("query_state", "where masked slots look, against committed ones"),
        _row("task_dependence", "whether anchors differ more between tasks than within"),
        _row("compat", "the published computations, quirk by quirk, beside the exact ones"),
    )
}


def analyze(
    name: str,
    traces: Iterable[Trace],
    options: Options | None = None,
    controls: Controls | None = None,
    **settings: Any,
) -> Result:
    """Run an analysis by name; `settings` are its own parameters (such as `alpha` of flow)."""
    if name not in ANALYSES:
        raise UserError(f"There is no analysis {name!r}; known are {', '.join(ANALYSES)}.")
    return ANALYSES[name].function(traces, options or Options(), controls or Controls(), **settings)


__all__ = ["ANALYSES", "Analysis", "Controls", "Options", "Result", "analyze"]
