"""What a figure draws, as the drawing library places it: the marks of each panel with their positions and colours."""

import re
from dataclasses import dataclass
from typing import Any

import vl_convert

from floatscope.analysis.figure import VEGA_LITE, Figure


@dataclass
class Scene:
    """A panel: its heading and title, and the marks of each layer from the lowest to the highest."""

    heading: str
    title: str
    layers: dict[int, list[dict[str, Any]]]
    labels: dict[str, list[str]]
    """The names along the axes: "x" and "y"."""

    def marks(self, kind: str, **look: Any) -> list[dict[str, Any]]:
        """The marks of a kind ("symbol", "rect", ...) that look so, in the order in which they are drawn."""
        every = [mark for layer in self.layers.values() for mark in layer]
        return [m for m in every if m["kind"] == kind and all(m.get(name) == value for name, value in look.items())]

    def places(self, kind: str, **look: Any) -> list[tuple[float, float]]:
        """Where those marks are, from the upper left corner of the plot."""
        return [(round(mark["x"], 3), round(mark.get("y", 0.0), 3)) for mark in self.marks(kind, **look)]


def scenes(figure: Figure, theme: Any = "light") -> list[Scene]:
    """The panels of a figure, in order."""
    graph = vl_convert.vegalite_to_scenegraph(figure.spec(theme), vl_version=VEGA_LITE)
    return list(_panels(graph["scenegraph"], []))


def _panels(node, headings):
    for item in node.get("items", []):
        children = item.get("items", [])
        layers = _layers(children)
        title = _title(children)
        if layers:
            heading = headings[-1] if len(headings) > 1 else ""  # the first is the figure's
            yield Scene(heading, title, layers, _labels(children))
        else:
            below = [*headings, title] if title else headings
            for child in children:
                if child.get("marktype") == "group" and child.get("role") == "scope":
                    yield from _panels(child, below)


def _layers(children):
    layers: dict[int, list[dict[str, Any]]] = {}
    for child in children:
        found = re.search(r"layer_(\d+)_(marks|pathgroup)$", child.get("name") or "")
        if not found:
            continue
        groups = [child] if found[2] == "marks" else [one for item in child["items"] for one in item["items"]]
        for number, group in enumerate(groups):
            kind = group["marktype"]
            layers.setdefault(int(found[1]), []).extend(
                {"kind": kind, "path": number, **item} for item in group["items"]
            )
    return layers


def _texts(node, role):
    if node.get("role") == role:
        yield from (item["text"] for item in node.get("items", []))
    for item in node.get("items", []):
        for child in item.get("items", []) if "items" in item else ():
            yield from _texts(child, role)


def _title(children):
    return next(
        (text for child in children if child.get("role") == "title" for text in _texts(child, "title-text")), ""
    )


def _labels(children):
    axes = [child for child in children if child.get("role") == "axis"]
    found = {}
    for axis in axes:
        for item in axis["items"]:
            for child in item["items"]:
                if child.get("role") == "axis-label" and child["items"]:
                    side = "x" if child["items"][0]["baseline"] == "top" or child["items"][0]["angle"] else "y"
                    found[side] = [one["text"] for one in child["items"]]
    return found
