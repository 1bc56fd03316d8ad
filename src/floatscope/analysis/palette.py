"""How figures look: colours of the light theme and of the dark one, shapes, dashes, sizes, fonts."""

from typing import Any

CARD, INK, MUTED, LINE, BED = "#ffffff", "#1f2328", "#5d6570", "#e4e0d8", "#f4f1ea"
HEAT, CONTROL, ACCENT = "#e8590c", "#7b828c", "#b8430f"
MODELS = ("#0072b2", "#00825f", "#b0457f", "#a86e00", "#6457a6", "#3a7d8c", "#7d5a3c", "#4f6d1f")
_DARK_MODELS = ("#56b4e9", "#2fc49a", "#e79bc4", "#f0c05a", "#b3a6f2", "#7fc9d6", "#d2a679", "#b5cf6b")
DARK = {
    CARD: "#1b1e24",
    INK: "#e8e6e1",
    MUTED: "#a3a9b3",
    LINE: "#31353d",
    BED: "#22262d",
    HEAT: "#f76707",
    CONTROL: "#8d95a1",
    ACCENT: "#ff9a62",
    # token classes
    "#9aa0a6": "#767d87",
    "#003f66": "#3d7fb3",
    "#2b7bba": "#4c9ed9",
    "#56b4e9": "#86c8f0",
    "#b5dcf4": "#c4e4f7",
    "#009e73": "#2fc49a",
    "#e69f00": "#f0c05a",
    "#d55e00": "#f08a3c",
    **dict(zip(MODELS, _DARK_MODELS, strict=True)),
}
"""The colours of the dark theme by those of the light one. Models are told apart without red against green."""
_TEXT = {
    "labelColor": MUTED,
    "titleColor": MUTED,
    "labelFontSize": 11,
    "titleFontSize": 11,
    "titleFontWeight": "normal",
}
CONFIG: dict[str, Any] = {
    "background": CARD,
    "font": "system-ui, Segoe UI, Roboto, Noto Sans, Helvetica, Arial, sans-serif",
    "padding": 12,
    "title": {"color": INK, "subtitleColor": MUTED, "fontSize": 12.5, "anchor": "start", "fontWeight": 600},
    "axis": {**_TEXT, "gridColor": LINE, "domainColor": CONTROL, "ticks": False, "labelPadding": 5, "titlePadding": 5},
    "axisX": {"grid": False},
    "axisY": {"domain": False, "minExtent": 30},
    "legend": {
        **_TEXT,
        "orient": "top",
        "labelFontSize": 12,
        "labelLimit": 0,
        "symbolStrokeWidth": 2,
        "columnPadding": 14,
        "layout": {"top": {"anchor": "start", "direction": "vertical", "margin": 4}},  # one below the other
    },
    "view": {"stroke": None},
    "concat": {"spacing": 24},
}
POINT: dict[str, Any] = {"filled": True, "opacity": 1, "size": 32, "strokeOpacity": 0, "strokeWidth": 14}
"""A point; its stroke is not seen, and only makes it easier to touch."""
BOUNDS: dict[str, Any] = {"strokeWidth": 1.6, "opacity": 0.6}
DASHED: dict[str, Any] = {"symbolStrokeColor": CONTROL, "symbolType": "stroke", "symbolSize": 250}
"""How a legend of dashes looks."""
