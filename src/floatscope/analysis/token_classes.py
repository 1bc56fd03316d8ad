"""Token classes: what anchors are made of by depth and step; "shallow structure, deep content" as a test."""

from collections.abc import Iterable, Sequence
from functools import partial
from itertools import product
from typing import Any

import altair as alt
import numpy as np
import polars as pl
from numpy.typing import NDArray

from floatscope.analysis.anchors import detect, random_like
from floatscope.analysis.cells import Array, cell_columns, ratio
from floatscope.analysis.depth import THIRDS, minus, third_members
from floatscope.analysis.drawing import Plot, looks, plot, tooltips
from floatscope.analysis.figure import Figure, finding, result_figure
from floatscope.analysis.palette import MUTED
from floatscope.analysis.results import LABELS, NUMBERS, Controls, Options, Panel, Result, analyse, readable, summarise
from floatscope.analysis.uniform import uniform_layers
from floatscope.canvas import SCAFFOLD, positions
from floatscope.errors import UserError
from floatscope.token_text import LEXICAL, STRUCTURAL, text_class
from floatscope.traces import Trace

CLASSES = ("mask", "special", "whitespace", "punctuation", "scaffold", "function", "number", "content")
PHASES = ("early", "midway", "late")
TREATMENTS: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "function words apart": (STRUCTURAL, LEXICAL),
    "function words structural": ((*STRUCTURAL, "function"), LEXICAL),
    "function words lexical": (STRUCTURAL, (*LEXICAL, "function")),
}


def step_classes(trace: Trace) -> NDArray[np.int64]:
    """[step, token] class number of each token; template words are scaffold, slots that are still masked are mask."""
    if trace.texts is None:
        raise UserError(
            f"The trace of {trace.model!r} has no token texts, so no token classes; trace with a tokenizer."
        )
    names = [text_class(text) for text in trace.texts]
    for place in positions(trace.regions, SCAFFOLD):
        names[place] = names[place] if names[place] in STRUCTURAL else SCAFFOLD
    classes = np.tile([CLASSES.index(name) for name in names], (trace.steps, 1))
    if trace.kind != "arm":
        step, slot = np.nonzero(trace.masked)
        classes[step, trace.slots[slot]] = CLASSES.index("mask")
    return classes


def token_classes(traces: Iterable[Trace], options: Options, controls: Controls) -> Result:
    """Share of anchor mass by class, depth third and phase of decoding; second table: the shallow/deep test.

    Uniform control: class shares of all received attention if every row attends evenly. Random control: shares
    of as many random positions.
    """

    def measure(trace: Trace, rng: np.random.Generator, panel: Panel) -> dict[str, Any]:
        if SCAFFOLD not in trace.region_labels:
            panel.note("Traces without scaffold regions have their template words counted as other classes.")
        classes = step_classes(trace)
        weights = detect(trace, options.detector, options.normalisation)
        chance = random_like(weights, trace.visible > 0, rng)
        found = class_mass(weights * trace.received, classes)
        if not weights.any():
            panel.note("Traces without any anchor have null shares.")
        even, kinds = uniform_layers(trace)
        flat = class_mass(even.received, classes)[:, kinds]
        drawn = class_mass(chance * trace.received, classes)
        columns = cell_columns(keys, value=_shares(found), uniform=_shares(flat), random=_shares(drawn))
        return columns | {"class": np.array(CLASSES)[columns["class"]]}

    keys = ("depth", "phase", "class")
    test = partial(summarise, keys=("treatment", "contrast"), derived=_contrasts, tested=pl.lit(True))
    return analyse("token_classes", traces, keys, measure, options, controls, token_classes_test=test)[0]


def class_mass(mass: Array, classes: NDArray[np.int64]) -> NDArray[np.float64]:
    """[step, layer, token] mass and [step, token] classes -> [step, layer, class] sums."""
    steps, layers, _ = mass.shape
    sums = np.zeros((steps, layers, len(CLASSES)))
    for step in range(steps):
        member = np.eye(len(CLASSES), dtype=np.float32)[classes[step]]  # [token, class]
        sums[step] = mass[step] @ member
    return sums


def _shares(mass: NDArray[np.float64]) -> dict[tuple[str, str], Array]:
    """[step, layer, class] -> shares [class] by depth and all, phase and all; nan where there is no mass."""
    steps, layers, _ = mass.shape
    pooled = np.einsum("dl,ps,slc->dpc", third_members(layers), third_members(steps), mass)
    shares = ratio(pooled, pooled.sum(axis=-1, keepdims=True))
    labels = product((*THIRDS, "all"), (*PHASES, "all"))
    return dict(zip(labels, shares.reshape(-1, len(CLASSES)), strict=True))


def _contrasts(panel: Panel) -> pl.DataFrame:
    """Per sample: structural share shallow - deep, lexical share deep - shallow; null where a share is undefined."""
    samples = readable(panel.samples).filter(phase="all")
    parts = []
    for treatment, (structural, lexical) in TREATMENTS.items():
        for contrast, names in (("structural: shallow - deep", structural), ("lexical: deep - shallow", lexical)):
            # A sum that skips nulls would make an undefined share 0: ask for as many known shares as classes.
            summed = (pl.when(pl.col(name).count() == len(names)).then(pl.col(name).sum()) for name in NUMBERS)
            shares = samples.filter(pl.col("class").is_in(names)).group_by(*LABELS, "depth", maintain_order=True)
            shares = shares.agg(share.alias(name) for share, name in zip(summed, NUMBERS, strict=True))
            first, _, second = contrast.partition(": ")[2].partition(" - ")
            gap = minus(shares.filter(depth=first), shares.filter(depth=second), LABELS)
            parts.append(gap.with_columns(treatment=pl.lit(treatment), contrast=pl.lit(contrast)))
    return pl.concat(parts)


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
    what = "Lexical share of anchor mass, deep minus shallow"
    return result_figure(
        result,
        "What anchors are made of, by depth",
        [_bars(table, model) for model in models if model in table["model"]],
        "Share of anchor mass by token class in the first, middle and last third of the layers. The full bar is the "
        "anchors', the pale bars beside it are random positions, even attention and the untrained model: a class that "
        "fills them equally is no finding.",
        finding(what, claim, models, ("random",), rows=True),
        table,
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
    label = f"{_BARS}[split(datum.value, ' ')[1]] || ''"
    gaps = alt.Scale(domain=places[:-1], paddingInner=0.12, paddingOuter=0)
    axis = alt.Axis(labelExpr=label, labelAngle=-55, labelOverlap=False)
    base = alt.Chart().encode(x=alt.X("place:N", title=None, scale=gaps, axis=axis))
    heights = {"scale": alt.Scale(domain=[0, 1]), "axis": alt.Axis(format=".0%", tickCount=5, grid=False)}
    told = [*tooltips("model", "depth"), alt.Tooltip("source:N", title="of"), *tooltips("class")]
    bars = base.transform_filter("isValid(datum.share)").mark_bar()
    bars = bars.encode(
        y=alt.Y("share:Q", title=None, **heights),
        color=looks(alt.Color, "class", _COLOURS, columns=8),
        order="rank:Q",
        opacity=alt.condition("datum.source == 'value'", alt.value(1), alt.value(0.45)),
        tooltip=[*told, alt.Tooltip("share:Q", format=".1%")],
    )
    names = base.transform_filter("datum.source == 'value' && datum.rank == 0")
    names = names.mark_text(align="left", baseline="bottom", dx=-6, dy=-4, color=MUTED, fontSize=11)
    names = names.encode(y=alt.value(0), text="depth:N")
    shares = [
        {"fold": known, "as": ["source", "share"]},
        {"calculate": "datum.depth + ' ' + datum.source", "as": "place"},
        {"calculate": f"indexof({list(CLASSES)}, datum.class)", "as": "rank"},
    ]
    return plot([bars, names], model, table, {"model": model}, width=400, height=180, transform=shares)
