"""The answers of a run one by one: the list of the page, which samples.js draws, and a text for the terminal."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import polars as pl

from floatscope.analysis.drawing import csv_text
from floatscope.analysis.results import write_table
from floatscope.errors import UserError
from floatscope.files import replace_text
from floatscope.reports.tables import Table, markdown, plain

_CASE = ["task", "condition", "sample"]


def samples_data(units: pl.DataFrame, models: Sequence[str]) -> dict[str, Any]:
    """A row per task, condition and sample, with what each model said; questions and answers stand once per sample.

    units: as `study.failures.unit_frame` gives them. An answer is [prediction, right, the documents it stands in, its
    place]; null where a model has none.
    """
    names = [name for name in models if name in units["model"].unique()]
    tasks, conditions = (units[column].unique(maintain_order=True).to_list() for column in ("task", "condition"))
    places: dict[tuple[str, str], int] = {}
    samples: list[list[Any]] = []
    rows: dict[tuple[str, ...], list[Any]] = {}
    for one in units.iter_rows(named=True):
        sample = (one["task"], one["sample"])
        if sample not in places:
            places[sample] = len(samples)
            samples.append([tasks.index(one["task"]), one["sample"], one["question"], one["answers"]])
        case = (one["task"], one["condition"], one["sample"])
        row = rows.setdefault(
            case, [places[sample], conditions.index(one["condition"]), one["gold"], [None] * len(names)]
        )
        if one["model"] in names:
            answer = [one["prediction"], int(one["accuracy"] > 0.5), one["stands_in"], one["place"]]
            row[3][names.index(one["model"])] = answer
    return {"models": names, "tasks": tasks, "conditions": conditions, "samples": samples, "rows": [*rows.values()]}


def failures_text(units: pl.DataFrame, counts: pl.DataFrame) -> str:
    """Counts by task, condition and model, then the answers, as Markdown tables."""
    about = [*_CASE, "model", "question", "answers", "prediction", "stands_in", "gold"]
    names = ("task", "condition", "sample", "model", "question", "gold answer", "prediction", "stands in", "gold is")
    told = [
        [_text(row[name], "document " if name in ("stands_in", "gold") else "") for name in about]
        for row in plain(units).iter_rows(named=True)
    ]
    first = [[str(value) for value in row] for row in plain(counts).iter_rows()]
    tables = [Table("Wrong answers, and where the predictions of these stand", counts.columns, first)]
    if told:
        tables.append(Table("Answers", names, told))
    return "\n".join(markdown(table) for table in tables)


def _text(value: Any, before: str) -> str:
    if isinstance(value, list):
        return before + ", ".join(map(str, value)) if value else "nowhere" if before else ""
    return "" if value is None else " ".join(str(value).split())


def write_units(units: pl.DataFrame, path: Path) -> None:
    """The answers as a .csv or .parquet file."""
    if path.suffix == ".parquet":
        write_table(units, path)
    elif path.suffix == ".csv":
        replace_text(path, csv_text(plain(units, formulas=False)))
    else:
        raise UserError(f"{path} should end in .csv or .parquet.")
