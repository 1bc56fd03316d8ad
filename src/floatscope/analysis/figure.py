"""A figure: a chart, the table it draws and its words, with the numbers of a run as people read them.

Drawn once for the verbs, for notebooks and for the page, in the light theme; another is an exchange of colours.
"""

from __future__ import annotations

import html
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import altair as alt
import polars as pl

from floatscope.analysis.drawing import Chart, Plot, arrange
from floatscope.analysis.palette import CONFIG, DARK
from floatscope.analysis.results import Result
from floatscope.errors import UserError
from floatscope.files import replace_bytes, write_errors

Theme = Literal["light", "dark"]
FORMATS = ("svg", "pdf", "png")
VEGA_LITE = ".".join(alt.SCHEMA_VERSION.removeprefix("v").split(".")[:2])
"""The version of Vega-Lite that charts are written for."""
_UNDRAWABLE = "[\x00-\x08\x0b\x0c\x0e-\x1f\ufffe\uffff\u2028\u2029]"
"""What XML cannot hold, at which the converter ends the process, and line ends that no Vega expression may have."""
_OF_TWO_HALVES = "[\U00010000-\U0010ffff]"


@dataclass(frozen=True, repr=False)
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
    layer: int | None = None
    """Of a picture of one layer: which."""
    layers: tuple[Figure, ...] = ()
    """The same picture at several layers, itself among them: a page lets its reader choose."""

    def __repr__(self) -> str:
        return f"Figure({self.name!r}, {self.title!r})"

    def spec(self, theme: Theme = "light") -> dict[str, Any]:
        """The chart as Vega-Lite, with the title above it, in the colours of a theme."""
        spec = dict(self.chart if isinstance(self.chart, dict) else self.chart.to_dict())
        given = spec.get("config", {})
        spec["config"] = {**given, **CONFIG, "view": {**given.get("view", {}), **CONFIG["view"]}}
        spec["title"] = {"text": self.title, "anchor": "start", "fontSize": 15, "offset": 12}
        if self.subtitle:
            spec["title"]["subtitle"] = self.subtitle
        return in_theme(_without(_UNDRAWABLE, spec), theme)

    def svg(self, theme: Theme = "light") -> str:
        """The drawing with its title and legends."""
        return self._converted("svg", theme)

    def save(self, stem: str | Path, formats: Sequence[str] = ("svg",), theme: Theme = "light") -> list[Path]:
        """Write `stem.svg` and so on, in a folder that is made if needed.

        For a page that reacts to the reader see `floatscope.reports.page.figure_page`.
        """
        paths = []
        for name in formats:
            if name not in FORMATS:
                raise UserError(f"There is no figure format {name!r}; known are {', '.join(FORMATS)}.")
            content = self._converted(name, theme)
            paths.append(Path(f"{stem}.{name}"))
            with write_errors(paths[-1]):
                paths[-1].parent.mkdir(parents=True, exist_ok=True)
            replace_bytes(paths[-1], content.encode() if isinstance(content, str) else content)
        return paths

    def _converted(self, form: str, theme: Theme) -> Any:
        import vl_convert

        convert, settings = getattr(vl_convert, f"vegalite_to_{form}"), {"scale": 2} if form == "png" else {}
        try:
            return convert(self.spec(theme), vl_version=VEGA_LITE, **settings)
        except ValueError:  # Vega cuts a long name inside a character of two halves, which the converter cannot read
            return convert(_without(_OF_TWO_HALVES, self.spec(theme)), vl_version=VEGA_LITE, **settings)

    def _repr_html_(self) -> str:
        """For notebooks: a drawing without any script, which every viewer shows."""
        texts = [f"<p><b>{html.escape(self.finding)}</b></p>"] if self.finding else []
        texts += [f"<p>{html.escape(text)}</p>" for text in (self.caption, *self.notes) if text]
        return f'<div style="overflow-x:auto">{self.svg()}</div>{"".join(texts)}'


def _without(characters: str, spec: Any) -> Any:
    """A specification with some characters replaced."""
    if isinstance(spec, str):
        return re.sub(characters, "\N{REPLACEMENT CHARACTER}", spec)
    if isinstance(spec, dict):
        return {_without(characters, key): _without(characters, value) for key, value in spec.items()}
    return [_without(characters, value) for value in spec] if isinstance(spec, list) else spec


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


def result_figure(
    result: Result,
    title: str,
    panels: Iterable[Plot | None] | Mapping[str, Iterable[Plot | None]],
    caption: str,
    finding: str,
    table: pl.DataFrame | None = None,
    columns: int = 3,
    subtitle: str = "",
    **tables: pl.DataFrame,
) -> Figure:
    """The figure of an analysis whose panels draw its main table or another; `tables` are further ones they draw."""
    table = result.table if table is None else table
    chart = arrange(panels, {"table": table, **tables}, columns)
    return Figure(result.name, title, chart, table, caption, finding, result.notes, subtitle=subtitle)


def number_text(value: float | None, digits: int = 3) -> str:
    """A number for people: significant digits, a real minus sign, a dash for none."""
    if value is None:
        return "–"
    if value and abs(value) < 10**-digits / 2:
        return f"{value:.1g}".replace("-", "−")
    text = f"{value:.{digits}f}" if abs(value) < 10 else f"{value:.1f}"
    return text.replace("-", "−")


def interval_text(value: float | None, low: float | None, high: float | None, digits: int = 2) -> str:
    """0.93 [0.85, 0.98]"""
    if low is None or high is None:
        return number_text(value, digits)
    return f"{number_text(value, digits)} [{number_text(low, digits)}, {number_text(high, digits)}]"


def by_model(table: pl.DataFrame, models: Sequence[str], column: str = "value") -> dict[str, float]:
    """Mean over layers of one column, by model."""
    known = table.drop_nulls(column).group_by("model").agg(pl.col(column).mean())
    means = dict(known.iter_rows())
    return {model: means[model] for model in models if model in means}


def finding(
    what: str, table: pl.DataFrame, models: Sequence[str], controls: Sequence[str], digits: int = 2, rows: bool = False
) -> str:
    """The sentence of a table: means over layers or, where there is one row per model, that row with interval and p."""
    values: dict[str, Any] = by_model(table, models)
    own = table.filter(pl.col("model").is_in(list(values))).drop_nulls("value")
    for row in own.iter_rows(named=True) if rows else ():
        p = f", p = {number_text(row['p'])}" if row.get("p") is not None else ""
        values[row["model"]] = interval_text(row["value"], row.get("low"), row.get("high"), digits) + p
    return sentence(what, values, {name: by_model(table, models, name) for name in controls}, digits)


def top_finding(
    what: str,
    table: pl.DataFrame,
    models: Sequence[str],
    controls: Sequence[str],
    name: pl.Expr,
    digits: int = 2,
) -> str:
    """The sentence of the row of each model that lies furthest from 0, under a name that says which row it is."""
    ranked = table.drop_nulls("value").sort(pl.col("value").abs(), descending=True, maintain_order=True)
    best = ranked.unique("model", keep="first").with_columns(name=name)
    names = dict(best.select("model", "name").iter_rows())
    order = [names[model] for model in models if model in names]
    return finding(what, best.with_columns(model="name"), order, controls, digits, rows=True)


def sentence(
    what: str, values: Mapping[str, Any], controls: Mapping[str, Mapping[str, Any]] | None = None, digits: int = 2
) -> str:
    """`what`: model value (control value, ...), ...; values are numbers, or texts as they are."""
    if not values:
        return ""

    def written(value: Any) -> str:
        return value if isinstance(value, str) else number_text(value, digits)

    parts = []
    for model, value in values.items():
        beside = [f"{name} {written(known[model])}" for name, known in (controls or {}).items() if model in known]
        parts.append(f"{model} {written(value)}" + (f" ({', '.join(beside)})" if beside else ""))
    return f"{what}: {'; '.join(parts) if any(', ' in part for part in parts) else ', '.join(parts)}."
