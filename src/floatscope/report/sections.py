"""The figures of the report, in order: from analysis Results to panels, captions and one sentence with numbers each.

To add a figure is to write a function from Results to a `Figure` and a row in `FIGURES`.
"""

from collections.abc import Callable, Mapping, Sequence

import polars as pl

from floatscope.analysis.results import Result
from floatscope.report.charts import Figure, Panel, line_panels
from floatscope.report.findings import by_model, interval_text, number_text, sentence
from floatscope.report.maps import flow, retrieval_heads
from floatscope.report.published import published_view

Results = Mapping[str, Result]
Builder = Callable[[Results, Sequence[str]], Figure | None]
CONTROL_WORDS = (
    "Thin lines are controls: even attention under the same visibility, as many random positions, the untrained model."
)
_DRIFT_TITLES = {
    "turnover": "turnover of anchors",
    "top_shift": "shift of the top position, tokens",
    "wasserstein": "Wasserstein-1, tokens",
    "static_share": "share of static anchors",
}
_QK_TITLES = {
    "qk": "advantage in q·k",
    "cos": "advantage in cosine",
    "norm": "advantage in |q||k|",
    "angle_part": "part of the angle",
    "norm_part": "part of the norm",
    "interaction_part": "interaction",
}
_SETS = {"bos": "first token", "detected": "detected anchors", "top1": "top position"}
_CLASS_ORDER = ("mask", "special", "whitespace", "punctuation", "scaffold", "function", "number", "content")
_BARS = {"value": "anchors", "random": "random", "uniform": "uniform", "untrained": "untrained"}


def drift(results: Results, models: Sequence[str]) -> Figure | None:
    """How far anchors and attention move per step, by layer."""
    result = results["drift"]
    table = result.table.filter(pl.col("measure").is_in(list(_DRIFT_TITLES)))
    panels = line_panels(table, "measure", models, "", titles=_DRIFT_TITLES, order=list(_DRIFT_TITLES))
    turnover = by_model(table.filter(measure="turnover"), models)
    untrained = by_model(table.filter(measure="turnover"), models, "untrained")
    return Figure(
        "drift",
        "How far it moves",
        "Turnover 0 is a sink that never moves, 1 is a new set of anchors at every step; bands are 95 % intervals "
        "over samples. Thin lines are controls: even attention, the same values shuffled over positions at every "
        "step, the untrained model.",
        table,
        panels,
        finding=sentence("Turnover, mean over layers", turnover, {"untrained": untrained}),
        notes=result.notes,
    )


def absorption(results: Results, models: Sequence[str]) -> Figure | None:
    """Percent of attention on the first token and on anchors."""
    result = results["absorption"]
    title = pl.col("set").replace(_SETS) + pl.when(pl.col("rows") == "all").then(pl.lit("")).otherwise(
        pl.lit(", answer rows")
    )
    table = result.table.with_columns(title.alias("panel"))
    panels = line_panels(table, "panel", models, "% of attention")
    bos = by_model(table.filter((pl.col("set") == "bos") & (pl.col("rows") == "all")), models)
    even = by_model(table.filter((pl.col("set") == "bos") & (pl.col("rows") == "all")), models, "uniform")
    return Figure(
        "absorption",
        "What the first token and the anchors absorb",
        "Percent of attention on the first token (an ARM's sink), on the detected anchors and on the top position; "
        "from all rows, and from the rows of the answer. A causal model piles mass on early tokens even when it "
        "attends evenly: read the line against its own uniform control. " + CONTROL_WORDS,
        table.drop("panel"),
        panels,
        finding=sentence("First token, all rows, mean over layers, in %", bos, {"uniform": even}, 1),
        notes=result.notes,
        **published_view(results, "absorption", models),
    )


def token_classes(results: Results, models: Sequence[str]) -> Figure | None:
    """What anchors are made of, by depth."""
    result = results["token_classes"]
    table = result.table.filter(pl.col("phase") == "all", pl.col("depth") != "all")
    panels = tuple(_class_panel(table, model) for model in models if model in table["model"])
    test = result.tables.get("token_classes_test")
    finding = ""
    if test is not None:
        claim = test.filter(
            (pl.col("treatment") == "function words apart") & pl.col("contrast").str.starts_with("lexical")
        )
        parts = [
            f"{row['model']} {interval_text(row['value'], row['low'], row['high'])} (p = {number_text(row['p'])})"
            for row in claim.drop_nulls("value").iter_rows(named=True)
        ]
        finding = f"Lexical share of anchor mass, deep minus shallow: {', '.join(parts)}." if parts else ""
    return Figure(
        "token_classes",
        "What anchors are made of, by depth",
        "Share of anchor mass by token class in the first, middle and last third of the layers. The full bar is the "
        "anchors', the pale bars beside it are random positions, even attention and the untrained model: a class that "
        "fills them equally is no finding.",
        table,
        panels,
        finding=finding,
        notes=result.notes,
        legend=tuple((name, f"var(--fs-class-{name})") for name in _CLASS_ORDER),
    )


def _class_panel(table: pl.DataFrame, model: str) -> Panel:
    groups = []
    for depth in ("shallow", "middle", "deep"):
        part = table.filter((pl.col("model") == model) & (pl.col("depth") == depth))
        bars = []
        for column, name in _BARS.items():
            shares = dict(part.drop_nulls(column).select("class", column).rows())
            if shares:
                parts = [[one, float(f"{shares.get(one, 0):.5g}")] for one in _CLASS_ORDER if shares.get(one, 0) > 0]
                bars.append({"name": name, "parts": parts, "faint": column != "value"})
        groups.append({"name": depth, "bars": bars})
    return {"kind": "bars", "title": model, "groups": groups, "y": "share of anchor mass"}


def qk(results: Results, models: Sequence[str]) -> Figure | None:
    """Why anchors are anchors."""
    result = results["qk"]
    panels = line_panels(
        result.table, "measure", models, "std. dev.", titles=_QK_TITLES, order=list(_QK_TITLES), shared=True
    )
    parts = {
        name: by_model(result.table.filter(pl.col("measure") == name), models) for name in ("angle_part", "norm_part")
    }
    return Figure(
        "qk",
        "Why anchors are anchors: angle or norm",
        "The advantage of anchor columns over the others in q·k, and its three parts, which add up to it: the angle, "
        "the length of the key, and both together. Thin lines are controls: as many random positions, the untrained "
        "model.",
        result.table,
        panels,
        finding=sentence("Part of the angle, mean over layers", parts["angle_part"], {"norm": parts["norm_part"]}, 2),
        notes=result.notes,
        **published_view(results, "qk", models),
    )


FIGURES: dict[str, Builder] = {
    "drift": drift,
    "absorption": absorption,
    "token_classes": token_classes,
    "qk": qk,
    "retrieval_heads": retrieval_heads,
    "flow": flow,
}
"""The figures drawn from a Result of the same name; the drift map is drawn from traces."""
