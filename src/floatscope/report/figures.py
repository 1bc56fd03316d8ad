"""One figure per analysis, drawn from its Result with altair; controls stand in every figure, thin and grey.

Numbers come from the tables as they are. Theme, files and shared parts are in `drawing`, pictures of single traces in
`heatmaps`.
"""

import altair as alt
import polars as pl

from floatscope.analysis.results import Result
from floatscope.report.drawing import (
    COLOURS,
    Chart,
    Theme,
    dots,
    inline_data,
    model_colour,
    profiles,
    save_figure,
    sparse_axis,
    themed,
)

_CLASS_COLOURS = {
    "mask": "#999999",
    "special": "#004B78",
    "whitespace": "#0072B2",
    "punctuation": "#56B4E9",
    "scaffold": "#A6D5F2",
    "function": "#009E73",
    "number": "#E69F00",
    "content": "#D55E00",
}
_DRIFT = {
    "turnover": "turnover of anchors",
    "top_shift": "top position moves (tokens)",
    "centroid_shift": "centroid moves (tokens)",
    "wasserstein": "Wasserstein-1 (tokens)",
    "lifetime": "lifetime of an anchor (steps)",
    "static_share": "share of static anchors",
    "direction": "direction (Spearman with step)",
    "cosine": "cosine between steps",
    "top_overlap": "overlap of the top ten",
}
_DISPERSION = {
    "anchors": "number of anchors",
    "effective_share": "exp(entropy) / columns",
    "gini": "Gini coefficient",
    "top_share": "share of the top position",
}
_QK = {
    "qk": "q.k",
    "cos": "cos",
    "norm": "|q||k|",
    "angle_part": "part of q.k: angle",
    "norm_part": "part of q.k: norm",
    "interaction_part": "part of q.k: interaction",
}
_QUIRKS = {
    "absolute_threshold": "absolute threshold (% absorbed)",
    "one_forward": "one forward (% absorbed)",
    "head_averaged_states": "head-averaged q and k (q.k advantage)",
    "head_modulo": "head % kv heads (q.k advantage)",
    "retokenised_regions": "regions tokenised apart (answer to documents)",
}
_THIRDS = ("shallow", "middle", "deep")
_GOLD_COLUMNS = 6


def anchors(result: Result, theme: Theme = "light") -> Chart:
    """Number of anchors per layer by detector."""
    table = result.table.filter(measure="count", normalisation="rows")
    titles = {name: name for name in table["detector"].unique(maintain_order=True)}
    chart = profiles(table, "detector", titles, "anchors per step", theme)
    return themed(chart, theme, "Anchors by detector and layer")


def drift(result: Result, theme: Theme = "light") -> Chart:
    """Every drift measure per layer."""
    wide = ("top_shift", "centroid_shift", "wasserstein")
    chart = profiles(result.table, "measure", _DRIFT, "", theme, wide=wide)
    return themed(chart, theme, "Drift from step to step, by layer", "random: positions shuffled at every step")


def absorption(result: Result, theme: Theme = "light") -> Chart:
    """Percent of attention per layer, by set and by whose rows ask."""
    table = result.table.with_columns((pl.col("set") + ", " + pl.col("rows") + " rows").alias("panel"))
    titles = {name: name for name in table["panel"].unique(maintain_order=True)}
    chart = profiles(table, "panel", titles, "% of attention", theme, columns=2, shared=True)
    return themed(chart, theme, "Absorption: attention on bos, detected anchors and the top position")


def dispersion(result: Result, theme: Theme = "light") -> Chart:
    """Every dispersion measure per layer."""
    return themed(profiles(result.table, "measure", _DISPERSION, "", theme, columns=2), theme, "Dispersion by layer")


def qk(result: Result, theme: Theme = "light") -> Chart:
    """Anchor advantages and their parts per layer."""
    chart = profiles(result.table, "measure", _QK, "standard deviations", theme, shared=True)
    return themed(chart, theme, "Anchor advantage in q.k, and its parts")


def compat(result: Result, theme: Theme = "light") -> Chart:
    """Published and exact values per layer, by quirk; a quirk of the whole stack is a pair of points."""
    colour = COLOURS[theme]["control"]
    charts = []
    for quirk, title in _QUIRKS.items():
        part = result.table.filter(pl.col("quirk") == quirk)
        if part.is_empty():
            continue
        whole = part["layer"].null_count() == part.height
        part = part.with_columns(pl.col("layer").fill_null(0))
        long = part.unpivot(
            ["published", "exact"], index=["model", "layer"], variable_name="version", value_name="value"
        )
        axis = alt.Axis(labels=False, ticks=False) if whole else alt.Axis(tickMinStep=1)
        x = alt.X("layer:Q", title="whole stack" if whole else "layer", axis=axis)
        base = alt.Chart(inline_data(long)).encode(
            x=x,
            y=alt.Y("value:Q", title=None, scale=alt.Scale(zero=False)),
            color=model_colour(theme),
            strokeDash=alt.StrokeDash("version:N", title="version", scale=alt.Scale(domain=["published", "exact"])),
            detail="version:N",
        )
        control = alt.Chart(inline_data(part.drop_nulls("uniform"))).encode(x=x, y="uniform:Q", detail="model:N")
        layers = [
            control.mark_line(strokeWidth=1.1, color=colour),
            control.mark_point(size=12, strokeWidth=1, color=colour, opacity=1),
            base.mark_line(),
            base.mark_point(size=18),
        ]
        charts.append(alt.layer(*layers).properties(width=230, height=140, title=title))
    subtitle = "grey: the published computation on uniform attention"
    return themed(alt.concat(*charts, columns=3), theme, "Published computations beside exact ones", subtitle)


def token_classes(result: Result, theme: Theme = "light") -> Chart:
    """What anchors are made of by depth, beside random positions, even attention and the untrained model."""
    sources = {"value": "anchors", "random": "random", "uniform": "uniform", "untrained": "untrained"}
    table = result.table.filter(pl.col("phase") == "all", pl.col("depth") != "all")
    long = table.unpivot(list(sources), index=["model", "depth", "class"], variable_name="source", value_name="share")
    long = long.drop_nulls("share").with_columns(pl.col("source").replace_strict(sources))
    order = list(_CLASS_COLOURS)
    rank = pl.col("class").replace_strict({name: n for n, name in enumerate(order)}).alias("rank")
    is_anchor = "datum.source == 'anchors'"
    bars = (
        alt.Chart(inline_data(long.with_columns(rank)))
        .mark_bar()
        .encode(
            x=alt.X("source:N", sort=list(sources.values()), title=None, axis=alt.Axis(labelAngle=-40)),
            y=alt.Y("share:Q", title="share of mass", scale=alt.Scale(domain=[0, 1]), axis=alt.Axis(grid=False)),
            color=alt.Color(
                "class:N", title="class", scale=alt.Scale(domain=order, range=list(_CLASS_COLOURS.values()))
            ),
            order="rank:Q",
            opacity=alt.condition(is_anchor, alt.value(1), alt.value(0.45)),
            size=alt.condition(is_anchor, alt.value(30), alt.value(12)),
        )
        .properties(width=150, height=130)
    )
    depth = alt.Column("depth:N", sort=list(_THIRDS), title=None)
    faceted = bars.facet(row=alt.Row("model:N", title=None), column=depth)
    return themed(faceted, theme, "What anchors are made of", "thin and pale: controls")


def retrieval_heads(result: Result, theme: Theme = "light") -> Chart:
    """Layer x head heatmaps by score, the depth profile with its controls, and how far halves of the data agree."""
    table = result.table.drop_nulls("value")
    cells = (
        alt.Chart(inline_data(table))
        .mark_rect()
        .encode(
            x=alt.X("head:O", axis=sparse_axis(table["head"])),
            y=alt.Y("layer:O", sort="descending", axis=sparse_axis(table["layer"])),
            color=alt.Color("value:Q", title="score", scale=alt.Scale(scheme="viridis")),
        )
        .properties(width=150, height=130)
        .facet(row=alt.Row("model:N", title=None), column=alt.Column("score:N", title=None))
        .resolve_scale(color="shared", x="shared", y="independent")
    )
    depth = result.tables["retrieval_heads_depth"].drop_nulls("value").filter(pl.col("depth").is_in(_THIRDS))
    profile = dots(depth, "depth", _THIRDS, "mean over heads", theme).facet(column=alt.Column("score:N", title=None))
    parts = [cells, profile]
    stability = result.tables["retrieval_heads_stability"].drop_nulls("pearson")
    if not stability.is_empty():
        names = {"pearson": "value", "pearson_low": "low", "pearson_high": "high"}
        order = stability["score"].unique(maintain_order=True).to_list()
        agreement = dots(stability.rename(names), "score", order, "correlation", theme, legend=False)
        parts.append(agreement.properties(title="agreement of two halves of the samples, over heads"))
    return themed(alt.vconcat(*parts), theme, "Retrieval heads")


def flow(result: Result, theme: Theme = "light") -> Chart:
    """Rollout between regions for every gold position; from the answer to each document; and step by step."""
    golds = _gold_positions(result.table)
    table = result.table.filter(pl.col("gold").is_in(golds)).filter(view="rollout", form="pooled", window="all")
    table = table.drop_nulls("value")
    labels = table["source"].unique(maintain_order=True).to_list()
    is_gold = pl.col("gold").str.split(" + ").list.contains(pl.col("target")) & (pl.col("source") == "answer")
    base = alt.Chart(inline_data(table.with_columns(is_gold.alias("is_gold")))).encode(
        x=alt.X("target:N", sort=labels, title="to", axis=alt.Axis(labelAngle=-45)),
        y=alt.Y("source:N", sort=labels, title="from"),
    )
    colour = alt.Color("value:Q", title="flow", scale=alt.Scale(scheme="viridis", type="sqrt"))
    gold = base.transform_filter("datum.is_gold").mark_point(shape="diamond", size=50, stroke="white", strokeWidth=2)
    size = 17 * len(labels)
    maps = alt.layer(base.mark_rect().encode(color=colour), gold).properties(width=size, height=size)
    column = alt.Column("gold:N", title="gold at", sort=golds)
    parts = [maps.facet(row=alt.Row("model:N", title=None), column=column)]
    documents = result.tables["flow_gold"].filter(pl.col("window") == "all", pl.col("gold").is_in(golds))
    if not documents.is_empty():
        names = documents["target"].unique(maintain_order=True).to_list()
        parts.append(dots(documents, "target", names, "answer to document", theme).facet(column=column))
    if "flow_steps" in result.tables:
        steps = result.tables["flow_steps"].filter(pl.col("window") == "all", pl.col("gold").is_in(golds))
        parts.append(_flow_by_step(steps.drop_nulls("value"), theme).facet(column=column))
    subtitle = "diamond: the gold document" + (", of the answer's row" if documents.height else "")
    return themed(alt.vconcat(*parts), theme, "Flow between regions (rollout over the whole stack)", subtitle)


def _gold_positions(table: pl.DataFrame) -> list[str]:
    """At most six columns, in the order of the documents; several gold documents only where no sample has one."""
    found = sorted(table["gold"].unique().to_list(), key=lambda gold: (len(gold), gold))
    return ([gold for gold in found if "+" not in gold] or found)[:_GOLD_COLUMNS]


def _flow_by_step(steps: pl.DataFrame, theme: Theme) -> Chart:
    """Flow from the answer to the gold documents, at every step; uniform attention in grey."""
    is_gold = pl.col("gold").str.split(" + ").list.contains(pl.col("target"))
    kept = steps.filter(is_gold)
    base = alt.Chart(inline_data(kept)).encode(x=alt.X("step:Q", title="step", axis=alt.Axis(tickMinStep=1)))
    y = alt.Y("value:Q", title="answer to gold, by step")
    control = base.mark_line(strokeWidth=1.1, color=COLOURS[theme]["control"]).encode(
        y=alt.Y("uniform:Q", title="answer to gold, by step"), detail=["model:N", "target:N"]
    )
    colour = model_colour(theme, legend=False)
    line = base.mark_line(strokeWidth=2).encode(y=y, color=colour, detail="target:N")
    points = base.mark_point(filled=True, opacity=1, size=18).encode(y=y, color=colour)
    return alt.layer(control, line, points).properties(width=150, height=120)


def query_state(result: Result, theme: Theme = "light") -> Chart:
    """Where masked and committed slots look, by region and token class."""
    table = result.table.filter(pl.col("depth") == "all", pl.col("state") != "masked - committed").drop_nulls("value")
    order = table["target"].unique(maintain_order=True).to_list()
    base = alt.Chart(inline_data(table)).encode(y=alt.Y("target:N", sort=order, title=None))
    ink = COLOURS[theme]["ink"]
    legend = alt.Legend(symbolFillColor=ink, symbolStrokeColor=ink)
    shape = alt.Shape("state:N", title="query", scale=alt.Scale(range=["circle", "square"]), legend=legend)
    points = base.mark_point(filled=True, opacity=1, size=60).encode(
        x=alt.X("value:Q", title="share of attention"), color=model_colour(theme), shape=shape
    )
    ranges = base.mark_rule().encode(x="low:Q", x2="high:Q", color=model_colour(theme))
    colour = COLOURS[theme]["control"]
    even = base.mark_tick(color=colour, thickness=1.5, size=14).encode(x="uniform:Q")
    bare = base.mark_tick(color=colour, thickness=3, size=4).encode(x="untrained:Q")
    chart = alt.layer(even, bare, ranges, points).properties(width=200, height=alt.Step(18))
    faceted = chart.facet(row=alt.Row("target_kind:N", title=None), column=alt.Column("model:N", title=None))
    subtitle = "grey: uniform (long tick), untrained (short tick)"
    return themed(faceted.resolve_scale(y="independent"), theme, "Where answer slots look", subtitle)


def task_dependence(result: Result, theme: Theme = "light") -> Chart:
    """Distance between tasks minus distance within tasks; hollow where a permutation of tasks does as well."""
    table = result.table.drop_nulls("value")
    order = (*_THIRDS, "all")
    chart = dots(table, "depth", order, "between - within", theme, hollow="datum.p >= 0.05")
    faceted = chart.facet(column=alt.Column("profile:N", title=None))
    return themed(faceted, theme, "Task dependence of anchors (total variation)", "hollow: p >= 0.05")


__all__ = [
    "absorption",
    "anchors",
    "compat",
    "dispersion",
    "drift",
    "flow",
    "qk",
    "query_state",
    "retrieval_heads",
    "save_figure",
    "task_dependence",
    "token_classes",
]
