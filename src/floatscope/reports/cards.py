"""A figure as a card of the page: its words, room for its panels, its legend, and the data that figures.js draws.

The room is laid out here, before anything is drawn: panels wrap as the width allows, and nothing moves when they come.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

from markupsafe import Markup

from floatscope.analysis.drawing import csv_text
from floatscope.analysis.figure import VEGA_LITE, Figure
from floatscope.analysis.palette import DARK
from floatscope.cache import cached
from floatscope.reports.markup import render

Spec = Mapping[str, Any]
_AXES = 46
"""Pixels below and above a plot for the names of its axes."""
UNTRAINED = "untrained"
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


def figure_card(figure: Figure, control: str = UNTRAINED) -> Markup:
    """A figure with its title, finding, panels, caption and buttons to save it.

    control: what the control of the same model is called for people, where it is not untrained at all.
    """

    def called(text: str) -> str:
        if control == UNTRAINED:
            return text
        return text.replace("the untrained model", f"the model {control}").replace(UNTRAINED, control)

    laid, drawn = [], []  # by the template; by the script: each chart, and its tables apart from it, as CSV
    others = [one for one in figure.layers if one.layer != figure.layer]
    for view in (figure, *others, figure.published):
        if view is not None:
            spec = view.spec()
            if control != UNTRAINED:  # the words of axes that give names of their own
                named = json.dumps(spec).replace(f"'{UNTRAINED}': '{UNTRAINED}'", f"'{UNTRAINED}': '{control}'")
                spec = json.loads(named)
            groups = list(_groups(spec))
            for group in groups:  # few panels stand in the columns of a fuller group of the same size
                most = max(other["across"] for other in groups if other["least"] == group["least"])
                group["across"] = most if len(group["panels"]) < most else group["across"]
            laid.append({"legend": _legend(spec), "groups": groups, "called": called})
            tables = {"table": csv_text(view.table)} | spec.pop("datasets", {})
            drawn.append({"spec": spec, "tables": tables})
    data = {"name": figure.name, "title": figure.title, "dark": DARK, "views": drawn}
    layers = sorted((one.layer, place) for place, one in enumerate((figure, *others)) if others)
    words = {"finding": called(figure.finding), "caption": called(figure.caption)}
    return render("card.html", figure=replace(figure, **words), views=laid, data=data, layers=layers)


def _groups(spec: Spec) -> Iterator[dict[str, Any]]:
    """The room of each group of joined charts, in order; any other chart is one panel."""
    if "vconcat" in spec:
        for part in spec["vconcat"]:
            yield from _groups(part)
        return
    panels = spec.get("concat") or spec.get("hconcat") or [spec]
    rows = -(-len(panels) // spec.get("columns", len(panels)))
    rooms = []
    for panel in panels:
        # a plot of its own, no facets, can be given another width
        sized = all(isinstance(panel.get(side), int | float) for side in ("width", "height"))
        resizable = sized and ("mark" in panel or "layer" in panel)
        rooms.append(
            {
                "title": _title(panel),
                "height": round(panel["height"] + _AXES + _scale(panel)) if resizable else None,
                "least": 40 + _names(panel) + 0.55 * panel["width"] if resizable else 320,
            }
        )
    yield {
        "heading": "" if panels == [spec] else _title(spec),
        "across": -(-len(panels) // rows),  # rows of equal length where that is possible
        "least": round(max(room["least"] for room in rooms)),
        "panels": rooms,
    }


def _scale(panel: Spec) -> int:
    """Pixels for the scale of shades below a plot of cells."""
    shades = [layer.get("encoding", {}).get("opacity", {}) for layer in panel.get("layer", ())]
    return 30 if any(shade.get("legend") for shade in shades) else 0


def _names(panel: Spec) -> int:
    """Pixels for the longest of the names that stand beside a plot, where its rows have names."""
    sides = [layer.get("encoding", {}).get("y", {}) for layer in panel.get("layer", [panel])]
    names = [name for side in sides for name in (side.get("scale") or {}).get("domain", ()) if isinstance(name, str)]
    return 6 * max(map(len, names), default=0)


def _title(spec: Spec) -> str:
    """The title of a part; that of the whole, which has the settings, is the figure's."""
    title = "" if "config" in spec else spec.get("title", "")
    text = title.get("text", "") if isinstance(title, Mapping) else title
    return " ".join(text) if isinstance(text, list) else str(text)


def _legend(spec: Spec) -> list[dict[str, Any]]:
    """An entry for each name of a scale whose names and values are given, colours first; a button hides its marks."""
    found: dict[tuple[str, str], dict[str, Any]] = {}
    for channel, encoding in _encodings(spec):
        scale = encoding["scale"]
        for name, value in zip(scale["domain"], scale["range"], strict=True):
            found.setdefault((encoding["field"], str(name)), {}).setdefault(channel, value)
    legend = []
    for (field, name), look in sorted(found.items(), key=lambda entry: "color" not in entry[1]):
        light = look.get("color")
        colour = f"light-dark({light},{DARK.get(light, light)})" if light else "var(--fs-control)"
        legend.append({"field": field, "name": name, "look": look, "colour": colour})
    return legend


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
