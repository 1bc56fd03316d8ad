"""The scores of a run as text: Markdown and LaTeX tables for people, one long CSV table for programs."""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import polars as pl

from floatscope.errors import UserError
from floatscope.reports.rules import Rule, verdicts

FORMS = ("markdown", "latex", "csv")
AVERAGE = "Avg"
_METRICS = {"accuracy": "Acc", "f1": "F1"}
_PASSAGE_METRICS = {
    "recovered": "recovered",
    "common": "by the commonest token",
    "bits": "bits per token",
    "right": "facts right",
    "wrong": "wrong",
    "invented": "invented",
}
_OUTCOMES = {
    "f1": "F1",
    "changed": "changed answers",
    "log_probability": "log-probability",
    "bound": "bound",
    "kl": "KL at step 0",
    "removed": "removed attention",
    "steps": "steps",
    "spread": "spread over places",
    "log_probability_spread": "spread of log-probability",
}
_PLAIN = ("bits", "log_probability", "bound", "kl", "steps", "log_probability_spread")
"""What is no share."""
_LATEX = {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"} | {
    c: f"\\{c}" for c in "&%$#_{}"
}
Row = Mapping[str, Any]


@dataclass(frozen=True)
class Table:
    """A titled grid of texts."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    notes: Sequence[str] = ()


def write_tables(
    scores: pl.DataFrame,
    notes: Mapping[str, Sequence[str]],
    form: str,
    rules: Sequence[Rule] = (),
    more: Iterable[Table] = (),
) -> str:
    """The scores of a run (`Run.scores`) in one text; notes stand below the tables they are about, rules at the end,
    then more tables; not in CSV."""
    if form not in FORMS:
        raise UserError(f"There is no table format {form!r}; known are {', '.join(FORMS)}.")
    if scores.is_empty():
        raise UserError("The run has no results yet: there is nothing to make a table of.")
    scores = plain(scores, formulas=form != "csv")
    if form == "csv":
        return scores.write_csv()
    own, stressed = scores.filter(stressor="documents"), scores.filter(pl.col("stressor") != "documents")
    tables = (
        headline(own, notes["documents"]),
        comparisons(own),
        curves(stressed.filter(pl.col("statistic") != "effect"), notes["stress"]),
        passages(stressed, notes["stress"]),
        effects(stressed),
        outcomes(stressed),
        readings(stressed, rules),
        *more,
    )
    write = markdown if form == "markdown" else _latex
    return "\n".join(write(table) for table in tables if table.rows)


def headline(scores: pl.DataFrame, notes: Sequence[str]) -> Table:
    """Table 1: for each model its scores without and with documents, and what they add; then guesses."""
    shown = scores.filter(
        pl.col("metric").is_in(list(_METRICS)) & pl.col("statistic").is_in(["score", "guess", "gain"])
    )
    places = shown.select("task", "metric").unique(maintain_order=True).rows()
    rows = []
    for (model, documents, statistic), part in shown.group_by(["model", "documents", "statistic"], maintain_order=True):
        cells = {(row["task"], row["metric"]): row for row in part.iter_rows(named=True)}
        label = "gain of " if statistic == "gain" else ""
        label += "own" if documents is None else str(documents)
        rows.append([_name(str(model), str(statistic)), label, *(_share(cells[place]) for place in places)])
    title = "Accuracy and F1 in percent with 95 % intervals; gain: with documents minus without, paired by sample"
    columns = [f"{task or AVERAGE} {_METRICS[metric]}" for task, metric in places]
    return Table(title, ["model", "documents", *columns], rows, notes)


def comparisons(scores: pl.DataFrame) -> Table:
    """Every pair of models: which gains more from documents, and which is right more often with them."""
    alone = {
        (row["model"], row["beside"], row["task"], row["documents"]): row
        for row in scores.filter(statistic="only right").iter_rows(named=True)
    }
    rows = []
    for row in scores.filter(statistic="difference").iter_rows(named=True):
        first, second, place = row["model"], row["beside"], (row["task"], row["documents"])
        test = ["", "", ""]
        if (first, second, *place) in alone:
            sides = (alone[first, second, *place], alone[second, first, *place])
            test = [*(str(round(side["value"] * side["n"])) for side in sides), _chance(sides[0]["p"])]
        documents = "own" if row["documents"] is None else str(row["documents"])
        rows.append([first, second, row["task"] or AVERAGE, documents, _share(row), _chance(row["p"]), *test])
    title = "Differences of gains in accuracy (first minus second, paired bootstrap), and McNemar's test with documents"
    columns = ["first", "second", "task", "documents", "difference of gains", "p", "only first right",
               "only second right", "McNemar p"]  # fmt: skip
    return Table(title, columns, rows)


def curves(scores: pl.DataFrame, notes: Sequence[str]) -> Table:
    """Every stress condition and baseline: the scores of each model, and the accuracy of guesses."""
    shown = scores.filter(
        (pl.col("metric") == "accuracy") | ((pl.col("metric") == "f1") & (pl.col("statistic") == "score"))
    )
    places = shown.select("model", "statistic", "metric").unique(maintain_order=True).rows()
    rows = []
    for (task, condition), part in shown.group_by(["task", "condition"], maintain_order=True):
        cells = {(row["model"], row["statistic"], row["metric"]): row for row in part.iter_rows(named=True)}
        rows.append([str(task), str(condition), *(_share(cells[place]) for place in places)])
    columns = [f"{_name(model, statistic)} {_METRICS[metric]}" for model, statistic, metric in places]
    title = "Accuracy and F1 in percent with 95 % intervals, by condition"
    return Table(title, ["task", "condition", *columns], rows, notes)


def passages(scores: pl.DataFrame, notes: Sequence[str]) -> Table:
    """What each model recovers of passages, by condition; facts are the world's."""
    shown = scores.filter(pl.col("metric").is_in(list(_PASSAGE_METRICS)), statistic="score")
    metrics = [metric for metric in _PASSAGE_METRICS if metric in shown["metric"]]
    rows = []
    for (task, condition, model), part in shown.group_by(["task", "condition", "model"], maintain_order=True):
        cells = {row["metric"]: row for row in part.iter_rows(named=True)}
        told = [_share(cells[name]) if name in cells else "" for name in metrics]
        rows.append([str(task), str(condition), str(model), *told])
    title = "Passages: tokens recovered and facts told in percent, bits per token, with 95 % intervals"
    return Table(title, ["task", "condition", "model", *(_PASSAGE_METRICS[name] for name in metrics)], rows, notes)


def effects(scores: pl.DataFrame) -> Table:
    """Every edit of attention: what it does beside the unedited model and beside each of its control twins."""
    rows = [
        [row["panel"], row["x"], row["model"], row["beside"], _share(row), _chance(row["p"])]
        for row in scores.filter(statistic="effect", metric="accuracy").iter_rows(named=True)
    ]
    title = "Effects of edits on accuracy in points with 95 % intervals, paired by sample; p by Holm's method"
    return Table(title, ["edit", "dose", "model", "beside", "effect", "p"], rows)


def outcomes(scores: pl.DataFrame) -> Table:
    """The same of all other outcomes, a column each: beside the unedited model and beside the twins."""
    own = scores.filter(pl.col("metric") != "accuracy", statistic="effect")
    metrics = [name for name in _OUTCOMES if name in own["metric"]]
    rows = []
    for key, part in own.group_by(["panel", "x", "model", "beside"], maintain_order=True):
        cells = {row["metric"]: row for row in part.iter_rows(named=True)}
        told = [f"{_share(cells[name])} ({_chance(cells[name]['p'])})" if name in cells else "" for name in metrics]
        rows.append([*map(str, key), *told])
    title = "Effects of edits on other outcomes with 95 % intervals and p by Holm's method within each"
    return Table(title, ["edit", "dose", "model", "beside", *(_OUTCOMES[name] for name in metrics)], rows)


def readings(scores: pl.DataFrame, rules: Sequence[Rule]) -> Table:
    """The rules of reading, which were written before the run, and the verdict of each for each model."""
    models = scores.filter(statistic="effect")["model"].unique(maintain_order=True).to_list()
    rows: dict[Rule, dict[str, str]] = {}
    for found in verdicts(scores, rules, models):
        told = f"{found['verdict']}: {_share(found | {'statistic': 'effect'})} at {found['x']}, p {_chance(found['p'])}"
        rows.setdefault(found["rule"], {})[found["model"]] = told if found["x"] else found["verdict"]
    title = "Rules of reading, written before the run, and the verdicts with the dose that decides"
    cells = [[rule.claim, rule.sentence, *(told.get(model, "") for model in models)] for rule, told in rows.items()]
    return Table(title, ["claim", "rule", *models], cells)


def patches(frame: pl.DataFrame) -> Table:
    """What each layer and step brings back of the answer, in percent, and after it what the control brings."""
    rows = []
    for key, part in frame.group_by(["task", "model", "kind", "layer"], maintain_order=True):
        cells = {step: (value, control) for step, value, control in part.select("step", "value", "control").iter_rows()}
        rows.append(
            [*map(str, key), *(f"{100 * value:.0f} ({100 * control:.0f})" for value, control in cells.values())]
        )
    steps = [] if frame.is_empty() else [f"step {step}" for step in frame["step"].unique().sort()]
    rows = [row + [""] * (4 + len(steps) - len(row)) for row in rows]
    title = "The lost log-probability that a patch at one layer and step brings back, in percent (the control donor's)"
    return Table(title, ["task", "model", "patched", "layer", *steps], rows)


def _name(model: str, statistic: str) -> str:
    return f"guess: {model}" if statistic == "guess" else model


def _share(row: Row) -> str:
    """A share in percent with its interval; gains and differences have a sign."""
    if row["value"] is None:
        return ""
    sign = "+" if row["statistic"] in ("gain", "difference", "effect") else ""
    form, scale = (f"{sign}.2f", 1) if row["metric"] in _PLAIN else (f"{sign}.1f", 100)
    value, low, high = (f"{scale * row[name]:{form}}" for name in ("value", "low", "high"))
    return f"{value} [{low}, {high}]"


def _chance(p: float | None) -> str:
    if p is None:
        return ""
    return f"{p:.2g}" if p >= 0.001 else "< 0.001"


def plain(table: pl.DataFrame, formulas: bool = True) -> pl.DataFrame:
    """Texts come from files of other people: none may steer a terminal, nor be a formula in a spreadsheet."""
    table = table.with_columns(pl.col(pl.String).str.replace_all(r"\p{Cc}", "\N{REPLACEMENT CHARACTER}"))
    return table if formulas else table.with_columns(pl.col(pl.String).str.replace("^[=+@-]", "'$0"))


def markdown(table: Table) -> str:
    """A table with pipes, its title above and its notes below."""
    lines = [f"**{table.title}**", "", _pipes(table.columns), _pipes(["---"] * len(table.columns))]
    lines += [_pipes(row) for row in table.rows]
    return "\n".join([*lines, "", *(f"{note}\n" for note in table.notes)])


def _pipes(cells: Sequence[str]) -> str:
    escaped = (cell.replace("|", r"\|") for cell in cells)
    return f"| {' | '.join(escaped)} |"


def _latex(table: Table) -> str:
    """A booktabs table."""
    caption = " ".join([f"{table.title}.", *table.notes])
    lines = [
        r"\begin{table}",
        r"\centering",
        rf"\caption{{{_escaped(caption)}}}",
        rf"\begin{{tabular}}{{{'l' * len(table.columns)}}}",
        r"\toprule",
        rf"{' & '.join(map(_escaped, table.columns))} \\",
        r"\midrule",
        *(rf"{' & '.join(map(_escaped, row))} \\" for row in table.rows),
    ]
    return "\n".join([*lines, r"\bottomrule", r"\end{tabular}", r"\end{table}", ""])


def _escaped(text: str) -> str:
    return re.sub(r"[\\~^&%$#_{}]", lambda found: _LATEX[found[0]], text)
