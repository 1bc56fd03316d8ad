"""A figure as a card of the page: its words, room for its panels, its legend, and the data that figures.js draws.

The room is laid out here, before anything is drawn: panels wrap as the width allows, and nothing moves when they come.
"""

from collections.abc import Iterator, Mapping
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

from floatscope.analysis.drawing import csv_text
from floatscope.analysis.figure import VEGA_LITE, Figure
from floatscope.analysis.palette import DARK
from floatscope.cache import cached
from floatscope.report.player import escape, script_json

Spec = Mapping[str, Any]
_AXES = 46
"""Pixels below and above a plot for the names of its axes."""
_SYMBOLS = {
    "circle": "M9,6a4,4 0 1,0 8,0a4,4 0 1,0 -8,0",
    "square": "M9.5,2.5h7v7h-7z",
    "triangle-up": "M13,1.5L17.5,10h-9z",
    "diamond": "M13,1L18,6L13,11L8,6z",
    "stroke": "M8,6h10",
    "cross": "M11,2h4v2.5h2.5v3h-2.5v2.5h-4v-2.5h-2.5v-3h2.5z",
    "triangle-down": "M8.5,2h9L13,10.5z",
}
_CHANNELS = ("color", "shape", "strokeDash")


@cache
def drawing_library() -> str:
    """Vega, Vega-Lite and Vega-Embed as one script, which vl-convert carries; put together once, then cached."""
    import vl_convert

    def build() -> str:
        return vl_convert.javascript_bundle("window.vegaEmbed = vegaEmbed;", VEGA_LITE)

    def save(text: str, folder: Path) -> None:
        folder.mkdir()
        (folder / "vega.js").write_text(text, encoding="utf-8")

    key = f"{version('vl-convert-python')}-{VEGA_LITE}"
    return cached("vega", key, lambda folder: (folder / "vega.js").read_text(encoding="utf-8"), build, save)


def figure_card(figure: Figure) -> str:
    """A figure with its title, finding, panels, caption and buttons to save it."""
    views = [figure, *([figure.published] if figure.published else [])]
    specs = [view.spec() for view in views]
    alt = f"{figure.title}. {figure.finding or figure.caption}"
    charts = "\n".join(_chart(spec, alt, hidden=place > 0) for place, spec in enumerate(specs))
    switch = '<label class="fs-published"><input type="checkbox"> as published (compat mode)</label>'
    notes = "".join(f'<p class="note">{escape(note)}</p>' for note in figure.notes)
    finding = f'<p class="finding">{escape(figure.finding)}</p>' if figure.finding else ""
    drawn = []  # by the script: each chart, and its tables apart from it, as CSV
    for view, spec in zip(views, specs, strict=True):
        tables = {"table": csv_text(view.table)} | spec.pop("datasets", {})
        drawn.append({"spec": spec, "tables": tables})
    data = {"name": figure.name, "title": figure.title, "dark": DARK, "views": drawn}
    return (
        f'<figure class="fs-figure card" id="figure-{escape(figure.name)}">\n'
        f"<h3>{escape(figure.title)}</h3>\n{finding}\n{charts}\n"
        f'<figcaption><p class="caption">{escape(figure.caption)}</p>{notes}</figcaption>\n'
        f'<div class="fs-tools"><button type="button" data-action="svg">SVG</button>'
        f'<button type="button" data-action="csv">CSV</button>{switch if figure.published else ""}'
        '<details class="fs-data"><summary>numbers</summary><div class="fs-scroll" tabindex="0"></div></details>'
        f'</div>\n<script type="application/json">{script_json(data)}</script>\n</figure>'
    )


def missing_card(name: str, title: str, reason: str) -> str:
    """The place of a figure that could not be made, with the reason."""
    return (
        f'<section class="fs-figure card" id="figure-{escape(name)}">\n<h3>{escape(title)}</h3>\n'
        f'<p class="missing">This figure is missing: {escape(reason)}</p>\n</section>'
    )


def _chart(spec: Spec, alt: str, hidden: bool) -> str:
    """Room for one view: its legend, and a grid of panels for each group."""
    groups = []
    for heading, columns, panels in panel_groups(spec):
        rows = -(-len(panels) // columns)
        across = -(-len(panels) // rows)  # rows of equal length where that is possible
        least = max(40 + 0.55 * panel["width"] if _resizable(panel) else 320 for panel in panels)
        title = f"<h4>{escape(heading)}</h4>" if heading else ""
        plots = "".join(_plot(panel, alt) for panel in panels)
        groups.append(f'{title}<div class="fs-grid" style="--least:{least:.0f}px;--across:{across}">{plots}</div>')
    legend = "".join(_legend(spec))
    return (
        f'<div class="fs-chart"{" hidden" if hidden else ""}>'
        f'<div class="fs-figure-legend">{legend}</div>\n{"".join(groups)}</div>'
    )


def panel_groups(spec: Spec) -> Iterator[tuple[str, int, list[Spec]]]:
    """Heading, columns and panels of each group of joined charts, in order; any other chart is one panel."""
    if "vconcat" in spec:
        for part in spec["vconcat"]:
            yield from panel_groups(part)
    elif "concat" in spec or "hconcat" in spec:
        panels = spec.get("concat") or spec["hconcat"]
        shared = {"data": spec["data"]} if "data" in spec else {}  # altair lifts data that all panels share
        heading = "" if "config" in spec else _title(spec)  # the title of the whole is the figure's
        yield heading, spec.get("columns", len(panels)), [shared | panel for panel in panels]
    else:
        yield "", 1, [spec]


def _resizable(panel: Spec) -> bool:
    """Whether a chart can be given another width: a plot of its own, no facets."""
    sized = all(isinstance(panel.get(side), int | float) for side in ("width", "height"))
    return sized and ("mark" in panel or "layer" in panel)


def _plot(panel: Spec, alt: str) -> str:
    height = f' style="height:{panel["height"] + _AXES:.0f}px"' if _resizable(panel) else ""
    title = "" if "config" in panel else _title(panel)
    name = f'<p class="fs-plot-title">{escape(title)}</p>' if title else ""
    label = escape(f"{title}. {alt}" if title else alt)
    return f'<div class="fs-plot">{name}<div class="fs-view"{height} role="img" aria-label="{label}"></div></div>'


def _title(spec: Spec) -> str:
    title = spec.get("title", "")
    text = title.get("text", "") if isinstance(title, Mapping) else title
    return " ".join(text) if isinstance(text, list) else str(text)


def _legend(spec: Any) -> Iterator[str]:
    """A button for each name of a scale whose names and values are given: it switches its marks off and on."""
    found: dict[tuple[str, str], dict[str, Any]] = {}
    for channel, encoding in _encodings(spec):
        scale = encoding["scale"]
        for name, value in zip(scale["domain"], scale["range"], strict=True):
            found.setdefault((encoding["field"], str(name)), {}).setdefault(channel, value)
    for (field, name), look in sorted(found.items(), key=lambda entry: "color" not in entry[1]):
        light = look.get("color", "")
        colour = f"light-dark({light},{DARK.get(light, light)})" if light else "var(--fs-control)"
        width = 12 if set(look) == {"color"} else 26
        yield (
            f'<button type="button" aria-pressed="true" data-field="{escape(field)}" data-value="{escape(name)}">'
            f'<svg width="{width}" height="12" aria-hidden="true" style="color:{escape(colour)}">{_icon(look)}</svg>'
            f"{escape(name)}</button>"
        )


def _icon(look: Mapping[str, Any]) -> str:
    if "strokeDash" in look:
        dash = " ".join(map(str, look["strokeDash"]))
        return f'<path d="M1,6h24" stroke="currentColor" stroke-width="1.5" stroke-dasharray="{escape(dash)}"/>'
    symbol = _SYMBOLS.get(look.get("shape", ""), _SYMBOLS["circle"])
    if "color" in look and "shape" in look:
        return f'<path d="M1,6h24" stroke="currentColor" stroke-width="2"/><path d="{symbol}" fill="currentColor"/>'
    if "shape" in look:
        return f'<path d="{symbol}" fill="none" stroke="currentColor" stroke-width="1.2"/>'
    return '<rect width="12" height="12" rx="2" fill="currentColor"/>'


def _encodings(node: Any) -> Iterator[tuple[str, Spec]]:
    """Every encoding that has a legend of names, with its channel; figures.js leaves their legends to the page."""
    if isinstance(node, list):
        for part in node:
            yield from _encodings(part)
    elif isinstance(node, Mapping):
        for channel, encoding in node.get("encoding", {}).items():
            scale = encoding.get("scale") or {} if isinstance(encoding, Mapping) else {}
            named = channel in _CHANNELS and encoding.get("type") in ("nominal", "ordinal")
            if named and {"domain", "range"} <= set(scale) and encoding.get("legend", True) is not None:
                yield channel, encoding
        for name, part in node.items():
            if name not in ("encoding", "datasets", "config", "data"):
                yield from _encodings(part)
