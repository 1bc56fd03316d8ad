"""Flow: attention between regions, layer by layer and rolled out over the stack, per step and averaged.

Regions, not tokens: B[r,s] = (1/|r|) sum over i in r, j in s of A_ij, which follows from the captured sums. Token
rollout does not: traces with keep="rollout" hold it, summed by region. A causal stack rolls out to its first token
whatever its weights, so uniform attention of the same depth stands beside every number.
"""

from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any

import numpy as np
import polars as pl

from floatscope.analysis.cells import Array, cell_columns, mean_known, ratio
from floatscope.analysis.depth import THIRDS, thirds
from floatscope.analysis.drawing import Plot, cells, known_columns, lines
from floatscope.analysis.figure import Figure, finding, number_text, result_figure
from floatscope.analysis.results import LABELS, NUMBERS, Controls, Options, Panel, Result, analyse, readable, summarise
from floatscope.analysis.uniform import uniform_layers, uniform_trace
from floatscope.canvas import ANSWER
from floatscope.errors import UserError
from floatscope.traces import Trace

_KEYS = ("gold", "view", "form", "window", "layer", "source", "target")
_STEP_KEYS = ("gold", "window", "step", "target")
_ROLLOUT_KEYS = ("gold", "rows", "step", "target")
_ALPHA = 0.5
"""That of the rollout which traces hold."""
_ANY = "any"
"""Label of the contrast over all gold positions."""


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
    density = ratio(matrices, sizes, 0)
    return ratio(density, density.sum(axis=-1, keepdims=True), 0)


def gold_label(trace: Trace) -> str:
    """The documents that hold evidence, by their place: "doc 3", "doc 1 + doc 4", or "none"."""
    evidence = trace.marks.get("evidence", np.zeros(0))
    documents = [
        region.label
        for region in trace.regions
        if region.label.startswith("doc ") and ((evidence >= region.start) & (evidence < region.stop)).any()
    ]
    return " + ".join(dict.fromkeys(documents)) or "none"


def flow(traces: Iterable[Trace], options: Options, controls: Controls, alpha: float = 0.5) -> Result:
    """Region matrices per layer and rollouts per layer window, by gold position.

    Further tables: answer-to-document flow by gold position, its contrast (gold minus the mean of the other
    documents, with a test), and the answer's rollout at every step. Traces that hold the token rollout give it too, as
    the view `token_rollout` and in a table by step, from all answer rows and from those that commit.
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
        if "rollout" in trace.arrays and alpha == _ALPHA:
            exact, exact_by_step = _token_rollout(trace)
            plain, plain_by_step = _token_rollout(uniform_trace(trace))
            found, flat = found | exact, flat | plain
            columns = cell_columns(_ROLLOUT_KEYS, value=exact_by_step, uniform=plain_by_step)
            panel.next_to("flow_rollout", _ROLLOUT_KEYS).add(trace, _named(trace, columns))
        if by_step:
            columns = cell_columns(_STEP_KEYS, value=by_step, uniform=flat_by_step)
            panel.next_to("flow_steps", _STEP_KEYS).add(trace, _named(trace, columns))
        columns = _named(trace, cell_columns(_KEYS, value=found, uniform=flat))
        return columns | {
            "window": pl.Series(columns["window"].tolist(), dtype=pl.String),
            "layer": pl.Series(columns["layer"].tolist(), dtype=pl.Int64),
        }

    nothing = "No trace has regions: flow needs prompts built from questions and documents."
    result, panel = analyse("flow", traces, _KEYS, measure, options, controls, nothing)
    to_documents = result.table.filter(_TO_DOCUMENTS).with_columns(_IS_GOLD.alias("is_gold"))
    tables = {**result.tables, "flow_gold": to_documents.drop("view", "form", "layer", "source")}
    tables["flow_contrast"] = summarise(panel, options, ("gold", "window"), _contrasts, pl.lit(True))
    return Result("flow", tables, result.notes)


def _trace_flow(trace: Trace, matrices: Array, alpha: float) -> tuple[dict[Any, Array], dict[Any, Array]]:
    """Region matrices of one trace by gold, view, form, window and layer, mean over the steps at which the source has
    rows; and the answer's row of every window's rollout by gold and window, [step, region].
    """
    labels, gold = trace.region_labels, gold_label(trace)
    sizes = np.array([sum(len(r) for r in trace.regions if r.label == label) for label in labels], float)
    matrices = matrices.astype(np.float64)  # [step, layer, region, region]
    there = matrices.sum(axis=-1, keepdims=True) > 1e-6  # [step, layer, region, 1] sources with rows
    depth = thirds(trace.layers)
    windows = {"all": depth >= 0} | {name: depth == number for number, name in enumerate(THIRDS) if number in depth}
    rolled = {name: region_rollout(matrices[:, chosen], alpha) for name, chosen in windows.items()}
    cells = {}
    for form, shaped in (("pooled", np.asarray), ("per_token", partial(per_token, sizes=sizes))):
        for layer, matrix in enumerate(mean_known(shaped(matrices), there)):
            cells[gold, "attention", form, None, layer] = matrix
        for window, matrix in rolled.items():
            cells[gold, "rollout", form, window, None] = mean_known(shaped(matrix), there[:, 0])
    if ANSWER not in labels:
        return cells, {}
    source = labels.index(ANSWER)
    steps = {(gold, name): np.where(there[:, 0, source], matrix[:, source], np.nan) for name, matrix in rolled.items()}
    return cells, steps


def _token_rollout(trace: Trace) -> tuple[dict[Any, Array], dict[Any, Array]]:
    """Exact token rollout summed by region: between regions, mean over the steps at which the source has rows; and
    [step, region] from all rows of the answer, and from those that fill a slot at the step."""
    labels, gold = trace.region_labels, gold_label(trace)
    whole = trace.region_rollout()[:, -1].astype(np.float64)  # [step, region, region]
    there = whole.sum(axis=-1, keepdims=True) > 1e-6
    cells = {(gold, "token_rollout", "pooled", "all", None): mean_known(whole, there)}
    source = labels.index(ANSWER)
    committing = np.full(whole[:, source].shape, np.nan)
    for step in np.unique(trace.commit_step[trace.commit_step >= 0]):
        own = trace.commit_rollout[trace.commit_step == step][:, -1, : len(labels)]
        committing[step] = own.mean(axis=0)
    answer = np.where(there[:, source], whole[:, source], np.nan)
    return cells, {(gold, "answer"): answer, (gold, "committing"): committing}


def _named(trace: Trace, columns: dict[str, Any]) -> dict[str, Any]:
    """The columns with regions by label."""
    labels = np.array(trace.region_labels)
    return columns | {name: labels[columns[name]] for name in ("source", "target") if name in columns}


def _contrasts(panel: Panel) -> pl.DataFrame:
    """Rollout from the answer to the gold document minus the mean over the others, per sample and window."""
    documents = readable(panel.samples.filter(_TO_DOCUMENTS)).with_columns(_IS_GOLD.alias("is_gold"))
    gap = [
        (pl.col(name).filter("is_gold").mean() - pl.col(name).filter(~pl.col("is_gold")).mean()).alias(name)
        for name in NUMBERS
    ]
    each = documents.group_by(*LABELS, "gold", "window", maintain_order=True).agg(gap)
    each = each.drop_nulls("value")  # no gold document, or no other one
    return pl.concat([each, each.with_columns(pl.lit(_ANY).alias("gold"))])  # under its gold position, and under any


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
    columns = known_columns(table, ("value", "uniform", "untrained"))
    top = max((float(table[name].max()) for name in columns), default=1.0)  # pyright: ignore[reportArgumentType]
    sides = ("target", "document", targets), ("gold", "gold at", golds)
    look: dict[str, Any] = {"label": _SHORT, "mark": "datum.is_gold", "size": (34, 24)}
    groups: dict[str, list[Plot | None]] = {}
    for model in models:
        heading, where, told = f"{model}, darkest {number_text(top, 2)}", {"model": model}, ("model", "gold", "target")
        own = cells(table, "trained", where, *sides, top, told=(*told, "low", "high"), **look)
        groups[heading] = [own] + [
            cells(table, name, where, *sides, top, value=name, told=told, faint=True, **look) for name in columns[1:]
        ]
    tables = {}
    if "flow_steps" in result.tables:
        tables["steps"] = steps = result.tables["flow_steps"].filter(_IS_GOLD, window="all").drop_nulls("value")
        groups["from the answer to the gold document, step by step"] = [
            lines(steps, f"gold at {gold}", {"gold": gold}, models, "step", name="steps", detail="target:N")
            for gold in golds[:_MOST_PANELS]
        ]
    tables["regions"], groups["between all regions"] = _regions(result.table, models)
    contrast = result.tables["flow_contrast"].filter(gold=_ANY, window="all")
    what = "Gold document minus the mean of the others"
    return result_figure(
        result,
        "Flow from the answer to each document, by gold position",
        groups,
        "Rollout over the whole stack: how much of the answer's attention ends in each document, by where the gold "
        "one stands (diamonds). If the model reads the evidence, the diagonal is dark; beside each model stand even "
        "attention and the untrained model, which know no evidence. Below, the same step by step, and between all "
        "regions, from the rows to the columns.",
        finding(what, contrast, models, ("uniform", "untrained"), 3, rows=True),
        table,
        subtitle="diamond: the gold document",
        **tables,
    )


def _regions(table: pl.DataFrame, models: Sequence[str]) -> tuple[pl.DataFrame, list[Plot | None]]:
    """Rollout from every region to every region, for the first gold position."""
    rolled = table.filter(view="rollout", form="pooled", window="all").drop_nulls("value")
    gold = min(rolled["gold"].unique().to_list(), key=_document_number, default=None)
    shown = rolled.filter(gold=gold)
    labels = shown["source"].unique(maintain_order=True).to_list()
    top = max(shown["value"].to_list(), default=1.0)
    sides = ("target", "to", labels), ("source", "from", labels)
    told = ("model", "source", "target", "low", "high", "uniform", "untrained")
    look: dict[str, Any] = {"told": told, "size": (24, 20), "root": True, "name": "regions"}
    return shown, [cells(shown, f"{model}, gold at {gold}", {"model": model}, *sides, top, **look) for model in models]


def _document_number(label: str) -> tuple[int, str]:
    digits = "".join(letter for letter in label.partition("+")[0] if letter.isdigit())
    return (int(digits) if digits else 10**6, label)
