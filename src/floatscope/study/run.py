"""A run: the folder a study writes, as it is read afterwards. Writing it is left to `running`."""

from __future__ import annotations

import json
from collections.abc import Iterable
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from floatscope.errors import UserError
from floatscope.qa.stressors import label_types
from floatscope.study.manifest import read_manifest
from floatscope.study.plan import GUESS, NULL_QUERY, UNTRAINED, Study
from floatscope.study.store import read_rows
from floatscope.study.study_file import read_study

if TYPE_CHECKING:
    import polars as pl

STUDY_FILE = "study.toml"
_CONTROL_ORDER = ("", NULL_QUERY, UNTRAINED, GUESS)


class Run:
    """A run folder: the study, its manifest, results as a table, paths of traces."""

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
        if not (self.folder / STUDY_FILE).is_file():
            raise UserError(f"There is no run in {self.folder}: it has no {STUDY_FILE}; `floatscope study` makes one.")

    @cached_property
    def study(self) -> Study:
        """As it was run, all values written out."""
        return read_study(self.folder / STUDY_FILE)

    @property
    def manifest(self) -> dict[str, Any]:
        """Versions, seed and hashes."""
        return read_manifest(self.folder)

    def results(self) -> pl.DataFrame:
        """One row per unit of the study that is done, in the study's order; label columns are null where not used."""
        import polars as pl

        cells = [cell for task in self.study.tasks for cell in self.study.cells(task)]
        labels = {cell.condition.name: cell.condition.labels for cell in cells}
        places = self._places(labels)
        placed = [(place, row) for row in read_rows(self.folder) if (place := _place(row, places)) is not None]
        placed.sort(key=lambda pair: pair[0])
        schema = _schema()
        columns: dict[str, list[Any]] = {name: [] for name in schema}
        for _, row in placed:
            full = row | {"answers": json.loads(str(row["answers"]))} | dict(labels[str(row["condition"])])
            for name, values in columns.items():
                values.append(full.get(name))
        return pl.DataFrame(columns, schema=schema)

    def scores(self) -> pl.DataFrame:
        """Every score of the run in one long table, also in tables/scores.parquet; shares between 0 and 1.

        statistic: "score" of a model; "guess" of a guess without a model; "gain" from documents; "difference" of the
        gain of `model` minus that of `beside`; "only right", the share that `model` got right and `beside` did not.
        value, low, high: with a 95 % interval. n: samples, 0 where there is no value. p: of gains and differences;
        McNemar's for "only right". task: null for an average over tasks. panel, axis, x: of points of stress curves.
        """
        from floatscope.study.scores import score_frame

        return score_frame(self.results())

    def traces(
        self,
        model: str | None = None,
        task: str | None = None,
        condition: str | None = None,
        sample: str | None = None,
        control: str | None = "",
    ) -> list[Path]:
        """Paths of kept traces, in the order of the results; `control=None` gives controls too."""
        wanted = {"model": model, "task": task, "condition": condition, "sample": sample, "control": control}
        found = self.results()
        for name, value in wanted.items():
            if value is not None:
                found = found.filter(found[name] == value)
        return [self.folder / path for path in found["trace"].drop_nulls()]

    def _places(self, conditions: Iterable[str]) -> dict[str, dict[str, int]]:
        """The order of names in the study."""
        from floatscope.qa.guesses import GUESSES

        names = {
            "control": _CONTROL_ORDER,
            "model": [*(model.name for model in self.study.models), *GUESSES],
            "task": [task.name for task in self.study.tasks],
            "condition": conditions,
        }
        return {column: {name: place for place, name in enumerate(known)} for column, known in names.items()}


def _place(row: dict[str, Any], places: dict[str, dict[str, int]]) -> tuple[int, ...] | None:
    """Where a row stands in the study's order; None if it is no part of it."""
    found = [places[column].get(row[column]) for column in ("control", "model", "task", "condition")]
    known = [place for place in found if place is not None]
    return (*known, row["number"]) if len(known) == len(found) else None


def _schema() -> dict[str, Any]:
    """The columns of the results: the labels of all stressors stand behind the condition."""
    import polars as pl

    texts = dict.fromkeys(("model", "task", "condition", "stressor"), pl.String)
    types = {str: pl.String, int: pl.Int64, float: pl.Float64}
    labels = {name: types[kind] for name, kind in label_types().items()}
    rest = dict.fromkeys(("sample", "control", "question"), pl.String) | {"answers": pl.List(pl.String)}
    rest |= {"prediction": pl.String} | dict.fromkeys(("accuracy", "em", "f1"), pl.Float64)
    rest |= dict.fromkeys(("prompt_tokens", "steps", "cut"), pl.Int64) | dict.fromkeys(("error", "trace"), pl.String)
    if taken := labels.keys() & (texts | rest).keys():
        raise UserError(f"A stressor has a label {min(taken)!r}, which all results have: give it another name.")
    return texts | labels | rest
