"""Where answers came from, by every method of attribution, and how far each can be believed: tables and a figure."""

from collections.abc import Mapping, Sequence
from typing import Any

import polars as pl

from floatscope.analysis.drawing import Plot, arrange, cells, dots
from floatscope.analysis.figure import Figure, interval_text, number_text
from floatscope.reports.tables import Table

MEASURES = {
    "top_gold": "top document is gold",
    "top_stands": "top document has the prediction",
    "sentence_auc": "gold sentences above others",
    "rank": "rank correlation with leave-one-out",
    "rank_rerun": "rank correlation with whole reruns",
    "removal": "fall when top documents go first, nats",
}
SIGNALS = "right answers above wrong ones"


def source_tables(table: pl.DataFrame, answers: str = "all") -> list[Table]:
    """A table of methods by measures for each model, task and condition of a run (`Run.attribution`), and a guess."""
    found = []
    shown = table.filter(pl.col("step").is_null(), answers=answers)
    for (model, task, condition), part in shown.group_by(["model", "task", "condition"], maintain_order=True):
        own = part.filter(pl.col("measure") != "auroc")
        measures = [name for name in MEASURES if name in own["measure"]]
        told = {(row["method"], row["measure"]): row for row in own.iter_rows(named=True)}
        rows = [
            [str(method), *(_cell(told.get((method, name))) for name in measures)]
            for method in own["method"].unique(maintain_order=True)
        ]
        guesses = [own.filter(measure=name)["guess"].drop_nulls() for name in measures]
        rows.append(["a guess", *(number_text(known[0], 2) if len(known) else "" for known in guesses)])
        signals = [f"{row['method']} {_cell(row)}" for row in part.filter(measure="auroc").iter_rows(named=True)]
        notes = [f"Chance that a right answer is above a wrong one: {'; '.join(signals)}."] if signals else []
        kind = "" if answers == "all" else f", {answers} answers"
        title = f"{model}, {task}, {condition}{kind}: how far attribution can be believed (n = {own['n'].max()})"
        found.append(Table(title, ["method", *(MEASURES[name] for name in measures)], rows, notes))
    return found


def _cell(row: Mapping[str, Any] | None) -> str:
    return "" if row is None or row["value"] is None else interval_text(row["value"], row["low"], row["high"])


def source_figure(table: pl.DataFrame, models: Sequence[str]) -> Figure:
    """Every measure by method, of right and of wrong answers, by step; and what tells right answers from wrong ones."""
    whole, split = table.filter(pl.col("step").is_null()), table.drop_nulls("step")
    groups = table.select("task", "condition").unique(maintain_order=True).rows(named=True)
    panels: dict[str, list[Plot | None]] = {}
    for group in groups:
        name = f"{group['task']}, {group['condition']}. " if len(groups) > 1 else ""
        panels |= {f"{name}{heading}": own for heading, own in _panels(whole, split, models, group).items()}
    return Figure(
        "attribution",
        "Which document an answer came from",
        arrange(panels, {"whole": whole, "split": split}),
        table,
        "Each method of attribution on the same answers, with 95 % intervals; a bar is what a guess would give. Rank "
        "correlations hold the order of documents to that of leave-one-out. A fall is that of the answer's "
        "log-probability when the top 1, 2, ... documents are hidden, mean of all but the last: the area under the "
        "curve of removal. Support is the effect of all documents; of entropy less is better. retrieval_heads are "
        "chosen on the other half of the samples.",
        _finding(whole.filter(answers="all"), models),
    )


def _panels(
    whole: pl.DataFrame, split: pl.DataFrame, models: Sequence[str], group: Mapping[str, Any]
) -> dict[str, list[Plot | None]]:
    """The panels of one task and condition under their headings."""
    signals = whole.filter(measure="auroc")["method"].unique(maintain_order=True).to_list()
    order = [name for name in whole["method"].unique(maintain_order=True) if name not in signals]

    def panel(measure: str, answers: str, title: str) -> Plot | None:
        names = signals if measure == "auroc" else order
        ends = None if measure == "removal" else (-1 if measure.startswith("rank") else 0, 1)
        where = {"measure": measure, "answers": answers, **group}
        return dots(
            whole, title, where, models, "method", names, name="whole", controls=("guess",), ends=ends, lying=True
        )

    steps = []
    for model in models:
        where = {"model": model, "measure": "top_stands", **group}
        known = split.filter(**where)["step"].unique().sort().to_list()
        x = ("step", "step of the commit", known)
        y = ("method", None, [method for method in order if method in split["method"]])
        steps.append(cells(split, model, where, x, y, 1, told=("method", "step", "n"), name="split"))
    return {
        "All answers": [panel(name, "all", title) for name, title in MEASURES.items()],
        "Right and wrong answers": [
            panel(name, answers, f"{answers} answers: {MEASURES[name]}")
            for name in ("top_gold", "top_stands")
            for answers in ("right", "wrong")
        ],
        "By the step at which tokens committed: top document has the prediction": steps,
        "Signals of an answer that can be believed": [panel("auroc", "all", SIGNALS)],
    }


def _finding(table: pl.DataFrame, models: Sequence[str]) -> str:
    """Whose order of documents costs answers most when they are hidden, and whether support tells wrong ones."""
    measure = next((name for name in ("removal", "top_stands", "top_gold") if name in table["measure"]), None)
    parts = []
    if measure is not None:
        own = table.filter(measure=measure).drop_nulls("value")
        best = own.group_by("method", maintain_order=True).agg(pl.col("value").mean()).sort("value", descending=True)
        method = best["method"][0]
        what = f"What {method} puts first is what answers hang on most"
        if measure != "removal":
            what = f"{method} names the right document most often"
        rows = {row["model"]: row for row in own.filter(method=method).iter_rows(named=True)}
        told = [f"{model} {_cell(rows[model])} (a guess {number_text(rows[model]['guess'], 2)})" for model in models
                if model in rows]  # fmt: skip
        parts.append(f"{what}: {'; '.join(told)}{' nats' if measure == 'removal' else ''}.")
    known = table.filter(measure="auroc", method="support").drop_nulls("low")
    if known.height:
        sure = [row["model"] for row in known.iter_rows(named=True) if row["low"] > 0.5]
        parts.append(f"Support tells right answers from wrong ones in {', '.join(sure) or 'no model'} for sure.")
    return " ".join(parts)
