"""Floating: drift from end to end. How far received attention lies, over the run, from where it was at the first step.

A measure from step to step divides a long way into small paces; here every step is compared with the first, over all
columns (what moves because new text appears, too) and over those of the context (what moves among the same tokens).
Its tables, panels and sentences are part of the analysis `drift`.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import polars as pl
from numpy.typing import NDArray

from floatscope.analysis.anchors import detect, make_field, parse_detector, shuffled
from floatscope.analysis.cells import Array, cell_columns, mean_known, ratio
from floatscope.analysis.drawing import Plot, dots, lines
from floatscope.analysis.figure import interval_text
from floatscope.analysis.results import GROUP, Options, Panel, Result, readable
from floatscope.analysis.uniform import on_uniform
from floatscope.canvas import ANSWER
from floatscope.statistics import bootstrap_mean, pearson, sign_flip_test, spearman
from floatscope.traces import Trace

CHANGES = {
    "turnover": "turnover of anchors",
    "correlation": "correlation of received attention",
    "total_variation": "total variation",
    "displacement": "displacement of the centroid, tokens",
    "top_moved": "top position moved",
}
"""Measures between the first step and another one."""
SHARES = ("turnover", "correlation", "total_variation", "top_moved")
"""Those that run from 0 to 1, or from 1: what a verdict reads."""
DIRECTIONS = {"rightward": "to the right (Spearman with step)", "towards": "towards the answer (Spearman with step)"}
"""Measures of the way as a whole."""
STATES = {
    "context": "anchors in the context",
    "masked": "anchors on masked slots",
    "just committed": "anchors on slots just committed",
    "committed earlier": "anchors on slots committed earlier",
}
SIDES = {"right": "at the right", "left": "at the left", "between": "in between"}
POINTS = 11
"""Points of a curve over the run, from its first step to its last."""
SEEN = 0.1
"""A claim is called absent only where its interval ends below this: one of such a size would have been seen."""
FEWEST = 4
"""Samples that a verdict needs: an interval drawn from two or three of them says next to nothing."""


class View(NamedTuple):
    """Received attention of some rows over some columns, [step, ..., column], with anchors among these columns."""

    received: Array
    anchors: NDArray[np.bool_]
    present: NDArray[np.bool_]
    places: NDArray[np.int64]
    """[column] positions on the canvas; those that exist at the first step, so that every step has the same."""
    tops: NDArray[np.int64]
    """[step, ...] the position that receives most, of all columns of that step."""

    def at(self, steps: Any) -> "View":
        """The same at some steps."""
        return View(self.received[steps], self.anchors[steps], self.present[steps], self.places, self.tops[steps])


def side_of(trace: Trace) -> str:
    """Where the answer stands: right or left of the other tokens (but for a tenth, such as a bos token), or between."""
    context = np.setdiff1d(np.arange(len(trace.canvas)), trace.slots)
    if (context < trace.slots[0]).sum() >= 0.9 * len(context):
        return "right"
    return "left" if (context > trace.slots[-1]).sum() >= 0.9 * len(context) else "between"


def towards_answer(trace: Trace) -> NDArray[np.int64]:
    """[token] a coordinate that grows towards the answer: to its side or, between other tokens, minus the distance."""
    token = np.arange(len(trace.canvas))
    if (side := side_of(trace)) == "between":
        return -np.abs(token[:, None] - trace.slots).min(axis=1)
    return token if side == "right" else -token


def views(trace: Trace, options: Options, heads: bool = False) -> Iterator[tuple[tuple[str, str], View]]:
    """Each pair of columns and rows: all columns or the context's, all rows or those of slots that are still masked.

    Steps without such rows are left out. heads: every head apart, [step, layer, head, column], where the trace has it.
    """
    rows, seen, token = trace.rows[:, None, None], trace.visible, np.arange(len(trace.canvas))
    received = {"all": trace.received, "masked": trace.arrays.get("received_masked", np.zeros(seen.shape))}
    if heads:
        rows, seen, masked = rows[..., None], seen[:, :, None], trace.group_labels.index(f"{ANSWER}:masked")
        counts = np.maximum(trace.group_rows[:, masked], 1)[:, None, None, None]
        sums = trace.head_attention  # [step, layer, head, group, token]
        received = {"all": sums.sum(axis=3) / rows, "masked": sums[:, :, :, masked] / counts}
    for rows_of, values in received.items():
        asked = values.reshape(len(values), -1).any(axis=1)  # an ARM has no masked rows
        normalisation = options.normalisation if rows_of == "all" else "rows"
        for columns, chosen in (("all", token), ("context", np.setdiff1d(token, trace.slots))):
            if not asked.any() or not len(chosen):
                continue
            there = np.broadcast_to(seen > 0, values.shape)[asked]
            tops = chosen[np.where(there, values[asked], -1)[..., chosen].argmax(axis=-1)]
            places = chosen[there[0].any(axis=tuple(range(there.ndim - 2)))[chosen]]
            own = values[asked][..., places]
            field = make_field(own, rows[asked], seen[asked][..., places], normalisation)
            anchors = np.asarray(parse_detector(options.detector)(field) > 0.5)
            yield (columns, rows_of), View(own, anchors, field.present, places, tops)


def from_first(view: View) -> dict[str, Array]:
    """Every change between the first step and each step, [step, ...]; nan where it is undefined."""
    received, anchors, present, places, _ = view
    share = ratio(received, received.sum(axis=-1, keepdims=True), 0)
    centroid = share @ places.astype(np.float64)
    top = np.where(present, received, -1).argmax(axis=-1)
    union, common = (anchors | anchors[:1]).sum(axis=-1), (anchors & anchors[:1]).sum(axis=-1)
    return {
        "turnover": 1 - ratio(common, union),
        "correlation": pearson(*np.broadcast_arrays(share.astype(np.float64), share[:1])),
        "total_variation": np.abs(share - share[:1]).sum(axis=-1) / 2,
        "displacement": np.abs(centroid - centroid[:1]),
        "top_moved": (top != top[:1]).astype(np.float64),
    }


def whole_way(view: View, coordinate: NDArray[np.int64]) -> dict[str, Array]:
    """Spearman of the top position with the step, to the right and towards the answer, [...]; nan below 3 steps."""
    if len(view.tops) < 3:
        return dict.fromkeys(DIRECTIONS, np.full(view.tops.shape[1:], np.nan))
    steps, way = np.arange(len(view.tops)), np.moveaxis(view.tops, 0, -1)
    return {"rightward": spearman(way, steps), "towards": spearman(coordinate[way], steps)}


def end_to_end(
    trace: Trace, seen: Iterable[tuple[tuple[str, str], View]], rng: np.random.Generator | None = None
) -> dict[tuple[str, str, str], Array]:
    """By measure, columns and rows: [layer, point], nan where undefined; directions have the last point only.

    seen: the views of the trace. With `rng`, of received attention whose positions are shuffled at every step.
    """
    coordinate, found = towards_answer(trace), {}
    for (columns, rows), view in seen:
        points = np.linspace(0, len(view.received) - 1, POINTS).round().astype(int)
        some = view.at(points)
        if rng is not None:
            received, anchors = shuffled(some.received, some.anchors, some.present, rng)
            tops = some.places[np.where(some.present, received, -1).argmax(axis=-1)]
            view = some = View(received, anchors, some.present, some.places, tops)
        for name, values in from_first(some).items():
            found[name, columns, rows] = values.T  # [layer, point]
        for name, values in whole_way(view, coordinate).items():
            found[name, columns, rows] = np.pad(values[:, None], ((0, 0), (POINTS - 1, 0)), constant_values=np.nan)
    return found


def anchor_states(trace: Trace, options: Options) -> tuple[dict[str, Array], dict[str, Array]]:
    """By state, [point]: the share of anchors there, over all layers; and the share of the columns that exist."""
    anchors = detect(trace, options.detector, options.normalisation) > 0.5  # [step, layer, token]
    masked = trace.masked  # [step, slot]
    before = np.vstack([np.zeros_like(masked[:1]), masked[:-1]])
    states = np.zeros((trace.steps, len(trace.canvas)), np.int64)  # [step, token]
    states[:, trace.slots] = np.where(masked, 1, np.where(before, 2, 3))
    member = states[..., None] == np.arange(len(STATES))  # [step, token, state]
    points = np.linspace(0, trace.steps - 1, POINTS).round().astype(int)
    shares = []
    for where in (anchors, trace.visible > 0):
        counts = np.einsum("st,stn->ns", where.sum(axis=1)[points], member[points])  # [state, point]
        shares.append(dict(zip(STATES, ratio(counts, counts.sum(axis=0)), strict=True)))
    return shares[0], shares[1]


def add_floating(trace: Trace, options: Options, rng: np.random.Generator, panel: Panel) -> None:
    """One trace to the panels beside that of drift: ends, curve, states and, where they were kept, heads."""
    if not len(trace.slots) or trace.steps < 2:
        panel.note("Traces of one step, or without slots, have no way from their first step to their last.")
        return
    if trace.kind == "arm":
        panel.note("An ARM has no masked rows. Its steps are compared over the columns of its first one, the prompt's.")
    seen = list(views(trace, options))
    kinds = {"value": end_to_end(trace, seen), "random": end_to_end(trace, seen, rng)}
    kinds["uniform"] = on_uniform(trace, lambda even: end_to_end(even, views(even, options)))
    keys = ("measure", "columns", "rows", "layer")
    ends = {kind: {label: values[:, -1] for label, values in found.items()} for kind, found in kinds.items()}
    columns = cell_columns(keys, **ends)
    side = np.full(len(columns["layer"]), side_of(trace))
    panel.next_to("drift_ends", ("side", *keys)).add(trace, columns | {"side": side})
    curves = {
        kind: {label: mean_known(values, ~np.isnan(values)) for label, values in found.items() if label[0] in CHANGES}
        for kind, found in kinds.items()
    }
    own, chance = anchor_states(trace, options)
    over_run = {"drift_curve": (keys[:3], curves), "drift_states": (("state",), {"value": own, "random": chance})}
    for table, (labels, numbers) in over_run.items():
        columns = cell_columns((*labels, "percent"), **numbers)
        columns["percent"] = columns["percent"] * 100 // (POINTS - 1)
        panel.next_to(table, (*labels, "percent")).add(trace, columns)
    if "head_attention" not in trace.arrays:
        panel.note("Heads apart (drift_heads) need traces with --keep heads.")
        return
    by_head = {}
    for label, view in views(trace, options, heads=True):
        changes = {name: values[-1] for name, values in from_first(view.at([0, -1])).items()}
        every = changes | whole_way(view, towards_answer(trace))
        by_head |= {(name, *label): values for name, values in every.items()}
    panel.next_to("drift_heads", (*keys, "head")).add(trace, cell_columns((*keys, "head"), value=by_head))


def verdicts(ends: Panel, options: Options) -> pl.DataFrame:
    """What the numbers say of three claims, for each MDM, mean over layers, all rows.

    floating: it changes more from the first step to the last than an ARM on the same text, sample by sample (of the
    same condition, or of another one where the ARM has none in this). rightward, towards: the top position moves so in
    both layouts, the answer at the right and at the left.
    """
    known = readable(ends.samples).filter(rows="all").drop_nulls("value")
    cells = ["measure", "columns", "model", "kind", *GROUP, "side", "sample"]
    means = known.group_by(cells, maintain_order=True).agg(pl.col("value").mean())
    away = pl.when(pl.col("measure") == "correlation").then(1 - pl.col("value")).otherwise("value")
    changes = means.filter(pl.col("measure").is_in(SHARES)).with_columns(away.alias("value"))
    rows = []
    groups = ("measure", "columns", "model", *GROUP)
    for group, part in changes.filter(kind="mdm").group_by(groups, maintain_order=True):
        labels = dict(zip(groups, group, strict=True)) | {"claim": "floating", "side": part["side"][0]}
        same = {name: labels[name] for name in ("measure", "columns", "task")}
        elsewhere = pl.col("condition") != labels["condition"]
        arms = changes.filter(kind="arm", **same).sort(elsewhere, maintain_order=True)
        for (arm,), texts in arms.group_by("model", maintain_order=True):
            texts = texts.unique("sample", keep="first").select("sample", beside="value")
            pairs = part.join(texts, on="sample", maintain_order="left")
            found = _numbers(pairs["value"] - pairs["beside"], options)
            rows.append(labels | {"beside": arm} | found | {"verdict": _verdict("floating", [found])})
        if arms.is_empty():
            rows.append(labels | {"samples": 0, "verdict": "no ARM on the same text"})
    for claim in DIRECTIONS:
        ways = means.filter(measure=claim, columns="all", kind="mdm")
        for (model, task), part in ways.group_by("model", "task", maintain_order=True):
            found = {
                group: _numbers(one["value"], options)
                for group, one in part.group_by("condition", "side", maintain_order=True)
            }
            both = {"right", "left"} <= {side for _, side in found}
            verdict = _verdict(claim, list(found.values())) if both else "one layout only"
            labels = {"claim": claim, "measure": claim, "columns": "all", "model": model, "task": task}
            for (condition, side), numbers in found.items():
                rows.append(labels | {"condition": condition, "side": side} | numbers | {"verdict": verdict})
    texts = ("claim", "measure", "columns", "model", *GROUP, "side", "beside", "verdict")
    types = {**dict.fromkeys(texts, pl.String), **dict.fromkeys(("value", "low", "high", "p"), pl.Float64)}
    return pl.DataFrame(rows, schema={**types, "samples": pl.Int64}).with_columns(pl.col(pl.Float64).fill_nan(None))


def _numbers(values: pl.Series, options: Options) -> dict[str, Any]:
    found = bootstrap_mean(values.to_numpy()[:, None], options.seed, options.draws)
    numbers = {"value": found.estimate[0], "low": found.low[0], "high": found.high[0]}
    return numbers | {"p": sign_flip_test(values.to_numpy(), options.seed), "samples": int(found.n[0])}


def _verdict(claim: str, found: Sequence[dict[str, Any]]) -> str:
    """The claim where every interval lies above 0; absent where one would have shown it; else it cannot be told."""
    if any(one["samples"] < FEWEST for one in found):
        return "too few samples"
    if all(one["low"] > 0 for one in found):
        return claim
    return "absent" if any(one["high"] < SEEN for one in found) else "undecided"


def panels(result: Result, models: Sequence[str]) -> tuple[dict[str, list[Plot | None]], dict[str, Any]]:
    """The panels of the figure of drift, by heading, and the tables they draw; the first compare all conditions."""
    if "drift_ends_depth" not in result.tables:
        return {}, {}
    curve, states = result.tables["drift_curve"].filter(rows="all", columns="all"), result.tables["drift_states"]
    task = result.table["task"].unique().to_list()
    every = (result.whole or result).tables["drift_ends_depth"]
    ends = every.filter(pl.col("task").is_in(task), depth="all", rows="all")
    conditions = ends["condition"].unique(maintain_order=True).to_list()
    titles = {(name, "all"): title for name, title in (CHANGES | DIRECTIONS).items() if name != "displacement"}
    titles |= {(name, "context"): f"{CHANGES[name]}, context only" for name in SHARES[:3]}
    return {
        "from the first step to the last": [
            dots(ends, title, {"measure": name, "columns": columns}, models, "condition", conditions, name="ends")
            for (name, columns), title in titles.items()
        ],
        "from the first step on": [
            lines(curve, CHANGES[name], {"measure": name}, models, "percent", "% of the run", name="curve")
            for name in SHARES[:3]
        ],
        "where anchors are": [
            lines(states, title, {"state": name}, models, "percent", "% of the run", ends=(0, 1), name="states")
            for name, title in STATES.items()
        ],
    }, {"ends": ends, "curve": curve, "states": states}


def sentences(result: Result, models: Sequence[str]) -> str:
    """What became of the claims in the task that is drawn: numbers, intervals, verdicts."""
    if "drift_verdicts" not in result.tables:
        return ""
    told = []
    table = result.tables["drift_verdicts"].filter(pl.col("model").is_in(list(models)))
    words = [
        f"{row['model']} {interval_text(row['value'], row['low'], row['high'])} above {row['beside']}: {row['verdict']}"
        for row in table.filter(measure="turnover", columns="all").drop_nulls("beside").iter_rows(named=True)
    ]
    if words:
        told.append(f"Turnover of anchors from the first step to the last, {'; '.join(words)}.")
    task = result.table["task"].unique().to_list()
    every = (result.whole or result).tables["drift_verdicts"].filter(pl.col("task").is_in(task))
    for model in models:
        ways = every.filter(model=model, claim="rightward").drop_nulls("value")
        words = [
            f"{interval_text(row['value'], row['low'], row['high'])} with the answer {SIDES[row['side']]}"
            for row in ways.unique("side", keep="first", maintain_order=True).iter_rows(named=True)
        ]
        if len(words) > 1:
            towards = every.filter(model=model, claim="towards")["verdict"][0]
            told.append(
                f"Top position of {model} to the right, Spearman with the step: {', '.join(words)} (rightward: "
                f"{ways['verdict'][0]}; towards the answer: {towards})."
            )
    return " ".join(told)
