"""Charts as data: tables become panels of lines, bars or cells that assets/plots.js draws. Numbers stay as they are.

A figure carries the very table it draws, so that what is saved as CSV is what is seen.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import polars as pl

CONTROLS = ("uniform", "random", "untrained")
Panel = dict[str, Any]


@dataclass(frozen=True)
class Figure:
    """Panels with a caption that says what to see and what the control is."""

    name: str
    title: str
    caption: str
    table: pl.DataFrame
    panels: tuple[Panel, ...]
    finding: str = ""
    """One sentence with the numbers of this run."""
    notes: tuple[str, ...] = ()
    published: tuple[Panel, ...] = ()
    """The panels of compat mode: the paper's computation beside the exact one."""
    published_table: pl.DataFrame | None = None
    legend: tuple[tuple[str, str], ...] = ()
    """Further entries of the legend: name and CSS colour."""
    across: int | None = None
    """At most so many panels in a row, where panels belong together by rows."""

    @property
    def data(self) -> dict[str, Any]:
        """What the script in the page draws."""
        views = [{"panels": list(self.panels), "csv": csv_text(self.table)}]
        if self.published and self.published_table is not None:
            views.append({"panels": list(self.published), "csv": csv_text(self.published_table)})
        legend = [list(row) for row in self.legend]
        return {"name": self.name, "title": self.title, "legend": legend, "across": self.across, "views": views}


def csv_text(table: pl.DataFrame) -> str:
    """A table as CSV with all its digits."""
    lists = [name for name, kind in table.schema.items() if isinstance(kind, pl.List)]
    return table.with_columns(pl.col(name).list.join(" | ") for name in lists).write_csv()


def line_panels(
    table: pl.DataFrame,
    facet: str,
    models: Sequence[str],
    y: str,
    across: str = "layer",
    x: str = "layer",
    titles: Mapping[str, str] | None = None,
    controls: Sequence[str] = CONTROLS,
    order: Sequence[str] | None = None,
    shared: bool = False,
) -> tuple[Panel, ...]:
    """A panel per value of `facet`: a line per model with its interval, and its controls."""
    names = order or table[facet].unique(maintain_order=True).to_list()
    chosen = [(name, table.filter(pl.col(facet) == name)) for name in names]
    panels = [
        {
            "kind": "lines",
            "title": (titles or {}).get(name, name),
            "x": x,
            "y": y,
            "series": line_series(part, models, across, controls),
        }
        for name, part in chosen
        if part["value"].is_not_null().any()
    ]
    if shared and panels:
        known = [number for panel in panels for number in _heights(panel)]
        for panel in panels:
            panel["range"] = [min(known), max(known)]
    return tuple(panels)


def line_series(
    table: pl.DataFrame, models: Sequence[str], across: str, controls: Sequence[str] = CONTROLS
) -> list[dict[str, Any]]:
    """Points [x, value, low, high] of each model, then [x, value] of each of its controls."""
    series: list[dict[str, Any]] = []
    for number, model in enumerate(models):
        part = table.filter(pl.col("model") == model)
        if part.is_empty():
            continue
        points = part.drop_nulls("value").select(across, "value", "low", "high").rows()
        series.append({"name": model, "colour": number + 1, "points": [list(map(_plain, point)) for point in points]})
        for control in controls:
            known = part.drop_nulls(control).select(across, control).rows() if control in part.columns else []
            if known:
                points = [list(map(_plain, point)) for point in known]
                series.append({"name": model, "colour": number + 1, "control": control, "points": points})
    return series


def heat_panel(
    title: str,
    rows: Sequence[Any],
    columns: Sequence[Any],
    cells: Iterable[Sequence[Any]],
    x: str,
    y: str,
    top: float,
    marks: Sequence[tuple[int, int]] = (),
    faint: bool = False,
) -> Panel:
    """Cells (row, column, value, what hovering says); `top` is the darkest value, shared between panels."""
    return {
        "kind": "heat",
        "title": title,
        "rows": [str(row) for row in rows],
        "columns": [str(column) for column in columns],
        "cells": [[row, column, _plain(value), *tip] for row, column, value, *tip in cells],
        "x": x,
        "y": y,
        "top": top,
        "marks": [list(mark) for mark in marks],
        "faint": faint,
    }


def _heights(panel: Panel) -> list[float]:
    return [number for one in panel["series"] for point in one["points"] for number in point[1:] if number is not None]


def _plain(value: Any) -> Any:
    """Short JSON: five significant digits are finer than any screen; the CSV has them all."""
    return float(f"{value:.5g}") if isinstance(value, float) else value
