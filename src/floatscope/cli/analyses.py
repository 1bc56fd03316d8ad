"""The verb that reads traces: analyze."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter

from floatscope.errors import UserError


def analyze(
    analysis: str,
    traces: tuple[Path, ...],
    /,
    *,
    out: Path,
    untrained: Annotated[tuple[Path, ...], Parameter(negative="", consume_multiple=False)] = (),
    null_query: Annotated[tuple[Path, ...], Parameter(negative="", consume_multiple=False)] = (),
    detector: str = "zscore(3)",
    seed: int = 0,
    theme: Literal["light", "dark"] = "light",
) -> None:
    """Run an analysis of traces: tables with controls as parquet, a figure as SVG, PDF and HTML.

    Example: floatscope analyze drift runs/first --out runs/drift

    Parameters
    ----------
    analysis
        One of anchors, drift, absorption, token_classes, dispersion, retrieval_heads, flow, qk, query_state, task_dependence, compat.
    traces
        Runs, folders of traces or trace files.
    out
        Folder for tables and figure; made if needed.
    untrained
        Traces of the same model with random weights: the control "untrained".
    null_query
        Traces with a question that asks nothing: the control of retrieval heads.
    detector
        What counts as an anchor: zscore(3), top1, rulli(...), gu(0.3), soft(2,5).
    seed
        Seed of bootstrap and random controls.
    theme
        Colours of the figure.
    """  # noqa: E501
    import polars
    from rich.console import Console

    from floatscope.analysis import ANALYSES, Controls, Options
    from floatscope.analysis import analyze as run
    from floatscope.analysis.reading import find_traces
    from floatscope.report.figures import save_figure

    controls = Controls(*(find_traces(*places) if places else () for places in (untrained, null_query)))
    options = Options(detector=detector, seed=seed)
    result = run(analysis, find_traces(*traces, progress=analysis), options, controls)
    try:
        paths = result.save(out)
    except OSError as error:
        raise UserError(f"{out} cannot be written: {error.strerror}") from error
    paths += save_figure(ANALYSES[analysis].figure(result, theme), out / analysis)
    with polars.Config(tbl_width_chars=Console().width, tbl_cols=-1, tbl_hide_dataframe_shape=True, tbl_rows=12):
        print(result.table)
    for note in result.notes:
        print(f"note: {note}")
    for path in paths:
        print(path)
