"""A figure: a chart, the table it draws and its words; drawn once for the verbs, for notebooks and for the page.

Charts are drawn in the light theme; another theme is an exchange of colours.
"""

from __future__ import annotations

import html
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import altair as alt
import polars as pl

from floatscope.analysis.drawing import CONFIG, DARK, Chart
from floatscope.errors import UserError
from floatscope.files import replace_bytes

Theme = Literal["light", "dark"]
FORMATS = ("svg", "pdf", "png")
VEGA_LITE = ".".join(alt.SCHEMA_VERSION.removeprefix("v").split(".")[:2])
"""The version of Vega-Lite that charts are written for."""


@dataclass(frozen=True)
class Figure:
    """What an analysis shows: a chart, its table, what to see in it and what this run's numbers say."""

    name: str
    """Name of files and anchors: the analysis."""
    title: str
    chart: Chart
    """Any altair chart, or the same as Vega-Lite. Joined charts are laid out anew by the page, as its width allows."""
    table: pl.DataFrame
    """The numbers drawn; what is saved as CSV."""
    caption: str
    """What to see, and what the controls are."""
    finding: str = ""
    """A sentence with the numbers of this run and their controls."""
    notes: tuple[str, ...] = ()
    """Sentences about what could not be computed."""
    published: Figure | None = None
    """The paper's own computation beside the exact one, where they differ."""
    subtitle: str = ""
    """A few words that a drawing needs where it stands without its caption."""

    def spec(self, theme: Theme = "light") -> dict[str, Any]:
        """The chart as Vega-Lite, with the title above it, in the colours of a theme."""
        spec = dict(self.chart if isinstance(self.chart, dict) else self.chart.to_dict())
        given = spec.get("config", {})
        spec["config"] = {**given, **CONFIG, "view": {**given.get("view", {}), **CONFIG["view"]}}
        spec["title"] = {"text": self.title, "anchor": "start", "fontSize": 15, "offset": 12}
        if self.subtitle:
            spec["title"]["subtitle"] = self.subtitle
        return in_theme(spec, theme)

    def svg(self, theme: Theme = "light") -> str:
        """The drawing with its title and legends."""
        import vl_convert

        return vl_convert.vegalite_to_svg(self.spec(theme), vl_version=VEGA_LITE)

    def save(self, stem: str | Path, formats: Sequence[str] = ("svg",), theme: Theme = "light") -> list[Path]:
        """Write `stem.svg` and so on; for a page that reacts to the reader see `floatscope.report.page.figure_page`."""
        import vl_convert

        paths = []
        for name in formats:
            if name not in FORMATS:
                raise UserError(f"There is no figure format {name!r}; known are {', '.join(FORMATS)}.")
            if name == "svg":
                content = self.svg(theme).encode()
            elif name == "pdf":
                content = vl_convert.vegalite_to_pdf(self.spec(theme), vl_version=VEGA_LITE)
            else:
                content = vl_convert.vegalite_to_png(self.spec(theme), vl_version=VEGA_LITE, scale=2)
            paths.append(Path(f"{stem}.{name}"))
            replace_bytes(paths[-1], content)
        return paths

    def _repr_html_(self) -> str:
        """For notebooks: a drawing without any script, which every viewer shows."""
        texts = [f"<p><b>{html.escape(self.finding)}</b></p>"] if self.finding else []
        texts += [f"<p>{html.escape(text)}</p>" for text in (self.caption, *self.notes) if text]
        return f'<div style="overflow-x:auto">{self.svg()}</div>{"".join(texts)}'


def in_theme(spec: dict[str, Any], theme: str) -> dict[str, Any]:
    """A specification with the colours of the kit exchanged for those of a theme."""
    if theme not in ("light", "dark"):
        raise UserError(f"There is no theme {theme!r}; use 'light' or 'dark'.")
    if theme == "light":
        return spec
    datasets = spec.get("datasets")  # data are not searched: a text may look like a colour
    text = json.dumps({**spec, "datasets": None} if datasets else spec)
    found = json.loads(re.sub(r"#[0-9a-f]{6}", lambda colour: DARK.get(colour[0], colour[0]), text))
    return {**found, "datasets": datasets} if datasets else found
