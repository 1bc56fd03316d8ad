"""Flow: attention between regions, layer by layer and rolled out over the stack, per step and averaged.

Regions, not tokens: B[r,s] = (1/|r|) sum over i in r, j in s of A_ij, which follows from the captured sums. Token
rollout does not. A causal stack rolls out to its first token whatever its weights, so uniform attention of the
same depth stands beside every number.
"""

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from floatscope.analysis.depth import THIRDS, thirds, with_test
from floatscope.analysis.drawing import Plot, arrange, cells, lines
from floatscope.analysis.figure import Figure
from floatscope.analysis.findings import by_model, number_text, rows_by_model, sentence
from floatscope.analysis.results import (
    DEFAULTS,
    NO_CONTROLS,
    Controls,
    Options,
    Panel,
    Result,
    analyse,
    readable,
    summarise,
    summarise_samples,
    with_untrained,
)
from floatscope.analysis.uniform import uniform_layers
from floatscope.canvas import ANSWER
from floatscope.errors import UserError
from floatscope.traces import Trace

Array = NDArray[Any]
_STEP_KEYS = ("gold", "window", "step", "target")
_ANY = "any"
"""Label of the contrast over all gold positions."""
FORMS = {
    "pooled": "share of the source's attention that lands on the target (the paper's sum pooling)",
    "per_token": "the same divided by the target's length, rows rescaled to sum to 1",
}


def region_rollout(matrices: Array, alpha: float = 0.5) -> Array:
    """[..., layer, region, region] -> [..., region, region]: product over layers of a B + (1 - a) I.

    An empty region (no rows at this step) passes everything to itself.
    """
    count = matrices.shape[-1]
    eye = np.eye(count)
    empty = matrices.sum(axis=-1, keepdims=True) < 1e-6
    mixed = np.where(empty, eye, alpha * matrices + (1 - alpha) * eye)
    rolled = np.broadcast_to(eye, (*matrices.shape[:-3], count, count))
    for layer in range(matrices.shape[-3]):
        rolled = mixed[..., layer, :, :] @ rolled
    return rolled


def per_token(matrices: Array, sizes: Array) -> Array:
    """Divide by the length of the target region and rescale rows to sum to 1; empty rows stay 0."""
    density = np.divide(matrices, sizes, out=np.zeros_like(matrices), where=sizes > 0)
    total = density.sum(axis=-1, keepdims=True)
    return np.divide(density, total, out=np.zeros_like(density), where=total > 0)


def gold_label(trace: Trace) -> str:
    """The documents that hold evidence, by their place: "doc 3", "doc 1 + doc 4", or "none"."""
    evidence = trace.marks.get("evidence", np.zeros(0))
    documents = [
        region.label
        for region in trace.regions
        if region.label.startswith("doc ") and ((evidence >= region.start) & (evidence < region.stop)).any()
    ]
    return " + ".join(dict.fromkeys(documents)) or "none"


def flow(
    traces: Iterable[Trace],
    options: Options = DEFAULTS,
    controls: Controls = NO_CONTROLS,
    alpha: float = 0.5,
) -> Result:
    """Region matrices per layer and rollouts per layer window, by gold position.

    Further tables: answer-to-document flow by gold position, its contrast (gold minus the mean of the other
    documents, with a test), and the answer's rollout at every step.
    """
    if not 0 <= alpha <= 1:
        raise UserError(f"The attention weight alpha = {alpha} of the rollout is not between 0 and 1.")

    def measure(trace: Trace, rng: np.random.Generator, panel: Panel) -> dict[str, Any] | None:
        if len(trace.region_labels) < 2:
            panel.note("Traces without regions are left out.")
            return None
        panel.note("The column 'random' is null: regions are given, not chosen.")
        found, by_step = _trace_flow(trace, trace.region_matrix(head_mean=True), alpha)
        even, kinds = uniform_layers(trace)
        flat, flat_by_step = _trace_flow(trace, even.region_matrix(head_mean=True)[:, kinds], alpha)
        if by_step is not None and flat_by_step is not None:
            panel.other("flow_steps", _STEP_KEYS).add(trace, by_step | {"uniform": flat_by_step["value"]})
        return found | {"uniform": flat["value"]}

    keys = ("gold", "view", "form", "window", "layer", "source", "target")
    result, panel = analyse("flow", traces, keys, measure, options, controls)
    if not panel.frames:
        raise UserError("No trace has regions: flow needs prompts built from questions and documents.")
    tables = {**result.tables, "flow_gold": _answer_to_documents(result.table)}
    tables["flow_contrast"] = _gold_contrast(panel, options)
    for name, steps in panel.beside.items():
        tables[name] = summarise(steps, options)
    return Result("flow", tables, result.notes)


def _trace_flow(trace: Trace, matrices: Array, alpha: float) -> tuple[dict[str, Any], dict[str, Any] | None]:
    """Long columns of one trace: matrices and rollouts averaged over steps, and the answer's rollout by step."""
    labels = trace.region_labels
    sizes = np.array([sum(len(r) for r in trace.regions if r.label == label) for label in labels], float)
    matrices = matrices.astype(np.float64)  # [step, layer, region, region]
    there = matrices.sum(axis=-1) > 1e-6  # [step, layer, region] sources with rows
    depth = thirds(trace.layers)
    windows = {"all": np.arange(trace.layers)} | {
        name: np.flatnonzero(depth == number) for number, name in enumerate(THIRDS)
    }
    rolled = {name: region_rollout(matrices[:, chosen], alpha) for name, chosen in windows.items()}
    cells: list[tuple[str, str, str | None, int | None, Array]] = []
    for form in FORMS:
        shaped = matrices if form == "pooled" else per_token(matrices, sizes)
        for layer, matrix in enumerate(_mean_over_steps(shaped, there)):
            cells.append(("attention", form, None, layer, matrix))
        for name, matrix in rolled.items():
            matrix = matrix if form == "pooled" else per_token(matrix, sizes)
            mean = _mean_over_steps(matrix[:, None], there[:, :1])[0] if len(windows[name]) else None
            if mean is not None:
                cells.append(("rollout", form, name, None, mean))
    known = {name: matrix for name, matrix in rolled.items() if len(windows[name])}
    return _long(trace, labels, cells), _by_step(trace, labels, known, there[:, 0])


def _mean_over_steps(matrices: Array, there: Array) -> Array:
    """[step, layer, region, region] -> [layer, region, region] over the steps at which the source has rows."""
    count = there.sum(axis=0)[..., None]  # [layer, region, 1]
    total = np.where(there[..., None], matrices, 0).sum(axis=0)
    return np.divide(total, count, out=np.full(total.shape, np.nan), where=count > 0)


def _long(trace: Trace, labels: tuple[str, ...], cells: list[Any]) -> dict[str, Any]:
    pairs = len(labels) ** 2
    return {
        "gold": [gold_label(trace)] * (pairs * len(cells)),
        "view": np.repeat([view for view, *_ in cells], pairs),
        "form": np.repeat([form for _, form, *_ in cells], pairs),
        "window": pl.Series([window for _, _, window, *_ in cells for _ in range(pairs)], dtype=pl.String),
        "layer": pl.Series([layer for *_, layer, _ in cells for _ in range(pairs)], dtype=pl.Int64),
        "source": np.tile(np.repeat(labels, len(labels)), len(cells)),
        "target": np.tile(labels, len(labels) * len(cells)),
        "value": np.concatenate([matrix.ravel() for *_, matrix in cells]),
    }


def _by_step(trace: Trace, labels: tuple[str, ...], rolled: dict[str, Array], there: Array) -> dict[str, Any] | None:
    """The answer's row of every window's rollout, at every step at which the answer has rows."""
    if ANSWER not in labels:
        return None
    source = labels.index(ANSWER)
    values = np.stack([np.where(there[:, source, None], matrix[:, source], np.nan) for matrix in rolled.values()])
    windows, steps, targets = values.shape  # [window, step, region]
    return {
        "gold": [gold_label(trace)] * values.size,
        "window": np.repeat(list(rolled), steps * targets),
        "step": np.tile(np.repeat(np.arange(steps), targets), windows),
        "target": np.tile(labels, windows * steps),
        "value": values.ravel(),
    }


def _answer_to_documents(table: pl.DataFrame) -> pl.DataFrame:
    """Rollout from the answer to each document, by gold position; whether the document is the gold one."""
    return table.filter(_TO_DOCUMENTS).with_columns(_IS_GOLD.alias("is_gold")).drop("view", "form", "layer", "source")


def _gold_contrast(panel: Panel, options: Options) -> pl.DataFrame:
    """Rollout from the answer to the gold document minus the mean over the others, per sample; by gold and over all."""
    samples = _contrasts(panel)
    keys = ("gold", "window")
    if samples.is_empty():
        return summarise(Panel(keys), options).with_columns(pl.lit(None, pl.Float64).alias("p"))
    control = _contrasts(panel.untrained) if panel.untrained is not None and panel.untrained.frames else None
    table = with_untrained(summarise_samples(samples, keys, options), keys, panel, control)
    return with_test(table, samples, ["model", *keys], options)


def _contrasts(panel: Panel) -> pl.DataFrame:
    """One row per sample and window, twice: under its gold position and under any."""
    documents = readable(panel.samples.filter(_TO_DOCUMENTS)).with_columns(_IS_GOLD.alias("is_gold"))
    gap = [
        (pl.col(name).filter("is_gold").mean() - pl.col(name).filter(~pl.col("is_gold")).mean()).alias(name)
        for name in ("value", "uniform", "random")
    ]
    each = documents.group_by("model", "kind", "trace", "gold", "window", maintain_order=True).agg(gap)
    each = each.drop_nulls("value")  # no gold document, or no other one
    return pl.concat([each, each.with_columns(pl.lit(_ANY).alias("gold"))])


_TO_DOCUMENTS = (
    (pl.col("view") == "rollout")
    & (pl.col("form") == "pooled")
    & (pl.col("source") == ANSWER)
    & pl.col("target").cast(pl.String).str.starts_with("doc ")
)
_IS_GOLD = pl.col("gold").str.split(" + ").list.contains(pl.col("target"))


_MOST_PANELS = 6
_SHORT = "replace(datum.label, regexp('doc ', 'g'), '')"


def figure(result: Result, models: Sequence[str]) -> Figure:
    """From the answer to each document by the place of the gold one; step by step; and between all regions."""
    table = result.tables["flow_gold"].filter(window="all").drop_nulls("value")
    golds = sorted(table["gold"].unique().to_list(), key=_document_number)
    targets = sorted(table["target"].unique().to_list(), key=_document_number)
    columns = [name for name in ("value", "uniform", "untrained") if table[name].is_not_null().any()]
    top = max((float(table[name].max()) for name in columns), default=1.0)  # pyright: ignore[reportArgumentType]
    groups: dict[str, list[Plot | None]] = {
        f"{model}, darkest {number_text(top, 2)}": [
            _documents(table, model, column, golds, targets, top) for column in columns
        ]
        for model in models
    }
    tables = {"table": table}
    if "flow_steps" in result.tables:
        steps = result.tables["flow_steps"].filter(_IS_GOLD, window="all").drop_nulls("value")
        tables["steps"] = steps
        groups["from the answer to the gold document, step by step"] = [
            lines(steps, f"gold at {gold}", {"gold": gold}, models, "step", name="steps", detail="target:N")
            for gold in golds[:_MOST_PANELS]
        ]
    tables["regions"], groups["between all regions"] = _regions(result.table, models)
    contrast = result.tables["flow_contrast"].filter(gold=_ANY, window="all")
    beside = {name: by_model(contrast, models, name) for name in ("uniform", "untrained")}
    return Figure(
        "flow",
        "Flow from the answer to each document, by gold position",
        arrange(groups, tables),
        table,
        "Rollout over the whole stack: how much of the answer's attention ends in each document, by where the gold "
        "one stands (diamonds). If the model reads the evidence, the diagonal is dark; beside each model stand even "
        "attention and the untrained model, which know no evidence. Below, the same step by step, and between all "
        "regions, from the rows to the columns.",
        finding=sentence("Gold document minus the mean of the others", rows_by_model(contrast, models), beside, 3),
        notes=result.notes,
        subtitle="diamond: the gold document",
    )


def _documents(
    table: pl.DataFrame, model: str, column: str, golds: list[str], targets: list[str], top: float
) -> Plot | None:
    """Gold positions down, documents across: the model's flow, or a control's, in grey."""
    told = ("model", "gold", "target", *(("low", "high") if column == "value" else ()))
    return cells(
        table,
        "trained" if column == "value" else column,
        {"model": model},
        "target",
        "gold",
        targets,
        golds,
        top,
        value=column,
        titles=("document", "gold at"),
        label=_SHORT,
        mark="datum.is_gold",
        told=told,
        size=(34, 24),
        faint=column != "value",
    )


def _regions(table: pl.DataFrame, models: Sequence[str]) -> tuple[pl.DataFrame, list[Plot | None]]:
    """Rollout from every region to every region, for the first gold position."""
    rolled = table.filter(view="rollout", form="pooled", window="all").drop_nulls("value")
    golds = sorted(rolled["gold"].unique().to_list(), key=_document_number)
    shown = rolled.filter(gold=golds[0]) if golds else rolled
    labels = shown["source"].unique(maintain_order=True).to_list()
    top = shown["value"].max()
    panels = [
        cells(
            shown,
            f"{model}, gold at {golds[0]}",
            {"model": model},
            "target",
            "source",
            labels,
            labels,
            float(top) if isinstance(top, float) else 1.0,
            titles=("to", "from"),
            told=("model", "source", "target", "low", "high", "uniform", "untrained"),
            size=(24, 20),
            root=True,
            name="regions",
        )
        for model in models
    ]
    return shown, panels


def _document_number(label: str) -> tuple[int, str]:
    digits = "".join(letter for letter in label.partition("+")[0] if letter.isdigit())
    return (int(digits) if digits else 10**6, label)
