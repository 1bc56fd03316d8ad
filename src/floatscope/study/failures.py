"""Which answers are wrong, and where a prediction comes from: one row per unit, from the results and the tasks.

Also which samples are traced because of their answers (`trace_wrong`), once all rows are there.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from floatscope.errors import UserError
from floatscope.qa.metrics import standing
from floatscope.study.store import Run
from floatscope.study.units import Job, LoadedTask, Unit, load_task, storable

if TYPE_CHECKING:
    import polars as pl


def unit_frame(run: Run) -> pl.DataFrame:
    """Every answered question of a run: who said what, whether it is right, and in which documents it stands.

    gold, stands_in: documents counted from 1, as they were shown; null where the task cannot be read any more.
    place: "gold", "another document" or "nowhere" for the prediction; null without documents.
    """
    import polars as pl

    own = run.results().filter(pl.col("control") == "", pl.col("question") != "", pl.col("prediction").is_not_null())
    shown = _documents(run)
    gold, stands = [], []
    for row in own.iter_rows(named=True):
        documents = shown.get((row["task"], row["condition"], row["sample"]))
        gold.append(None if documents is None else [at for at, one in enumerate(documents, 1) if one.gold])
        stands.append(None if documents is None else standing(row["prediction"], documents))
    numbers = pl.List(pl.Int64)
    own = own.select(
        "task", "condition", "sample", "model", "question", "answers", "prediction", "accuracy", "em", "f1", "trace"
    )
    own = own.with_columns(pl.Series("gold", gold, numbers), pl.Series("stands_in", stands, numbers))
    has_documents = pl.Series([bool(shown.get(key)) for key in own.select("task", "condition", "sample").iter_rows()])
    in_gold = pl.col("stands_in").list.set_intersection("gold").list.len() > 0
    place = pl.when(in_gold).then(pl.lit("gold")).when(pl.col("stands_in").list.len() > 0)
    return own.with_columns(
        place=pl.when(has_documents).then(place.then(pl.lit("another document")).otherwise(pl.lit("nowhere")))
    )


def _documents(run: Run) -> dict[tuple[str, str, str], Sequence[Any]]:
    """The documents of every sample as its condition shows them; none of a task that cannot be read any more."""
    study, found = run.study, {}
    for plan in study.tasks:
        if plan.is_passages:
            continue
        try:
            with warnings.catch_warnings(action="ignore"):  # the run has told them
                task = load_task(study, plan)
        except UserError:
            continue
        for cell in study.cells(plan):
            for sample in task.samples[: cell.limit]:
                try:
                    shown = task.under(cell.condition, sample, study.seed)
                except UserError:
                    continue
                found[plan.name, cell.condition.name, storable(sample.id)] = shown.documents
    return found


def counts(frame: pl.DataFrame) -> pl.DataFrame:
    """By task, condition and model: answers, wrong ones, and where the predictions of these stand."""
    import polars as pl

    wrong = pl.col("accuracy") < 0.5
    places = {"in another document": "another document", "nowhere": "nowhere", "in a gold document": "gold"}
    return frame.group_by("task", "condition", "model", maintain_order=True).agg(
        answers=pl.len(),
        wrong=wrong.sum(),
        **{name: (wrong & (pl.col("place") == place)).sum() for name, place in places.items()},
    )


def chosen(frame: pl.DataFrame, which: str) -> pl.DataFrame:
    """The rows that a filter is about, by its name."""
    import polars as pl

    right = pl.col("accuracy") > 0.5
    sample = ["task", "condition", "sample"]
    tests = {
        "all": pl.lit(True),
        "wrong": ~right,
        "right": right,
        "disagree": right.any().over(sample) & (~right).any().over(sample),
        "another-document": pl.col("place") == "another document",
        "nowhere": pl.col("place") == "nowhere",
    }
    return frame.filter(tests[which])


def units_to_trace(
    jobs: Iterable[Job], rows: Iterable[Mapping[str, Any]], tasks: Iterable[LoadedTask], count: int
) -> frozenset[Unit]:
    """For each task and condition the first `count` samples that some model got wrong, and as many that fewest did.

    Each is traced under every model, so that they can be seen side by side. Whatever order the rows came in, the same
    are chosen.
    """
    passages = {task.plan.name for task in tasks if task.plan.is_passages}
    names = ("model", "task", "condition", "sample", "control", "content")
    scores = {Unit(*(row[name] for name in names)): row["scores"].get("accuracy") for row in rows}
    cells: dict[tuple[str, str], dict[str, list[Unit]]] = {}
    for job in jobs:
        unit = job.unit
        if not unit.control and unit.task not in passages and scores.get(unit) is not None:
            cells.setdefault((unit.task, unit.condition), {}).setdefault(unit.sample, []).append(unit)
    found: set[Unit] = set()
    for samples in cells.values():
        wrong = {sample: sum(scores[unit] < 0.5 for unit in units) for sample, units in samples.items()}
        failing = [sample for sample in samples if wrong[sample]][:count]
        others = [sample for sample in samples if sample not in failing and wrong[sample] < len(samples[sample])]
        for sample in (*failing, *sorted(others, key=wrong.__getitem__)[: len(failing)]):
            found.update(samples[sample])
    return frozenset(found)
