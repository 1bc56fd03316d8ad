"""Token classes: what anchors are made of by depth and step; "shallow structure, deep content" as a test."""

from collections.abc import Iterable, Sequence
from typing import Any

import altair as alt
import numpy as np
import polars as pl
from numpy.typing import NDArray

from floatscope.analysis.anchors import detect, random_like
from floatscope.analysis.depth import THIRDS, thirds
from floatscope.analysis.drawing import MUTED, Plot, arrange, plot
from floatscope.analysis.figure import Figure
from floatscope.analysis.findings import rows_by_model, sentence
from floatscope.analysis.results import DEFAULTS, NO_CONTROLS, Controls, Options, Panel, Result, analyse, readable
from floatscope.analysis.token_text import text_class
from floatscope.analysis.uniform import uniform_layers
from floatscope.canvas import SCAFFOLD
from floatscope.errors import UserError
from floatscope.statistics import bootstrap_mean, sign_flip_test
from floatscope.traces import Trace

Array = NDArray[Any]
CLASSES = ("mask", "special", "whitespace", "punctuation", "scaffold", "function", "number", "content")
STRUCTURAL = ("special", "whitespace", "punctuation", "scaffold")
LEXICAL = ("content", "number")
PHASES = ("early", "midway", "late")
TREATMENTS: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "function words apart": (STRUCTURAL, LEXICAL),
    "function words structural": ((*STRUCTURAL, "function"), LEXICAL),
    "function words lexical": (STRUCTURAL, (*LEXICAL, "function")),
}


def static_classes(trace: Trace) -> NDArray[np.int64]:
    """[token] class number of each token of the final canvas; template words are scaffold."""
    if trace.texts is None:
        raise UserError(
            f"The trace of {trace.model!r} has no token texts, so no token classes; trace with a tokenizer."
        )
    names = [text_class(text) for text in trace.texts]
    for region in trace.regions:
        if region.label == SCAFFOLD:
            for place in range(region.start, region.stop):
                names[place] = names[place] if names[place] in STRUCTURAL else SCAFFOLD
    return np.array([CLASSES.index(name) for name in names], dtype=np.int64)


def step_classes(trace: Trace) -> NDArray[np.int64]:
    """[step, token] the same, with slots that are still masked as mask."""
    classes = np.tile(static_classes(trace), (trace.steps, 1))
    if trace.kind != "arm":
        step, slot = np.nonzero(trace.masked)
        classes[step, trace.slots[slot]] = CLASSES.index("mask")
    return classes


def token_classes(traces: Iterable[Trace], options: Options = DEFAULTS, controls: Controls = NO_CONTROLS) -> Result:
    """Share of anchor mass by class, depth third and phase of decoding; second table: the shallow/deep test.

    Uniform control: class shares of all received attention if every row attends evenly. Random control: shares
    of as many random positions.
    """

    def measure(trace: Trace, rng: np.random.Generator, panel: Panel) -> dict[str, Any]:
        if not any(region.label == SCAFFOLD for region in trace.regions):
            panel.note("Traces without scaffold regions have their template words counted as other classes.")
        classes = step_classes(trace)
        weights = detect(trace, options.detector, options.normalisation)
        chance = random_like(weights, trace.visible > 0, rng)
        found = class_mass(weights * trace.received, classes)
        if not weights.any():
            panel.note("Traces without any anchor have null shares.")
        even, kinds = uniform_layers(trace)
        flat = class_mass(even.received, classes)[:, kinds]
        parts = [_shares(mass) for mass in (found, flat, class_mass(chance * trace.received, classes))]
        return {
            "depth": np.repeat((*THIRDS, "all"), 4 * len(CLASSES)),
            "phase": np.tile(np.repeat((*PHASES, "all"), len(CLASSES)), 4),
            "class": np.tile(CLASSES, 16),
            "value": parts[0].ravel(),
            "uniform": parts[1].ravel(),
            "random": parts[2].ravel(),
        }

    keys = ("depth", "phase", "class")
    result, panel = analyse("token_classes", traces, keys, measure, options, controls)
    tables = {**result.tables, "token_classes_test": _depth_test(readable(panel.samples), options)}
    return Result("token_classes", tables, result.notes)


def class_mass(mass: Array, classes: NDArray[np.int64]) -> NDArray[np.float64]:
    """[step, layer, token] mass and [step, token] classes -> [step, layer, class] sums."""
    steps, layers, _ = mass.shape
    sums = np.zeros((steps, layers, len(CLASSES)))
    for step in range(steps):
        member = np.eye(len(CLASSES), dtype=np.float32)[classes[step]]  # [token, class]
        sums[step] = mass[step] @ member
    return sums


def _shares(mass: NDArray[np.float64]) -> NDArray[np.float64]:
    """[step, layer, class] -> [depth and all, phase and all, class] shares; nan where there is no mass."""
    steps, layers, _ = mass.shape
    depth = np.vstack([np.eye(3)[:, thirds(layers)], np.ones(layers)])  # [4, layer]
    phase = np.vstack([np.eye(3)[:, thirds(steps)], np.ones(steps)])  # [4, step]
    pooled = np.einsum("dl,ps,slc->dpc", depth, phase, mass)
    total = pooled.sum(axis=-1, keepdims=True)
    return np.divide(pooled, total, out=np.full(pooled.shape, np.nan), where=total > 0)


def _depth_test(samples: pl.DataFrame, options: Options) -> pl.DataFrame:
    """Per sample: structural share shallow - deep, lexical share deep - shallow; sign-flip test."""
    rows = []
    for (model,), part in samples.filter(pl.col("phase") == "all").group_by("model", maintain_order=True):
        for treatment, (structural, lexical) in TREATMENTS.items():
            for claim, names, sign in (("structural", structural, 1), ("lexical", lexical, -1)):
                found = sign * _contrast(part, names, "value")
                chance = sign * _contrast(part, names, "random")
                interval = bootstrap_mean(found[:, None], options.seed, options.draws)
                known = chance[~np.isnan(chance)]
                rows.append(
                    {
                        "model": model,
                        "treatment": treatment,
                        "contrast": f"{claim}: shallow - deep" if sign > 0 else f"{claim}: deep - shallow",
                        "value": interval.estimate[0],
                        "low": interval.low[0],
                        "high": interval.high[0],
                        "p": sign_flip_test(found, options.seed),
                        "samples": int(interval.n[0]),
                        "random": known.mean() if len(known) else None,
                    }
                )
    return pl.DataFrame(rows, schema_overrides={"random": pl.Float64}).with_columns(pl.col(pl.Float64).fill_nan(None))


def _contrast(part: pl.DataFrame, names: tuple[str, ...], column: str) -> NDArray[np.float64]:
    """[sample] summed share of some classes, shallow minus deep; nan where either is undefined."""
    chosen = part.filter(pl.col("class").is_in(names) & pl.col("depth").is_in(("shallow", "deep")))
    # A sum that skips nulls would make an undefined share 0: ask for as many known shares as classes.
    summed = pl.when(pl.col(column).count() == len(names)).then(pl.col(column).sum())
    sums = chosen.group_by("trace", "depth", maintain_order=True).agg(summed.alias("share"))
    wide = sums.pivot("depth", index="trace", values="share")
    if not {"shallow", "deep"} <= set(wide.columns):
        return np.full(wide.height, np.nan)
    return (wide["shallow"] - wide["deep"]).cast(pl.Float64).fill_null(float("nan")).to_numpy()


_COLOURS = {
    "mask": "#9aa0a6",
    "special": "#003f66",
    "whitespace": "#2b7bba",
    "punctuation": "#56b4e9",
    "scaffold": "#b5dcf4",
    "function": "#009e73",
    "number": "#e69f00",
    "content": "#d55e00",
}
_BARS = {"value": "anchors", "random": "random", "uniform": "uniform", "untrained": "untrained"}


def figure(result: Result, models: Sequence[str]) -> Figure:
    """What anchors are made of by depth, beside random positions, even attention and the untrained model."""
    table = result.table.filter(pl.col("phase") == "all", pl.col("depth") != "all")
    claim = result.tables["token_classes_test"].filter(
        pl.col("treatment") == "function words apart", pl.col("contrast").str.starts_with("lexical")
    )
    chance = {row["model"]: row["random"] for row in claim.drop_nulls("random").iter_rows(named=True)}
    return Figure(
        "token_classes",
        "What anchors are made of, by depth",
        arrange([_bars(table, model) for model in models if model in table["model"]], {"table": table}),
        table,
        "Share of anchor mass by token class in the first, middle and last third of the layers. The full bar is the "
        "anchors', the pale bars beside it are random positions, even attention and the untrained model: a class that "
        "fills them equally is no finding.",
        finding=sentence(
            "Lexical share of anchor mass, deep minus shallow", rows_by_model(claim, models, 2), {"random": chance}
        ),
        notes=result.notes,
        subtitle="pale: controls",
    )


def _bars(table: pl.DataFrame, model: str) -> Plot | None:
    """Stacked shares of one model: for each third of its layers the anchors, then the controls, pale."""
    part = table.filter(model=model)
    known = [name for name in _BARS if part[name].is_not_null().any()]
    if not known:
        return None
    places = []
    for depth in THIRDS:  # a blank place keeps the thirds apart
        places += [*(f"{depth} {name}" for name in known), f"{depth} "]
    base = alt.Chart().encode(
        x=alt.X(
            "place:N",
            title=None,
            scale=alt.Scale(domain=places[:-1], paddingInner=0.12, paddingOuter=0),
            axis=alt.Axis(labelExpr=f"{_BARS}[split(datum.value, ' ')[1]] || ''", labelAngle=-55, labelOverlap=False),
        )
    )
    bars = (
        base.transform_filter("isValid(datum.share)")
        .mark_bar()
        .encode(
            y=alt.Y(
                "share:Q",
                title=None,
                scale=alt.Scale(domain=[0, 1]),
                axis=alt.Axis(format=".0%", tickCount=5, grid=False),
            ),
            color=alt.Color(
                "class:N",
                scale=alt.Scale(domain=list(_COLOURS), range=list(_COLOURS.values())),
                legend=alt.Legend(title=None, columns=8),
            ),
            order="rank:Q",
            opacity=alt.condition("datum.source == 'value'", alt.value(1), alt.value(0.45)),
            tooltip=[
                *(alt.Tooltip(f"{name}:N") for name in ("model", "depth")),
                alt.Tooltip("source:N", title="of"),
                alt.Tooltip("class:N"),
                alt.Tooltip("share:Q", format=".1%"),
            ],
        )
    )
    names = (
        base.transform_filter("datum.source == 'value' && datum.rank == 0")
        .mark_text(align="left", baseline="bottom", dx=-6, dy=-4, color=MUTED, fontSize=11)
        .encode(y=alt.value(0), text="depth:N")
    )
    shares = [
        {"fold": known, "as": ["source", "share"]},
        {"calculate": "datum.depth + ' ' + datum.source", "as": "place"},
        {"calculate": f"indexof({list(CLASSES)}, datum.class)", "as": "rank"},
    ]
    return plot([bars, names], model, table, {"model": model}, width=400, height=180, transform=shares)
