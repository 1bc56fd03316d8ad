"""Compat mode: for a figure whose published computation differs, that computation beside the exact one."""

from collections.abc import Mapping, Sequence
from typing import Any

import polars as pl

from floatscope.analysis.results import Result
from floatscope.report.charts import line_series

_QUIRKS = {
    "absorption": {
        "absolute_threshold": "absolute threshold: the top position only",
        "one_forward": "first token, last forward only",
    },
    "qk": {
        "head_averaged_states": "q and k averaged over heads first",
        "head_modulo": "query head paired with key head h mod H",
    },
    "flow": {"retokenised_regions": "regions from pieces tokenised apart"},
}


def published_view(results: Mapping[str, Result], name: str, models: Sequence[str]) -> dict[str, Any]:
    """The compat view of a figure: exact lines, and published ones dashed."""
    if "compat" not in results:
        return {}
    quirks = _QUIRKS[name]
    table = results["compat"].table.filter(pl.col("quirk").is_in(list(quirks)))
    if table.is_empty():
        return {}
    drawn = table.with_columns(pl.col("layer").fill_null(0), value=pl.col("exact"), low=pl.lit(None), high=pl.lit(None))
    panels = tuple(
        {
            "kind": "lines",
            "title": title,
            "x": "layer",
            "y": "",
            "series": line_series(drawn.filter(pl.col("quirk") == quirk), models, "layer", ("published",)),
        }
        for quirk, title in quirks.items()
        if quirk in table["quirk"]
    )
    return {"published": panels, "published_table": table}
