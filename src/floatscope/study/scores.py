"""All scores of a run in one long table, from its results alone: scores, guesses, gains from documents, differences.

No times, paths or machine names, so that a run that was resumed gives the same bytes as one that was not. Texts,
tables and curves are made of it by `floatscope.reports`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import combinations, product
from typing import TYPE_CHECKING, Any

import numpy as np

from floatscope.qa.metrics import METRICS, OUTCOMES, PASSAGE_METRICS
from floatscope.qa.stressors import STRESSORS
from floatscope.statistics import (
    Difference,
    Interval,
    holm,
    macro_difference,
    macro_interval,
    mcnemar,
    mean_interval,
    paired_chance,
    proportion_interval,
    spread_difference,
)
from floatscope.study.plan import DOCUMENTS, GUESS

if TYPE_CHECKING:
    import polars as pl

EFFECTS = ("accuracy", "f1", "changed", "steps", "log_probability", "bound", "kl", "removed")
"""What edits have effects on: scores, answers that are others than without the edit, steps to finish, and outcomes."""
SPREADS = {"accuracy": "spread", "log_probability": "log_probability_spread"}
"""What is compared over the places of the gold document, and the spread's name."""
UNEDITED = "unedited"
"""What an edit is held to first: the same model without it."""
_RIGHT_OR_WRONG = ("accuracy", "em")

Subject = tuple[str, str]
"""The name of a model or of a guess, and its control: "" or "guess"."""
Tasks = Sequence[str]
"""One task, or several to average over."""
Held = tuple[Mapping[str, Any], Mapping[str, Any], Mapping[str, str]]
"""A point of a curve of edits, what rows say of it, and the conditions that it is held to by name."""
_AT = re.compile(r", gold at \d+")


def score_frame(results: pl.DataFrame) -> pl.DataFrame:
    """One row for each number; `Run.scores` says what the columns are."""
    import polars as pl

    shown = results.filter(pl.col("control").is_in(["", GUESS]))
    with_documents = shown.filter(stressor=DOCUMENTS)
    stressed = shown.filter(pl.col("stressor") != DOCUMENTS)
    rows = [*_with_documents(with_documents), *_under_stress(stressed)]
    text, share, whole = pl.String, pl.Float64, pl.Int64
    labels = {"model": text, "task": text, "condition": text, "stressor": text, "documents": whole}
    kinds = {"metric": text, "statistic": text, "beside": text}
    numbers = {"value": share, "low": share, "high": share, "n": whole, "p": share}
    return pl.DataFrame(rows, schema=labels | kinds | numbers | {"panel": text, "axis": text, "x": text})


def table_notes(results: pl.DataFrame) -> dict[str, tuple[str, ...]]:
    """What is said below the scores with documents ("documents") and those under stress ("stress").

    How many samples there are, and how many units failed, with the first reason.
    """
    own = results.filter(control="")
    notes: dict[str, tuple[str, ...]] = {"documents": (), "stress": ()}
    for (documents,), part in own.group_by(own["stressor"] == DOCUMENTS):
        sizes = part.group_by("model", "task", "condition").len()["len"]
        smallest, largest = sizes.min(), sizes.max()
        said = [f"n = {largest if smallest == largest else f'{smallest} to {largest}'} samples per cell."]
        failed = part.filter(part["error"].is_not_null())
        if not failed.is_empty():
            where = ", ".join(failed.select("model", "task", "condition", "sample").row(0))
            said.append(
                f"{failed.height} of {part.height} units failed and are left out; the first ({where}): "
                f"{failed['error'][0]}"
            )
        notes["documents" if documents else "stress"] = tuple(said)
    return notes


class _Answers:
    """Scores per sample by metric, subject, task and condition; units that failed have none."""

    def __init__(self, results: pl.DataFrame) -> None:
        self._cells: dict[tuple[str, Subject, str, str], dict[str, float]] = {}
        names = (*METRICS, *PASSAGE_METRICS, *OUTCOMES, "steps")
        metrics = [name for name in names if name in results.columns]
        wanted = ("model", "control", "task", "condition", "sample", *metrics)
        for model, control, task, condition, sample, *values in results.select(wanted).iter_rows():
            for metric, value in zip(metrics, values, strict=True):
                if value is not None:
                    self._cells.setdefault((metric, (model, control), task, condition), {})[sample] = value

    def note_changes(self, results: pl.DataFrame, unedited: Mapping[tuple[str, str], str]) -> None:
        """Score as `changed` what is answered otherwise than without an edit; `unedited`: by task and condition."""
        said: dict[tuple[Subject, str, str], dict[str, str | None]] = {}
        columns = ("model", "control", "task", "condition", "sample", "prediction")
        for model, control, task, condition, sample, prediction in results.select(columns).iter_rows():
            said.setdefault(((model, control), task, condition), {})[sample] = prediction
        for (task, condition), plain in unedited.items():
            for subject in {subject for subject, *_ in said}:
                own, before = (said.get((subject, task, name), {}) for name in (condition, plain))
                pairs = {sample: (text, before.get(sample)) for sample, text in own.items()}
                self._cells["changed", subject, task, condition] = {
                    sample: float(now != then) for sample, (now, then) in pairs.items() if None not in (now, then)
                }

    def passage_metrics(self, task: str) -> list[str]:
        """What a task of passages is scored by; nothing for one of questions."""
        found = {metric for metric, _, where, _ in self._cells if where == task}
        return [metric for metric in PASSAGE_METRICS if metric in found]

    def paired(self, metric: str, task: str, *cells: tuple[Subject, str]) -> list[list[float]]:
        """The scores of several (subject, condition) cells on the samples that all of them have."""
        found = [self._cells.get((metric, subject, task, condition), {}) for subject, condition in cells]
        shared = [sample for sample in found[0] if all(sample in other for other in found[1:])]
        return [[scores[sample] for sample in shared] for scores in found]

    def score(self, metric: str, subject: Subject, tasks: Tasks, condition: str) -> Interval | None:
        """The mean of one task, or of several tasks' means; Wilson's interval for shares of one task."""
        groups = [self.paired(metric, task, (subject, condition))[0] for task in tasks]
        if not all(groups):
            return None
        if len(groups) > 1:
            return macro_interval(groups)
        return proportion_interval(groups[0]) if metric in _RIGHT_OR_WRONG else mean_interval(groups[0])

    def gain(self, metric: str, subject: Subject, tasks: Tasks, having: str, lacking: str) -> Difference | None:
        """The scores under one condition minus those under another, paired by sample."""
        pairs = [self.paired(metric, task, (subject, having), (subject, lacking)) for task in tasks]
        return macro_difference([(one, other) for one, other in pairs]) if all(one for one, _ in pairs) else None

    def gain_difference(
        self, first: Subject, second: Subject, tasks: Tasks, having: str, lacking: str
    ) -> Difference | None:
        """The first one's gain in accuracy minus the second one's, on the samples that all four cells have."""
        pairs = []
        for task in tasks:
            cells = [(subject, condition) for subject in (first, second) for condition in (having, lacking)]
            a, a0, b, b0 = self.paired("accuracy", task, *cells)
            pairs.append(([x - y for x, y in zip(a, a0, strict=True)], [x - y for x, y in zip(b, b0, strict=True)]))
        return macro_difference(pairs) if all(one for one, _ in pairs) else None


def _with_documents(own: pl.DataFrame) -> Iterator[dict[str, Any]]:
    """Scores of each model and guess by number of documents, then what documents add to a model.

    Then every pair of models: which gains more from documents, and which is right more often with them.
    """
    answers, subjects = _Answers(own), _subjects(own)
    names = own["task"].unique(maintain_order=True).to_list()
    groups: list[Tasks] = [*((task,) for task in names), *([names] if len(names) > 1 else [])]
    found = own.select("condition", "stressor", DOCUMENTS).unique().sort(DOCUMENTS, nulls_last=True)
    conditions = {row[DOCUMENTS]: row for row in found.iter_rows(named=True)}  # None, a sample's own, is the last
    lacking = conditions[0]["condition"] if 0 in conditions else ""
    shown = [about for count, about in conditions.items() if lacking and count != 0]
    for subject in subjects:
        for about, tasks, metric in product(conditions.values(), groups, METRICS):
            score = answers.score(metric, subject, tasks, about["condition"])
            yield _row(subject[1] or "score", score, tasks, metric, model=subject[0], **about)
        for about, tasks, metric in product(shown, groups, METRICS) if subject[1] != GUESS else ():
            gain = answers.gain(metric, subject, tasks, about["condition"], lacking)
            yield _row("gain", gain, tasks, metric, model=subject[0], **about)
    models = [subject for subject in subjects if subject[1] != GUESS]
    for (first, second), about, tasks in product(combinations(models, 2), shown, groups):
        having = about["condition"]
        difference = answers.gain_difference(first, second, tasks, having, lacking)
        yield _row("difference", difference, tasks, "accuracy", model=first[0], beside=second[0], **about)
        one, other = answers.paired("accuracy", tasks[0], (first, having), (second, having))
        if len(tasks) > 1 or not one:
            continue
        test = mcnemar(one, other)
        sides = ((first, second, test.only_first), (second, first, test.only_second))
        for (model, _), (beside, _), only in sides:
            row = _row("only right", None, tasks, "accuracy", model=model, beside=beside, **about)
            yield row | {"value": only / len(one), "n": len(one), "p": test.p}


def _under_stress(own: pl.DataFrame) -> list[dict[str, Any]]:
    """Every stress condition and baseline: the scores of each model and guess, with their place on a curve.

    Then what every edit does.
    """
    answers, subjects = _Answers(own), _subjects(own)
    scores: list[dict[str, Any]] = []
    held: list[Held] = []
    points = own.unique(["task", "condition"], keep="first", maintain_order=True).to_dicts()
    for point in points:
        task, place = (point["task"],), _curve(point)
        about = {name: point[name] for name in ("condition", "stressor", "documents")} | place
        passage_metrics = answers.passage_metrics(point["task"])
        for subject in subjects:
            if subject[1] == GUESS and passage_metrics:
                continue
            for metric in passage_metrics or (*METRICS, *OUTCOMES):
                found = answers.score(metric, subject, task, point["condition"])
                if found is not None or metric not in OUTCOMES:
                    scores.append(_row(subject[1] or "score", found, task, metric, model=subject[0], **about))
        if place and (beside := _beside(point, points)):
            held.append((point, about, beside))
    return scores + _effects(own, answers, held) + _spreads(own, answers, held)


def _effects(own: pl.DataFrame, answers: _Answers, held: Sequence[Held]) -> list[dict[str, Any]]:
    """What every edit does, beside the unedited model and its control twins, paired by sample.

    The chance p is corrected for the number of rows of its metric, by Holm's method.
    """
    if not held:
        return []
    answers.note_changes(own, {(point["task"], name): beside[UNEDITED] for point, _, beside in held
                               for name in (point["condition"], *beside.values())})  # fmt: skip
    models = [subject for subject in _subjects(own) if subject[1] != GUESS]
    rows: list[dict[str, Any]] = []
    for metric in EFFECTS:
        made = []
        for (point, about, beside), model in product(held, models):
            task = (point["task"],)
            for name, condition in beside.items():
                found = answers.gain(metric, model, task, point["condition"], condition)
                if found is not None:
                    pair = answers.paired(metric, point["task"], (model, point["condition"]), (model, condition))
                    found = replace(found, p=paired_chance(*pair))
                if found is not None or metric == "accuracy":
                    made.append(_row("effect", found, task, metric, model=model[0], beside=name, **about))
        rows += _corrected(made)
    return rows


def _spreads(own: pl.DataFrame, answers: _Answers, held: Sequence[Held]) -> list[dict[str, Any]]:
    """What every edit does to the spread over the places of the gold document: highest minus lowest.

    Beside the unedited model and each control twin at the same places, on the samples that all of them have.
    """
    groups: dict[tuple[str, str], list[Held]] = {}
    for point, about, beside in held:
        if point.get("place") is not None:
            groups.setdefault((point["task"], _AT.sub("", point["condition"])), []).append((point, about, beside))
    rows: list[dict[str, Any]] = []
    models = [subject for subject in _subjects(own) if subject[1] != GUESS]
    for ((task, condition), group), model in product(groups.items(), models):
        _, about, beside = group[0]
        about = {**about, "condition": condition, "panel": _AT.sub("", about["panel"])}
        edited = [(model, point["condition"]) for point, _, _ in group]
        for name in beside if len(group) > 1 else ():
            others = [(model, names[name]) for _, _, names in group]
            for metric, spread in SPREADS.items():
                cells = np.array(answers.paired(metric, task, *edited, *others))  # [2 place, sample]
                if cells.size:
                    found = spread_difference(cells[: len(edited)], cells[len(edited) :])
                    rows.append(_row("effect", found, (task,), spread, model=model[0], beside=name, **about))
    return [row for spread in SPREADS.values() for row in _corrected([row for row in rows if row["metric"] == spread])]


def _corrected(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The rows with their chances corrected for the number of these, by Holm's method."""
    known = [row for row in rows if row.get("p") is not None]
    for row, p in zip(known, holm([row["p"] for row in known]), strict=True):
        row["p"] = p
    return rows


def _beside(point: Mapping[str, Any], points: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """The conditions that an edit is held to, by name: the unedited one first; nothing for what is no edit."""
    axis = getattr(STRESSORS.get(point["stressor"]), "axis", None)
    if axis is None or not axis.twin:
        return {}
    shared = ("task", "stressor", *axis.shared)
    alike = [one for one in points if all(one[name] == point[name] for name in shared)]
    same = [name for name in STRESSORS[point["stressor"]].labels if name != axis.twin]
    twins = [one for one in alike if one[axis.twin] and all(one[name] == point[name] for name in same)]
    unedited = [(UNEDITED, one["condition"]) for one in alike if not one[axis.label]][:1]
    return dict([*unedited, *((one[axis.twin], one["condition"]) for one in twins)])


def _curve(labels: Mapping[str, Any]) -> dict[str, str]:
    """Which curve a condition is a point of, the title of its axis, and where on it; nothing for what it is held to."""
    row = STRESSORS.get(labels["stressor"])
    if row is None or row.axis is None:
        return {}
    axis, x = row.axis, labels[row.axis.label]
    if axis.twin and (labels[axis.twin] or not x):
        return {}
    panel = ", ".join(filter(None, (labels["task"], axis.panel.format_map(labels))))
    return {"panel": panel, "axis": axis.title, "x": f"{x:g}" if isinstance(x, float) else str(x)}


def _row(statistic: str, found: Interval | None, tasks: Tasks, metric: str, **about: Any) -> dict[str, Any]:
    """A row of the table; a number that cannot be had is null, of 0 samples."""
    numbers: dict[str, Any] = {"n": 0}
    if found is not None:
        numbers = {"value": found.estimate, "low": found.low, "high": found.high, "n": found.n}
        numbers["p"] = found.p if isinstance(found, Difference) else None
    task = tasks[0] if len(tasks) == 1 else None
    return {"statistic": statistic, "task": task, "metric": metric} | about | numbers


def _subjects(results: pl.DataFrame) -> list[Subject]:
    """Models, then guesses."""
    return list(results.select("model", "control").unique(maintain_order=True).iter_rows())
