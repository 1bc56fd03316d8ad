"""The tables of a run, from its results alone: the headline (models x tasks, gains), comparisons, stress curves.

No times, paths or machine names, so that a run that was resumed gives the same bytes as one that was not. How a table
is written is left to `table_text`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import TYPE_CHECKING

from floatscope.qa.statistics import (
    Difference,
    Interval,
    macro_difference,
    macro_interval,
    mcnemar,
    mean_interval,
    proportion_interval,
)
from floatscope.study.plan import DOCUMENTS, GUESS

if TYPE_CHECKING:
    import polars as pl

METRICS = {"accuracy": "Acc", "f1": "F1"}
AVERAGE = "Avg"
Value = str | int | float | Interval | Difference | None


@dataclass(frozen=True)
class Table:
    """A titled grid; an Interval and a Difference are shares, shown in percent."""

    name: str
    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[Value, ...], ...]
    notes: tuple[str, ...] = ()


class Scores:
    """Scores by metric and cell (model, task, condition), each by sample; units that failed have none."""

    def __init__(self, results: pl.DataFrame) -> None:
        self._cells: dict[tuple[str, str, str, str], dict[str, float]] = {}
        wanted = ("model", "task", "condition", "sample", *METRICS)
        for model, task, condition, sample, *values in results.select(wanted).iter_rows():
            for metric, value in zip(METRICS, values, strict=True):
                if value is not None:
                    self._cells.setdefault((metric, model, task, condition), {})[sample] = value

    def of(self, metric: str, model: str, task: str, condition: str) -> dict[str, float]:
        """The scores of one cell by sample, in order; empty where there are none."""
        return self._cells.get((metric, model, task, condition), {})

    def paired(self, metric: str, task: str, *cells: tuple[str, str]) -> list[list[float]]:
        """The scores of several (model, condition) cells on the samples that all of them have."""
        found = [self.of(metric, model, task, condition) for model, condition in cells]
        shared = [sample for sample in found[0] if all(sample in other for other in found[1:])]
        return [[scores[sample] for sample in shared] for scores in found]


def tables(results: pl.DataFrame) -> list[Table]:
    """All tables that the results are enough for, without those that would be empty."""
    shown = results.filter(results["control"].is_in(["", GUESS]))
    made = (headline(shown), comparisons(shown), curves(shown))
    return [table for table in made if table.rows]


def headline(results: pl.DataFrame) -> Table:
    """Table 1: for each model its scores without and with documents, and what they add."""
    own = results.filter(stressor=DOCUMENTS)
    scores, tasks, counts = Scores(own), _names(own, "task"), _counts(own)
    columns = [f"{task} {name}" for task in _with_average(tasks) for name in METRICS.values()]
    rows: list[tuple[Value, ...]] = []
    for model, control in _models(own):
        name = f"guess: {model}" if control == GUESS else model
        for count in counts:
            cells = [_score(scores, metric, model, at, f"documents/{count}")
                     for at in _groups(tasks) for metric in METRICS]  # fmt: skip
            rows.append((name, str(count), *cells))
        for count in counts if control != GUESS and 0 in counts else ():
            if count:
                gains = [_gain(scores, metric, model, at, count) for at in _groups(tasks) for metric in METRICS]
                rows.append((name, f"gain of {count}", *gains))
    title = "Accuracy and F1 in percent with 95 % intervals; gain: with documents minus without, paired by sample"
    return Table("headline", title, ("model", "documents", *columns), tuple(rows), _notes(own))


def comparisons(results: pl.DataFrame) -> Table:
    """Every pair of models: which gains more from documents, and which is right more often with them."""
    own = results.filter(stressor=DOCUMENTS)
    scores, tasks, counts = Scores(own), _names(own, "task"), _counts(own)
    names = [model for model, control in _models(own) if control != GUESS]
    rows: list[tuple[Value, ...]] = []
    for first, second in combinations(names, 2):
        for count in (count for count in counts if count and 0 in counts):
            for at in _groups(tasks):
                label = AVERAGE if len(at) > 1 else at[0]
                found = _gain_difference(scores, first, second, at, count)
                test = _mcnemar(scores, first, second, at[0], count) if len(at) == 1 else (None, None, None)
                rows.append((first, second, label, str(count), found, found.p_value if found else None, *test))
    title = "Differences of gains in accuracy (first minus second, paired bootstrap), and McNemar's test with documents"
    columns = ("first", "second", "task", "documents", "difference of gains", "p", "only first right",
               "only second right", "McNemar p")  # fmt: skip
    return Table("comparisons", title, columns, tuple(rows))


def curves(results: pl.DataFrame) -> Table:
    """Every stress condition and baseline: the scores of each model, and of guesses."""
    own = results.filter(results["stressor"] != DOCUMENTS)
    scores, models = Scores(own), _models(own)
    columns = ["task", "condition"]
    for model, control in models:
        columns += [f"guess: {model} Acc"] if control == GUESS else [f"{model} {name}" for name in METRICS.values()]
    rows: list[tuple[Value, ...]] = []
    for task, condition in own.select("task", "condition").unique(maintain_order=True).iter_rows():
        cells = [
            _score(scores, metric, model, (task,), condition)
            for model, control in models
            for metric in (("accuracy",) if control == GUESS else METRICS)
        ]
        rows.append((task, condition, *cells))
    title = "Accuracy and F1 in percent with 95 % intervals, by condition"
    return Table("curves", title, tuple(columns), tuple(rows), _notes(own))


def _score(scores: Scores, metric: str, model: str, tasks: Sequence[str], condition: str) -> Interval | None:
    """The mean of one task, or of several tasks' means; Wilson's interval for one task's accuracy."""
    groups = [list(scores.of(metric, model, task, condition).values()) for task in tasks]
    if not all(groups):
        return None
    if len(groups) > 1:
        return macro_interval(groups)
    return proportion_interval(groups[0]) if metric == "accuracy" else mean_interval(groups[0])


def _gain(scores: Scores, metric: str, model: str, tasks: Sequence[str], count: int) -> Difference | None:
    pairs = [scores.paired(metric, task, (model, f"documents/{count}"), (model, "documents/0")) for task in tasks]
    return macro_difference([(having, lacking) for having, lacking in pairs]) if all(p[0] for p in pairs) else None


def _gain_difference(scores: Scores, first: str, second: str, tasks: Sequence[str], count: int) -> Difference | None:
    pairs = []
    for task in tasks:
        cells = [(model, f"documents/{number}") for model in (first, second) for number in (count, 0)]
        a, a0, b, b0 = scores.paired("accuracy", task, *cells)
        pairs.append(([x - y for x, y in zip(a, a0, strict=True)], [x - y for x, y in zip(b, b0, strict=True)]))
    return macro_difference(pairs) if all(pair[0] for pair in pairs) else None


def _mcnemar(scores: Scores, first: str, second: str, task: str, count: int) -> tuple[Value, Value, Value]:
    one, other = scores.paired("accuracy", task, (first, f"documents/{count}"), (second, f"documents/{count}"))
    if not one:
        return None, None, None
    test = mcnemar(one, other)
    return str(test.only_first), str(test.only_second), test.p_value


def _groups(tasks: Sequence[str]) -> list[Sequence[str]]:
    """Each task alone, then all of them where there are several."""
    return [*((task,) for task in tasks), *([tasks] if len(tasks) > 1 else [])]


def _with_average(tasks: Sequence[str]) -> list[str]:
    return [*tasks, *([AVERAGE] if len(tasks) > 1 else [])]


def _models(results: pl.DataFrame) -> list[tuple[str, str]]:
    """(name, control): models, then guesses."""
    return [
        (model, control)
        for model, control in results.select("model", "control").unique(maintain_order=True).iter_rows()
    ]


def _names(results: pl.DataFrame, column: str) -> list[str]:
    return results[column].unique(maintain_order=True).to_list()


def _counts(results: pl.DataFrame) -> list[int]:
    return sorted(results[DOCUMENTS].unique().drop_nulls().to_list())


def _notes(results: pl.DataFrame) -> tuple[str, ...]:
    """How many samples there are, and how many units failed, with the first reason."""
    own = results.filter(control="")
    if own.is_empty():
        return ()
    sizes = own.group_by("model", "task", "condition").len()["len"]
    smallest, largest = sizes.min(), sizes.max()
    notes = [
        f"n = {largest} samples a cell." if smallest == largest else f"n = {smallest} to {largest} samples a cell."
    ]
    failed = own.filter(own["error"].is_not_null())
    if not failed.is_empty():
        model, task, condition, sample, error = failed.select("model", "task", "condition", "sample", "error").row(0)
        notes.append(
            f"{failed.height} of {own.height} units failed and are left out; the first ({model}, {task}, {condition}, "
            f"{sample}): {error}"
        )
    return tuple(notes)
