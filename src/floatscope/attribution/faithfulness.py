"""How far attribution can be believed, from the records of a study, with guess levels; of right and wrong answers, by
step.

top_gold       how often the top document is a gold one; ties count by chance
top_stands     how often it is one in which the prediction stands
sentence_auc   chance that a sentence with the gold answer is above another
rank           rank correlation with leave-one-out, over documents
rank_rerun     the same with leave-one-out of whole runs
removal        fall of the answer's log-probability (nats) with the top 1, 2, ... documents hidden, mean but for all
auroc          chance that a right answer has more support (confidence; less entropy) than a wrong one
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from floatscope.attribution.recorded import HEADS, subsets
from floatscope.qa.metrics import SIGNALS
from floatscope.statistics import Array, bootstrap_mean, spearman

if TYPE_CHECKING:
    import polars as pl

CHOSEN_HEADS = 8
RIGHT = 0.5
PARTS = 8
"""Into how many parts the steps of a run are split at most."""
MEASURES = ("top_gold", "top_stands", "sentence_auc", "rank", "rank_rerun", "removal")
_GROUP = ("model", "task", "condition")
Cells = dict[tuple[str, str], tuple[float, float]]
"""By method and measure: the value of one answer and its guess level."""


def faithfulness(rows: Sequence[Mapping[str, Any]]) -> pl.DataFrame:
    """One row per model, task, condition, kind of answers, step, method and measure; step: null for all together.

    rows: of results, with `attribution` (a record), `accuracy`, `number` and the signals.
    """
    import polars as pl

    found: list[dict[str, Any]] = []
    groups: dict[tuple[Any, ...], list[Mapping[str, Any]]] = {}
    for row in rows:
        groups.setdefault(tuple(row[name] for name in _GROUP), []).append(row)
    for key, own in groups.items():
        about = dict(zip(_GROUP, key, strict=True))
        right = np.array([(row["accuracy"] or 0) > RIGHT for row in own])
        told = [measures(row["attribution"], with_heads(own, place)) for place, row in enumerate(own)]
        for answers, chosen in (("all", right | True), ("right", right), ("wrong", ~right)):
            cells = [told[place] for place in np.flatnonzero(chosen)]
            found += [about | {"answers": answers} | row for row in _summary(cells)]
        steps: dict[int, list[Cells]] = {}
        width = -(-max(row["attribution"].get("steps", 1) for row in own) // PARTS)
        for row in own:
            for step, part in _by_step(row["attribution"], width).items():
                steps.setdefault(step, []).append(part)
        for step, cells in sorted(steps.items()):
            found += [about | {"answers": "all", "step": step} | row for row in _summary(cells)]
        found += [about | row for row in _aurocs(own, right)]
    text, number = pl.String, pl.Float64
    schema = dict.fromkeys((*_GROUP, "answers"), text) | {"step": pl.Int64} | dict.fromkeys(("method", "measure"), text)
    schema |= dict.fromkeys(("value", "low", "high", "guess"), number) | {"n": pl.Int64}
    return pl.DataFrame(found, schema=schema).with_columns(pl.col(pl.Float64).fill_nan(None))


def _summary(cells: Sequence[Cells]) -> Iterator[dict[str, Any]]:
    """The mean over answers of each measure of each method, with its interval and guess level."""
    names = list(dict.fromkeys(name for cell in cells for name in cell))
    if not names:
        return
    values, guesses = (
        np.array([[cell.get(name, (np.nan, np.nan))[part] for name in names] for cell in cells]) for part in (0, 1)
    )
    means = bootstrap_mean(values)
    for place, (method, measure) in enumerate(names):
        known = guesses[~np.isnan(values[:, place]), place]
        numbers = (means.estimate[place], means.low[place], means.high[place], known.mean())
        told = dict(zip(("value", "low", "high", "guess"), map(float, numbers), strict=True))
        yield {"method": method, "measure": measure} | told | {"n": len(known)}


def _by_step(record: Mapping[str, Any], width: int) -> dict[int, Cells]:
    """The measures of the tokens of an answer that committed within `width` steps, by the first of these."""
    places: dict[int, list[int]] = {}
    for place, step in enumerate(record.get("commits", ())):
        places.setdefault(step // width * width, []).append(place)
    about = {name: record[name] for name in ("gold", "stands")} | {"gold_sentences": ()}
    found = {}
    for step, own in places.items():
        scores = {name: np.array(one["tokens"]) for name, one in record["methods"].items() if "tokens" in one}
        found[step] = measures(about, {name: {"documents": one[own].sum(0)} for name, one in scores.items()})
    return found


def with_heads(rows: Sequence[Mapping[str, Any]], place: int) -> dict[str, dict[str, Any]]:
    """The methods of a row; attention of heads that were chosen on the half of the samples that it is not in."""
    record = rows[place]["attribution"]
    methods = dict(record["methods"])
    if "heads" in record:
        others = [row["attribution"] for row in rows if (row["number"] - rows[place]["number"]) % 2]
        scored = [
            np.array(other["heads"])[..., np.array(other["gold"], bool)].sum(-1)
            for other in others
            if any(other["gold"])
        ]
        if scored:
            order = np.argsort(-np.mean(scored, 0).ravel(), kind="stable")[:CHOSEN_HEADS]
            masses = np.array(record["heads"])
            methods[HEADS] = {"documents": masses.reshape(-1, masses.shape[-1])[order].mean(0).tolist()}
    return methods


def measures(record: Mapping[str, Any], methods: Mapping[str, Mapping[str, Any]]) -> Cells:
    """What cannot be had is left out."""
    found: Cells = {}
    for method, scores in methods.items():
        documents = np.array(scores["documents"], float)
        for measure, marks in (("top_gold", record["gold"]), ("top_stands", record["stands"])):
            marked = np.array(marks, bool)
            if marked.any() and not marked.all():
                found[method, measure] = float(marked[documents == documents.max()].mean()), float(marked.mean())
        marked = np.array(record["gold_sentences"], bool)
        if "sentences" in scores and marked.any() and not marked.all():
            found[method, "sentence_auc"] = auroc(np.array(scores["sentences"], float), marked), 0.5
        for measure, reference in (("rank", "leave_one_out"), ("rank_rerun", "leave_one_out_rerun")):
            if reference in methods and method != reference and len(documents) > 2:
                value = float(spearman(documents, np.array(methods[reference]["documents"], float)))
                if not np.isnan(value):
                    found[method, measure] = value, 0.0
        if "falls" in record and len(documents) > 1:
            found[method, "removal"] = removal(documents, record["falls"])
    return found


def removal(documents: Array, falls: Sequence[float]) -> tuple[float, float]:
    """Mean fall with the top 1, 2, ... documents hidden, all but the last; and that of a random order."""
    known = dict(zip(subsets(len(documents)), falls, strict=True))
    order = np.argsort(-documents, kind="stable").tolist()
    sizes = range(1, len(documents))
    taken = [known[tuple(sorted(order[:size]))] for size in sizes]
    chance = [np.mean([fall for own, fall in known.items() if len(own) == size]) for size in sizes]
    return float(np.mean(taken)), float(np.mean(chance))


def auroc(scores: Array, marked: Array) -> float:
    """The chance that a marked one is above another, ties half; nan where one kind is missing."""
    ours, others = scores[marked], scores[~marked]
    if not len(ours) or not len(others):
        return float("nan")
    gaps = ours[:, None] - others
    return float(((gaps > 0) + (gaps == 0) / 2).mean())


def _aurocs(rows: Sequence[Mapping[str, Any]], right: Array, draws: int = 1000) -> list[dict[str, Any]]:
    """Support, confidence and (less) entropy against right answers, with bootstrap intervals over samples."""
    found, rng = [], np.random.default_rng(0)
    for name in SIGNALS:
        values = np.array([row[name] if row.get(name) is not None else np.nan for row in rows], float)
        values = -values if name == "entropy" else values
        known = ~np.isnan(values)
        value = auroc(values[known], right[known])
        if np.isnan(value):
            continue
        chosen = rng.integers(0, known.sum(), (draws, known.sum()))
        again = [auroc(values[known][own], right[known][own]) for own in chosen]
        low, high = np.nanquantile(again, [0.025, 0.975]).tolist()
        numbers = {"value": value, "low": low, "high": high, "guess": 0.5, "n": int(known.sum())}
        found.append({"answers": "all", "method": name, "measure": "auroc"} | numbers)
    return found
