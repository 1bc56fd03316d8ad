"""The verb that reads traces: `analyze`. Its help lists the rows of the registry."""

from __future__ import annotations

import textwrap
from dataclasses import replace
from inspect import signature
from pathlib import Path
from typing import Annotated, Any, Literal

from floatscope.cli import flags
from floatscope.cli.shared import REPEATED, one_line, printable
from floatscope.errors import UserError


def analyze(
    analysis: Annotated[str, flags.analyses()],
    traces: tuple[Path, ...],
    /,
    *,
    out: Path,
    untrained: Annotated[tuple[Path, ...], REPEATED] = (),
    null_query: Annotated[tuple[Path, ...], REPEATED] = (),
    condition: Annotated[tuple[str, ...], REPEATED] = (),
    detector: Annotated[str, flags.detectors()] = "zscore(3)",
    normalisation: Literal["rows", "visible"] = "rows",
    alpha: float | None = None,
    layer: int = -1,
    seed: int = 0,
    theme: Literal["light", "dark"] = "light",
) -> None:
    """Run an analysis of traces: tables with controls as parquet, figures as SVG, PDF and HTML.

    Example: floatscope analyze drift runs/first --out runs/drift

    Parameters
    ----------
    traces
        Runs, folders of traces or trace files; control passes of a run are used as controls.
    out
        Folder for tables and figures; made if needed.
    untrained
        Traces of the same model with random weights: the control "untrained".
    null_query
        Traces with a question that asks nothing: the control of retrieval heads.
    condition
        The condition whose traces are read, where a run has traces of several; may be given more than once. Tasks and
        conditions are measured apart, each with a figure of its own.
    normalisation
        Received attention over all rows, or over the rows that see the column.
    alpha
        Weight of attention against the residual stream in the rollout, 0 to 1 (flow).
    layer
        Layer of the pictures of single traces (drift, and qk of traces kept with --keep matrices); -1 is the last.
    seed
        Seed of bootstrap and random controls.
    theme
        Colours of the figure.
    """
    from floatscope.analysis import ANALYSES, Options, draw, draw_traces
    from floatscope.analysis import analyze as run
    from floatscope.analysis.reading import find_traces, of_conditions, split_controls
    from floatscope.files import replace_text
    from floatscope.registry import load_object
    from floatscope.reports.page import figure_page

    options = Options(detector, normalisation, seed)
    settings: dict[str, Any] = {} if alpha is None else {"alpha": alpha}
    unknown = settings.keys() - signature(load_object(ANALYSES.named(analysis).function)).parameters.keys()
    if unknown:
        raise UserError(f"--{unknown.pop()} is no setting of {analysis}; leave it out.")
    given = (find_traces(*places).paths if places else () for places in (untrained, null_query))
    files, controls = split_controls(of_conditions(find_traces(*traces, progress=analysis), condition), *given)
    result = run(analysis, files, options, controls, **settings)
    figures = [draw(analysis, {analysis: result}, group=group) for group in result.groups]
    figures[1:] = [replace(figure, name=f"{figure.name}_{place}") for place, figure in enumerate(figures[1:], 2)]
    models = result.table["model"].unique(maintain_order=True).to_list() if "model" in result.table.columns else []
    picture = draw_traces(analysis, files, models, layer, options)
    figures += [picture] if picture is not None else []
    paths = result.save(out)
    for figure in figures:
        paths += figure.save(out / figure.name, ("svg", "pdf"), theme)
        paths.append(out / f"{figure.name}.html")
        replace_text(paths[-1], figure_page(figure, theme))
    print(printable(fitting(result.table)))
    for note in result.notes:
        print(one_line(f"note: {note}"))
    for path in paths:
        print(path)


ROWS = 12
"""Of a table that is printed; all are in its file."""


def fitting(table: Any, width: int | None = None) -> str:
    """The first rows of a table as text that fits the terminal; what is the same in all rows stands once, above it."""
    from rich.console import Console

    from floatscope.analysis.figure import number_text

    width = width or Console().width
    same = [name for name in table.columns if table.height > 1 and table[name].n_unique() == 1]
    shown = table.drop(same).head(ROWS)
    kept: list[list[str]] = []
    for column in shown:
        cells = [number_text(one) if isinstance(one, float) else "–" if one is None else str(one) for one in column]
        cells = [one if len(one) <= 24 else f"{one[:23]}…" for one in (column.name, *cells)]
        wide = max(map(len, cells))
        if sum(len(one[0]) + 2 for one in kept) + wide > width:
            break
        kept.append([one.rjust(wide) if column.dtype.is_numeric() else one.ljust(wide) for one in cells])
    above = [f"{name}: {one_line(str(table[name][0]))}" for name in same if table[name][0] not in (None, "")]
    left_out = [*([f"{table.height - ROWS} more rows"] if table.height > ROWS else []), *shown.columns[len(kept) :]]
    lines = ["  ".join(cells).rstrip() for cells in zip(*kept, strict=True)]
    notes = [f"also in the table: {', '.join(left_out)}"] if left_out else []
    return "\n".join([*textwrap.wrap("; ".join(above), width), *lines, *(textwrap.wrap("; ".join(notes), width))])


def view(*traces: Path, out: Path | None = None) -> int:
    """Write the player page of traces at hand: every step of one, or of several side by side.

    Example: floatscope view a.safetensors b.safetensors

    Parameters
    ----------
    traces
        Files of traces; those of the same sample stand side by side.
    out
        The page; default: in this folder, called as the first trace.
    """
    from floatscope.reports.view import show
    from floatscope.traces import Trace

    if not traces:
        raise UserError("Say which traces to view: floatscope view a.safetensors b.safetensors.")
    print(show(*map(Trace.load, traces)).save(out or Path(f"{traces[0].stem}.html")))
    return 0
